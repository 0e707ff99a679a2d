package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"conform/harness"
)

// progress shows what a run is doing: whole lines, which stay, and on a terminal one line below
// them that is only true for the moment.
type progress struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	quiet    bool
	rest     strings.Builder
	live     bool // the momentary line stands on the screen
}

const (
	eraseLine = "\r\x1b[K"
	// terminalWidth keeps the momentary line from wrapping, which would leave parts of it behind.
	terminalWidth = 100
)

func newProgress(w io.Writer, terminal, quiet bool) *progress {
	return &progress{w: w, terminal: terminal, quiet: quiet}
}

// Write takes any part of lines. It never fails: progress is no reason to end a run.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quiet {
		return len(b), nil
	}
	p.rest.Write(b)
	whole, rest, found := cutLast(p.rest.String())
	if !found {
		return len(b), nil
	}
	p.rest.Reset()
	p.rest.WriteString(rest)
	p.erase()
	_, _ = io.WriteString(p.w, whole)
	return len(b), nil
}

// cutLast cuts after the last line feed.
func cutLast(s string) (whole, rest string, found bool) {
	i := strings.LastIndexByte(s, '\n')
	return s[:i+1], s[i+1:], i >= 0
}

// show replaces the momentary line.
func (p *progress) show(l harness.Live) {
	if p.quiet || !p.terminal {
		return
	}
	parts := []string{l.Suite + "/" + l.Scenario}
	if l.Runs > 1 {
		parts[0] += fmt.Sprintf(" %d/%d", l.Repeat, l.Runs)
	}
	parts = append(parts, l.Phase, l.Elapsed.Round(time.Second).String(),
		fmt.Sprintf("%.0f/s", l.Rate), fmt.Sprintf("%d confirmed", l.Counts.Confirmed), fmt.Sprintf("%d in doubt", l.Counts.InDoubt+l.Counts.InFlight()))
	if l.Fault != "" {
		parts = append(parts, "fault: "+l.Fault)
	}
	if l.Step != "" {
		parts = append(parts, "step: "+l.Step)
	}
	line := []rune(strings.Join(parts, " · "))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	_, _ = io.WriteString(p.w, string(line[:min(len(line), terminalWidth)]))
	p.live = true
}

// end clears the momentary line.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

func (p *progress) erase() {
	if p.live {
		_, _ = io.WriteString(p.w, eraseLine)
		p.live = false
	}
}
