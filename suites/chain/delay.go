package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Task is something to be done about an order once it is due, as a scanner has it in hand: a reminder, or to cancel the order
// unless it is paid.
type Task struct {
	Event       // the order
	Fence int64 // of the claim: each claim of a task has a higher one than those before it
}

// PlaceTimedOrder writes an order and its task, which is due after Service.Delay.
func PlaceTimedOrder(ctx context.Context, s *Service, ev Event) error {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.do(ctx, insertOrder)
	w.do(ctx, insertTask) // safe: the task is committed together with the order, and is there whoever dies
	w.at(ctx, BeforeOrderCommit)
	w.commit(ctx)
	w.at(ctx, AfterOrderCommit)
	return w.err
}

// PlaceOrderOnWheel is PlaceTimedOrder, but the task is a timer of this process.
func PlaceOrderOnWheel(ctx context.Context, s *Service, ev Event) error {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.do(ctx, insertOrder)
	w.do(ctx, putOnWheel) // unsafe: what is only in memory dies with the process, however well it keeps time
	w.at(ctx, BeforeOrderCommit)
	w.commit(ctx)
	w.at(ctx, AfterOrderCommit)
	return w.err
}

// PlaceOrderInLog is PlaceTimedOrder, but leaves it to the broker: the record says when it is due.
func PlaceOrderInLog(ctx context.Context, s *Service, ev Event) error {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.do(ctx, insertOrder)
	w.do(ctx, insertEvent) // unsafe: a timestamp in the future is a text to the broker: who reads has the record at once
	w.at(ctx, BeforeOrderCommit)
	w.commit(ctx)
	w.at(ctx, AfterOrderCommit)
	return w.err
}

// SendDelayed hands an event to a broker that keeps it back, which its Publisher asks for.
func SendDelayed(ctx context.Context, s *Service, ev Event) error {
	if err := s.at(ctx, BeforePublish, ev); err != nil {
		return err
	}
	return s.Publisher.Publish(ctx, ev) // safe: confirmed by the broker, which has it on its disk until it is due
}

// SendOnWheel is SendDelayed, but keeps the event back itself.
func SendOnWheel(ctx context.Context, s *Service, ev Event) error {
	if err := s.at(ctx, BeforePublish, ev); err != nil {
		return err
	}
	return s.onWheel(ev) // unsafe: what is only in memory dies with the process, and nobody has heard of it
}

// ScanTasks executes a batch of the tasks that are due, and returns how many that were. Any number of scanners may run. A task
// is never early, and late by at most the pause between two scans and, if its scanner died, the lease.
func ScanTasks(ctx context.Context, s *Service, execute Executor) (int, error) {
	c := s.scan()
	c.due = byDatabase   // safe: one clock for all, that of the database
	c.free = orLeaseOver // safe: who has claimed it may be dead: once the lease is over it is anybody's
	for c.next(ctx) {
		c.claim(ctx) // safe: the row as it is now, not as it was read, decides, in one update; then it is ours for the lease
		c.execute(ctx, execute)
	}
	return c.done, c.err
}

// ScanByOwnClock is ScanTasks, but asks its own machine what time it is.
func ScanByOwnClock(ctx context.Context, s *Service, execute Executor) (int, error) {
	c := s.scan()
	c.due = byOwnClock   // unsafe: the machine's clock may be ahead, and then everything is early
	c.free = orLeaseOver // safe: who has claimed it may be dead: once the lease is over it is anybody's
	for c.next(ctx) {
		c.claim(ctx) // safe: the row as it is now, not as it was read, decides, in one update; then it is ours for the lease
		c.execute(ctx, execute)
	}
	return c.done, c.err
}

// ScanUnclaimed is ScanTasks, but relies on whoever has claimed a task to execute it.
func ScanUnclaimed(ctx context.Context, s *Service, execute Executor) (int, error) {
	c := s.scan()
	c.due = byDatabase // safe: one clock for all, that of the database
	c.free = unclaimed // unsafe: a scanner that dies keeps what it has claimed for ever
	for c.next(ctx) {
		c.claim(ctx) // safe: the row as it is now, not as it was read, decides, in one update; then it is ours for the lease
		c.execute(ctx, execute)
	}
	return c.done, c.err
}

