package audit

import (
	"slices"
	"strings"
	"testing"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// A dead letter is an end only of whom the header names.
func TestLettersAreBounded(t *testing.T) {
	may := func(l ledger.Letters) func(h *ledger.Header) {
		return func(h *ledger.Header) { h.Chain.Letters, h.Promise.Places = &l, []string{"effect"} }
	}
	const parked, applied = "a+ a<0 a=0p a<1 a=1 a>2", "a+ a<0 a=0 a<1 a=1 a>2"
	tests := []struct {
		name string
		x    chain
		want string
		arm  ArmResult
	}{
		{"nobody may", chain{consume: parked, effects: "1", letters: "0", header: may(ledger.Letters{})}, "dead-letter-wrong=1! missing-effect/dead-letter-dropped=1!", Broke},
		{"a good one, with its effect", chain{consume: applied, effects: "0 1", letters: "0", header: may(ledger.Letters{})}, "dead-letter-wrong=1!", Broke},
		{"applied, and the effect is a letter", chain{consume: applied, effects: "1", letters: "0", header: may(ledger.Letters{Others: 2})}, "dead-letter-wrong=1!", Broke},
		{"this one may", chain{consume: parked, effects: "1", letters: "0", header: may(ledger.Letters{Events: []uint64{orderID(0)}})}, "", Held},
		{"another one may", chain{consume: parked, effects: "1", letters: "0", header: may(ledger.Letters{Events: []uint64{orderID(1)}})}, "dead-letter-wrong=1! missing-effect/dead-letter-dropped=1!", Broke},
		{"one may", chain{consume: parked, effects: "1", letters: "0", header: may(ledger.Letters{Others: 1})}, "", Held},
		{"one may, and there are two", chain{consume: "a+ a<0 a=0p a<1 a=1p a>2", letters: "0 1", header: may(ledger.Letters{Others: 1})}, "dead-letter-wrong=2! missing-effect/dead-letter-dropped=2!", Broke},
		{"it must come back", chain{consume: parked, effects: "1", letters: "0", header: may(ledger.Letters{Passing: []uint64{orderID(0)}})}, "missing-effect/dead-letter-dropped=1!", Broke},
		{"it came back", chain{consume: parked + " b+ b<0 b=0 b>2", effects: "0 1", letters: "0", header: may(ledger.Letters{Passing: []uint64{orderID(0)}})}, "", Held},
		{"recorded before that was known", chain{consume: parked, effects: "1", letters: "0", header: func(h *ledger.Header) { h.Promise.Places = []string{"effect"} }}, "", Held},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			x := test.x
			x.orders, x.publish, x.end = two, "0 1", 2
			v := x.audit(t)
			got := strings.ReplaceAll(strings.ReplaceAll(summary(v), " redelivered-after-settle=1", ""), "redelivered-after-settle=1", "")
			if got != test.want || v.Arm != test.arm {
				t.Errorf("%s, found %q, want %s, %q\nreasons: %q", v.Arm, summary(v), test.arm, test.want, v.Reasons)
			}
		})
	}
}

