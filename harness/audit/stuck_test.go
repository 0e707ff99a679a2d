package audit

import (
	"strings"
	"testing"
	"time"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// Who hangs, or was killed, has lost nothing; and where all are well and nothing moves, that is what is wrong.
func TestStuckIsNoLoss(t *testing.T) {
	end := func(worker, detail string) func(js []mutate.Journal) {
		return func(js []mutate.Journal) {
			each(js, func(e *ledger.Event) {
				if e.Kind == ledger.WorkerEnd && e.Text == worker {
					e.Outcome, e.Detail = ledger.InDoubt, detail
				}
			})
		}
	}
	both := func(fs ...func(js []mutate.Journal)) func(js []mutate.Journal) {
		return func(js []mutate.Journal) {
			for _, f := range fs {
				f(js)
			}
		}
	}
	consumer := chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a>1", effects: "0", end: 1}
	relay := chain{orders: two, publish: "0", consume: "a+ a<0 a=0 a>1", effects: "0", end: 1}
	const hung = "killed by the engine: stuck, it did not end within 10 s"
	tests := []struct {
		name   string
		x      chain
		events func(js []mutate.Journal)
		arm    ArmResult
		want   string // found
		reason string
	}{
		{"a consumer hangs", consumer, both(stuckAfter(30*time.Second), end("consumer-a", hung)), ArmInconclusive, "stuck=1!", "missing-effect/pending (1) is not proven: worker consumer-a: " + hung},
		{"a consumer was killed", consumer, end("consumer-a", "died of itself: signal: killed"), ArmInconclusive, "undelivered=1!", "undelivered (1) is not proven: worker consumer-a: died of itself"},
		{"nobody hangs, and nothing moves", consumer, stuckAfter(30 * time.Second), Broke, "stuck=1!", "undelivered (1) is not proven: it is stuck, which is not lost"},
		{"nobody hangs, and it was drained", consumer, nil, Broke, "missing-effect/pending=1!", ""},
		{"a relay hangs", relay, both(stuckAfter(30*time.Second), end("relay-1", hung)), ArmInconclusive, "stuck=1!", "unpublished (1) is not proven: worker relay-1: " + hung},
		{"a relay has let go", relay, nil, Broke, "unpublished=1!", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			x := test.x
			x.events = test.events
			x.header = func(h *ledger.Header) {
				h.Evidence, h.Background = ledger.Evidence{Ends: []string{"orders-1"}}, []string{"relay-1", "consumer-a"}
			}
			v := x.audit(t)
			if reasons := strings.Join(v.Reasons, "\n"); v.Arm != test.arm || !strings.Contains(summary(v), test.want) || !strings.Contains(reasons, test.reason) {
				t.Errorf("%s %q %s", v.Arm, summary(v), reasons)
			}
		})
	}
	// A control shows what it shows.
	x := consumer
	x.events = stuckAfter(30 * time.Second)
	if v := x.asControl(1*ms, ledger.Expect{Anomaly: MissingEffect, Attribution: Pending, Also: []string{Undelivered}}).audit(t); v.Arm != Reproduced {
		t.Errorf("%s %q %q", v.Arm, summary(v), v.Reasons)
	}
}