// ScanWithoutClaim is ScanTasks, but executes what it has read.
func ScanWithoutClaim(ctx context.Context, s *Service, execute Executor) (int, error) {
	c := s.scan()
	c.due = byDatabase   // safe: one clock for all, that of the database
	c.free = orLeaseOver // safe: who has claimed it may be dead: once the lease is over it is anybody's
	for c.next(ctx) {
		c.takeAsRead() // unsafe: it may be cancelled by now, or moved, or in the hands of another scanner
		c.execute(ctx, execute)
	}
	return c.done, c.err
}

// Remind executes a task that is a reminder: the customer is told.
func Remind(ctx context.Context, s *Service, t Task) (Result, error) {
	w := s.begin(ctx, t.Event)
	defer w.end(ctx)
	w.finish(ctx, t, byFence) // safe: who was frozen past the lease finds that somebody has claimed it since
	w.skip(ctx, pastItsUse)   // safe: what comes too late to be of use is not done, and the row says so
	w.at(ctx, BeforeTask)
	w.do(ctx, notify)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// RemindUnfenced is Remind, but does not ask whether the claim is still the last one.
func RemindUnfenced(ctx context.Context, s *Service, t Task) (Result, error) {
	w := s.begin(ctx, t.Event)
	defer w.end(ctx)
	w.finish(ctx, t, byAnybody) // unsafe: who was frozen past the lease does it again, after whoever did it meanwhile
	w.skip(ctx, pastItsUse)     // safe: what comes too late to be of use is not done, and the row says so
	w.at(ctx, BeforeTask)
	w.do(ctx, notify)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// RemindHoweverLate is Remind, but does not ask whether it is still of use.
func RemindHoweverLate(ctx context.Context, s *Service, t Task) (Result, error) {
	w := s.begin(ctx, t.Event)
	defer w.end(ctx)
	w.finish(ctx, t, byFence) // safe: who was frozen past the lease finds that somebody has claimed it since
	// unsafe: after an outage people are reminded of what is over
	w.at(ctx, BeforeTask)
	w.do(ctx, notify)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// CancelUnpaid executes a task that cancels an order unless it is paid, and tells the customer.
func CancelUnpaid(ctx context.Context, s *Service, t Task) (Result, error) {
	w := s.begin(ctx, t.Event)
	defer w.end(ctx)
	w.finish(ctx, t, byFence)
	w.at(ctx, BeforeTask)
	w.change(ctx, ifUnpaid, Settled) // safe: the order's state is asked for by the update itself
	w.do(ctx, notify)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// CancelUnchecked is CancelUnpaid, but takes the order to be as it was when the task was written.
func CancelUnchecked(ctx context.Context, s *Service, t Task) (Result, error) {
	w := s.begin(ctx, t.Event)
	defer w.end(ctx)
	w.finish(ctx, t, byFence)
	w.at(ctx, BeforeTask)
	w.change(ctx, anyway, Settled) // unsafe: an order that was paid meanwhile is cancelled
	w.do(ctx, notify)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// PublishTask executes a task by handing it on: its event goes to the outbox, now that it is due.
func PublishTask(ctx context.Context, s *Service, t Task) (Result, error) {
	w := s.begin(ctx, t.Event)
	defer w.end(ctx)
	w.finish(ctx, t, byFence)
	w.skip(ctx, pastItsUse)
	w.do(ctx, insertEvent)
	w.commit(ctx)
	return w.done()
}

// PayInTime pays an order, unless it is cancelled. Its task will find it paid.
func PayInTime(ctx context.Context, s *Service, ev Event) (Result, error) {
	return s.one(ctx, ev, fromNew)
}

// CancelTask calls a task off, unless somebody has claimed it.
func CancelTask(ctx context.Context, s *Service, ev Event) (Result, error) {
	return s.one(ctx, ev, callOff)
}

// MoveTask makes a task due Service.Delay from now, unless somebody has claimed it.
func MoveTask(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.change(ctx, putOff(s.Delay), Stale)
	w.commit(ctx)
	return w.done()
}

// one runs one update, which may come too late.
func (s *Service) one(ctx context.Context, ev Event, update string) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.change(ctx, update, Stale)
	w.commit(ctx)
	return w.done()
}

// RunScans scans every Service.Poll until ctx ends. A scan that failed is followed by the next like any other.
func RunScans(ctx context.Context, s *Service, scan Job) error {
	for ctx.Err() == nil {
		if _, err := scan(ctx, s); err != nil && ctx.Err() == nil {
			s.log().WarnContext(ctx, "scan failed", "error", Redact(err))
		}
		_ = s.sleep(ctx, s.poll()) // ctx ended: the loop sees it too
	}
	return nil
}

// Which tasks are to be read. $1 is the batch size or the event id, $2 the time on the scanner's own clock.
const (
	byDatabase = "due_at <= clock_timestamp() AND $2::timestamptz IS NOT NULL"
	byOwnClock = "due_at <= $2::timestamptz"

	orLeaseOver = "status = 'pending' OR status = 'claimed' AND leased_until < clock_timestamp()"
	unclaimed   = "status = 'pending'"
)

// Who may finish a task. $1 is the event id, $2 the fence of the claim.
const (
	byFence   = "UPDATE delay_task SET status = 'done' WHERE event_id = $1 AND fence = $2"
	byAnybody = "UPDATE delay_task SET status = 'done' WHERE event_id = $1 AND $2::bigint IS NOT NULL"
)

// What becomes of an order and its task. $1 is the event id, $2 the key, $3 the version, $4 the amount.
const (
	ifUnpaid = "UPDATE orders SET state = 'cancelled' WHERE (event_id, key, version, amount) = ($1, $2, $3, $4) AND state = 'new'"
	anyway   = "UPDATE orders SET state = 'cancelled' WHERE (event_id, key, version, amount) = ($1, $2, $3, $4)"

	pastItsUse = `UPDATE delay_task SET status = 'skipped' WHERE (event_id, key, version, amount) = ($1, $2, $3, $4)
		AND useful_until < clock_timestamp()`
	callOff = "UPDATE delay_task SET status = 'cancelled' WHERE (event_id, key, version, amount) = ($1, $2, $3, $4) AND status = 'pending'"
)

// putOff makes a task due later.
func putOff(delay time.Duration) string {
	return fmt.Sprintf(`UPDATE delay_task SET due_at = clock_timestamp() + make_interval(secs => %f)
		WHERE (event_id, key, version, amount) = ($1, $2, $3, $4) AND status = 'pending'`, delay.Seconds())
}

// The database's clock at the INSERT counts, so that the wait for a lock before it is no part of the delay.
var insertTask = exec(`INSERT INTO delay_task (event_id, key, version, amount, due_at, useful_until)
	SELECT $1, $2, $3, $4, now + make_interval(secs => $5), now + make_interval(secs => $5 + nullif($6::float8, 0)) FROM clock_timestamp() AS now
	ON CONFLICT (event_id) DO NOTHING`, func(s *Service, _ Event) []any { return []any{s.Delay.Seconds(), s.Use.Seconds()} })

func putOnWheel(_ context.Context, _ pgx.Tx, s *Service, ev Event) error { return s.onWheel(ev) }

func (s *Service) onWheel(ev Event) error {
	if s.Wheel == nil {
		return errors.New("there is no wheel")
	}
	s.Wheel.Add(s.Delay, ev)
	return nil
}

// scanning is one scan. After an error its methods do nothing more.
type scanning struct {
	s         *Service
	due, free string
	read      bool
	tasks     []Task
	task      Task // in hand
	claimed   bool
	done      int
	err       error
}

func (s *Service) scan() *scanning { return &scanning{s: s} }

// next takes the next task in hand. The first time it reads what is due.
func (c *scanning) next(ctx context.Context) bool {
	if !c.read {
		c.read = true
		c.tasks, c.err = c.s.readTasks(ctx, "SELECT event_id, key, version, amount, fence FROM delay_task WHERE "+c.due+" AND ("+c.free+`)
			ORDER BY due_at, event_id LIMIT $1`)
	}
	if c.err != nil || len(c.tasks) == 0 || ctx.Err() != nil {
		return false
	}
	c.task, c.tasks, c.claimed = c.tasks[0], c.tasks[1:], false
	c.err = c.s.at(ctx, AfterFetch, c.task.Event)
	return c.err == nil
}

// claim makes the task ours for the lease, if it is still due and nobody's.
func (c *scanning) claim(ctx context.Context) {
	if c.err != nil {
		return
	}
	err := c.s.DB.QueryRow(ctx, `UPDATE delay_task SET status = 'claimed', fence = fence + 1, claimed_by = $3,
			leased_until = clock_timestamp() + make_interval(secs => $4)
		WHERE event_id = $1 AND `+c.due+" AND ("+c.free+") RETURNING fence",
		int64(c.task.ID), c.s.now(), c.s.Name, c.s.taskLease().Seconds()).Scan(&c.task.Fence)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // not any more
	case err != nil:
		c.err = fmt.Errorf("claim task: %w", err)
	default:
		c.claimed = true
		c.err = c.s.at(ctx, AfterClaim, c.task.Event)
	}
}

func (c *scanning) takeAsRead() { c.claimed = true }

// execute executes a task that is ours. If that fails, it comes again once the lease is over.
func (c *scanning) execute(ctx context.Context, execute Executor) {
	if c.err != nil || !c.claimed {
		return
	}
	if _, c.err = execute(ctx, c.s, c.task); c.err == nil {
		c.done++
	}
}

// finish says that the task is done, if it is still whoever's has claimed it.
func (w *work) finish(ctx context.Context, t Task, who string) {
	if w.over() {
		return
	}
	tag, err := w.tx.Exec(ctx, who, int64(t.ID), t.Fence)
	w.err = err
	if tag.RowsAffected() == 0 {
		w.result = Stale
	}
}

// skip ends the work, but for the row that says so, if its update finds something to say.
func (w *work) skip(ctx context.Context, update string) {
	if w.over() {
		return
	}
	tag, err := w.tx.Exec(ctx, update, int64(w.ev.ID), int64(w.ev.Key), w.ev.Version, w.ev.Amount)
	w.err = err
	if tag.RowsAffected() > 0 {
		w.result = OutOfDate
	}
}

func (s *Service) readTasks(ctx context.Context, sql string) (tasks []Task, err error) {
	err = pgx.BeginFunc(ctx, s.DB, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sql, s.batch(), s.now())
		if err != nil {
			return err
		}
		tasks, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Task, err error) {
			var id, key int64
			err = row.Scan(&id, &key, &t.Version, &t.Amount, &t.Fence)
			t.ID, t.Key, t.Body = uint64(id), uint32(key), []byte{}
			return t, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read tasks: %w", err)
	}
	return tasks, nil
}

func (s *Service) taskLease() time.Duration { return cmp.Or(s.Lease, 30*time.Second) }

func (s *Service) now() time.Time {
	if s.Now == nil {
		return time.Now()
	}
	return s.Now()
}

// Wheel is a timing wheel: timers in the memory of a process, in slots that its hand passes one by one. It keeps time well, and
// knows nothing when it is started again.
type Wheel struct {
	Tick time.Duration // 0 = 100 ms
	// Fire is called, in a goroutine of Run, for what is due.
	Fire func(ctx context.Context, ev Event)

	mu    sync.Mutex
	hand  int64 // ticks since the start
	slots [wheelSlots][]timer
	left  int
}

const wheelSlots = 64

type timer struct {
	at int64 // tick
	ev Event
}

// Add starts a timer.
func (w *Wheel) Add(delay time.Duration, ev Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.hand + int64((delay+w.tick()-1)/w.tick()) + 1 // the tick under way counts for nothing
	w.slots[at%wheelSlots] = append(w.slots[at%wheelSlots], timer{at, ev})
	w.left++
}

// Left is how many timers are running.
func (w *Wheel) Left() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left
}

// Run turns the wheel until ctx ends.
func (w *Wheel) Run(ctx context.Context) {
	ticker := time.NewTicker(w.tick())
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		due := w.turn()
		for _, ev := range due {
			w.Fire(ctx, ev)
		}
		w.mu.Lock()
		w.left -= len(due)
		w.mu.Unlock()
	}
}

// turn moves the hand by one slot and returns what is due there.
func (w *Wheel) turn() (due []Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hand++
	slot := &w.slots[w.hand%wheelSlots]
	rest := (*slot)[:0]
	for _, t := range *slot {
		if t.at > w.hand {
			rest = append(rest, t) // in a later round
		} else {
			due = append(due, t.ev)
		}
	}
	*slot = rest
	return due
}

func (w *Wheel) tick() time.Duration { return cmp.Or(w.Tick, 100*time.Millisecond) }

// RemindNow is Remind where there is no row, as a Wheel does it.
func RemindNow(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.at(ctx, BeforeTask)
	w.do(ctx, notify)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}
