package audit

import (
	"slices"
	"strings"
	"testing"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// last puts events before the end of the reader's segment.
func last(js []mutate.Journal, es ...ledger.Event) {
	js[3].Events = slices.Insert(js[3].Events, len(js[3].Events)-1, es...)
}

// A table of states must have what was applied, as it was.
func TestStatesAreThere(t *testing.T) {
	const all = "a+ a<0 a=0 a<1 a=1 a<2 a=2 a>3"
	gone := func(js []mutate.Journal) {
		remove(js, of(ledger.Effect))
		each(js, func(e *ledger.Event) {
			if e.Kind == ledger.SnapshotEnd && e.Text == "balances" {
				e.N = 0
			}
		})
	}
	ahead := func(js []mutate.Journal) {
		each(js, func(e *ledger.Event) {
			if e.Kind == ledger.Effect {
				e.N += 1000
			}
		})
	}
	for _, test := range []struct {
		name, want string
		events     func(js []mutate.Journal)
	}{
		{"there", "", nil},
		{"gone", "missing-effect/broker=1!", gone}, // only the newest one must stand
		{"of a version that no event has", "phantom-effect=1!", ahead},
	} {
		x := chain{orders: "ok ok ok", publish: "0 1 2", consume: all, state: "2", end: 3, events: test.events}
		if v := x.audit(t); summary(v) != test.want || (v.Arm == Held) != (test.want == "") {
			t.Errorf("%s: %s %q %q", test.name, v.Arm, summary(v), v.Reasons)
		}
	}
}

// Rows say of their event what it says itself, and tables are those of the arm, read when it was at rest.
func TestRowsAreTheirEvents(t *testing.T) {
	versions := func(h *ledger.Header) { h.Chain.Effects[0].Versions = true }
	row := func(change func(e *ledger.Event)) func(js []mutate.Journal) {
		return func(js []mutate.Journal) {
			each(js, func(e *ledger.Event) {
				if e.Kind == ledger.Effect && e.Text == "notifications" {
					seq := e.EventID & (1<<40 - 1)
					e.N = int64(seq)
					if seq == 1 {
						change(e)
					}
				}
			})
		}
	}
	ends := func(change func(e *ledger.Event)) func(js []mutate.Journal) {
		return func(js []mutate.Journal) {
			each(js, func(e *ledger.Event) {
				if e.Kind == ledger.SnapshotEnd {
					change(e)
				}
			})
		}
	}
	space := func(h *ledger.Header) { h.Space = "conform_1" }
	dense := func(h *ledger.Header) { h.Destinations[0].Dense = true }
	holed := func(js []mutate.Journal) {
		each(js, func(e *ledger.Event) {
			switch e.Kind {
			case ledger.StoreEnd:
				e.Count = -1
				e.N++
				e.Pos.Offset++
			case ledger.EndPosition:
				e.Pos.Offset++
			}
		})
	}
	tests := []struct {
		name   string
		header func(h *ledger.Header)
		events func(js []mutate.Journal)
		want   string
		reason string
	}{
		{"as they are", versions, row(func(*ledger.Event) {}), "", ""},
		{"another key", nil, row(func(e *ledger.Event) { e.Key = 3 }), "phantom-effect=1!", ""},
		{"a key that nobody read", nil, row(func(e *ledger.Event) { e.Key = ledger.NoKey }), "", ""},
		{"another version", versions, row(func(e *ledger.Event) { e.N = 9 }), "phantom-effect=1!", ""},
		{"an amount", nil, row(func(e *ledger.Event) { e.N = 160 }), "", ""},
		{"no event", nil, func(js []mutate.Journal) {
			ends(func(e *ledger.Event) {
				if e.Text == "notifications" {
					e.N++
				}
			})(js)
			last(js, ledger.Event{Kind: ledger.Effect, EventID: 5, Text: "notifications"})
		}, "", "names no business event, but 5"},
		{"another schema", space, ends(func(e *ledger.Event) { e.Detail = "conform_2" }), "", `was read in "conform_2", the arm's is "conform_1"`},
		{"the arm's schema", space, ends(func(e *ledger.Event) { e.Detail = "conform_1" }), "", ""},
		{"read before the load", nil, ends(func(e *ledger.Event) { e.At = 1 }), "", "before the arm was at rest"},
		{"delivered, and never sent", nil, func(js []mutate.Journal) {
			j := &js[4]
			at := slices.IndexFunc(j.Events, func(e ledger.Event) bool { return e.Kind == ledger.Received })
			e := j.Events[at]
			e.Seq, e.Pos.Offset, e.At = 9, 2, e.At+100*ms
			j.Events = slices.Insert(j.Events, len(j.Events)-1, e)
		}, "", "2/9 was delivered, and no invoke covers it"},
		{"a hole", dense, holed, "", "of the positions 0..2 of t partition 0, 1 hold no record"},
		{"a hole where there may be some", nil, holed, "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			v := chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2, header: test.header, events: test.events}.audit(t)
			reasons := strings.Join(v.Reasons, "\n")
			if summary(v) != test.want || !strings.Contains(reasons, test.reason) || (v.Arm == Held) != (test.want+test.reason == "") {
				t.Errorf("%s %q %s", v.Arm, summary(v), reasons)
			}
		})
	}
}
