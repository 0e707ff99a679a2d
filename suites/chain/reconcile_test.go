package chain

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// consumed is the progress of a consumer that catches up when it is asked for.
type consumed struct {
	e      *env
	handle Handler
}

func (c consumed) Mark(context.Context) (any, error) { return len(c.e.broker.published()), nil }

func (c consumed) Passed(ctx context.Context, mark any) (bool, error) {
	for range 100 {
		_ = Consume(ctx, c.e.Service, c.e.broker, c.handle) // what failed comes again
		if c.e.broker.lag() == 0 {
			return c.e.broker.committed >= mark.(int), nil
		}
	}
	return false, errors.New("the consumer does not come to an end")
}

// found lists the kinds of what was ever found.
func found(t *testing.T, e *env) []string {
	t.Helper()
	kinds := scan[string](t, e, "SELECT coalesce(string_agg(DISTINCT kind, '; '), '') FROM discrepancy WHERE found_at IS NOT NULL")
	if kinds == "" {
		return nil
	}
	return strings.Split(kinds, "; ")
}

// TestReconcile plants each kind of discrepancy with an unsafe twin. All are found and repaired, and nothing else is.
func TestReconcile(t *testing.T) {
	e := newEnv(t)
	e.Deadline, e.Progress = time.Millisecond, consumed{e, ApplyOnce}
	ctx := t.Context()
	apply := func(handle Handler, ev Event) {
		t.Helper()
		if _, err := handle(ctx, e.Service, ev); err != nil {
			t.Fatal(err)
		}
	}
	// A good order: placed, published, applied.
	must(t, PlaceOrder(ctx, e.Service, event(1, 1, 1)))
	e.drain(t, Relay)
	e.consume(t, Consume, ApplyOnce)
	if n, err := Reconcile(ctx, e.Service); err != nil || n != 0 || found(t, e) != nil {
		t.Fatalf("in order, and yet found %d, %v (%v)", n, found(t, e), err)
	}

	neverPublished, seenOnly, twice, noOrder, paid, passed, givenUp := event(2, 2, 1), event(3, 3, 1), event(4, 4, 1), event(5, 5, 1), event(6, 6, 1), event(7, 1, 2), event(9, 9, 1)
	e.crashAt(AfterOrderCommit)
	if err := PlaceOrderThenPublish(ctx, e.Service, neverPublished); err == nil {
		t.Fatal("no crash")
	}
	must(t, PlaceOrder(ctx, e.Service, seenOnly))
	must(t, PlaceOrder(ctx, e.Service, twice))
	e.drain(t, RelayMarkFirst)
	e.crashAt(BetweenTransactions)
	if _, err := ApplyAfterMark(ctx, e.Service, seenOnly); err == nil {
		t.Fatal("no crash")
	}
	e.broker.position, e.broker.committed = len(e.broker.log), len(e.broker.log)
	apply(ApplyAlways, twice)
	apply(ApplyAlways, twice)
	apply(ApplyAlways, noOrder)
	must(t, PlacePaidOrder(ctx, e.Service, paid))
	apply(ApplyOnce, paid)
	e.exec(t, "UPDATE payment_intents SET status = 'paid' WHERE event_id = 6")
	// A wish that became two orders, and a payment that was made twice.
	must(t, PlaceOrder(ctx, e.Service, event(10, 10, 1)))
	again := event(11, 10, 1)
	again.Wish = 10
	must(t, PlaceOrder(ctx, e.Service, again))
	book := e.startPayments(t, &PaymentService{})
	for range 2 {
		if state := e.Payments.Pay(ctx, "", paid); state != PaymentMade {
			t.Fatal(state)
		}
	}
	// A state that an old event has undone.
	must(t, PlaceOrder(ctx, e.Service, event(12, 12, 1)))
	must(t, PlaceOrder(ctx, e.Service, event(13, 12, 2)))
	apply(ApplyState, event(13, 12, 2))
	apply(OverwriteState, event(12, 12, 1))
	e.drain(t, Relay)
	must(t, PlaceOrder(ctx, e.Service, givenUp))
	e.giveUp(ctx, 3)
	// A row that a relay by position has passed over, and will not read when it goes on.
	must(t, PlaceOrder(ctx, e.Service, passed))
	must(t, PlaceOrder(ctx, e.Service, event(8, 1, 3)))
	e.exec(t, "UPDATE outbox SET status = 'published', published_at = now() WHERE event_id = 8")
	e.broker.log = append(e.broker.log, event(8, 1, 3))
	time.Sleep(5 * time.Millisecond) // longer than the orders service is at work, by the database's clock

	for i := range uint64(4) {
		_, err := Reconcile(ctx, e.Service)
		must(t, err)
		must(t, PlaceOrder(ctx, e.Service, event(100+i, 1, int64(10+i))))
		e.drain(t, RelayPastLast)
		e.consume(t, Consume, ApplyOnce)
	}
	want := slices.Sorted(slices.Values(Discrepancies()))
	if got := slices.Sorted(slices.Values(found(t, e))); !slices.Equal(got, want) {
		t.Errorf("found %q, want each of %q", got, want)
	}
	if n := scan[int](t, e, "SELECT count(*) FROM discrepancy WHERE found_at IS NOT NULL"); n != len(want) {
		t.Errorf("%d were found, %d are planted", n, len(want))
	}
	if n := scan[int](t, e, "SELECT count(*) FROM discrepancy WHERE suspected_at IS NOT NULL OR found_at IS NOT NULL AND repaired_at IS NULL"); n != 0 {
		t.Errorf("%d are left", n)
	}
	if got := scan[string](t, e, "SELECT string_agg(event_id::text, ' ' ORDER BY event_id) FROM notifications WHERE event_id < 100"); got != "1 2 3 4 6 7 8 9 10 12 13" {
		t.Errorf("effects of %s", got)
	}
	if got := scan[string](t, e, "SELECT state FROM orders WHERE event_id = 6"); got != "paid" {
		t.Errorf("the order whose payment is made is %s", got)
	}
	if got := scan[string](t, e, "SELECT state FROM orders WHERE event_id = 11"); got != "cancelled" {
		t.Errorf("the second order of a wish is %s", got)
	}
	if got := book.Book(); len(got) != 1 || got[0].ID != 1 {
		t.Errorf("the book has %v", got)
	}
	if got := scan[int](t, e, "SELECT version FROM balances WHERE key = 12"); got != 2 {
		t.Errorf("the state is of version %d", got)
	}
}

