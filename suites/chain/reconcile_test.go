package chain

import (
	"slices"
	"testing"
	"time"
)

// TestReconcile plants each kind of discrepancy with an unsafe twin. All are found and repaired, and nothing else is.
func TestReconcile(t *testing.T) {
	e := newEnv(t)
	e.Redeliver = time.Millisecond
	ctx := t.Context()
	apply := func(handle Handler, ev Event) {
		t.Helper()
		if _, err := handle(ctx, e.Service, ev); err != nil {
			t.Fatal(err)
		}
	}
	// A good order: placed, published, applied.
	good := event(1, 1, 1)
	must(t, PlaceOrder(ctx, e.Service, good))
	e.drain(t, Relay)
	apply(ApplyOnce, good)
	if found, err := Compare(ctx, e.Service); err != nil || len(found) != 0 {
		t.Fatalf("in order, and yet found %v (%v)", found, err)
	}

	neverPublished, seenOnly, twice, noOrder, paid, passed := event(2, 2, 1), event(3, 3, 1), event(4, 4, 1), event(5, 5, 1), event(6, 6, 1), event(7, 1, 2)
	e.crashAt(AfterOrderCommit)
	if err := PlaceOrderThenPublish(ctx, e.Service, neverPublished); err == nil {
		t.Fatal("no crash")
	}
	must(t, PlaceOrder(ctx, e.Service, seenOnly))
	must(t, PlaceOrder(ctx, e.Service, twice))
	e.drain(t, Relay)
	e.crashAt(BetweenTransactions)
	if _, err := ApplyAfterMark(ctx, e.Service, seenOnly); err == nil {
		t.Fatal("no crash")
	}
	apply(ApplyAlways, twice)
	apply(ApplyAlways, twice)
	apply(ApplyAlways, noOrder)
	must(t, PlacePaidOrder(ctx, e.Service, paid))
	e.exec(t, "UPDATE payment_intents SET status = 'paid' WHERE event_id = 6")
	// A row that a relay by position has passed over.
	must(t, PlaceOrder(ctx, e.Service, passed))
	later := event(8, 1, 3)
	must(t, PlaceOrder(ctx, e.Service, later))
	e.exec(t, "UPDATE outbox SET status = 'published', published_at = now() WHERE event_id = 8")
	apply(ApplyOnce, later)
	time.Sleep(5 * time.Millisecond) // older than Redeliver, by the database's clock

	found, err := Compare(ctx, e.Service)
	must(t, err)
	var kinds []string
	for _, f := range found {
		if !slices.Contains(kinds, f.Kind) {
			kinds = append(kinds, f.Kind)
		}
	}
	if !slices.Equal(kinds, Discrepancies()) {
		t.Errorf("found %q, want each of %q", kinds, Discrepancies())
	}
	before := len(e.broker.published())
	for range 3 {
		_, err := Reconcile(ctx, e.Service)
		must(t, err)
		e.drain(t, Relay)
		for _, ev := range e.broker.published()[before:] {
			apply(ApplyOnce, ev)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if found, err := Compare(ctx, e.Service); err != nil || len(found) != 0 {
		t.Errorf("repaired, and yet found %v (%v)", found, err)
	}
	if got := scan[string](t, e, "SELECT string_agg(event_id::text, ' ' ORDER BY event_id) FROM notifications"); got != "1 2 3 4 6 7 8" {
		t.Errorf("effects of %s", got)
	}
	if got := scan[string](t, e, "SELECT state FROM orders WHERE event_id = 6"); got != "paid" {
		t.Errorf("the order whose payment is made is %s", got)
	}
}
