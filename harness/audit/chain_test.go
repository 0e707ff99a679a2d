package audit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

const two = "ok ok"

// Each check of the chain on literal ledgers.
func TestChainChecks(t *testing.T) {
	unread := func(h *ledger.Header) { h.Chain.Unread = true }
	tests := []struct {
		name string
		x    chain
		want string
		arm  ArmResult
	}{
		{"all is well", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2}, "", Held},
		{"rolled back and not published", chain{orders: "ok fail ok", publish: "0 2", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 2", end: 2}, "", Held},
		{"in doubt, and never seen again", chain{orders: "ok info none", publish: "0", consume: "a+ a<0 a=0 a>1", effects: "0", end: 1}, "", Held},
		{"in doubt, and committed", chain{orders: "ok info", rows: "0 1", publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2}, "", Held},
		{"published twice, one effect", chain{orders: two, publish: "0 0 1", consume: "a+ a<0 a=0 a<1 a=1d a<2 a=2 a>3", effects: "0 1", end: 3}, "", Held},
		{"refused, then published", chain{orders: two, publish: "0! 1 0", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2}, "reordered-store=1! reordered-delivery=1!", Broke},
		{"killed after the business commit, one effect", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a. b+ b<0 b=0d b<1 b=1 b>2", effects: "0 1", end: 2}, "", Held},
		{"killed, and the end of the work is not recorded", chain{orders: two, publish: "0 1", consume: "a+ a<0 a<1 a=0 a>2? a. b+", effects: "0 1", end: 2}, "", Held},
		{"killed before the business commit", chain{orders: two, publish: "0 1", consume: "a+ a<0 a<1 a. b+ b<0 b=0 b<1 b=1 b>2", effects: "0 1", end: 2}, "", Held},
		{"rebalanced in mid-batch", chain{orders: two, publish: "0 1", consume: "a+ a<0 a<1 a=0 a>1 a- b+ b<1 b=1 b>2", effects: "0 1", end: 2}, "", Held},
		{"frozen, its work goes on when it thaws", chain{orders: two, publish: "0 1", consume: "a+ a<0 a<1 b+ b<0 b=0 b<1 b=1 b>2 a=0d a=1d a>2! a<0 a-", effects: "0 1", end: 2}, "", Held},
		{"a commit in doubt, delivered again", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a>1? a. b+ b<0 b=0d b<1 b=1 b>2", effects: "0 1", end: 2}, "", Held},
		{"a commit in doubt that took effect", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2?", effects: "0 1", end: 2}, "", Held},
		{"failed, then again", chain{orders: two, publish: "0 1", consume: "a+ a<0 a<1 a=0f a=1 a<0 a=0 a<1 a=1d a>2", effects: "0 1", end: 2}, "", Held},
		{"parked", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0p a<1 a=1 a>2", effects: "1", letters: "0", end: 2}, "", Held},
		{"dead-lettered, then replayed", chain{orders: two, publish: "0 1 0", consume: "a+ a<0 a=0f a=0l a<1 a=1 a<2 a=2 a>3", effects: "0 1", letters: "0", end: 3}, "", Held},

		{"effect twice", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a. b+ b<0 b=0 b<1 b=1 b>2", effects: "0 0 1", end: 2}, "duplicate-effect=1!", Broke},
		{"effect that says so", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0*3 1", end: 2}, "duplicate-effect=1!", Broke},
		{"resent under a new id", chain{orders: "ok ok ok", resent: "2>0", publish: "0 1 2", consume: "a+ a<0 a=0 a<1 a=1 a<2 a=2 a>3", effects: "0 1 2", end: 3}, "duplicate-effect=1!", Broke},
		{"resent under a new id, one arrived", chain{orders: "info ok ok", rows: "0 1 2", resent: "2>0", publish: "0? 1 2", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "1 2", end: 2}, "unpublished=1!", Broke},
		{"settled first, then killed", chain{orders: two, publish: "0 1", consume: "a+ a<0 a>1 a. b+ b<1 b=1 b>2", effects: "1", end: 2}, "commit-gap=1! missing-effect/settled-early=1!", Broke},
		{"settled first, and not recorded", chain{orders: two, publish: "0 1", consume: "a+ a<0 a. b+ b<1 b=1 b>2", effects: "1", end: 2}, "commit-gap=1! missing-effect/settled-early=1!", Broke},
		{"failed and committed", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0f a<1 a=1 a>2", effects: "1", end: 2}, "commit-gap=1! missing-effect/skipped=1!", Broke},
		{"in doubt and committed", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0i a<1 a=1 a>2", effects: "1", end: 2}, "commit-gap=1! missing-effect/settled-early=1!", Broke},
		{"never delivered, passed", chain{orders: two, publish: "0 1", consume: "a+ a<1 a=1 a>2", effects: "1", end: 2}, "commit-gap=1! missing-effect/skipped=1!", Broke},
		{"never delivered, not passed", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a>1", effects: "0", end: 1}, "undelivered=1! missing-effect/pending=1!", Broke},
		{"nothing delivered", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0", effects: "0", end: -1}, "undelivered=1! missing-effect/pending=1!", Broke},
		{"marked as seen, and not done", chain{orders: two, publish: "0 1", consume: "a+ a<0 a. b+ b<0 b=0d b<1 b=1 b>2", seen: "0 1", effects: "1", end: 2}, "missing-effect/deduplicated-wrongly=1!", Broke},
		{"committed, and the database lost it", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "1", end: 2}, "missing-effect/broker=1!", Broke},
		{"published and gone", chain{orders: two, publish: "0- 1", consume: "a+ a<1 a=1 a>2", effects: "1", end: 2}, "lost(confirmed)/broker=1! missing-effect/broker=1!", Broke},
		{"published below the start of the log", chain{orders: two, publish: "0- 1", consume: "a+ a<1 a=1 a>2", effects: "1", end: 2, events: lowOf(1)}, "lost(confirmed)/expired=1! missing-effect/expired=1!", Broke},
		{"unroutable", chain{orders: two, publish: "0u 1", consume: "a+ a<0 a=0 a>1", effects: "1", end: 1}, "lost(confirmed)/broker=1! missing-effect/unroutable=1!", Broke},
		{"never published", chain{orders: two, publish: "1", consume: "a+ a<0 a=0 a>1", effects: "1", end: 1}, "missing-effect/never-published=1! unpublished=1!", Broke},
		{"refused and given up", chain{orders: two, publish: "0! 1", consume: "a+ a<0 a=0 a>1", effects: "1", end: 1}, "missing-effect/never-published=1! unpublished=1!", Broke},
		{"in doubt and given up", chain{orders: two, publish: "0? 1", consume: "a+ a<0 a=0 a>1", effects: "1", end: 1}, "missing-effect/client-buffer=1! unpublished=1!", Broke},
		{"the order is lost", chain{orders: two, rows: "1", publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2}, "lost(confirmed)/broker=1!", Broke},
		{"rolled back and published", chain{orders: "fail ok", publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2}, "phantom-effect=1! published-uncommitted=1!", Broke},
		{"never committed and published", chain{orders: "none ok", publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2}, "phantom-effect=1! published-uncommitted=1!", Broke},
		{"never committed, and nobody keeps the orders", chain{orders: "none ok", publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2, header: func(h *ledger.Header) { h.Chain.Orders = "" }}, "", Held},
		{"effect of nothing", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1 7", end: 2}, "phantom-effect=1!", Broke},
		{"taken for failed", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0f a<1 a=1 a>2", effects: "0 1", end: 2, events: lastWord(ledger.ClaimFailed)}, "phantom-effect=1!", Broke},
		{"failed, and no effect", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0p a<1 a=1 a>2", effects: "1", letters: "0", end: 2, events: lastWord(ledger.ClaimFailed)}, "", Held},
		{"called off, and no effect", chain{orders: two, publish: "1", consume: "a+ a<0 a=0 a>1", effects: "1", end: 1, events: calledOff}, "unpublished=1!", Broke},
		{"called off, and done all the same", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2, events: calledOff}, "stale-effect=1!", Broke},

		{"dead letter lost", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0l a<1 a=1 a>2", effects: "1", end: 2}, "dead-letter-lost=1! missing-effect/dead-letter-dropped=1!", Broke},
		{"dead letters that nobody reads", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0l a<1 a=1 a>2", effects: "1", letters: "0", end: 2, header: unread}, "missing-effect/dead-letter-dropped=1!", Broke},
		{"dead letter of a good event", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", letters: "0", end: 2}, "dead-letter-wrong=1!", Broke},
		{"dead letter with a secret", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0l a<1 a=1 a>2", effects: "1", letters: "0s", end: 2}, "dead-letter-wrong=1!", Broke},
		{"dead letter that tells nothing", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0l a<1 a=1 a>2", effects: "1", letters: "0-", end: 2}, "dead-letter-wrong=1!", Broke},

		{"committed ahead", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a>2", effects: "0", end: 2}, "commit-gap=1! commit-ahead=1! missing-effect/skipped=1!", Broke},
		{"committed before it was written down", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a>2 a<1 a=1", effects: "0 1", end: 2}, "", Held},
		{"committed over a hole", chain{orders: two, publish: "0 1-", consume: "a+ a<0 a=0 a>2", effects: "0 1", end: 2, header: func(h *ledger.Header) {
			h.Promise.Rules = map[string]ledger.Rule{"lost": {Allowed: true}}
		}}, "lost(confirmed)/broker=1", Held},
		{"the position went back", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2 a>1 a>2", effects: "0 1", end: 2}, "commit-rewind=1!", Broke},
		{"the final position went back", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 1}, "commit-rewind=1!", Broke},
		{"the position is gone", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: -1}, "commit-rewind=1!", Broke},
		{"a lower commit in doubt", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a>1? a<1 a=1 a>2", effects: "0 1", end: 1}, "", Held},
		{"two owners", chain{orders: two, publish: "0 1", consume: "a+ b+ a<0 a=0 b<0 b=0d a>1 b<1 b=1 b>2", effects: "0 1", end: 2}, "double-owner=1!", Broke},
		{"two owners, one was fenced", chain{orders: two, publish: "0 1", consume: "a+ a<0 b+ b<0 b=0 b>1 a=0d a>1! b<1 b=1 b>2", effects: "0 1", end: 2}, "", Held},
		{"an assignment that was late in being written down", chain{orders: two, publish: "0 1", consume: "b+ b<0 b=0 a+ b>1 b<1 b=1 b>2 a-", effects: "0 1", end: 2}, "", Held},
		{"delivered again after the settle", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a>1 a- b+ b<0 b=0d b<1 b=1 b>2", effects: "0 1", end: 2}, "redelivered-after-settle=1!", Broke},
		{"read again after the settle", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2 a<1 a=1d", effects: "0 1", end: 2}, "redelivered-after-settle=1!", Broke},
		{"from the buffer of a client that lost it", chain{orders: two, publish: "0 1", consume: "a+ a<0 b+ b<0 b=0 b<1 b=1 b>2 a<1 a=1d a=0d", effects: "0 1", end: 2}, "", Held},
		{"again for no reason", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a<0 a=0d a<1 a=1d a>2", effects: "0 1", end: 2}, "duplicate-delivery=2!", Broke},
		{"delivered backwards", chain{orders: two, publish: "0 1", consume: "a+ a<1 a=1 b+ b<0 b=0 b>2", effects: "0 1", end: 2}, "reordered-delivery=1!", Broke},

		{"the newest state stands", chain{orders: "ok ok ok", publish: "0 1 2", consume: "a+ a<0 a=0 a<1 a=1 a<2 a=2 a>3", state: "2", end: 3}, "", Held},
		{"an older state is skipped", chain{orders: two, publish: "0 1 0", consume: "a+ a<0 a=0 a<1 a=1 a<2 a=2o a>3", state: "1", end: 3}, "", Held},
		{"an older state over a newer", chain{orders: two, publish: "0 1 0", consume: "a+ a<0 a=0 a<1 a=1 a<2 a=2 a>3", state: "0", end: 3}, "stale-effect=1!", Broke},
		{"the newest state never came", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a>1", state: "0", end: 1}, "undelivered=1! missing-effect/pending=1!", Broke},
		{"a state of nothing", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", state: "5", end: 2}, "phantom-effect=1!", Broke},

		{"stuck", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a>1", effects: "0", end: 1, events: stuckAfter(30 * time.Second)}, "undelivered=1! missing-effect/pending=1! stuck=1!", Broke},
		{"held for too long", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0f a<0 a=0f a<0 a=0f a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2, header: func(h *ledger.Header) { h.Promise.MaxStall = 5 * time.Millisecond }}, "stall=1!", Broke},
		{"held, within the bound", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0f a<0 a=0f a<0 a=0f a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2, header: func(h *ledger.Header) { h.Promise.MaxStall = 7 * time.Millisecond }}, "", Held},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
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

func lowOf(low int64) func(js []mutate.Journal) {
	return func(js []mutate.Journal) {
		each(js, func(e *ledger.Event) {
			if e.Kind == ledger.StoreEnd {
				e.Low = low
			}
		})
	}
}

func lastWord(claim ledger.Claim) func(js []mutate.Journal) {
	return func(js []mutate.Journal) {
		js[1].Events = slices.Insert(js[1].Events, 0, ledger.Event{Kind: ledger.Claimed, EventID: orderID(0), Claim: claim, At: 1})
	}
}

func calledOff(js []mutate.Journal) {
	lastWord(ledger.ClaimFailed)(js)
	js[1].Events[0].Text = ledger.CalledOff
}

func stuckAfter(d time.Duration) func(js []mutate.Journal) {
	return func(js []mutate.Journal) {
		each(js, func(e *ledger.Event) {
			if e.Kind == ledger.Quiet {
				e.Outcome, e.N, e.Detail = ledger.Failed, int64(d), "lag 1"
			}
		})
	}
}

// Where an effect that is missing died.
func TestMissingTable(t *testing.T) {
	tests := []struct {
		f    facts
		want string
	}{
		{ordered, NeverPublished},
		{ordered | published, ClientBuffer},
		{ordered | published | unaccepted, NeverPublished},
		{ordered | published | accepted, Broker},
		{ordered | published | accepted | gone, Expired},
		{ordered | published | accepted | unroutable, Unroutable},
		{ordered | published | accepted | overflowed, Overflowed},
		{ordered | published | accepted | inStore, Pending},
		{ordered | published | accepted | inStore | delivered, Pending},
		{ordered | published | accepted | gone | delivered, Expired},
		{ordered | published | accepted | delivered, Pending},
		{ordered | published | accepted | delivered | fromQueue, Broker},
		{ordered | published | accepted | delivered | fromQueue | inStore, Pending},
		{ordered | published | accepted | delivered | fromQueue | failed | droppedDead, DeadLetterDropped},
		{ordered | published | accepted | delivered | fromQueue | failed | settledAway | settledEarly, SettledEarly},
		{ordered | published | accepted | inStore | settledAway, Skipped},
		{ordered | published | accepted | inStore | delivered | failed | settledAway, Skipped},
		{ordered | published | accepted | inStore | delivered | settledEarly, SettledEarly},
		{ordered | published | accepted | inStore | delivered | settledEarly | settledAway, SettledEarly},
		{ordered | published | accepted | inStore | delivered | seenBefore | settledAway, DeduplicatedWrongly},
		{ordered | published | accepted | inStore | delivered | applied | settledAway, Broker},
		{ordered | published | accepted | inStore | delivered | givenUp | settledAway, DeadLetterDropped},
		{ordered | published | accepted | inStore | delivered | deadLetter | settledAway, DeadLetterDropped},
	}
	for _, test := range tests {
		if got := missingAs(test.f); got != test.want {
			t.Errorf("%b: %s, want %s", test.f, got, test.want)
		}
	}
}

// Without the end of a table's read, or a group's position, what is missing is not known to be.
func TestChainEvidence(t *testing.T) {
	drop := func(kind ledger.Kind) func(js []mutate.Journal) {
		return func(js []mutate.Journal) { remove(js, of(kind)) }
	}
	held := chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2}
	tests := []struct {
		name   string
		header func(h *ledger.Header)
		events func(js []mutate.Journal)
		reason string
	}{
		{"no end of a table", nil, drop(ledger.SnapshotEnd), "was not read to its end"},
		{"fewer rows than there are", nil, drop(ledger.OutboxRow), "outbox has 2 rows, 0 are recorded"},
		{"no position", nil, drop(ledger.GroupEnd), "final position of group g"},
		{"a table that nobody reads", func(h *ledger.Header) {
			h.Chain.Effects = append(h.Chain.Effects, ledger.EffectTable{Name: "receipts/mailer"})
		}, nil, "does not list receipts"},
		{"orders that nobody reads", func(h *ledger.Header) { h.Chain.Orders = "orders" }, nil, "does not list orders"},
		{"too many tables", func(h *ledger.Header) {
			h.Chain.Effects = append(h.Chain.Effects, h.Chain.Effects[0], h.Chain.Effects[0], h.Chain.Effects[0], h.Chain.Effects[0])
		}, nil, "at most 4"},
		{"few orders", func(h *ledger.Header) { h.Evidence.Ordered = 3 }, nil, "orders: want >= 3 committed, got 2"},
		{"few handled", func(h *ledger.Header) { h.Evidence.HandledBefore = 3 }, nil, "want >= 3 handled"},
		{"none handled after", func(h *ledger.Header) { h.Evidence.HandledAfter = 1 }, nil, "after the heal: want >= 1 handled"},
		{"none redelivered", func(h *ledger.Header) { h.Evidence.Redelivered = 1 }, nil, "redelivery"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			x := held
			x.header, x.events = test.header, test.events
			v := x.audit(t)
			if v.Arm == Held || !strings.Contains(strings.Join(v.Reasons, "\n"), test.reason) {
				t.Errorf("%s %q %q", v.Arm, summary(v), v.Reasons)
			}
		})
	}
}

// tell prints a story as "+1.5ms place: text" lines.
func (x chain) tell(t testing.TB, id ledger.MessageID) (string, string) {
	t.Helper()
	h, js := x.build(t)
	s, err := Tell(h, opener(t, js), id)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, l := range s.Lines {
		fmt.Fprintf(&b, "+%s %s: %s\n", l.Since, l.Place, l.Text)
	}
	return s.Title, b.String()
}

func TestStoryOfAnOrder(t *testing.T) {
	x := chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a. b+ b<0 b=0 b<1 b=1 b>2", effects: "0 0 1", end: 2}
	const wantTitle = "order 1/0: duplicate-effect"
	const want = `+0s begun: orders-1 was about to commit it
+2ms committed: orders-1: order 1/0, key-00000000, version 1, committed
+20ms sent: relay-1 was about to hand it to its client: message 0 of stream 2, key-00000000 for t partition 0
+21ms sent: handed to the client of relay-1
+23ms confirmed: confirmed by the broker, as partition 0 offset 0 (2ms after it was sent)
+42ms delivered: delivered to consumer-a, from partition 0 offset 0
+43ms applied: consumer-a ended its work on it: applied
+44ms fault: consumer-a: killed at crash point after-business-commit
+46ms delivered: delivered again to consumer-b, from partition 0 offset 0
+47ms applied: consumer-b ended its work on it: applied
+50ms settled: consumer-b settled it: committed position 2, ok
+60ms stored: the final read found it in the raw view: partition 0 offset 0
+60ms stored: the final read found it in the committed view: partition 0 offset 0
+60ms committed: the final read found its outbox row: published
+60ms applied: the final read found its effect in notifications
+60ms applied: the final read found its effect in notifications
+60ms verdict: duplicate-effect: it was applied twice
`
	// By the order's id, and by that of the message that carried it.
	for _, id := range []ledger.MessageID{{Stream: 1, Seq: 0}, {Stream: 2, Seq: 0}} {
		title, got := x.tell(t, id)
		if title != wantTitle || got != want {
			t.Errorf("%s\n%s\nwant %s\n%s", title, got, wantTitle, want)
		}
	}
	v := x.audit(t)
	if len(v.Stories) != 1 || v.Stories[0].ID != (ledger.MessageID{Stream: 1, Seq: 0}) || v.Findings[0].Window == "" {
		t.Errorf("stories %+v of %+v", v.Stories, v.Findings)
	}
}

func TestStoriesOfChains(t *testing.T) {
	tests := []struct {
		name string
		x    chain
		id   ledger.MessageID
		want []string
	}{
		{"once", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2}, identity(orderID(1)), []string{"order 1/1: applied once", "committed position 2, ok"}},
		{"settled first", chain{orders: two, publish: "0 1", consume: "a+ a<0 a>1 a. b+ b<1 b=1 b>2", effects: "1", end: 2}, identity(orderID(0)), []string{"missing-effect/settled-early", "before its work had ended", "killed at crash point"}},
		{"settled first, and not recorded", chain{orders: two, publish: "0 1", consume: "a+ a<0 a. b+ b<1 b=1 b>2", effects: "1", end: 2}, identity(orderID(0)), []string{"missing-effect/settled-early"}},
		{"skipped", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0f a<1 a=1 a>2", effects: "1", end: 2}, ledger.MessageID{Stream: 2, Seq: 0}, []string{"order 1/0: missing-effect/skipped", "which failed"}},
		{"never published", chain{orders: two, publish: "1", consume: "a+ a<0 a=0 a>1", effects: "1", end: 1}, identity(orderID(0)), []string{"missing-effect/never-published", "its outbox row: published"}},
		{"rolled back", chain{orders: "fail ok", publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2}, identity(orderID(0)), []string{"phantom-effect", "rolled back"}},
		{"in doubt", chain{orders: "ok info", publish: "0", consume: "a+ a<0 a=0 a>1", effects: "0", end: 1}, identity(orderID(1)), []string{"not committed", "not answered"}},
		{"asked for twice", chain{orders: "ok ok ok", resent: "2>0", publish: "0 1 2", consume: "a+ a<0 a=0 a<1 a=1 a<2 a=2 a>3", effects: "0 1 2", end: 3}, identity(orderID(0)), []string{"order 1/0: duplicate-effect", "as event 1/2: orders-1 asked for the business act of event 1/0 again", "as event 1/2: delivered again to consumer-a"}},
		{"first to the one whose segment is read last", chain{orders: two, publish: "0 1", consume: "b+ b<0 b=0f b. a+ a<0 a=0d a<1 a=1 a>2", effects: "0 1", end: 2}, identity(orderID(0)), []string{"delivered to consumer-b", "delivered again to consumer-a"}},
		{"dead letter", chain{orders: two, publish: "0 1", consume: "a+ a<0 a=0p a<1 a=1 a>2", effects: "1", letters: "0", end: 2}, identity(orderID(0)), []string{"dead-lettered", "parked"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			title, text := test.x.tell(t, test.id)
			for _, part := range test.want {
				if !strings.Contains(title+"\n"+text, part) {
					t.Errorf("%q is not in\n%s\n%s", part, title, text)
				}
			}
		})
	}
}
