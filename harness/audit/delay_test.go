package audit

import (
	"testing"
	"time"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// A task has its delay from its order, whenever a message was sent, and from the last move.
func TestDelaysOfTasks(t *testing.T) {
	const moved = 3 * time.Second
	for name, test := range map[string]struct {
		delay ledger.Delay
		moved ledger.Outcome // of a move of the first order, 3 s later, if it is not known to have failed
		want  string
	}{
		"in time":                   {ledger.Delay{Due: time.Millisecond, Allowance: time.Hour, TTL: time.Hour}, ledger.Failed, ""},
		"early":                     {ledger.Delay{Due: time.Second}, ledger.Failed, "early=2!"},
		"late":                      {ledger.Delay{Due: 1, Allowance: 1}, ledger.Failed, "late=2!"},
		"of no use":                 {ledger.Delay{Due: 1, TTL: 1}, ledger.Failed, "expired-delivered=2!"},
		"moved":                     {ledger.Delay{Due: time.Millisecond}, ledger.OK, "early=1!"},
		"perhaps moved":             {ledger.Delay{Due: time.Millisecond}, ledger.InDoubt, ""},
		"moved, and the other late": {ledger.Delay{Due: 1, Allowance: 1}, ledger.OK, "early=1! late=1!"},
	} {
		t.Run(name, func(t *testing.T) {
			x := chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2}
			x.header = func(h *ledger.Header) { h.Delay, h.Chain.Tasks = test.delay, true }
			x.events = func(js []mutate.Journal) {
				each(js, func(e *ledger.Event) {
					if e.Kind == ledger.Ordered {
						e.Sent = e.At - 1
					}
				})
				if test.moved == ledger.Failed {
					return
				}
				at := int64(moved)
				orders := &js[1].Events
				end := (*orders)[len(*orders)-1]
				end.At = at
				*orders = append((*orders)[:len(*orders)-1], ledger.Event{
					Kind: ledger.Ordered, EventID: orderID(0), Key: 0, Outcome: test.moved, Sent: at - 1, At: at, Text: "move",
				}, end)
			}
			if v := x.audit(t); summary(v) != test.want {
				t.Errorf("found %q, want %q\nreasons: %q", summary(v), test.want, v.Reasons)
			}
		})
	}
}
