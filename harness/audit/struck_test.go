package audit

import (
	"slices"
	"strings"
	"testing"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// asControl makes a chain a control that is struck at a time.
func (x chain) asControl(strike int64, e ledger.Expect) chain {
	header, events := x.header, x.events
	x.header = func(h *ledger.Header) {
		if header != nil {
			header(h)
		}
		h.Role, h.Expect = roleControl, &e
		h.Evidence = ledger.Evidence{Bites: []string{"cut"}}
	}
	x.events = func(js []mutate.Journal) {
		if events != nil {
			events(js)
		}
		js[0].Events = slices.Insert(js[0].Events, 1,
			ledger.Event{Kind: ledger.Inject, Text: "cut", At: strike},
			ledger.Event{Kind: ledger.Bite, Text: "cut", Outcome: ledger.OK, Detail: "it bit", At: strike},
			ledger.Event{Kind: ledger.Heal, Text: "cut", Outcome: ledger.OK, At: strike})
	}
	return x
}

// A control must show its anomaly of an event that the fault can have met. Orders are committed at 12 and 22 ms, published at 33
// and 43 ms, or one at 33 ms, and the first word of the consumer is at 51 ms, or at 41 ms.
func TestControlsAreStruck(t *testing.T) {
	const both, late = "a+ a<0 a=0 a<1 a=1 a>2", "only of messages that were done with before the fault"
	duplicate, unpublished := ledger.Expect{Anomaly: DuplicateEffect}, ledger.Expect{Anomaly: Unpublished}
	missing := ledger.Expect{Anomaly: MissingEffect, Attribution: Skipped}
	tests := []struct {
		name   string
		x      chain
		strike int64
		e      ledger.Expect
		reason string // empty = reproduced
	}{
		{"applied twice after the strike", chain{orders: two, publish: "0 1", consume: both, effects: "0 0 1", end: 2}, 53 * ms, duplicate, ""},
		{"applied twice before the strike", chain{orders: two, publish: "0 1", consume: both, effects: "0 0 1", end: 2}, 54 * ms, duplicate, late},
		{"one of several after it", chain{orders: two, publish: "0 1", consume: both, effects: "0 0 1 1", end: 2}, 54 * ms, duplicate, ""},
		{"asked for again after the strike", chain{orders: "ok ok ok", resent: "2>0", publish: "0 1 2", consume: "a+ a<0 a=0 a<1 a=1 a<2 a=2 a>3", effects: "0 1 2", end: 3}, 65 * ms, duplicate, ""},
		{"not published, ordered after the strike", chain{orders: two, publish: "1", consume: "a+ a<0 a=0 a>1", effects: "1", end: 1}, 12 * ms, unpublished, ""},
		{"not published, overtaken after the strike", chain{orders: two, publish: "1", consume: "a+ a<0 a=0 a>1", effects: "1", end: 1}, 33 * ms, unpublished, ""},
		{"not published, overtaken before the strike", chain{orders: two, publish: "1", consume: "a+ a<0 a=0 a>1", effects: "1", end: 1}, 34 * ms, unpublished, late},
		{"not published, the last one", chain{orders: two, publish: "0", consume: "a+ a<0 a=0 a>1", effects: "0", end: 1}, 90 * ms, unpublished, ""},
		{"skipped before the strike", chain{orders: two, publish: "0 1", consume: "a+ a<1 a=1 a>2", effects: "1", end: 2}, 54 * ms, missing, late},
		{"skipped after the strike", chain{orders: two, publish: "0 1", consume: "a+ a<1 a=1 a>2", effects: "1", end: 2}, 53 * ms, missing, ""},
		{"an order lost before the strike", chain{orders: two, rows: "1", publish: "0 1", consume: both, effects: "0 1", end: 2}, 60 * ms, ledger.Expect{Anomaly: Lost, Attribution: Broker}, late},
		{"the last order lost", chain{orders: two, rows: "0", publish: "0", consume: "a+ a<0 a=0 a>1", effects: "0", end: 1}, 60 * ms, ledger.Expect{Anomaly: Lost, Attribution: Broker, Also: []string{MissingEffect, Unpublished}}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			v := test.x.asControl(test.strike, test.e).audit(t)
			reasons := strings.Join(v.Reasons, "\n")
			if test.reason == "" && v.Arm != Reproduced || test.reason != "" && (v.Arm != ArmInconclusive || !strings.Contains(reasons, test.reason)) {
				t.Errorf("%s %q: %s", v.Arm, summary(v), reasons)
			}
		})
	}
}

// What else a control shows must be of the events of its anomaly, or known of its knob.
func TestControlsShowNothingElse(t *testing.T) {
	e := ledger.Expect{Anomaly: Unpublished}
	with := func(also ...string) ledger.Expect { return ledger.Expect{Anomaly: Unpublished, Also: also} }
	old := func(h *ledger.Header) { h.Checks = map[string]int{EvidenceRules: 2} }
	skipped := ledger.Expect{Anomaly: MissingEffect, Attribution: Skipped}
	tests := []struct {
		name   string
		x      chain
		e      ledger.Expect
		reason string
	}{
		{"its effect is missing too", chain{orders: two, publish: "1", consume: "a+ a<0 a=0 a>1", effects: "1", end: 1}, e, ""},
		{"another's effect is gone", chain{orders: two, publish: "1", consume: "a+ a<0 a=0 a>1", end: 1}, e, "missing-effect/broker (1), of which 1 are of events that have not met unpublished"},
		{"another's effect is gone, as the knob does", chain{orders: two, publish: "1", consume: "a+ a<0 a=0 a>1", end: 1}, with(MissingEffect), ""},
		{"another's effect is gone, as the knob does by name", chain{orders: two, publish: "1", consume: "a+ a<0 a=0 a>1", end: 1}, with("missing-effect/broker"), ""},
		{"a confirmed record is gone", chain{orders: "ok ok ok", publish: "1- 2", consume: "a+ a<1 a=1 a>2", effects: "1 2", end: 2}, e, "lost(confirmed)/broker (1), which its knob is not known to cause"},
		{"a confirmed record is gone, as the knob does", chain{orders: "ok ok ok", publish: "1- 2", consume: "a+ a<1 a=1 a>2", effects: "1 2", end: 2}, with(Lost), ""},
		{"of another cause", chain{orders: "ok ok ok", publish: "0 1 2", consume: "a+ a<0 a=0 a<2 a=2 a>3", effects: "2", end: 3}, skipped, "missing-effect/broker (1), of which 1"},
		{"of another cause, by an older binary", chain{orders: "ok ok ok", publish: "0 1 2", consume: "a+ a<0 a<2 a=2 a>3", effects: "2", end: 3, header: old}, skipped, ""},
		{"of another cause, by this binary", chain{orders: "ok ok ok", publish: "0 1 2", consume: "a+ a<0 a<2 a=2 a>3", effects: "2", end: 3}, skipped, "missing-effect/settled-early (1), of which 1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			v := test.x.asControl(1*ms, test.e).audit(t)
			reasons := strings.Join(v.Reasons, "\n")
			if test.reason == "" && v.Arm != Reproduced || test.reason != "" && (v.Arm != ArmInconclusive || !strings.Contains(reasons, test.reason)) {
				t.Errorf("%s %q: %s", v.Arm, summary(v), reasons)
			}
		})
	}
}
