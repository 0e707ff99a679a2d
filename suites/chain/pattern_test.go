package chain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// TestCommitThatWasLost is the other half of commit-in-doubt: the answer is missing because nothing was done.
func TestCommitThatWasLost(t *testing.T) {
	e := newEnv(t)
	e.DB = &lostAnswer{DB: e.pool}
	must(t, PlaceOrderSurely(t.Context(), e.Service, first))
	if got := scan[string](t, e, "SELECT string_agg(event_id::text, ' ') FROM orders"); got != "1" {
		t.Errorf("orders %s", got)
	}
}

// TestDoubtOutlivesARefusal: an attempt that is refused for sure says nothing of the one before it, whose outcome is unknown.
func TestDoubtOutlivesARefusal(t *testing.T) {
	e := newEnv(t)
	e.DB = &lostAnswer{DB: e.pool, refuse: 1}
	must(t, PlaceOrderSurely(t.Context(), e.Service, first))
	if got := scan[string](t, e, "SELECT string_agg(event_id::text, ' ') FROM orders"); got != "1" {
		t.Errorf("orders %s", got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	e.broker.answer = func(n int, _ Event) (bool, error) {
		switch n {
		case 1, 4:
			return true, io.ErrUnexpectedEOF
		case 2:
			return false, ErrRefused
		case 5:
			cancel() // it is the last attempt of the second send
			return false, ErrRefused
		}
		return true, nil
	}
	must(t, SendUntilConfirmed(ctx, e.Service, first))
	e.Sleep = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	if err := SendUntilConfirmed(ctx, e.Service, first); e.broker.publishes != 5 || errors.Is(err, ErrRefused) || !errors.Is(err, ErrInDoubt) {
		t.Errorf("in doubt, then refused: %v after %d", err, e.broker.publishes)
	}
}

// TestRelaysInParallel runs many relays and producers at once: nothing is left out, and the keys keep their order.
func TestRelaysInParallel(t *testing.T) {
	for name, c := range map[string]struct {
		relay  Job
		relays int
	}{"by status": {Relay, 4}, "below horizon": {RelayBelowHorizon, 2}} {
		t.Run(name, func(t *testing.T) {
			const producers, each = 4, 50
			e := newEnv(t)
			e.Point, e.Batch, e.Sleep = nil, 7, nil
			e.Poll, e.Backoff = time.Millisecond, Backoff{First: time.Millisecond, Max: time.Millisecond}
			e.broker.answer = func(n int, _ Event) (bool, error) { // now and then it fails, before or after it has stored
				if n%13 == 0 {
					return n%2 == 0, io.ErrUnexpectedEOF
				}
				return true, nil
			}
			ctx, cancel := context.WithCancel(t.Context())
			var relays, placing sync.WaitGroup
			for range c.relays {
				relays.Go(func() { _ = RunRelay(ctx, e.Service, c.relay) })
			}
			for p := range uint32(producers) {
				placing.Go(func() {
					for i := range each {
						if err := PlaceOrder(ctx, e.Service, event(uint64(p)<<40|uint64(i+1), p, int64(i))); err != nil {
							t.Error(err)
						}
					}
				})
			}
			placing.Wait()
			ids := map[uint64]bool{}
			eventually(t, func() bool {
				for _, ev := range e.broker.published() {
					ids[ev.ID] = true
				}
				return len(ids) == producers*each
			})
			cancel()
			relays.Wait()
			if got := e.storeAnomaly(t); got != "" {
				t.Error(got)
			}
		})
	}
}

// TestResend: what cannot be sent five times is a dead letter, and the alarm sees it until it is replayed.
func TestResend(t *testing.T) {
	e := newEnv(t)
	e.broker.answer = func(int, Event) (bool, error) {
		return false, fmt.Errorf("%w: token=hunter2", ErrRefused)
	}
	must(t, Send(t.Context(), e.Service, first))
	for i := range resendTries {
		if n, err := ResendDue(t.Context(), e.Service); n != 0 || err != nil {
			t.Fatalf("before it is due: %d, %v", n, err)
		}
		due := scan[float64](t, e, "SELECT extract(epoch FROM next_at - last_failed_at) FROM retry_queue")
		if want := float64(int(1) << i); due < want*0.99 || due > want*1.01 {
			t.Errorf("attempt %d is due after %f s", i+1, due)
		}
		e.exec(t, "UPDATE retry_queue SET next_at = now()")
		if n, err := ResendDue(t.Context(), e.Service); n != 1 || err != nil {
			t.Fatalf("when it is due: %d, %v", n, err)
		}
	}
	if scan[int](t, e, "SELECT count(*) FROM retry_queue") != 0 {
		t.Error("it is still in the retry table")
	}
	if got := scan[string](t, e, "SELECT class || attempts || error FROM dead_letter"); !strings.HasPrefix(got, "temporary5") || strings.Contains(got, "hunter2") {
		t.Errorf("dead letter %s", got)
	}
	if letters(t, e) != 1 {
		t.Error("no alarm")
	}
	e.broker.answer = nil
	must(t, Replay(t.Context(), e.Service, first.ID))
	if letters(t, e) != 0 {
		t.Error("the alarm goes on")
	}
	if err := Replay(t.Context(), e.Service, 99); err == nil {
		t.Error("a letter that is none was replayed")
	}
}

func letters(t *testing.T, e *env) (n int) {
	t.Helper()
	var age int64
	if err := e.pool.QueryRow(t.Context(), OldestLetter).Scan(&n, &age); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestUnresolvable: a service that can neither be asked nor knows keys leaves the payment in doubt, after one attempt.
func TestUnresolvable(t *testing.T) {
	e := newEnv(t)
	book := e.startPayments(t, &PaymentService{Keyless: true, Point: e.point})
	must(t, PlacePaidOrder(t.Context(), e.Service, first))
	e.crashAt(AfterPaymentMade)
	for range 3 {
		_, err := ExecuteIntents(t.Context(), e.Service, Charge)
		must(t, err)
	}
	if n := len(book.Book()); n != 1 {
		t.Errorf("%d payments", n)
	}
	state := scan[string](t, e, "SELECT i.status || ', ' || o.state FROM payment_intents i JOIN orders o USING (event_id)")
	if state != "in doubt, new" {
		t.Errorf("intent and order are %s", state)
	}
}

// TestExecutorDies: an executor that dies after the payment pays once.
func TestExecutorDies(t *testing.T) {
	e := newEnv(t)
	book := e.startPayments(t, &PaymentService{})
	must(t, PlacePaidOrder(t.Context(), e.Service, first))
	for _, point := range []string{AfterPaymentCall, BeforeBusinessCommit} {
		e.crashAt(point)
		if _, err := ExecuteIntents(t.Context(), e.Service, Charge); !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
	}
	_, err := ExecuteIntents(t.Context(), e.Service, Charge)
	must(t, err)
	if got := paymentAnomaly(t, e, book); got != "" {
		t.Error(got)
	}
	if state := scan[string](t, e, "SELECT state FROM orders"); state != "paid" {
		t.Errorf("order is %s", state)
	}
}

// TestPaymentService checks the service by its client, with an answer that does not come in time.
func TestPaymentService(t *testing.T) {
	e := &env{Service: &Service{}}
	var mu sync.Mutex
	silent := map[uint64]bool{3: true}
	service := e.startPayments(t, &PaymentService{Point: func(ctx context.Context, name string, ev Event) error {
		mu.Lock()
		hold := silent[ev.ID]
		delete(silent, ev.ID)
		mu.Unlock()
		if name == AfterPaymentMade && hold {
			<-ctx.Done() // the client has given up
		}
		return nil
	}})
	e.Payments.Timeout = 5 * time.Second
	ctx := t.Context()
	ev := func(id uint64, amount int64) Event { return Event{ID: id, Amount: amount} }
	for _, c := range []struct {
		what      string
		got, want PaymentState
	}{
		{"paid", e.Payments.Pay(ctx, "a", ev(1, 5)), PaymentMade},
		{"again", e.Payments.Pay(ctx, "a", ev(1, 5)), PaymentMade},
		{"the key with another amount", e.Payments.Pay(ctx, "a", ev(1, 6)), PaymentRefused},
		{"without a key", e.Payments.Pay(ctx, "", ev(2, 5)), PaymentMade},
		{"without a key again", e.Payments.Pay(ctx, "", ev(2, 5)), PaymentMade},
		{"found", e.Payments.LookUp(ctx, "a"), PaymentMade},
		{"not found", e.Payments.LookUp(ctx, "b"), PaymentAbsent},
		{"no key is no payment", e.Payments.LookUp(ctx, ""), PaymentAbsent},
		{"no service", (&PaymentClient{URL: "http://127.0.0.1:1"}).LookUp(ctx, "a"), PaymentUnknown},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q", c.what, c.got)
		}
	}
	e.Payments.Timeout = 100 * time.Millisecond
	if state := e.Payments.Pay(ctx, "c", ev(3, 5)); state != PaymentUnknown {
		t.Errorf("without an answer: %q", state)
	}
	e.Payments.Timeout = 5 * time.Second
	if state := e.Payments.LookUp(ctx, "c"); state != PaymentMade {
		t.Errorf("looked up: %q", state)
	}
	book, err := e.Payments.Book(ctx)
	if err != nil || len(book) != 4 || !slices.Equal(book, service.Book()) {
		t.Errorf("book %v, %v", book, err)
	}
}

// TestPoints: each point is called where it says, in this order.
func TestPoints(t *testing.T) {
	e := newEnv(t)
	var seen []string
	e.Point = func(_ context.Context, name string, ev Event) error {
		if ev.ID != first.ID {
			t.Errorf("at %s with event %d", name, ev.ID)
		}
		seen = append(seen, name)
		return nil
	}
	must(t, PlaceOrder(t.Context(), e.Service, first))
	e.drain(t, Relay)
	e.consume(t, Consume, ApplyBeforeMark)
	want := []string{
		BeforeOrderCommit, AfterOrderCommit, BeforePublish, AfterConfirm, BeforeMark, AfterMark, AfterFetch, BetweenTransactions,
		AfterMarkSeen, BeforeBusinessCommit, AfterBusinessCommit, BeforeSettle, AfterSettle,
	}
	if !slices.Equal(seen, want) {
		t.Errorf("points %v", seen)
	}
	for _, point := range want {
		if !slices.Contains(Points(), point) {
			t.Errorf("%s is not listed", point)
		}
	}
}

// TestConflictAtTheSameTime: two contents under one id, concurrently; the second waits for the first and is quarantined.
func TestConflictAtTheSameTime(t *testing.T) {
	e := newEnv(t)
	reached, release := e.holdAt(BeforeBusinessCommit)
	one := start(func() error { _, err := ApplyOnce(t.Context(), e.Service, first); return err })
	wait(t, reached)
	var result Result
	two := start(func() (err error) { result, err = ApplyOnce(t.Context(), e.Service, event(first.ID, 2, 7)); return err })
	eventually(t, func() bool {
		return scan[bool](t, e, `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE application_name = current_setting('application_name') AND wait_event_type = 'Lock')`)
	})
	release()
	must(t, one())
	must(t, two())
	if result != Quarantined || letters(t, e) != 1 {
		t.Errorf("the second is %q", result)
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{First: time.Second, Max: 10 * time.Second}
	for attempt, want := range map[int]time.Duration{1: 1, 2: 2, 3: 4, 4: 8, 5: 10, 100: 10} {
		if got := b.Delay(1, attempt); got != want*time.Second {
			t.Errorf("attempt %d: %s", attempt, got)
		}
	}
	b.Jitter, b.Seed = 0.5, 7
	drawn := map[time.Duration]bool{}
	for work := range uint64(100) {
		d := b.Delay(work, 3)
		if d < 2*time.Second || d > 4*time.Second || d != b.Delay(work, 3) {
			t.Errorf("%s", d)
		}
		drawn[d] = true
	}
	if len(drawn) < 90 {
		t.Errorf("100 waits with only %d values", len(drawn))
	}
	if d := (Backoff{}).Delay(1, 1); d < 50*time.Millisecond || d > 100*time.Millisecond {
		t.Errorf("default %s", d)
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s, began := &Service{}, time.Now()
		if err := s.sleep(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if !s.pause(t.Context(), first, 1) || time.Since(began) == time.Second {
			t.Error("no pause")
		}
	})
}

func TestClassify(t *testing.T) {
	state := func(code string) error {
		return fmt.Errorf("insert: %w", &pgconn.PgError{Severity: "ERROR", Code: code})
	}
	for _, c := range []struct {
		err  error
		want Class
	}{
		{fmt.Errorf("x: %w", ErrTemporary), Temporary},
		{ErrPermanent, Permanent},
		{ErrBusy, Temporary},
		{fmt.Errorf("publish: %w", ErrRefused), Temporary},
		{fmt.Errorf("commit: %w: %w", ErrInDoubt, state("40001")), Unknown},
		{state("40001"), Temporary},
		{state("40P01"), Temporary},
		{state("53300"), Temporary},
		{state("57P01"), Temporary},
		{state("55P03"), Temporary},
		{state("23505"), Permanent},
		{state("22P02"), Permanent},
		{state("42P01"), Permanent},
		{state("XX000"), Unknown},
		{state(""), Unknown},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, Temporary},
		{&net.OpError{Op: "read", Err: errors.New("connection reset by peer")}, Unknown},
		{io.ErrUnexpectedEOF, Unknown},
		{context.DeadlineExceeded, Unknown},
		{errors.New("whatever"), Unknown},
	} {
		if got := Classify(c.err); got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
	}
}

func TestInDoubt(t *testing.T) {
	server := func(severity, code string) error {
		return &pgconn.PgError{Severity: severity, SeverityUnlocalized: severity, Code: code}
	}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{pgx.ErrTxCommitRollback, false},
		{server("ERROR", "40001"), false},
		{server("ERROR", "23503"), false},
		{server("ERROR", "40003"), true},
		{server("ERROR", "08007"), true},
		{server("ERROR", "XX000"), true},
		{server("FATAL", "57P01"), true},
		{io.ErrUnexpectedEOF, true},
		{context.DeadlineExceeded, true},
	} {
		if got := inDoubt(c.err); got != c.want {
			t.Errorf("%v: %t", c.err, got)
		}
	}
}

func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		"dial postgres://app:hunter2@db:5432/x: refused":       "dial postgres://app:***@db:5432/x: refused",
		"host=db user=app password=hunter2 dbname=x":           "host=db user=app password=*** dbname=x",
		`401: {"api_key": "hunter2", "order": 7}`:              `401: {"api_key": "***", "order": 7}`,
		"Authorization: Bearer aHVudGVyMg.x-y":                 "Authorization: Bearer ***",
		"sent Bearer aHVudGVyMg to pay.example":                "sent Bearer *** to pay.example",
		"GET /x?token=hunter2&order=7":                         "GET /x?token=***&order=7",
		"duplicate key value violates unique constraint \"x\"": "duplicate key value violates unique constraint \"x\"",
		"the token has expired":                                "the token has expired",
	} {
		if got := Redact(errors.New(text)); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// BenchmarkChain takes orders from their commit to their effect, one transaction each, with a broker in memory.
func BenchmarkChain(b *testing.B) {
	e := newEnv(b)
	e.Point, e.Sleep, e.Poll = nil, nil, time.Millisecond
	ctx, cancel := context.WithCancel(b.Context())
	var relay, placing sync.WaitGroup
	relay.Go(func() { _ = RunRelay(ctx, e.Service, Relay) })
	orders := make(chan uint64)
	for range 4 {
		placing.Go(func() {
			for i := range orders {
				if err := PlaceOrder(ctx, e.Service, event(i, uint32(i%64), int64(i))); err != nil {
					b.Error(err)
				}
			}
		})
	}
	effects := make(chan Event, 1000)
	var applying sync.WaitGroup
	for range 4 {
		applying.Go(func() {
			for ev := range effects {
				if _, err := ApplyOnce(ctx, e.Service, ev); err != nil {
					b.Error(err)
				}
			}
		})
	}
	e.broker.answer = func(_ int, ev Event) (bool, error) { effects <- ev; return true, nil }
	for i := uint64(1); b.Loop(); i++ {
		orders <- i
	}
	close(orders)
	placing.Wait()
	for len(e.broker.published()) < b.N {
		time.Sleep(time.Millisecond)
	}
	close(effects)
	applying.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "orders/s")
	cancel()
	relay.Wait()
}

// TestWheel: nothing fires before its time, in later rounds of the hand neither, and all of it fires.
func TestWheel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		delays := map[uint64]time.Duration{1: 0, 2: 150 * time.Millisecond, 3: 6400 * time.Millisecond, 4: 20 * time.Second}
		fired := map[uint64]time.Duration{}
		w := &Wheel{Fire: func(_ context.Context, ev Event) { fired[ev.ID] = time.Since(began) }}
		ctx, cancel := context.WithCancel(t.Context())
		ended := start(func() error { w.Run(ctx); return nil })
		for id, delay := range delays {
			w.Add(delay, Event{ID: id})
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if w.Left() != 0 {
			t.Errorf("%d timers are left", w.Left())
		}
		cancel()
		if err := ended(); err != nil {
			t.Error(err)
		}
		for id, delay := range delays {
			if at := fired[id]; at < delay || at > delay+3*w.tick() {
				t.Errorf("%s: fired after %s", delay, at)
			}
		}
	})
}
