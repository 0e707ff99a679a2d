package audit

import (
	"testing"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// What an application claims of a message is a claim of the business event: another attempt at it will do, and so will a dead
// letter. Without either it is lost.
func TestClaimIsKeptByAnotherAttempt(t *testing.T) {
	event := ledger.EventID(1, 2)
	base := func() []mutate.Journal {
		return []mutate.Journal{{Segment: ledger.Segment{Name: "app", Role: "orders", Worker: "app"}, Events: []ledger.Event{
			{Kind: ledger.Invoke, Stream: 1, Seq: 2, To: 3, EventID: event, At: 10},
			{Kind: ledger.Complete, Stream: 1, Seq: 2, EventID: event, Outcome: ledger.Failed, Sent: 10, At: 20},
			{Kind: ledger.Claimed, Stream: 1, Seq: 2, EventID: event, Claim: ledger.ClaimSent, At: 30},
		}}}
	}
	for name, c := range map[string]struct {
		more []ledger.Event
		lost bool
	}{
		"nothing else":       {nil, true},
		"another attempt":    {[]ledger.Event{{Kind: ledger.Invoke, Stream: 2, To: 1, EventID: event, At: 40}, {Kind: ledger.Stored, Stream: 2, EventID: event, At: 50}}, false},
		"a dead letter":      {[]ledger.Event{{Kind: ledger.Effect, EventID: event, Text: ledger.TableDeadLetter, Detail: goodLetter(event), At: 50}}, false},
		"one of other event": {[]ledger.Event{{Kind: ledger.Invoke, Stream: 2, To: 1, EventID: event + 1, At: 40}, {Kind: ledger.Stored, Stream: 2, EventID: event + 1, At: 50}}, true},
	} {
		h := chainHeader()
		h.Chain = ledger.Chain{}
		js := base()
		js[0].Events = append(js[0].Events, c.more...)
		js[0].Events = append(js[0].Events, ledger.Event{Kind: ledger.StoreEnd, At: 60})
		v, err := Audit(h, opener(t, js))
		if err != nil {
			t.Fatal(err)
		}
		got := false
		for _, f := range v.Findings {
			got = got || f.Name() == "lost(claimed)/never-published"
		}
		if got != c.lost {
			t.Errorf("%s: lost %t, want %t: %v", name, got, c.lost, v.Findings)
		}
	}
}
