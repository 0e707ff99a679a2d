package audit

import (
	"slices"
	"testing"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// queued makes a ledger one of a queue: deliveries have no positions, each is acked for itself, in doubt, and no group has a
// final position. The store is a queue beside it that nobody consumes from.
func queued(js []mutate.Journal) {
	for i := range js {
		js[i].Events = slices.DeleteFunc(js[i].Events, func(e ledger.Event) bool { return e.Kind == ledger.GroupEnd })
	}
	last := ledger.Event{}
	each(js, func(e *ledger.Event) {
		switch e.Kind {
		case ledger.Handled:
			last = *e
			e.Pos.Offset = -1
		case ledger.Received:
			e.Pos.Offset = -1
		case ledger.Settled:
			e.Text, e.Outcome, e.Stream, e.Seq, e.EventID, e.Pos = "ack", ledger.InDoubt, last.Stream, last.Seq, last.EventID, last.Pos
			e.Pos.Offset = -1
		}
	})
}

// TestQueues judges what comes from queues: there the message counts, and not where it stood.
func TestQueues(t *testing.T) {
	const two = "ok ok"
	for _, test := range []struct {
		name string
		x    chain
		want string
		arm  ArmResult
	}{
		{"all of it", chain{orders: two, publish: "0 1", consume: "a<0 a=0 a>1 a<1 a=1 a>2", effects: "0 1"}, "", Held},
		{"in any order, and again", chain{orders: two, publish: "0 1", consume: "a<0 a=0f b<1 b=1 b>2 a<0 a=0 a>1", effects: "0 1"}, "", Held},
		{"never delivered", chain{orders: two, publish: "0 1", consume: "a<0 a=0 a>1", effects: "0"}, "undelivered=1! missing-effect/pending=1!", Broke},
		{"acked, and the effect is gone", chain{orders: two, publish: "0 1", consume: "a<0 a=0 a>1 a<1 a=1 a>2", effects: "0"}, "missing-effect/broker=1!", Broke},
		{"delivered, and gone from both", chain{orders: two, publish: "0- 1", consume: "a<0 a=0 a>1 a<1 a=1 a>2", effects: "0 1"}, "", Held},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.x.end, test.x.events = -1, queued
			v := test.x.audit(t)
			if got := summary(v); got != test.want {
				t.Errorf("found %q, want %q\nreasons: %q", got, test.want, v.Reasons)
			}
			if v.Arm != test.arm {
				t.Errorf("arm %s, want %s: %q", v.Arm, test.arm, v.Reasons)
			}
		})
	}
}