// TestReconcilePassedOverWhenBusinessEnds has a row that was passed over, and no order after it that would tell.
func TestReconcilePassedOverWhenBusinessEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		relay Job
		found int
	}{"past-last": {RelayPastLast, 1}, "by-status": {Relay, 0}} {
		t.Run(name, func(t *testing.T) {
			e, ctx := newEnv(t), t.Context()
			e.Progress = consumed{e, ApplyOnce}
			must(t, PlaceOrder(ctx, e.Service, event(1, 1, 1)))
			must(t, PlaceOrder(ctx, e.Service, event(2, 1, 2)))
			e.exec(t, "UPDATE outbox SET status = 'published', published_at = now() WHERE event_id = 2")
			e.broker.log = append(e.broker.log, event(2, 1, 2))
			e.drain(t, RelayPastLast) // what was found before there was a suspicion proves nothing
			for range 2 {
				_, err := Reconcile(ctx, e.Service)
				must(t, err)
			}
			if got := found(t, e); len(got) != 0 {
				t.Errorf("found %q before a relay came by", got)
			}
			e.drain(t, tt.relay)
			_, err := Reconcile(ctx, e.Service)
			must(t, err)
			if got := found(t, e); len(got) != tt.found {
				t.Errorf("found %q, want %d", got, tt.found)
			}
			e.drain(t, tt.relay)
			if n := scan[int](t, e, "SELECT count(*) FROM outbox WHERE status = 'pending'"); n != 0 {
				t.Errorf("%d rows are left", n)
			}
		})
	}
}

