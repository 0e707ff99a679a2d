package chain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// TestGuardedHoldsAndTwinBreaks runs the same fault against both functions of every pair: the guarded one must show nothing,
// its twin the anomaly that the pair names, each time.
func TestGuardedHoldsAndTwinBreaks(t *testing.T) {
	for _, p := range Pairs() {
		run, ok := faults[p.Name]
		if !ok {
			t.Errorf("%s: no test", p.Name)
			continue
		}
		for function, want := range map[string]string{p.Guarded: "", p.Unsafe: p.Anomaly} {
			t.Run(p.Name+"/"+function, func(t *testing.T) {
				e := newEnv(t)
				if got := run(t, e, function); got != want {
					t.Errorf("shows %q, want %q", got, want)
				}
				if p.Query != "" {
					found := scan[int](t, e, "SELECT count(*) FROM ("+p.Query+")")
					if (found > 0) != (want != "") {
						t.Errorf("the query finds %d rows", found)
					}
				}
			})
		}
	}
}

func get[F any](t *testing.T, name string) F {
	t.Helper()
	f, ok := Function[F](name)
	if !ok {
		t.Fatalf("%s is a %T", name, functions[name])
	}
	return f
}

var (
	mailer = []string{"mailer"}
	first  = event(1, 1, 1)
)

