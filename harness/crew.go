package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/worker"
)

// crew is a place in an arm that workers fill one after the other: the load's producers, or those
// of a process.
type crew struct {
	arm    *armRun
	name   string                         // "producer", or the process's
	config func(number int) worker.Config // of worker number, from 0; the arm completes it
	// follows says whether a worker follows number, which ended as planned, crashed or not.
	follows func(number int, crashed bool) bool
	manual  bool
	points  bool // a crash or hold point is configured: its crashes are strikes

	mu      sync.Mutex
	number  int             // of the next worker
	current *worker.Process // nil = none
	halt    chan struct{}   // tells current's attendant to end it
	halted  bool
	over    bool          // no worker is started any more
	idle    chan struct{} // closed while nobody drives the crew
	tally   tally         // of the workers that have ended, but for at
	note    string        // why current was killed, if the engine did it
	strikes []*strike
}

// tally is what a crew has come to.
type tally struct {
	counts Counts
	ended  int            // workers that ended as planned
	at     map[string]int // points reached, held or crashed, and how often; "" = any
}

// strike is a crash, a hold, a kill or a freeze of one worker.
type strike struct {
	id    string
	frees bool                            // it is a hold
	heal  func(ctx context.Context) error // nil = the next worker heals it
}

// producerCrew names the crew of an arm's load.
const producerCrew = "producer"

func (c *crew) workerName(number int) string {
	switch {
	case c.name == producerCrew:
		return producerCrew + "-" + strconv.Itoa(number+1)
	case number > 0:
		return c.name + "-r" + strconv.Itoa(number+1)
	default:
		return c.name
	}
}

// start starts the next worker and waits until its client is open.
func (c *crew) start(ctx context.Context) (*worker.Process, error) {
	limit := c.arm.caps.start
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("client of %s of arm %s is not open after %s: %w", c.name, c.arm.arm.Name, limit, system.ErrEnvironment))
	defer cancel()
	c.mu.Lock()
	number := c.number
	c.mu.Unlock()
	p, err := worker.Start(ctx, c.arm.argv, c.arm.complete(c.config(number), c.workerName(number)))
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.number++
	c.current, c.halt, c.halted, c.note = p, make(chan struct{}), false, ""
	if c.over {
		c.haltLocked()
	}
	c.mu.Unlock()
	if err := p.Ready(ctx); err != nil {
		p.Kill()
		_, ended := c.finish(p, "its client was not open in time")
		return nil, errors.Join(fmt.Errorf("open client of %s of arm %s: %w", c.name, c.arm.arm.Name, err), ended)
	}
	_, err = c.heal(ctx, func(s *strike) bool { return s.heal == nil })
	return p, err
}

// drive sees the crew's workers through, the first of which is ready, until none is to follow. The
// error is the machine's, and the arm's too.
func (c *crew) drive(ctx context.Context, p *worker.Process) error {
	defer c.rest()
	for {
		p.Begin()
		note := c.attend(ctx, p)
		end, err := c.finish(p, note)
		if err != nil {
			return c.arm.fail(err)
		}
		c.mu.Lock()
		next := end.Planned && !c.over && ctx.Err() == nil && c.follows(c.number-1, end.Point != "")
		c.mu.Unlock()
		if !next {
			return nil
		}
		if p, err = c.start(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, system.ErrEnvironment) || c.name == producerCrew {
				return c.arm.fail(err)
			}
			return nil // its end is recorded, and makes the arm inconclusive
		}
	}
}

// rest marks the crew as driven by nobody.
func (c *crew) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.idle)
}

// claim marks the crew as driven, or says that somebody does so already.
func (c *crew) claim() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.idle:
		c.idle = make(chan struct{})
		return true
	default:
		return false
	}
}

// hasEnded says that none of the crew's workers runs and none follows by itself.
func (c *crew) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.idle:
		return c.number > 0
	default:
		return false
	}
}

// attend waits for a worker's end and returns why it was killed, if it was. What happens at its hold
// point meanwhile is recorded.
func (c *crew) attend(ctx context.Context, p *worker.Process) (note string) {
	c.mu.Lock()
	halt := c.halt
	c.mu.Unlock()
	var late <-chan time.Time // once it was told to end
	held := 0
	for {
		changed := p.Changed()
		if h := p.Held(); h.Times > held {
			held = h.Times
			if err := c.holds(p, h); err != nil {
				_ = c.arm.fail(err)
			}
		}
		select {
		case <-changed:
		case <-p.Done():
			return ""
		case <-halt:
			halt = nil
			p.Stop()
			timer := time.NewTimer(c.arm.caps.flush)
			defer timer.Stop()
			late = timer.C
		case <-late:
			note = fmt.Sprintf("stuck, it did not end within %s", c.arm.caps.flush)
			p.Kill()
			late = nil
		case <-ctx.Done():
			p.Kill()
			<-p.Done()
			if note == "" {
				note = "the run was ended"
			}
			return note
		}
		if note != "" {
			<-p.Done()
			return note
		}
	}
}

