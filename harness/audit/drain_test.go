package audit

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// A hundred messages a second for six seconds, in one partition, with a consumer from the first second on.
func TestDrain(t *testing.T) {
	const second = 1000 * ms
	const sends = 600
	var store strings.Builder
	for i := range sends {
		fmt.Fprint(&store, i, " ")
	}
	for _, tc := range []struct {
		name  string
		every func(at int64) int64 // from one handled to the next
		least int
		want  string // of the proof or the finding
		arm   ArmResult
	}{
		{"drains as predicted", func(int64) int64 { return 5 * ms }, 50, "took", Held},
		{"waits for the database", func(int64) int64 { return 5 * ms }, 50, "waiting for the database 2ms at the median, 2ms at most, 1.2s in all; 300 retries", Held},
		{"slower than what comes in", func(int64) int64 { return 20 * ms }, 50, "never drains", Broke},
		{"as fast as what comes in", func(int64) int64 { return 10 * ms }, 50, "never drains", Broke},
		{"slows down on the way", func(at int64) int64 {
			if at > 2*second {
				return 9 * ms
			}
			return 6 * ms
		}, 50, "%)", Broke},
		{"stops on the way", func(at int64) int64 {
			if at > 2*second {
				return 100 * second
			}
			return 6 * ms
		}, 50, "not drained", Broke},
		{"too little to measure", func(int64) int64 { return 5 * ms }, 500, "only 99 waited", ArmInconclusive},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := history{
				send: strings.Repeat("ok ", sends), store: store.String(),
				header: func(h *ledger.Header) {
					h.Promise.Drain = ledger.Drain{Since: "back", Least: tc.least, Tolerance: 0.2}
				},
			}
			h, js := x.build(t)
			consumer := mutate.Journal{Segment: ledger.Segment{Name: "consumer-1", Role: "consumer", Worker: "consumer-1"}}
			at := second + 7*ms
			for seq := range int64(sends) {
				at = max(at+tc.every(at), (seq+1)*10*ms+8*ms)
				if at > 7*second {
					break
				}
				consumer.Events = append(consumer.Events, ledger.Event{
					Kind: ledger.Handled, Consumer: 1, Stream: 1, Seq: uint64(seq), Outcome: ledger.OK, At: at, Pos: ledger.Position{Offset: seq}, Text: "applied",
					N: 2 * ms, Attempt: uint32(1 + seq%2),
				})
			}
			consumer.Events = append(consumer.Events, ledger.Event{Kind: ledger.SegmentEnd})
			js = append(js, consumer)
			js[engine].Events = slices.Insert(js[engine].Events, len(js[engine].Events)-1,
				ledger.Event{Kind: ledger.Step, Text: "back", At: second + 7*ms, Outcome: ledger.OK},
				ledger.Event{Kind: ledger.WorkerEnd, Text: "consumer-1", Detail: "exited", Outcome: ledger.OK, At: 8 * second})
			v, err := Audit(h, opener(t, js))
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, p := range v.Proofs {
				if p.Name == "drain" {
					got += p.Got
				}
			}
			if v.Arm != tc.arm || !strings.Contains(got, tc.want) {
				t.Errorf("%v, %q, %q: want %v and %q", v.Arm, got, v.Reasons, tc.arm, tc.want)
			}
			if stalls := strings.Contains(summary(v), Stall); stalls != (tc.arm == Broke) {
				t.Errorf("found %s", summary(v))
			}
		})
	}
}

// A hundred orders a second for six seconds, whose relay is back from the first second on.
func TestDrainOfAnOutbox(t *testing.T) {
	const second = 1000 * ms
	const orders = 600
	for name, tc := range map[string]struct {
		every int64
		slow  int64 // half a second later
		want  string
		arm   ArmResult
	}{
		"drains as predicted":   {5 * ms, 5 * ms, "in the outbox", Held},
		"slower than orders":    {20 * ms, 20 * ms, "never drains", Broke},
		"slows down on the way": {6 * ms, 9 * ms, "%)", Broke},
	} {
		var publish strings.Builder
		for i := range orders {
			fmt.Fprint(&publish, i, " ")
		}
		x := chain{
			orders: strings.Repeat("ok ", orders), publish: publish.String(), header: func(h *ledger.Header) {
				h.Promise.Places = []string{"outbox"}
				h.Promise.Drain = ledger.Drain{Since: "back", Least: 50, Tolerance: 0.2, Outbox: true}
				h.Chain.Effects, h.Groups, h.Tables = nil, nil, h.Tables[:1]
			},
			events: func(js []mutate.Journal) {
				at := second
				each(js, func(e *ledger.Event) {
					if e.Kind == ledger.Complete {
						step := tc.every
						if at > 3*second/2 {
							step = tc.slow
						}
						at = max(at+step, int64(e.Seq+1)*10*ms+3*ms)
						e.Sent, e.At = at-ms, at
					}
					if e.Kind == ledger.Invoke && e.EventID != 0 {
						e.At = int64(e.Seq+1)*10*ms + 2*ms
					}
				})
				js[0].Events = slices.Insert(js[0].Events, 1, ledger.Event{Kind: ledger.Step, Text: "back", At: second, Outcome: ledger.OK})
			},
		}
		v := x.audit(t)
		got := ""
		for _, p := range v.Proofs {
			if p.Name == "drain" {
				got += p.Got
			}
		}
		if !strings.Contains(got, tc.want) || strings.Contains(summary(v), Stall) != (tc.arm == Broke) {
			t.Errorf("%s: %v, %q, found %q, %q", name, v.Arm, got, summary(v), v.Reasons)
		}
	}
}