// faults are the faults of the pairs. Each uses the function of that name and returns the anomaly it sees.
var faults = map[string]func(t *testing.T, e *env, function string) string{
	"outbox/crash-between/commit-then-publish": func(t *testing.T, e *env, function string) string {
		e.crashAt(AfterOrderCommit)
		must(t, get[Command](t, function)(t.Context(), e.Service, first))
		e.drain(t, Relay)
		return e.storeAnomaly(t)
	},

	"outbox/crash-between/publish-then-commit": func(t *testing.T, e *env, function string) string {
		e.crashAt(BeforeOrderCommit)
		must(t, get[Command](t, function)(t.Context(), e.Service, first))
		e.drain(t, Relay)
		return e.storeAnomaly(t)
	},

	"outbox/relay-crash": func(t *testing.T, e *env, function string) string {
		must(t, PlaceOrder(t.Context(), e.Service, first))
		e.crashAt(BeforeMark, AfterMark)
		e.drain(t, get[Job](t, function))
		return e.storeAnomaly(t)
	},

	"outbox/late-commit-gap/status":  lateCommit,
	"outbox/late-commit-gap/horizon": lateCommit,

	"outbox/concurrent-relays": func(t *testing.T, e *env, function string) string {
		relay := get[Job](t, function)
		must(t, PlaceOrder(t.Context(), e.Service, first))
		must(t, PlaceOrder(t.Context(), e.Service, event(2, 1, 2)))
		e.Batch = 1
		reached, release := e.holdAt(BeforePublish)
		frozen := start(func() error { _, err := relay(t.Context(), e.Service); return err })
		wait(t, reached)
		_, err := relay(t.Context(), e.Service)
		must(t, err)
		release()
		must(t, frozen())
		e.drain(t, relay)
		return e.storeAnomaly(t)
	},

	"outbox/commit-in-doubt": func(t *testing.T, e *env, function string) string {
		e.DB = &lostAnswer{DB: e.pool, commits: true}
		must(t, get[Command](t, function)(t.Context(), e.Service, first))
		if scan[bool](t, e, "SELECT EXISTS (SELECT FROM orders GROUP BY key, version HAVING count(*) > 1)") {
			return "duplicate-effect"
		}
		return ""
	},

	"outbox/broker-outage": func(t *testing.T, e *env, function string) string {
		must(t, PlaceOrder(t.Context(), e.Service, first))
		e.broker.answer = func(n int, _ Event) (bool, error) { return failUntil(6, n, ErrRefused) }
		ctx := e.cancelAfterSleeps(t, 20)
		must(t, get[Runner](t, function)(ctx, e.Service, Relay))
		return e.storeAnomaly(t)
	},

	"kafka-acks/swallowed-error": func(t *testing.T, e *env, function string) string {
		e.broker.answer = func(n int, _ Event) (bool, error) { return failUntil(3, n, io.ErrUnexpectedEOF) }
		must(t, get[Command](t, function)(t.Context(), e.Service, first)) // the caller is told: sent
		for range resendTries {
			e.exec(t, "UPDATE retry_queue SET next_at = now()")
			_, err := ResendDue(t.Context(), e.Service)
			must(t, err)
		}
		if len(e.broker.published()) == 0 {
			return "lost/never-published"
		}
		return ""
	},

	"kafka-acks/unbounded-retry": func(t *testing.T, e *env, function string) string {
		e.broker.answer = func(int, Event) (bool, error) { return false, ErrRefused }
		e.Deadline, e.Callers = 50*time.Millisecond, make(chan struct{}, 2)
		e.Sleep, e.Backoff = nil, Backoff{First: time.Millisecond, Max: time.Millisecond}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var callers sync.WaitGroup
		for i := range uint64(4) {
			callers.Go(func() { _ = get[Command](t, function)(ctx, e.Service, event(i+1, 1, 1)) })
		}
		all := make(chan struct{})
		go func() { callers.Wait(); close(all) }()
		defer wait(t, all)
		defer cancel()
		select {
		case <-all:
			return ""
		case <-time.After(40 * e.Deadline):
			return "stall"
		}
	},

	"kafka-acks/timeout-is-not-failure": func(t *testing.T, e *env, function string) string {
		e.broker.answer = func(n int, _ Event) (bool, error) { return true, errors.Join(failOn(1, n, context.DeadlineExceeded)) }
		must(t, get[Command](t, function)(t.Context(), e.Service, first))
		e.consume(t, Consume, ApplyOnce)
		return e.effectAnomaly(t, "", mailer, first)
	},

	"kafka-consume/crash-after-business-commit": func(t *testing.T, e *env, function string) string {
		e.broker.log = []Event{first}
		e.crashAt(AfterBusinessCommit)
		e.consume(t, Consume, get[Handler](t, function))
		return e.effectAnomaly(t, "", mailer, first)
	},

	"kafka-consume/commit-then-process": func(t *testing.T, e *env, function string) string {
		e.broker.log = []Event{first}
		e.crashAt(BeforeBusinessCommit)
		must(t, get[Loop](t, function)(t.Context(), e.Service, e.broker, ApplyOnce))
		e.broker.reopen()
		e.consume(t, get[Loop](t, function), ApplyOnce)
		return e.effectAnomaly(t, "settled-early", mailer, first)
	},

	"rocketmq-consume/shutdown": func(t *testing.T, e *env, function string) string {
		e.broker.log = []Event{first}
		e.crashAt(BeforeBusinessCommit) // the end of the process
		ended := make(chan struct{}, 1)
		handle := func(ctx context.Context, s *Service, ev Event) (Result, error) {
			result, err := ApplyOnce(ctx, s, ev)
			ended <- struct{}{}
			return result, err
		}
		_ = get[Loop](t, function)(t.Context(), e.Service, e.broker, handle)
		wait(t, ended)
		e.broker.reopen()
		e.consume(t, Consume, ApplyOnce)
		return e.effectAnomaly(t, "settled-early", mailer, first)
	},

	"kafka-consume/failed-record-then-commit":      oneRecordFails,
	"kafka-consume/failed-record-then-commit/park": oneRecordFails,

	"inbox/redelivery/check-then-write": func(t *testing.T, e *env, function string) string {
		handle := get[Handler](t, function)
		reached, release := e.holdAt(BeforeBusinessCommit)
		one := start(func() error { _, err := handle(t.Context(), e.Service, first); return err })
		wait(t, reached)
		two := start(func() error { _, err := handle(t.Context(), e.Service, first); return err })
		// The second has either gone through, or waits for the first to commit.
		eventually(t, func() bool {
			return scan[bool](t, e, `SELECT (SELECT count(*) FROM inbox_without_key) > 0
				OR EXISTS (SELECT FROM pg_stat_activity WHERE application_name = current_setting('application_name') AND wait_event_type = 'Lock')`)
		})
		release()
		must(t, one())
		must(t, two())
		return e.effectAnomaly(t, "", mailer, first)
	},

	"inbox/redelivery/mark-before-work": func(t *testing.T, e *env, function string) string {
		e.crashAt(BeforeBusinessCommit) // the work fails
		e.deliver(t, get[Handler](t, function), first, first)
		return e.effectAnomaly(t, "deduplicated-wrongly", mailer, first)
	},

	"inbox/redelivery/business-key": func(t *testing.T, e *env, function string) string {
		e.deliver(t, get[Handler](t, function), first, first)
		return e.effectAnomaly(t, "", mailer, first)
	},

	"inbox/separate-transaction/work-first": crashBetween,
	"inbox/separate-transaction/mark-first": crashBetween,

	"inbox/digest-conflict": func(t *testing.T, e *env, function string) string {
		other := event(first.ID, 2, 7)
		e.deliver(t, get[Handler](t, function), first, first, other)
		return e.effectAnomaly(t, "deduplicated-wrongly", mailer, first, other)
	},

	"inbox/two-consumers": func(t *testing.T, e *env, function string) string {
		e.deliver(t, get[Handler](t, function), first)
		e.Name = "biller"
		e.deliver(t, get[Handler](t, function), first)
		return e.effectAnomaly(t, "deduplicated-wrongly", []string{"mailer", "biller"}, first)
	},

	"inbox/purged": func(t *testing.T, e *env, function string) string {
		e.Redeliver, e.Replay = 0, time.Hour
		e.deliver(t, ApplyOnce, first)
		_, err := get[Job](t, function)(t.Context(), e.Service)
		must(t, err)
		e.deliver(t, ApplyOnce, first)
		return e.effectAnomaly(t, "", mailer, first)
	},

	"inbox/setnx/work": func(t *testing.T, e *env, function string) string {
		e.crashAt(AfterMarkSeen)
		e.deliver(t, get[Handler](t, function), first)
		e.keys.expire()
		e.deliver(t, get[Handler](t, function), first)
		return e.effectAnomaly(t, "deduplicated-wrongly", mailer, first)
	},

	"inbox/setnx/expiry": func(t *testing.T, e *env, function string) string {
		e.deliver(t, get[Handler](t, function), first, first)
		e.keys.expire()
		e.deliver(t, get[Handler](t, function), first)
		return e.effectAnomaly(t, "", mailer, first)
	},

	"inbox/state-machine": func(t *testing.T, e *env, function string) string {
		must(t, PlaceOrder(t.Context(), e.Service, first))
		e.deliver(t, get[Handler](t, function), first, first)
		return e.effectAnomaly(t, "", mailer, first)
	},

	"state-order/old-after-new": func(t *testing.T, e *env, function string) string {
		older, newer := event(1, 1, 1), event(2, 1, 2)
		older.Amount, newer.Amount = 200, 100
		must(t, PlaceOrder(t.Context(), e.Service, older))
		must(t, PlaceOrder(t.Context(), e.Service, newer))
		e.deliver(t, get[Handler](t, function), newer, older)
		if scan[int](t, e, "SELECT amount FROM balances WHERE key = 1") == 200 {
			return "stale-effect"
		}
		return ""
	},

	"external-effect/act-then-timeout/without-key": func(t *testing.T, e *env, function string) string {
		return e.payAndLoseTheAnswer(t, get[Charger](t, function))
	},

	"external-effect/act-then-timeout/timeout-is-failure": func(t *testing.T, e *env, function string) string {
		return e.payAndLoseTheAnswer(t, get[Charger](t, function))
	},

	"external-effect/inside-transaction": func(t *testing.T, e *env, function string) string {
		book := e.startPayments(t, &PaymentService{})
		e.crashAt(BeforeBusinessCommit)
		for range 2 {
			must(t, get[Command](t, function)(t.Context(), e.Service, first))
		}
		_, err := ExecuteIntents(t.Context(), e.Service, Charge)
		must(t, err)
		return paymentAnomaly(t, e, book)
	},

	"retry-deadletter/poison": func(t *testing.T, e *env, function string) string {
		poison := func(context.Context, *Service, Event) (Result, error) { return "", ErrPermanent }
		_, err := get[Retrier](t, function)(e.cancelAfterSleeps(t, 20), e.Service, poison, first)
		if errors.Is(err, ErrPermanent) || errors.Is(err, context.Canceled) {
			return "stall"
		}
		must(t, err)
		return e.effectAnomaly(t, "", mailer, first)
	},

	"retry-deadletter/temporary": func(t *testing.T, e *env, function string) string {
		tries := 0
		flaky := func(ctx context.Context, s *Service, ev Event) (Result, error) {
			if tries++; tries <= 2 {
				return "", ErrTemporary
			}
			return ApplyOnce(ctx, s, ev)
		}
		_, err := get[Retrier](t, function)(t.Context(), e.Service, flaky, first)
		must(t, err)
		return e.effectAnomaly(t, "skipped", mailer, first)
	},

	"retry-deadletter/unknown-outcome": func(t *testing.T, e *env, function string) string {
		tries := 0
		silent := func(ctx context.Context, s *Service, ev Event) (Result, error) {
			result, err := ApplyOnce(ctx, s, ev)
			if tries++; tries == 1 && err == nil {
				return "", ErrInDoubt // done, and the answer lost
			}
			return result, err
		}
		_, err := get[Retrier](t, function)(t.Context(), e.Service, silent, first)
		must(t, err)
		return e.effectAnomaly(t, "", mailer, first)
	},

	"retry-deadletter/replay": func(t *testing.T, e *env, function string) string {
		must(t, e.deadLetter(t.Context(), first, Failure{}.and(ErrTemporary)))
		for range 2 {
			must(t, get[Replayer](t, function)(t.Context(), e.Service, first.ID))
		}
		e.consume(t, Consume, ApplyOnce)
		return e.effectAnomaly(t, "", mailer, first)
	},

	"retry-deadletter/record-of-failure/secret": recordOfFailure,
	"retry-deadletter/record-of-failure/fields": recordOfFailure,

	"rocketmq-transaction/crash-before-end": func(t *testing.T, e *env, function string) string {
		h := e.halves()
		e.crashAt(AfterOrderCommit)
		if err := PlaceOrderBetween(t.Context(), e.Service, first); err == nil {
			t.Fatal("no crash")
		}
		h.ask(t, get[Checker](t, function))
		if len(e.broker.log) == 0 {
			return "unpublished"
		}
		return ""
	},

	"rocketmq-transaction/rolled-back": func(t *testing.T, e *env, function string) string {
		h := e.halves()
		e.OutOfStock = func(Event) bool { return true }
		e.crashAt(AfterOrderRollback)
		if err := PlaceOrderBetween(t.Context(), e.Service, first); !errors.Is(err, ErrOutOfStock) {
			t.Fatal(err)
		}
		h.ask(t, get[Checker](t, function))
		if len(e.broker.log) > 0 {
			return "published-uncommitted"
		}
		return ""
	},

	"rocketmq-delay/in-memory": func(t *testing.T, e *env, function string) string {
		e.delayed(time.Minute)
		must(t, get[Command](t, function)(t.Context(), e.Service, first))
		e.delayed(time.Minute) // another process: its wheel is empty
		e.consume(t, Consume, ApplyOnce)
		return e.effectAnomaly(t, "never-published", mailer, first)
	},

	"delay-task/restart": func(t *testing.T, e *env, function string) string {
		e.delayed(time.Minute)
		must(t, get[Command](t, function)(t.Context(), e.Service, first))
		e.delayed(time.Minute) // another process: its wheel is empty
		e.due(t)
		e.scanAll(t, ScanTasks, Remind)
		return e.effectAnomaly(t, "never-published", mailer, first)
	},

	"delay-task/paid-meanwhile": func(t *testing.T, e *env, function string) string {
		e.delayed(time.Minute)
		must(t, PlaceTimedOrder(t.Context(), e.Service, first))
		e.deliver(t, PayInTime, first)
		e.due(t)
		e.scanAll(t, ScanTasks, get[Executor](t, function))
		if scan[string](t, e, "SELECT state FROM orders") != "paid" {
			return "stale-effect"
		}
		return ""
	},

	"delay-task/cancelled-or-moved": func(t *testing.T, e *env, function string) string {
		e.delayed(time.Minute)
		moved, kept := event(2, 2, 1), event(3, 3, 1)
		for _, ev := range []Event{first, moved, kept} {
			must(t, PlaceTimedOrder(t.Context(), e.Service, ev))
		}
		e.due(t)
		reached, release := e.holdAt(AfterFetch)
		scanned := start(func() error { _, err := get[Scanner](t, function)(t.Context(), e.Service, Remind); return err })
		wait(t, reached)
		e.deliver(t, CancelTask, first)
		e.deliver(t, MoveTask, moved)
		release()
		must(t, scanned())
		if got := e.effectAnomaly(t, "", mailer, kept); got != "" {
			return got
		}
		if scan[int](t, e, "SELECT count(*) FROM notifications WHERE event_id < 3") > 0 {
			return "stale-effect"
		}
		return ""
	},

	"delay-task/two-scanners/no-lease": twoScanners,
	"delay-task/two-scanners/no-fence": twoScanners,

	"delay-task/scanner-killed": func(t *testing.T, e *env, function string) string {
		e.delayed(time.Minute)
		must(t, PlaceTimedOrder(t.Context(), e.Service, first))
		e.due(t)
		e.crashAt(AfterClaim)
		e.scanAll(t, get[Scanner](t, function), Remind)
		e.scanAll(t, get[Scanner](t, function), Remind)
		if scan[bool](t, e, "SELECT EXISTS (SELECT FROM notifications)") {
			t.Error("the lease was not over")
		}
		e.leaseOver(t)
		e.scanAll(t, get[Scanner](t, function), Remind)
		return e.effectAnomaly(t, "never-published", mailer, first)
	},

	"delay-task/out-of-date": func(t *testing.T, e *env, function string) string {
		e.delayed(time.Minute)
		e.Use = time.Minute
		must(t, PlaceTimedOrder(t.Context(), e.Service, first))
		must(t, PlaceTimedOrder(t.Context(), e.Service, event(2, 2, 1)))
		e.due(t)
		e.exec(t, "UPDATE delay_task SET useful_until = clock_timestamp() WHERE event_id = 1")
		e.scanAll(t, ScanTasks, get[Executor](t, function))
		if got := e.effectAnomaly(t, "", mailer, event(2, 2, 1)); got != "" {
			return got
		}
		done := scan[int](t, e, "SELECT count(*) FROM notifications WHERE event_id = 1")
		switch status := scan[string](t, e, "SELECT status FROM delay_task WHERE event_id = 1"); {
		case done > 0:
			return "expired-delivered"
		case status != "skipped":
			t.Errorf("the task is %s", status)
		}
		return ""
	},

	"delay-task/clock-skew": func(t *testing.T, e *env, function string) string {
		e.delayed(time.Minute)
		must(t, PlaceTimedOrder(t.Context(), e.Service, first))
		e.Now = func() time.Time { return time.Now().Add(2 * time.Minute) }
		e.scanAll(t, get[Scanner](t, function), Remind)
		if scan[bool](t, e, "SELECT EXISTS (SELECT FROM notifications)") {
			return "early"
		}
		e.Now = nil
		e.due(t)
		e.scanAll(t, get[Scanner](t, function), Remind)
		return e.effectAnomaly(t, "", mailer, first)
	},

	"delay-task/kafka-timestamp": func(t *testing.T, e *env, function string) string {
		e.delayed(time.Minute)
		must(t, get[Command](t, function)(t.Context(), e.Service, first))
		for _, late := range []bool{false, true} {
			if late {
				e.due(t)
			}
			e.scanAll(t, ScanTasks, PublishTask)
			e.drain(t, Relay)
			e.consume(t, Consume, ApplyOnce)
			if !late && scan[bool](t, e, "SELECT EXISTS (SELECT FROM notifications)") {
				return "early"
			}
		}
		return e.effectAnomaly(t, "", mailer, first)
	},

	"reconcile/report-only": reportOnly,
	"reconcile/behind":      consumerBehind,
}

