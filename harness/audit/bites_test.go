package audit

import (
	"slices"
	"strings"
	"testing"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// crashes makes a producer that kills itself so many times as crash-producer, each proven and healed.
func crashes(n int, more func(js []mutate.Journal)) func(js []mutate.Journal) {
	return func(js []mutate.Journal) {
		for i := range n {
			at := int64(i)*10*ms + 15*ms
			js[0].Events = slices.Insert(js[0].Events, 1,
				ledger.Event{Kind: ledger.Inject, Text: "crash-producer", At: at},
				ledger.Event{Kind: ledger.Bite, Text: "crash-producer", Outcome: ledger.OK, Detail: "pid 7 is gone", At: at},
				ledger.Event{Kind: ledger.Heal, Text: "crash-producer", Outcome: ledger.OK, At: at})
		}
		if more != nil {
			more(js)
		}
	}
}

// What strikes several times under one name must bite each time, as often as planned.
func TestEachStrikeMustBite(t *testing.T) {
	nth := func(n int, change func(e *ledger.Event)) func(js []mutate.Journal) {
		return func(js []mutate.Journal) {
			k := 0
			each(js, func(e *ledger.Event) {
				if e.Kind == ledger.Bite {
					if k++; k == n {
						change(e)
					}
				}
			})
		}
	}
	drop := func(e *ledger.Event) { e.Kind, e.Text = ledger.ClockSample, "" }
	doubt := func(e *ledger.Event) { e.Outcome, e.Detail = ledger.InDoubt, "it lives" }
	twice := map[string]int{"crash-producer": 2}
	tests := []struct {
		name   string
		times  map[string]int
		events func(js []mutate.Journal)
		reason string
	}{
		{"twice", twice, crashes(2, nil), ""},
		{"twice, by an older binary", nil, crashes(2, nil), ""},
		{"the first without proof", twice, crashes(2, nth(1, drop)), "no proof is recorded"},
		{"the second without proof", twice, crashes(2, nth(2, drop)), "no proof is recorded"},
		{"the second in doubt, by an older binary", nil, crashes(2, nth(2, doubt)), "it lives"},
		{"the first in doubt", twice, crashes(2, nth(1, doubt)), "it lives"},
		{"once", twice, crashes(1, nil), "want proof that it bit, 2 times, got 1 strikes"},
		{"never", twice, crashes(0, nil), "want proof that it bit, 2 times, got 0 strikes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			x := history{send: "ok ok ok", store: "0 1 2", events: test.events, header: func(h *ledger.Header) {
				h.Evidence = ledger.Evidence{Bites: []string{"crash-producer"}, Times: test.times}
			}}
			v := x.audit(t)
			if reasons := strings.Join(v.Reasons, "\n"); test.reason == "" && v.Arm != Held || test.reason != "" && (v.Arm == Held || !strings.Contains(reasons, test.reason)) {
				t.Errorf("%s %s", v.Arm, reasons)
			}
		})
	}
}

// A worker that was to kill itself at a point has not if it exited, or died at another.
func TestEndsAtThePoint(t *testing.T) {
	for detail, held := range map[string]bool{
		"killed itself at crash point after-send": true, "killed itself at crash point after-send-2": false, "exited": false, "killed by the engine": false,
	} {
		x := history{send: "ok ok", store: "0 1", header: func(h *ledger.Header) {
			h.Evidence.EndsAt = map[string]string{"producer-1": "after-send"}
		}, events: func(js []mutate.Journal) {
			each(js, func(e *ledger.Event) {
				if e.Kind == ledger.WorkerEnd {
					e.Detail = detail
				}
			})
		}}
		if v := x.audit(t); (v.Arm == Held) != held {
			t.Errorf("%s: %s %q", detail, v.Arm, v.Reasons)
		}
	}
}

// Redeliveries are of the fault from its strike on.
func TestRedeliveriesCountFromTheStrike(t *testing.T) {
	for strike, held := range map[int64]bool{54 * ms: true, 55 * ms: false} {
		x := chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0f a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2}
		x = x.asControl(strike, ledger.Expect{})
		header := x.header
		x.header = func(h *ledger.Header) {
			header(h)
			h.Role, h.Expect, h.Evidence.Redelivered = roleGuarded, nil, 1
		}
		if v := x.audit(t); (v.Arm == Held) != held {
			t.Errorf("strike at %d ms: %s %q %q", strike/ms, v.Arm, summary(v), v.Reasons)
		}
	}
}

// Of a table that was read twice nobody knows what it holds.
func TestTwoReadsOfATable(t *testing.T) {
	x := chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2, events: func(js []mutate.Journal) {
		var rows []ledger.Event
		for _, e := range js[3].Events {
			if e.Kind == ledger.Effect || e.Kind == ledger.OutboxRow || e.Kind == ledger.SnapshotEnd {
				rows = append(rows, e)
			}
		}
		js[3].Events = slices.Insert(js[3].Events, len(js[3].Events)-1, rows...)
	}}
	if v := x.audit(t); v.Arm != ArmInconclusive || !strings.Contains(strings.Join(v.Reasons, "\n"), "duplicate-effect (2) is not proven: snapshot: outbox was read twice") {
		t.Errorf("%s %q %q", v.Arm, summary(v), v.Reasons)
	}
}
