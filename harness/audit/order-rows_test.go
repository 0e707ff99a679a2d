package audit

import (
	"testing"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// The table of orders as the suites have it: beside the outbox, written by the same transaction.
func withOrders(rows ...int) (func(*ledger.Header), func([]mutate.Journal)) {
	header := func(h *ledger.Header) {
		h.Chain.Orders, h.Chain.Outbox, h.Chain.Published = "orders", true, "published"
		h.Tables = append(h.Tables, "orders")
	}
	return header, func(js []mutate.Journal) {
		rd := &js[3].Events
		*rd = (*rd)[:len(*rd)-1]
		for _, n := range rows {
			*rd = append(*rd, ledger.Event{Kind: ledger.Effect, EventID: orderID(n), N: int64(n) + 1, Text: "orders", At: (*rd)[len(*rd)-1].At})
		}
		end := (*rd)[len(*rd)-1].At
		*rd = append(*rd, ledger.Event{Kind: ledger.SnapshotEnd, Text: "orders", N: int64(len(rows)), At: end}, ledger.Event{Kind: ledger.SegmentEnd})
	}
}

// A row of the outbox is no row of the order.
func TestOrdersBesideTheOutbox(t *testing.T) {
	const all = "a+ a<0 a=0 a<1 a=1 a>2"
	tests := []struct {
		name   string
		x      chain
		orders []int
		state  string // of the outbox rows
		want   string
		arm    ArmResult
	}{
		{"all is well", chain{orders: two}, []int{0, 1}, "published", "", Held},
		{"no order is there", chain{orders: two}, nil, "published", "lost(confirmed)/broker=2! torn-txn=2!", Broke},
		{"an order without its row of the outbox", chain{orders: two, rows: "1"}, []int{0, 1}, "published", "torn-txn=1!", Broke},
		{"rolled back, published all the same", chain{orders: "fail ok", rows: "0 1"}, []int{1}, "published", "torn-txn=1! phantom-effect=1! published-uncommitted=1!", Broke},
		{"in doubt, and committed", chain{orders: "info ok", rows: "0 1"}, []int{0, 1}, "published", "", Held},
		{"in doubt, and not committed", chain{orders: "info ok", rows: "1"}, []int{1}, "published", "phantom-effect=1! published-uncommitted=1!", Broke},
		{"no row says that it was published", chain{orders: two}, []int{0, 1}, "pending", "", ArmInconclusive},
		{"given up though the broker has them", chain{orders: two}, []int{0, 1}, ledger.RowGivenUp, "", Held},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			x := test.x
			x.publish, x.consume, x.effects, x.end = "0 1", all, "0 1", 2
			var rows func([]mutate.Journal)
			x.header, rows = withOrders(test.orders...)
			x.events = func(js []mutate.Journal) {
				rows(js)
				each(js, func(e *ledger.Event) {
					if e.Kind == ledger.OutboxRow {
						e.Text = test.state
					}
				})
			}
			v := x.audit(t)
			if got := summary(v); got != test.want || v.Arm != test.arm {
				t.Errorf("%s, found %q, want %s, %q\nreasons: %q", v.Arm, got, test.arm, test.want, v.Reasons)
			}
		})
	}
}
