package suites

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"conform/harness/ledger"
	"conform/harness/worker"
	"conform/suites/chain"
)

// The roles around tasks that are due later.
const (
	roleScanner = "task-scanner" // looks for tasks that are due, and executes them
	roleChanger = "task-changer" // calls off, or moves, what a scanner has read and not yet executed, and ends
)

func init() {
	worker.Register(roleScanner, scanTasks)
	worker.Register(roleChanger, changeTasks)
}

const (
	// paramScan is a chain.Scanner by name, default ScanTasks; paramExecute a chain.Executor, default Remind.
	paramScan    = "scan"
	paramExecute = "execute"
	// paramSkew is by how much the scanner's own clock is ahead; default 0. That it is, is a strike.
	paramSkew = "skew"
	// tellPauses, as paramTell, makes the pause between two scans a strike.
	tellPauses = "pauses"
)

// Strikes of the roles around tasks.
const (
	strikeSkew   = "clock-ahead"
	strikePause  = "between-scans"
	strikeFollow = "followed-up"
	strikeChange = "changed"
	strikeAhead  = "future"
)

// atTask records the work on a task: it is delivered when its work begins.
func atTask(ctx context.Context, s *worker.Session, point string, ev chain.Event) error {
	switch point {
	case chain.BeforeTask:
		if err := s.RecordNow(taskEvent(s, ledger.Received, ev)); err != nil {
			return err
		}
		s.Count(worker.Counts{Received: 1})
	case chain.AfterBusinessCommit:
		if err := handledTask(s, ev, chain.Applied); err != nil {
			return err
		}
	}
	return s.PointOf(ctx, point, ev.ID, ev.Key)
}

func handledTask(s *worker.Session, ev chain.Event, result chain.Result) error {
	e := taskEvent(s, ledger.Handled, ev)
	e.Text, e.Outcome = string(result), ledger.OK
	s.Count(worker.Counts{Handled: 1})
	return s.RecordNow(e)
}

// taskEvent is an event about a task, which has no position anywhere.
func taskEvent(s *worker.Session, kind ledger.Kind, ev chain.Event) ledger.Event {
	stream, seq := ledger.SplitEventID(ev.ID)
	return ledger.Event{
		Kind: kind, Consumer: s.Config.Consumer, Stream: stream, Seq: seq, EventID: ev.ID, Key: ev.Key, At: worker.Now(),
		Pos: ledger.Position{Destination: s.Config.Destination, Offset: -1},
	}
}

// calledOff records that nothing is left to do about an order.
func calledOff(s *worker.Session, ev chain.Event) {
	s.Record(ledger.Event{Kind: ledger.Claimed, EventID: ev.ID, Claim: ledger.ClaimFailed, At: worker.Now(), Text: ledger.CalledOff})
}

// scanTasks looks for tasks and executes them until the worker is to stop.
func scanTasks(ctx context.Context, s *worker.Session) error {
	p := &settingsOf{params: s.Config.Params}
	scan := function[chain.Scanner](p, paramScan, "ScanTasks")
	execute := function[chain.Executor](p, paramExecute, "Remind")
	skew := p.duration(paramSkew)
	pool, err := openDatabase(ctx, s.Config)
	if err != nil {
		return err
	}
	defer pool.Close()
	service := newService(s, p, pool)
	service.Now = func() time.Time { return time.Now().Add(skew) }
	service.Point = func(ctx context.Context, point string, ev chain.Event) error { return atTask(ctx, s, point, ev) }
	if p.err != nil {
		return p.err
	}
	if err := s.Ready(ctx); err != nil {
		return err
	}
	if skew > 0 {
		if err := tellSkew(ctx, s, service); err != nil {
			return err
		}
	}
	telling := func(ctx context.Context, service *chain.Service, t chain.Task) (chain.Result, error) {
		result, err := execute(ctx, service, t)
		switch {
		case err != nil || result == chain.Applied: // recorded at its point already
			return result, err
		case result == chain.OutOfDate: // a task's own last word
			calledOff(s, t.Event)
		}
		return result, handledTask(s, t.Event, result)
	}
	tell := p.params[paramTell] == tellPauses
	last := int64(0)
	return untilStopped(ctx, s, func(ctx context.Context) error {
		return chain.RunScans(ctx, service, func(ctx context.Context, service *chain.Service) (int, error) {
			now := worker.Now()
			if tell && last != 0 {
				tell = false
				pause := time.Duration(now - last).Round(time.Millisecond)
				if err := strikeSince(s, last, strikePause, "nobody looks for tasks between two scans", fmt.Sprintf("%s from one scan to the next", pause), 1); err != nil {
					return 0, err
				}
			}
			last = now
			return scan(ctx, service, telling)
		})
	})
}

