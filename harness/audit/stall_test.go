package audit

import (
	"slices"
	"testing"
	"time"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// Whose wait is a stall: a caller's, never a background job's. In the chain below stream 2 sends, and whether somebody
// waits for that is what the header says.
func TestWhoseWaitIsAStall(t *testing.T) {
	const bound = 5 * time.Millisecond
	slow := func(js []mutate.Journal) { // the answer to the first send of stream 2 took 20 ms
		each(js, func(e *ledger.Event) {
			if e.Kind == ledger.Complete && e.Stream == 2 && e.Seq == 0 {
				e.Sent -= 20 * ms
			}
		})
	}
	never := func(js []mutate.Journal) {
		js[2].Events = slices.DeleteFunc(js[2].Events, func(e ledger.Event) bool { return e.Kind == ledger.Complete && e.Stream == 2 && e.Seq == 0 })
	}
	told := func(claim ledger.Claim) func(js []mutate.Journal) { // the caller of what stream 2 sends is told so in time
		return func(js []mutate.Journal) {
			js[2].Events = slices.Insert(js[2].Events, 1,
				ledger.Event{Kind: ledger.Claimed, Stream: 2, Seq: 0, EventID: orderID(0), Claim: claim, Sent: 30 * ms, At: 32 * ms})
		}
	}
	call := func(waits int64) func(js []mutate.Journal) { // a caller is told "sent" so long after it began to wait
		return func(js []mutate.Journal) {
			js[1].Events = slices.Insert(js[1].Events, len(js[1].Events)-1,
				ledger.Event{Kind: ledger.Claimed, Stream: 1, Seq: 0, EventID: orderID(0), Claim: ledger.ClaimSent, Sent: 30 * ms, At: 30*ms + waits})
		}
	}
	both := func(a, b func(js []mutate.Journal)) func(js []mutate.Journal) {
		return func(js []mutate.Journal) { a(js); b(js) }
	}
	for _, tc := range []struct {
		name       string
		background []string
		events     func(js []mutate.Journal)
		want       string
	}{
		{"a caller's", nil, slow, "stall=1!"},
		{"a job's", []string{"relay-1"}, slow, ""},
		{"that of the worker that followed another's", []string{"relay"}, slow, "stall=1!"}, // relay-1 is no worker of relay
		{"another job's", []string{"resender"}, slow, "stall=1!"},
		{"a caller's who is never answered", nil, never, "stall=1!"},
		{"a job's that is never answered", []string{"relay-1"}, never, ""},
		{"a caller's who is told late, with a job in the background", []string{"relay-1"}, call(20 * ms), "stall=1!"},
		{"a caller's who is told in time", []string{"relay-1"}, call(2 * ms), ""},
		{"a caller's and a job's", []string{"relay-1"}, both(slow, call(20*ms)), "stall=1!"},
		{"a caller's who is told in time that it was not sent, of an attempt that goes on", nil, both(slow, told(ledger.ClaimFailed)), ""},
		{"the same, of one that never ends", nil, both(never, told(ledger.ClaimFailed)), ""},
		{"an attempt that ends when its caller was long told", nil, both(slow, call(2*ms)), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := chain{
				orders: "ok ok", publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2, events: tc.events,
				header: func(h *ledger.Header) { h.Promise.MaxStall, h.Background = bound, tc.background },
			}.audit(t)
			if got := summary(v); got != tc.want {
				t.Errorf("found %q, want %q\nreasons: %q", got, tc.want, v.Reasons)
			}
			if held := v.Arm == Held; held != (tc.want == "") {
				t.Errorf("arm %s: %q", v.Arm, v.Reasons)
			}
		})
	}
}