// ofOrdersAndEffects are the suites whose promise a comparison of orders and effects can look after.
var ofOrdersAndEffects = []string{"outbox", "kafka-acks", "kafka-consume", "rabbitmq-acks", "inbox", "external-effect", "retry-deadletter", "state-order"}

// unreconcilable lists what a comparison of orders and effects cannot show, or not in these tables, and why.
var unreconcilable = map[string]string{
	"outbox/concurrent-relays":                  "an order of events, not an effect",
	"kafka-acks/unbounded-retry":                "a stall",
	"rabbitmq-acks/nack-loop":                   "a stall",
	"inbox/digest-conflict":                     "what was dropped has no order of its own",
	"retry-deadletter/poison":                   "a stall",
	"retry-deadletter/record-of-failure/secret": "a dead letter is an end",
	"retry-deadletter/record-of-failure/fields": "a dead letter is an end",
}

// TestReconcileFindsWhatTheTwinsPlant runs the faults of the other suites. What their unsafe twins have lost, done twice or left
// lying is found and repaired; where the guarded function ran, nothing is found, though the consumer is behind.
func TestReconcileFindsWhatTheTwinsPlant(t *testing.T) {
	for _, p := range Pairs() {
		suite, _, _ := strings.Cut(p.Name, "/")
		if unreconcilable[p.Name] != "" || !slices.Contains(ofOrdersAndEffects, suite) {
			continue
		}
		for _, function := range []string{p.Guarded, p.Unsafe} {
			t.Run(p.Name+"/"+function, func(t *testing.T) {
				e := newEnv(t)
				fault := faults[p.Name](t, e, function)
				relay, handle := Job(Relay), Handler(ApplyOnce)
				if job, ok := Function[Job](function); ok && strings.HasPrefix(function, "Relay") {
					relay = job
				}
				if p.Name == "inbox/state-machine" {
					handle = PayOrder
				}
				e.Point, e.Sleep, e.DB, e.Deadline = nil, nil, e.pool, time.Millisecond
				e.Poll = time.Millisecond
				e.broker.answer, e.Progress = nil, consumed{e, handle}
				if !strings.HasPrefix(p.Name, "outbox/") {
					e.orderWhatWasAsked(t, askedOfQueues[p.Name]...)
				}
				time.Sleep(2 * time.Millisecond)
				for i := range uint64(4) {
					_, err := Reconcile(t.Context(), e.Service)
					must(t, err)
					must(t, PlaceOrder(t.Context(), e.Service, event(100+i, first.Key+16, int64(10+i)))) // business goes on
					eventually(t, func() bool {
						e.drain(t, relay)
						return strings.HasPrefix(p.Name, "outbox/late-commit-gap/horizon") ||
							scan[int](t, e, "SELECT count(*) FROM outbox WHERE event_id >= 100 AND status = 'pending'") == 0
					})
					e.consume(t, Consume, handle)
				}
				_, err := Reconcile(t.Context(), e.Service)
				must(t, err)
				got := found(t, e)
				if (fault != "") != (len(got) > 0) {
					t.Errorf("%s shows %q, and found is %q", function, fault, got)
				}
				if wrong := scan[string](t, e, `SELECT coalesce(string_agg(o.event_id || ' ' || o.state || ' ' || n.count, ', '), '') FROM orders o,
					LATERAL (SELECT count(*) FROM (SELECT event_id, consumer FROM notifications UNION ALL SELECT event_id, consumer FROM receipts)
						WHERE event_id = o.event_id AND consumer = $1) n
					WHERE n.count > 1 OR n.count = 0 AND o.state <> 'cancelled' AND NOT EXISTS (SELECT FROM balances b WHERE b.key = o.key)
						AND NOT EXISTS (SELECT FROM dead_letter d WHERE d.event_id = o.event_id)
						AND NOT EXISTS (SELECT FROM payment_intents i WHERE i.event_id = o.event_id AND i.status = o.state)`, e.Name); wrong != "" {
					t.Errorf("%s, found %q: orders whose effects are wrong in the end: %s", fault, got, wrong)
				}
				if n := scan[int](t, e, "SELECT count(*) FROM notifications n WHERE NOT EXISTS (SELECT FROM orders o WHERE o.event_id = n.event_id)"); n != 0 {
					t.Errorf("%d effects of nothing", n)
				}
				if n := scan[int](t, e, "SELECT count(*) FROM balances b WHERE version < (SELECT max(version) FROM orders o WHERE o.key = b.key)"); n != 0 {
					t.Errorf("%d states are behind", n)
				}
				if e.Payments != nil {
					book, err := e.Payments.Book(t.Context())
					must(t, err)
					for i, payment := range book {
						if slices.ContainsFunc(book[:i], func(b Payment) bool { return b.Reference == payment.Reference }) {
							t.Errorf("%d is paid twice in the end", payment.Reference)
						}
					}
				}
			})
		}
	}
}