// delayed makes tasks due so late, and gives the process a wheel of its own.
func (e *env) delayed(delay time.Duration) *Wheel {
	e.Delay, e.Lease = delay, time.Minute
	e.Wheel = &Wheel{}
	return e.Wheel
}

// due lets the time of all open tasks come.
func (e *env) due(t *testing.T) {
	t.Helper()
	e.exec(t, "UPDATE delay_task SET due_at = clock_timestamp() - interval '1 second' WHERE status IN ('pending', 'claimed')")
}

func (e *env) leaseOver(t *testing.T) {
	t.Helper()
	e.exec(t, "UPDATE delay_task SET leased_until = clock_timestamp() - interval '1 second' WHERE status = 'claimed'")
}

// scanAll scans until there is nothing to do, or the process has died.
func (e *env) scanAll(t *testing.T, scan Scanner, execute Executor) {
	t.Helper()
	for range 100 {
		n, err := scan(t.Context(), e.Service, execute)
		must(t, err)
		if n == 0 || err != nil {
			return
		}
	}
	t.Fatal("the scanner does not come to an end")
}

// twoScanners: one has a task in hand and stands still, until its lease is over and another has done it.
func twoScanners(t *testing.T, e *env, function string) string {
	e.delayed(time.Minute)
	look, isScanner := Function[Scanner](function)
	execute, isExecutor := Function[Executor](function)
	if !isScanner {
		look = ScanTasks
	}
	if !isExecutor {
		execute = Remind
	}
	must(t, PlaceTimedOrder(t.Context(), e.Service, first))
	e.due(t)
	inHand := AfterClaim
	if function == "ScanWithoutClaim" {
		inHand = AfterFetch
	}
	reached, release := e.holdAt(inHand)
	frozen := start(func() error { _, err := look(t.Context(), e.Service, execute); return err })
	wait(t, reached)
	e.leaseOver(t)
	e.scanAll(t, look, execute)
	release()
	must(t, frozen())
	return e.effectAnomaly(t, "", mailer, first)
}

