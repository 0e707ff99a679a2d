package worker

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"conform/harness/internal/clock"
)

// command is a line that a worker reads, after its configuration.
type command struct {
	Cmd  string `json:"cmd"`
	Rate int    `json:"rate,omitempty"` // of "rate"
}

// The commands.
const (
	cmdStart = "start" // begin to send or to poll
	cmdRate  = "rate"  // messages per second from now on
	cmdStop  = "stop"  // send no more, flush, end
	cmdEnd   = "end"   // end without a flush
	cmdKill  = "kill"  // SIGKILL yourself
	// cmdRelease lets go of what is held at the hold point.
	cmdRelease = "release"
)

// line is a line that a worker writes: the common part of all events.
type line struct {
	Timestamp int64  `json:"timestamp"` // wall clock, ms, as Kafka's verifiable clients have it
	Mono      int64  `json:"mono,omitempty"`
	Name      string `json:"name"`
	Class     string `json:"class,omitempty"`   // of error: environment, usage, client
	Message   string `json:"message,omitempty"` // of error
	Point     string `json:"point,omitempty"`   // of crash_point and hold_point
	Count     int64  `json:"count,omitempty"`   // of buffered
	*Counts          // of progress
}

// The events.
const (
	evStartup  = "startup_complete"
	evProgress = "progress"
	evBuffered = "buffered"
	evCrash    = "crash_point"
	evHeld     = "hold_point"
	evReleased = "released"
	evError    = "error"
	evShutdown = "shutdown_complete"
)

// lineWriter writes whole lines from several goroutines.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) write(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode line: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.w.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write line: %w", err)
	}
	return nil
}

func newLine(name string) line {
	return line{Name: name, Timestamp: clock.Wall() / 1e6, Mono: clock.Now()}
}