// askedOfQueues are events of faults on a broker of their own.
var askedOfQueues = map[string][]Event{"rabbitmq-acks/multiple-flag": {second}, "rabbitmq-acks/stale-tag": {second, third}}

// orderWhatWasAsked makes the orders of a fault that begins behind them. Their events were handed to the broker, but for what a
// sender has kept or lost.
func (e *env) orderWhatWasAsked(t *testing.T, more ...Event) {
	t.Helper()
	if scan[bool](t, e, "SELECT EXISTS (SELECT FROM orders)") {
		return
	}
	published := e.broker.published()
	asked := append(append([]Event{first}, published...), more...)
	rows, err := e.pool.Query(t.Context(), "SELECT event_id, key, version, amount FROM notifications")
	must(t, err)
	applied, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ev Event, err error) {
		return ev, row.Scan(&ev.ID, &ev.Key, &ev.Version, &ev.Amount)
	})
	must(t, err)
	asked = append(asked, applied...)
	for _, ev := range asked {
		if ev.ID >= 1000 { // asked for again
			continue
		}
		e.exec(t, "INSERT INTO orders (event_id, key, version, amount) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING", int64(ev.ID), int64(ev.Key), ev.Version, ev.Amount)
		if e.broker.publishes > 0 && len(published) == 0 {
			continue // it was to be sent, and nothing was
		}
		e.exec(t, `INSERT INTO outbox (event_id, key, version, amount, body, status, published_at) VALUES ($1, $2, $3, $4, $5, 'published', now())
			ON CONFLICT DO NOTHING`, int64(ev.ID), int64(ev.Key), ev.Version, ev.Amount, first.Body)
	}
}

// TestReconcileWaits: while the consumer is behind, or away, nothing is found, however long that takes.
func TestReconcileWaits(t *testing.T) {
	e := newEnv(t)
	must(t, PlaceOrder(t.Context(), e.Service, first))
	e.drain(t, Relay)
	if _, err := Reconcile(t.Context(), e.Service); err == nil {
		t.Error("nobody tells how far the consumer is, and yet it is taken for far enough")
	}
	e.Progress = consumed{e, func(context.Context, *Service, Event) (Result, error) { return "", ErrTemporary }}
	if n, err := Reconcile(t.Context(), e.Service); err == nil || n != 0 || found(t, e) != nil {
		t.Errorf("the consumer cannot go on, and yet %d are repaired, %q found (%v)", n, found(t, e), err)
	}
}