// lateCommit: the transaction of the first order stays open until the relay has passed the second. Their keys share a lane.
func lateCommit(t *testing.T, e *env, function string) string {
	relay := get[Job](t, function)
	reached, release := e.holdAt(BeforeOrderCommit)
	late := start(func() error { return PlaceOrder(t.Context(), e.Service, first) })
	wait(t, reached)
	must(t, PlaceOrder(t.Context(), e.Service, event(2, first.Key+8, 1)))
	e.drain(t, relay)
	release()
	must(t, late())
	// Whatever else runs in the server may hold up the horizon for a moment: its xid is asked for.
	eventually(t, func() bool {
		return scan[bool](t, e, "SELECT bool_and(xid < pg_snapshot_xmin(pg_current_snapshot())) FROM outbox")
	})
	e.drain(t, relay)
	return e.storeAnomaly(t)
}

// oneRecordFails: the second of three records fails, once.
func oneRecordFails(t *testing.T, e *env, function string) string {
	records := []Event{first, event(2, 2, 1), event(3, 3, 1)}
	e.broker.log = records
	failed := false
	handle := func(ctx context.Context, s *Service, ev Event) (Result, error) {
		if ev.ID == 2 && !failed {
			failed = true
			return "", ErrTemporary
		}
		return ApplyOnce(ctx, s, ev)
	}
	e.consume(t, get[Loop](t, function), handle)
	return e.effectAnomaly(t, "skipped", mailer, records...)
}

