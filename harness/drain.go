package harness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"conform/harness/ledger"
	"conform/harness/system"
)

// drainEvery is the pause between two looks at what an arm has left to do.
const drainEvery = 200 * time.Millisecond

// lookCounts is the most that one look adds to the time in which nothing has moved: on a machine that is so busy that looking
// takes long, what is looked at has had no time to move either.
const lookCounts = time.Second

// stuckAfter is how long nothing may move in an arm that is not drained.
func (w *wave) stuckAfter() time.Duration {
	return max(w.e.cfg.caps.stuck, 3*w.scenario.Redelivery)
}

// draining is an arm that is waited for.
type draining struct {
	arm      *armRun
	progress int64
	looked   time.Time
	still    time.Duration // for which nothing has moved
	seen     string
	err      error // of the last look
}

// drain waits until every arm has nothing left to do, for as long as something moves in it, and leaves
// in each what became of it. The error is the machine's, or the cause of ctx's end.
func (w *wave) drain(ctx context.Context) error {
	var open []*draining
	for _, a := range w.arms {
		if len(a.processes) > 0 || w.scenario.Drained != nil {
			open = append(open, &draining{arm: a, looked: time.Now(), progress: -1})
		}
	}
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	began := time.Now()
	for len(open) > 0 {
		var left []*draining
		for _, d := range open {
			quiet := w.look(ctx, d)
			if quiet == nil && time.Since(began) > w.e.cfg.caps.drain {
				quiet = &ledger.Event{Detail: fmt.Sprintf("not drained within %s, and still moving: %s", w.e.cfg.caps.drain, d.seen)}
			}
			if quiet == nil {
				left = append(left, d)
				continue
			}
			if errors.Is(d.err, system.ErrEnvironment) && ctx.Err() == nil && quiet.Outcome != ledger.OK {
				return fmt.Errorf("drain arm %s: %w", d.arm.arm.Name, d.err)
			}
			quiet.Kind = ledger.Quiet
			d.arm.drained = *quiet
		}
		open = left
		if len(open) == 0 {
			return nil
		}
		if err := w.machineFault(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// look looks at one arm. It returns nothing while the arm is not drained and may still be.
func (w *wave) look(ctx context.Context, d *draining) *ledger.Event {
	if ails := d.arm.ails(); len(ails) > 0 {
		return &ledger.Event{Detail: "not waited for: " + ails[0]}
	}
	ask := w.lag
	if w.scenario.Drained != nil {
		ask = func(ctx context.Context, a *armRun) (bool, string, int64, error) {
			return w.scenario.Drained(ctx, w.armEnv(a))
		}
	}
	actx, cancel := context.WithTimeout(ctx, askCap)
	defer cancel()
	done, seen, progress, err := ask(actx, d.arm)
	d.err = err
	took := time.Since(d.looked)
	d.looked = time.Now()
	if err != nil {
		seen = err.Error()
		d.still += took
	} else {
		d.still += min(took, lookCounts)
		progress += d.arm.Counts().sum()
		if progress != d.progress {
			d.progress, d.still = progress, 0
		}
	}
	d.seen = seen
	switch {
	case err == nil && done && (w.scenario.Drained != nil || d.still >= w.e.cfg.caps.quiet):
		return &ledger.Event{Outcome: ledger.OK, Detail: seen}
	case d.still < w.stuckAfter():
		return nil
	case err != nil:
		return &ledger.Event{Detail: fmt.Sprintf("whether it is drained could not be asked for %s: %s", w.stuckAfter(), seen)}
	default:
		return &ledger.Event{Outcome: ledger.Failed, N: int64(d.still), Detail: fmt.Sprintf("stuck: nothing has moved for %s: %s", d.still.Round(time.Second), seen)}
	}
}

// lag is how an arm is drained whose scenario does not say: its groups have passed all that is there,
// and (as look sees to) its workers have nothing more to report.
func (w *wave) lag(ctx context.Context, a *armRun) (done bool, seen string, progress int64, err error) {
	groups, ok := w.cluster.Cluster.(system.GroupPositions)
	if !ok {
		return true, "", 0, nil
	}
	lag := int64(0)
	for _, g := range a.header.Groups {
		for _, dest := range a.header.Destinations {
			if dest.DeadLetter {
				continue
			}
			ps, err := groups.GroupPositions(ctx, dest.Name, g.Name)
			if err != nil {
				return false, "", 0, err
			}
			for _, p := range ps {
				lag += p.Lag()
				progress += p.Committed + p.End
			}
		}
	}
	return lag == 0, fmt.Sprintf("lag %d", lag), progress, nil
}

// sum is a number that grows with whatever an arm's workers do.
func (c Counts) sum() int64 {
	return int64(c.Sent + c.Confirmed + c.Refused + c.InDoubt + c.Claimed + c.Ordered + c.Published + c.Received + c.Handled + c.Settled)
}
