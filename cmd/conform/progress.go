package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"conform/harness"
)

// progress shows what a run is doing: whole lines, which stay, and on a terminal one line below
// them that is only true for the moment.
type progress struct {
	mu      sync.Mutex
	w       io.Writer
	columns int
	quiet   bool
	rest    strings.Builder
	live    bool // the momentary line stands on the screen
}

const eraseLine = "\r\x1b[K"

// newProgress writes to w; columns is the width of the terminal that w is, 0 = it is none.
func newProgress(w io.Writer, columns int, quiet bool) *progress {
	return &progress{w: w, columns: columns, quiet: quiet}
}

// columns is the width of a terminal, 0 if f is none.
func columns(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return max(int(size.Col), 40) // some say 0
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
	if p.quiet || p.columns == 0 {
		return
	}
	parts := []string{l.Suite + "/" + l.Scenario}
	if l.Runs > 1 {
		parts[0] += fmt.Sprintf(" %d/%d", l.Repeat, l.Runs)
	}
	parts = append(parts, l.Phase+" "+l.Elapsed.Round(time.Second).String())
	switch {
	case l.Fault != "":
		parts = append(parts, l.Fault)
	case l.Step != "":
		parts = append(parts, "awaiting "+l.Step)
	}
	parts = append(parts, fmt.Sprintf("%.0f/s", l.Rate), fmt.Sprintf("%d confirmed", l.Counts.Confirmed), fmt.Sprintf("%d in doubt", l.Counts.InDoubt))
	line := []rune(strings.Join(parts, " · "))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	// A line that wraps would leave a part of it behind.
	_, _ = io.WriteString(p.w, string(line[:min(len(line), p.columns-1)]))
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