// crashBetween: the process dies between two transactions, or if there is one, before its end.
func crashBetween(t *testing.T, e *env, function string) string {
	died := false
	e.Point = func(_ context.Context, name string, _ Event) error {
		if !died && (name == BetweenTransactions || name == BeforeBusinessCommit) {
			died = true
			return errCrash
		}
		return nil
	}
	e.deliver(t, get[Handler](t, function), first, first)
	return e.effectAnomaly(t, "deduplicated-wrongly", mailer, first)
}

func recordOfFailure(t *testing.T, e *env, function string) string {
	e.Letter = get[Recorder](t, function)
	cause := fmt.Errorf("%w: POST https://shop:hunter2@pay.example/payments: 401, Authorization: Bearer c2VjcmV0LXRva2Vu", ErrPermanent)
	must(t, e.deadLetter(t.Context(), first, Failure{}.and(cause)))
	text := scan[string](t, e, "SELECT error FROM dead_letter WHERE event_id = 1")
	if strings.Contains(text, "hunter2") || strings.Contains(text, "c2VjcmV0") || !strings.Contains(text, "pay.example") {
		return "dead-letter-wrong"
	}
	if !scan[bool](t, e, `SELECT (consumer, destination, class, attempts, body) = ('mailer', 'orders', 'permanent', 1, 'order'::bytea)
		AND first_failed_at > now() - interval '1 minute' AND last_failed_at >= first_failed_at IS TRUE FROM dead_letter`) {
		return "dead-letter-wrong"
	}
	return ""
}

