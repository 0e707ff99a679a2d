package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"conform/harness/ledger"
)

const (
	flushEvery    = 10 * time.Millisecond // age of the oldest event that is only in memory, about
	progressEvery = 25 * time.Millisecond
)

// Session is what a role works with: its configuration, its journal, its counts and the engine's
// wishes. All methods may be called from several goroutines.
type Session struct {
	Config Config
	Log    *slog.Logger // to stderr

	out     *lineWriter
	journal *journal
	foreign bool

	started  chan struct{} // closed by "start"
	stopping chan struct{} // closed by "stop" and "end"
	ending   chan struct{} // closed by "end"
	once     struct{ start, stop, end sync.Once }

	rate        atomic.Int64
	rateChanged chan struct{} // capacity 1

	sent, confirmed, refused, inDoubt, claimed, received, settled, ordered, published, handled atomic.Int64

	points struct {
		sync.Mutex
		crash, hold int           // how often each was reached
		released    chan struct{} // of the one who is held; nil = nobody
	}
}

func newSession(c Config, log *slog.Logger, out *lineWriter, j *journal) *Session {
	s := &Session{
		Config: c, Log: log, out: out, journal: j,
		started: make(chan struct{}), stopping: make(chan struct{}), ending: make(chan struct{}),
		rateChanged: make(chan struct{}, 1),
	}
	s.rate.Store(int64(c.Rate))
	return s
}

// Ready tells the engine that the client is open and waits for its start. It returns the cause
// of ctx's end, or nil at once when the worker is to stop before it has begun.
func (s *Session) Ready(ctx context.Context) error {
	if err := s.out.write(newLine(evStartup)); err != nil {
		return err
	}
	select {
	case <-s.started:
		return nil
	case <-s.stopping:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Stopping is closed once the engine wants the worker to finish its work and end.
func (s *Session) Stopping() <-chan struct{} { return s.stopping }

// Ending is closed once the engine wants the worker to end without finishing.
func (s *Session) Ending() <-chan struct{} { return s.ending }

// Record appends an event; it is on its way to the disk within about 10 ms, and before any crash
// point. Foreign is set for clients of another language.
func (s *Session) Record(e ledger.Event) {
	e.Foreign = s.foreign
	s.journal.append(e)
}

// RecordNow appends an event and returns once it would survive a SIGKILL.
func (s *Session) RecordNow(e ledger.Event) error {
	e.Foreign = s.foreign
	return s.journal.appendNow(e)
}

// Counts returns the totals so far.
func (s *Session) Counts() Counts {
	// Completions before sends: a send that completes in between must not make the number in
	// flight negative.
	c := Counts{
		Confirmed: s.confirmed.Load(), Refused: s.refused.Load(), InDoubt: s.inDoubt.Load(),
		Claimed: s.claimed.Load(), Received: s.received.Load(), Settled: s.settled.Load(),
		Ordered: s.ordered.Load(), Published: s.published.Load(), Handled: s.handled.Load(),
	}
	c.Sent = s.sent.Load()
	return c
}

// SetRate sets the rate that ProducerRole keeps, in messages per second; 0 = as fast as the window allows.
func (s *Session) SetRate(perSecond int) {
	s.rate.Store(int64(perSecond))
	select {
	case s.rateChanged <- struct{}{}:
	default:
	}
}

// Count adds to the totals: roles of a suite's own say with it what they have done, so that a plan
// can wait for it. What ProducerRole and ConsumerRole do is counted by them.
func (s *Session) Count(c Counts) {
	s.sent.Add(c.Sent)
	s.confirmed.Add(c.Confirmed)
	s.refused.Add(c.Refused)
	s.inDoubt.Add(c.InDoubt)
	s.claimed.Add(c.Claimed)
	s.received.Add(c.Received)
	s.settled.Add(c.Settled)
	s.ordered.Add(c.Ordered)
	s.published.Add(c.Published)
	s.handled.Add(c.Handled)
}

// Point is PointOf where the point is about no message, or about many.
func (s *Session) Point(name string) error {
	return s.PointOf(context.Background(), name, 0, ledger.NoKey)
}

// PointOf is a named point that a message gets to. If it is the configured hold point, reached
// for the configured time, PointOf returns once the engine has released it, wants the worker to
// stop, or ctx ends. If it is the crash point, the worker kills itself here and PointOf does not
// return. The error is that of a journal that cannot be written, or the cause of ctx's end.
func (s *Session) PointOf(ctx context.Context, name string, event uint64, key uint32) error {
	c := &s.Config
	hold := c.HoldAt == name && c.HoldIf.picks(event, key)
	crash := c.CrashAt == name && c.CrashIf.picks(event, key)
	if !hold && !crash {
		return nil
	}
	s.points.Lock()
	if hold {
		s.points.hold++
		if hold = s.points.hold == max(1, c.HoldNth); hold {
			s.points.released = make(chan struct{})
		}
	}
	if crash {
		s.points.crash++
		crash = s.points.crash == max(1, c.CrashNth)
	}
	released := s.points.released
	s.points.Unlock()
	if hold {
		if err := s.hold(ctx, name, released); err != nil {
			return err
		}
	}
	if crash {
		return s.Crash(name)
	}
	return nil
}

func (s *Session) hold(ctx context.Context, point string, released <-chan struct{}) error {
	if err := s.tellPoint(evHeld, point); err != nil {
		return err
	}
	select {
	case <-released:
	case <-s.Stopping():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return s.out.write(newLine(evReleased))
}

// tellPoint says which point was reached, once all that was recorded would survive a SIGKILL.
func (s *Session) tellPoint(event, point string) error {
	if err := s.journal.flush(); err != nil {
		return err
	}
	c := s.Counts()
	l := newLine(event)
	l.Point, l.Counts = point, &c
	return s.out.write(l)
}

func (s *Session) release() {
	s.points.Lock()
	defer s.points.Unlock()
	if s.points.released != nil {
		close(s.points.released)
		s.points.released = nil
	}
}

// Crash flushes the journal, says which point was reached and kills the process by SIGKILL.
// It returns only if that could not be prepared.
func (s *Session) Crash(point string) error {
	if err := s.tellPoint(evCrash, point); err != nil {
		return err
	}
	return killSelf()
}

func killSelf() error {
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill myself: %w", err)
	}
	select {} // the signal is on its way
}

// keep flushes the journal and reports progress until ctx ends. Its error is that of the journal.
func (s *Session) keep(ctx context.Context) error {
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	progress := time.NewTicker(progressEvery)
	defer progress.Stop()
	var last Counts
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-flush.C:
			if err := s.journal.flush(); err != nil {
				return err
			}
		case <-progress.C:
			if now := s.Counts(); now != last {
				last = now
				if err := s.progress(now); err != nil {
					return err
				}
			}
		}
	}
}

func (s *Session) progress(c Counts) error {
	l := newLine(evProgress)
	l.Counts = &c
	return s.out.write(l)
}

// obey carries out one command.
func (s *Session) obey(c command) error {
	switch c.Cmd {
	case cmdStart:
		s.once.start.Do(func() { close(s.started) })
	case cmdRate:
		s.SetRate(c.Rate)
	case cmdStop:
		s.once.stop.Do(func() { close(s.stopping) })
	case cmdEnd:
		s.once.end.Do(func() { close(s.ending) })
		s.once.stop.Do(func() { close(s.stopping) })
	case cmdRelease:
		s.release()
	case cmdKill:
		return s.Crash("command")
	default:
		return fmt.Errorf("obey command %q: %w", c.Cmd, errUnknownCommand)
	}
	return nil
}

var errUnknownCommand = errors.New("no such command")