// holds records that a worker is held, as a strike that its release heals.
func (c *crew) holds(p *worker.Process, h worker.Held) error {
	detail := fmt.Sprintf("%s is held at %s", c.name, h.Point)
	err := c.strike(&strike{id: "hold-" + c.name, frees: true, heal: func(context.Context) error { p.Release(); return nil }}, detail, detail, h.At)
	c.reach(h.Point)
	return err
}

func (c *crew) reach(point string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tally.at[point]++
	c.tally.at[""]++
}

// finish records how a worker ended, with a note where it was killed. The error is the machine's.
func (c *crew) finish(p *worker.Process, note string) (worker.End, error) {
	end := p.End()
	if !end.Planned && note != "" {
		end.How += ": " + note
	}
	var err error
	if end.Point != "" && c.points && end.Planned {
		err = c.strike(&strike{id: "crash-" + c.name}, fmt.Sprintf("%s kills itself at %s", c.name, end.Point), fmt.Sprintf("pid %d is gone", end.Pid), end.PointAt)
		c.reach(end.Point)
	}
	c.mu.Lock()
	name := c.workerName(c.number - 1)
	c.tally.counts = c.tally.counts.plus(p.Counts())
	c.current = nil
	if end.Planned {
		c.tally.ended++
	}
	c.mu.Unlock()
	if !end.Planned {
		c.arm.note(fmt.Sprintf("%s of arm %s %s", name, c.arm.arm.Name, end.How))
	}
	e := ledger.Event{Kind: ledger.WorkerEnd, Text: name, Detail: end.How, N: end.Buffered}
	if journal, err := os.Stat(filepath.Join(c.arm.folder, name+journalTail)); err == nil { // one that never opened it has none
		e.Count = journal.Size()
	}
	if end.Planned {
		e.Outcome = ledger.OK
	}
	err = errors.Join(err, c.arm.record(e))
	if errors.Is(end.Err, system.ErrEnvironment) {
		err = errors.Join(end.Err, err)
	}
	return end, err
}

// strike records that a worker was struck at a time, with the proof.
func (c *crew) strike(s *strike, detail, proof string, at int64) error {
	c.mu.Lock()
	c.strikes = append(c.strikes, s)
	c.mu.Unlock()
	return errors.Join(
		c.arm.record(ledger.Event{Kind: ledger.Inject, Text: s.id, Detail: detail, At: at}),
		c.arm.record(ledger.Event{Kind: ledger.Bite, Text: s.id, Outcome: ledger.OK, Detail: proof, N: 1}),
	)
}

// heal heals those strikes that are picked, the last one first, records that, and returns how many.
func (c *crew) heal(ctx context.Context, pick func(*strike) bool) (int, error) {
	c.mu.Lock()
	var chosen, left []*strike
	for _, s := range c.strikes {
		if pick(s) {
			chosen = append([]*strike{s}, chosen...)
		} else {
			left = append(left, s)
		}
	}
	c.strikes = left
	c.mu.Unlock()
	var errs []error
	for _, s := range chosen {
		e := ledger.Event{Kind: ledger.Heal, Text: s.id, Outcome: ledger.OK}
		if s.heal != nil {
			if err := s.heal(ctx); err != nil {
				e.Outcome, e.Detail = ledger.Failed, err.Error()
				errs = append(errs, environment(err))
			}
		}
		errs = append(errs, c.arm.record(e))
	}
	return len(chosen), errors.Join(errs...)
}

// Counts returns what the crew's workers have reported so far.
func (c *crew) Counts() Counts { return c.state().counts }

func (c *crew) state() tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tally
	t.at = maps.Clone(t.at)
	if c.current != nil {
		t.counts = t.counts.plus(c.current.Counts())
	}
	return t
}

// end lets the current worker finish and end, after which none follows.
func (c *crew) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.haltLocked()
}

// stop lets the current worker finish and end; another may follow.
func (c *crew) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.haltLocked()
}

// await waits until nobody drives the crew.
func (c *crew) await(ctx context.Context) error {
	c.mu.Lock()
	idle := c.idle
	c.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s: %w", c.name, context.Cause(ctx))
	}
}

func (c *crew) haltLocked() {
	if c.current != nil && !c.halted {
		c.halted = true
		close(c.halt)
	}
}

// worker returns the one that runs, or an error.
func (c *crew) worker() (*worker.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		return nil, fmt.Errorf("%s of arm %s does not run: %w", c.name, c.arm.arm.Name, errCapped)
	}
	return c.current, nil
}