// deliver hands events to a handler, one after the other.
func (e *env) deliver(t *testing.T, handle Handler, events ...Event) {
	t.Helper()
	for _, ev := range events {
		_, err := handle(t.Context(), e.Service, ev)
		must(t, err)
	}
}

func (e *env) startPayments(t *testing.T, service *PaymentService) *PaymentService {
	t.Helper()
	server := httptest.NewServer(service)
	t.Cleanup(server.Close)
	e.Payments = &PaymentClient{URL: server.URL, HTTP: server.Client()}
	return service
}

// payAndLoseTheAnswer makes the payment of an order whose first answer is lost.
func (e *env) payAndLoseTheAnswer(t *testing.T, charge Charger) string {
	t.Helper()
	book := e.startPayments(t, &PaymentService{Point: e.point})
	must(t, PlacePaidOrder(t.Context(), e.Service, first))
	e.crashAt(AfterPaymentMade)
	_, err := ExecuteIntents(t.Context(), e.Service, charge)
	must(t, err)
	return paymentAnomaly(t, e, book)
}

// paymentAnomaly compares the book of payments with the order and the intent of the first event.
func paymentAnomaly(t *testing.T, e *env, service *PaymentService) string {
	t.Helper()
	made := len(service.Book())
	state := scan[string](t, e, "SELECT state FROM orders WHERE event_id = 1")
	switch {
	case made > 1:
		return "duplicate-effect"
	case made == 1 && state == "cancelled":
		return "phantom-effect"
	case made == 0:
		return "missing-effect"
	}
	return ""
}