// reportOnly: an order is never published. Does it have its effect when a job has compared?
func reportOnly(t *testing.T, e *env, function string) string {
	e.Deadline, e.Progress = time.Millisecond, consumed{e, ApplyOnce}
	e.crashAt(AfterOrderCommit)
	must(t, PlaceOrderThenPublish(t.Context(), e.Service, first))
	time.Sleep(2 * time.Millisecond)
	_, err := get[Job](t, function)(t.Context(), e.Service)
	must(t, err)
	e.drain(t, Relay)
	e.consume(t, Consume, ApplyOnce)
	return strings.TrimSuffix(e.effectAnomaly(t, "", mailer, first), "/")
}

// consumerBehind: the consumer has not come to an event while the job compares, and comes to it later.
func consumerBehind(t *testing.T, e *env, function string) string {
	must(t, PlaceOrder(t.Context(), e.Service, first))
	e.drain(t, Relay)
	behind := &held{asked: make(chan struct{}, 1), passed: make(chan struct{})}
	e.Progress, e.Sleep = behind, nil
	e.Redeliver, e.Poll = time.Millisecond, time.Millisecond
	end := start(func() error { _, err := get[Job](t, function)(t.Context(), e.Service); return err })
	eventually(t, func() bool { // it asks, or it has not waited
		return len(behind.asked) > 0 || scan[int](t, e, "SELECT runs FROM reconciliation") > 0
	})
	e.consume(t, Consume, ApplyOnce)
	close(behind.passed)
	must(t, end())
	if found(t, e) != nil {
		return "dead-letter-wrong"
	}
	return ""
}

// held is the progress of a consumer that is behind until passed is closed.
type held struct{ asked, passed chan struct{} }

func (h *held) Mark(context.Context) (any, error) { return nil, nil }

func (h *held) Passed(context.Context, any) (bool, error) {
	select {
	case h.asked <- struct{}{}:
	default:
	}
	select {
	case <-h.passed:
		return true, nil
	default:
		return false, nil
	}
}

// TestReconcileIsKilled ends a reconciliation before each of its transactions, and at the commit of each: the next one finishes
// the work, and what was done is not done again.
func TestReconcileIsKilled(t *testing.T) {
	for begun := 1; begun <= 6; begun++ {
		e := newEnv(t)
		ctx := t.Context()
		e.Deadline, e.Progress = time.Millisecond, consumed{e, ApplyOnce}
		e.crashAt(AfterOrderCommit)
		must(t, PlaceOrderThenPublish(ctx, e.Service, first))
		must(t, PlaceOrder(ctx, e.Service, second))
		e.drain(t, RelayMarkFirst)
		e.consume(t, Consume, ApplyAlways)
		e.deliver(t, ApplyAlways, second)
		time.Sleep(2 * time.Millisecond)
		dies := &dying{DB: e.pool, at: (begun + 1) / 2, commits: begun%2 == 0}
		e.DB = dies
		if _, err := Reconcile(ctx, e.Service); err == nil || !dies.died {
			t.Fatalf("%d: it lived (%v)", begun, err)
		}
		e.DB = e.pool
		for range 3 {
			_, err := Reconcile(ctx, e.Service)
			must(t, err)
			e.drain(t, Relay)
			e.consume(t, Consume, ApplyOnce)
		}
		if got := scan[string](t, e, "SELECT string_agg(event_id::text, ' ' ORDER BY event_id) FROM notifications"); got != "1 2" {
			t.Errorf("%d: effects of %s", begun, got)
		}
		if n := scan[int](t, e, "SELECT count(*) FROM discrepancy WHERE suspected_at IS NOT NULL OR repaired_at IS NULL"); n != 0 {
			t.Errorf("%d: %d are left", begun, n)
		}
	}
}

// dying is a database whose n-th transaction is not answered any more: it was not begun, or its COMMIT was done.
type dying struct {
	DB
	at      int
	commits bool
	died    bool
}

func (d *dying) Begin(ctx context.Context) (pgx.Tx, error) {
	if d.at--; d.at != 0 {
		return d.DB.Begin(ctx)
	}
	d.died = true
	if !d.commits {
		return nil, errCrash
	}
	tx, err := d.DB.Begin(ctx)
	return lostCommit{tx, true}, err
}