// tellSkew records by how much the clock is ahead of the database's.
func tellSkew(ctx context.Context, s *worker.Session, service *chain.Service) error {
	var at time.Time
	if err := service.DB.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&at); err != nil {
		return fmt.Errorf("ask the database for the time: %w", err)
	}
	ahead := service.Now().Sub(at).Round(time.Millisecond)
	if ahead <= 0 {
		return fmt.Errorf("the scanner's clock is not ahead of the database's: by %s", ahead)
	}
	return strike(s, strikeSkew, "a scanner's clock is ahead", fmt.Sprintf("its clock is %s ahead of the database's", ahead), 1)
}

// changed is how many tasks a changer changes.
const changed = 6

// changeTasks calls off, and moves, by turns, the oldest tasks that are due and not executed.
func changeTasks(ctx context.Context, s *worker.Session) error {
	p := &settingsOf{params: s.Config.Params}
	pool, err := openDatabase(ctx, s.Config)
	if err != nil {
		return err
	}
	defer pool.Close()
	service := newService(s, p, pool)
	if p.err != nil {
		return p.err
	}
	if err := s.Ready(ctx); err != nil {
		return err
	}
	rows, err := pool.Query(ctx, "SELECT event_id FROM delay_task WHERE status = 'pending' AND due_at <= clock_timestamp() ORDER BY due_at, event_id LIMIT $1", changed)
	if err != nil {
		return fmt.Errorf("read tasks: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("read tasks: %w", err)
	}
	struck, done := worker.Now(), 0
	for i, id := range ids {
		ev := eventOf(s.Config, uint64(id))
		began := worker.Now()
		if i%2 == 0 {
			result, err := chain.CancelTask(ctx, service, ev)
			if err != nil {
				return fmt.Errorf("cancel task: %w", err) // whether it was is not known: the run says so
			}
			if result == chain.Applied {
				calledOff(s, ev)
				done++
			}
			continue
		}
		result, err := chain.MoveTask(ctx, service, ev)
		e := ledger.Event{Kind: ledger.Ordered, EventID: ev.ID, Key: ev.Key, N: ev.Version, Outcome: ledger.OK, Sent: began, At: worker.Now(), Text: "move"}
		switch {
		case errors.Is(err, chain.ErrInDoubt):
			e.Outcome = ledger.InDoubt
		case err != nil:
			return fmt.Errorf("move task: %w", err)
		case result != chain.Applied:
			continue
		}
		s.Record(e)
		done++
	}
	if done == 0 {
		return errors.New("no task is due and open: nothing could be changed")
	}
	return strikeSince(s, struck, strikeChange, "tasks that are due are called off, and moved", fmt.Sprintf("%d of them were", done), done)
}

// turnWheel turns a timing wheel beside the load. The worker does not end while timers run, unless it has to.
func (o *ordering) turnWheel(ctx context.Context) (stop func()) {
	wheel := &chain.Wheel{}
	wheel.Fire = func(ctx context.Context, ev chain.Event) {
		fire := chain.RemindNow
		if o.claims {
			fire = func(ctx context.Context, s *chain.Service, ev chain.Event) (chain.Result, error) {
				return chain.Applied, s.Publisher.Publish(ctx, ev)
			}
		}
		if _, err := fire(ctx, o.service, ev); err != nil {
			o.s.Log.Info("timer failed", "event", ev.ID, "error", chain.Redact(err))
		}
	}
	o.service.Wheel = wheel
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	turned := make(chan struct{})
	go func() { defer close(turned); wheel.Run(ctx) }()
	return func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ending := false; wheel.Left() > 0 && !ending; {
			select {
			case <-tick.C:
			case <-o.s.Ending():
				ending = true
			}
		}
		cancel()
		<-turned
	}
}

// followUp calls the handler that follows each fourth order.
func (o *ordering) followUp(ctx context.Context, ev chain.Event) error {
	const each, least = 4, 10
	if _, seq := ledger.SplitEventID(ev.ID); o.follow == nil || seq%each != 0 {
		return nil
	}
	began := worker.Now()
	result, err := o.follow(ctx, o.service, ev)
	if err != nil {
		return fmt.Errorf("follow an order up: %w", err) // whether it was is not known: the run says so
	}
	if result != chain.Applied {
		return nil // too late
	}
	calledOff(o.s, ev)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.followed++; o.followed == 1 {
		o.since = began
	}
	if o.followed != least {
		return nil
	}
	return strikeSince(o.s, o.since, strikeFollow, "orders are paid before their task is due", fmt.Sprintf("%d of them were", least), least)
}