// cancelAfterSleeps returns a context that ends at the n-th pause.
func (e *env) cancelAfterSleeps(t *testing.T, n int) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	e.Sleep = func(ctx context.Context, _ time.Duration) error {
		if n--; n == 0 {
			cancel()
		}
		return ctx.Err()
	}
	return ctx
}

// failUntil fails each publish before the n-th.
func failUntil(n, publish int, err error) (stored bool, _ error) {
	if publish < n {
		return false, err
	}
	return true, nil
}

func failOn(n, publish int, err error) error {
	if publish == n {
		return err
	}
	return nil
}

// start runs f in a goroutine; the function it returns waits for its end.
func start(f func() error) (end func() error) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return func() error { return <-done }
}

func wait(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing happened")
	}
}

// eventually waits for a state of the server.
func eventually(t *testing.T, reached func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.After(20 * time.Second)
	for !reached() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatal("state not reached")
		}
	}
}

// lostAnswer is a database whose first COMMIT is not answered; it is done or not.
type lostAnswer struct {
	DB
	commits bool
	lost    bool
	refuse  int // how many transactions after that one cannot begin
}

func (l *lostAnswer) Begin(ctx context.Context) (pgx.Tx, error) {
	if l.lost && l.refuse > 0 {
		l.refuse--
		return nil, &pgconn.PgError{Code: "53300", Message: "too many clients already"}
	}
	tx, err := l.DB.Begin(ctx)
	if err != nil || l.lost {
		return tx, err
	}
	l.lost = true
	return lostCommit{tx, l.commits}, nil
}

type lostCommit struct {
	pgx.Tx
	commits bool
}

func (l lostCommit) Commit(ctx context.Context) error {
	end := l.Rollback
	if l.commits {
		end = l.Tx.Commit
	}
	return errors.Join(end(ctx), io.ErrUnexpectedEOF)
}