// What one consumer did is not about another's effects.
func TestConsumersAreApart(t *testing.T) {
	apart := func(h *ledger.Header) {
		h.Chain.Effects = []ledger.EffectTable{{Name: "notifications/mailer"}, {Name: "notifications/biller"}}
		h.Groups = []ledger.Group{{Name: "mailers"}, {Name: "billers"}}
	}
	// a is the mailer and b the biller; effects are the mailer's unless they are of an order beyond 10.
	events := func(more func(js []mutate.Journal)) func(js []mutate.Journal) {
		return func(js []mutate.Journal) {
			for i := range js {
				switch s := &js[i].Segment; s.Name {
				case "consumer-a":
					s.Name, s.Worker, s.Group = "mailer", "mailer", "mailers"
				case "consumer-b":
					s.Name, s.Worker, s.Group = "biller", "biller", "billers"
				}
			}
			each(js, func(e *ledger.Event) {
				switch {
				case e.Kind == ledger.WorkerEnd:
					e.Text = strings.NewReplacer("consumer-a", "mailer", "consumer-b", "biller").Replace(e.Text)
				case e.Kind == ledger.InboxRow:
					e.Text = "mailer"
				case e.Kind == ledger.GroupEnd:
					e.Text = "mailers"
				case e.Kind != ledger.Effect || e.Text != "notifications":
				case e.EventID < orderID(10):
					e.Text = "notifications/mailer"
				default:
					e.EventID -= 10
					e.Text = "notifications/biller"
				}
			})
			for i := range js {
				if k := slices.IndexFunc(js[i].Events, func(e ledger.Event) bool { return e.Kind == ledger.GroupEnd }); k >= 0 {
					e := js[i].Events[k]
					e.Text = "billers"
					js[i].Events = slices.Insert(js[i].Events, k, e)
				}
			}
			if more != nil {
				more(js)
			}
		}
	}
	letter := func(consumer string) func(js []mutate.Journal) {
		return func(js []mutate.Journal) {
			each(js, func(e *ledger.Event) {
				if e.Kind == ledger.Effect && e.Text == ledger.TableDeadLetter {
					e.Text += "/" + consumer
				}
			})
		}
	}
	const mailer = "a+ a<0 a=0 a<1 a=1 a>2 "
	tests := []struct {
		name string
		x    chain
		want string
		arm  ArmResult
	}{
		{"each its own", chain{consume: mailer + "b+ b<0 b=0 b<1 b=1 b>2", effects: "0 1 10 11", events: events(nil)}, "", Held},
		{"never handed to one", chain{consume: mailer + "b+ b<0 b=0", effects: "0 1 10", seen: "0 1", events: events(func(js []mutate.Journal) {
			each(js, func(e *ledger.Event) {
				if e.Kind == ledger.GroupEnd && e.Text == "billers" {
					e.Pos.Offset = -1
				}
			})
		})}, "undelivered=1! missing-effect/pending=1!", Broke},
		{"passed by one", chain{consume: mailer + "b+ b<0 b=0 b>2", effects: "0 1 10", seen: "0 1", events: events(nil)}, "commit-gap=1! commit-ahead=1! missing-effect/skipped=1!", Broke},
		{"taken for the other's", chain{consume: mailer + "b+ b<0 b=0d b<1 b=1 b>2", effects: "0 1 11", events: events(nil)}, "missing-effect/deduplicated-wrongly=1!", Broke},
		{"the other's is gone", chain{consume: mailer + "b+ b<0 b=0d b<1 b=1 b>2", effects: "1 10 11", events: events(nil)}, "missing-effect/broker=1!", Broke},
		{"the other's dead letter", chain{consume: mailer + "b+ b<0 b=0p b<1 b=1 b>2", effects: "0 1 11", letters: "0", events: events(letter("biller"))}, "", Held},
		{"a dead letter of the other", chain{consume: mailer + "b+ b<0 b=0p b<1 b=1 b>2", effects: "0 1 11", letters: "0", events: events(letter("mailer"))}, "missing-effect/dead-letter-dropped=1!", Broke},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			x := test.x
			x.orders, x.publish, x.end, x.header = two, "0 1", 2, apart
			v := x.audit(t)
			if got := summary(v); got != test.want || v.Arm != test.arm {
				t.Errorf("%s, found %q, want %s, %q\nreasons: %q", v.Arm, got, test.arm, test.want, v.Reasons)
			}
		})
	}
}

// What was given up is no evidence that an arm worked.
func TestGivenUpIsNotHandled(t *testing.T) {
	for _, test := range []struct {
		consume, effects, letters string
		arm                       ArmResult
	}{
		{"a+ a<0 a=0 a<1 a=1 a>2", "0 1", "", Held},
		{"a+ a<0 a=0 a. b+ b<0 b=0d b<1 b=1p b>2", "0", "1", Held}, // a repetition counts
		{"a+ a<0 a=0 a<1 a=1p a>2", "0", "1", ArmInconclusive},
	} {
		x := chain{orders: two, publish: "0 1", consume: test.consume, effects: test.effects, end: 2, letters: test.letters, header: func(h *ledger.Header) { h.Evidence.HandledBefore = 2 }}
		if v := x.audit(t); v.Arm != test.arm {
			t.Errorf("%s: %s %q %q", test.consume, v.Arm, summary(v), v.Reasons)
		}
	}
}
