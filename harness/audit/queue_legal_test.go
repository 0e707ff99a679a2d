package audit

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// legalQueue returns a random history of one queue with a dead-letter target, in which no promise is broken: messages that
// are delivered in order, given back and delivered again, processed, acked, rejected to the target or expired there.
func legalQueue(r *rand.Rand) (ledger.Header, []journal) {
	h := chainHeader()
	h.Seed = r.Uint64()
	h.Workload.Keys = uint32(1 + r.IntN(4))
	h.Groups = nil
	h.Tables = []string{"notifications"}
	h.Chain = ledger.Chain{Effects: []ledger.EffectTable{{Name: "notifications"}}}
	h.Promise.Places = []string{"delivery", "effect", "liveness"}
	h.Promise.MaxStall = time.Hour
	h.Delay = ledger.Delay{}
	h.Evidence = ledger.Evidence{Ends: []string{"producer-1"}}
	name := h.Destinations[0].Name
	now := int64(0)
	tick := func() int64 { now += 1000 + r.Int64N(ms); return now }

	eng := journal{Segment: ledger.Segment{Name: "engine", Role: "engine"}}
	prod := journal{Segment: ledger.Segment{Name: "producer-1", Role: "producer", Worker: "producer-1"}}
	cons := journal{Segment: ledger.Segment{Name: "consumer-1", Role: "consumer", Worker: "consumer-1"}}
	rd := journal{Segment: ledger.Segment{Name: "reader", Role: "reader"}}
	add := func(j *journal, e ledger.Event) { j.Events = append(j.Events, e) }
	add(&eng, ledger.Event{Kind: ledger.Phase, Text: "load", At: 0})
	n := 20 + r.IntN(40)
	none := ledger.Position{Offset: -1}
	for i := range n {
		seq := uint64(i)
		add(&prod, ledger.Event{Kind: ledger.Invoke, Stream: 1, Seq: seq, To: seq + 1, At: tick()})
		add(&prod, ledger.Event{Kind: ledger.Complete, Stream: 1, Seq: seq, Outcome: ledger.OK, Claim: ledger.ClaimSent, Sent: now + 1, At: now + 2, Pos: none})
	}
	add(&eng, ledger.Event{Kind: ledger.WorkerEnd, Text: "producer-1", Outcome: ledger.OK, Detail: "exited", At: tick()})

	death := func(reason string) string {
		b, _ := json.Marshal(ledger.DeathRecord{Queue: name, Reason: reason, Count: 1, Time: "2026-01-01T00:00:00Z"})
		return string(b)
	}
	var dead []ledger.Event
	letter := func(seq uint64, reason string) {
		id := ledger.MessageID{Stream: 1, Seq: seq}
		payload := ledger.AppendPayload(nil, h.Seed, h.Tag(), id, 0, h.Workload.PayloadSize)
		key := ledger.KeyName(ledger.KeyOf(h.Seed, id, h.Workload.Keys))
		e := ledger.StoredRecord(h.Tag(), ledger.ViewDeadLetter, ledger.Position{Partition: 1, Offset: int64(len(dead))}, []byte(key), payload, 0)
		e.Detail = death(reason)
		dead = append(dead, e)
	}
	var effects []uint64
	for i := range n {
		seq := uint64(i)
		of := func(kind ledger.Kind) ledger.Event {
			return ledger.Event{Kind: kind, Consumer: 1, Stream: 1, Seq: seq, Pos: none, At: tick()}
		}
		receive := func() {
			e := of(ledger.Received)
			e.Digest = ledger.Digest(ledger.AppendPayload(nil, h.Seed, h.Tag(), e.ID(), 0, h.Workload.PayloadSize))
			add(&cons, e)
		}
		settle := func(how string) {
			e := of(ledger.Settled)
			e.Text, e.Sent = how, e.At
			add(&cons, e)
		}
		handle := func(outcome ledger.Outcome, text string) {
			e := of(ledger.Handled)
			e.Outcome, e.Text = outcome, text
			add(&cons, e)
		}
		if i > 1 && r.IntN(10) == 0 {
			letter(seq, "expired")
			continue
		}
		receive()
		for i > 1 && r.IntN(6) == 0 {
			handle(ledger.Failed, "retried")
			settle("nack-requeue")
			receive()
		}
		if i > 1 && (r.IntN(8) == 0 || i == 3) {
			handle(ledger.Failed, "retried")
			settle("reject")
			letter(seq, "rejected")
			continue
		}
		handle(ledger.OK, "applied")
		settle("ack")
		effects = append(effects, ledger.EventID(1, seq))
		if i > 1 && r.IntN(10) == 0 { // the ack was lost
			receive()
			handle(ledger.OK, "skipped: duplicate")
			settle("ack")
		}
	}
	add(&eng, ledger.Event{Kind: ledger.WorkerEnd, Text: "consumer-1", Outcome: ledger.OK, Detail: "exited", At: tick()})
	add(&eng, ledger.Event{Kind: ledger.Phase, Text: "heal", At: tick()})
	add(&eng, ledger.Event{Kind: ledger.Quiet, Outcome: ledger.OK, At: tick()})
	add(&eng, ledger.Event{Kind: ledger.EndPosition, At: tick()})
	add(&eng, ledger.Event{Kind: ledger.EndPosition, Pos: ledger.Position{Partition: 1, Offset: int64(len(dead))}, At: tick()})
	add(&rd, ledger.Event{Kind: ledger.StoreEnd, View: ledger.ViewRaw, At: tick()})
	for _, e := range dead {
		e.At = tick()
		add(&rd, e)
	}
	end := int64(len(dead))
	add(&rd, ledger.Event{Kind: ledger.StoreEnd, View: ledger.ViewDeadLetter, Pos: ledger.Position{Partition: 1, Offset: end}, N: end, Count: end, At: tick()})
	for _, event := range effects {
		add(&rd, ledger.Event{Kind: ledger.Effect, EventID: event, Key: ledger.KeyOfEvent(h.Seed, event, h.Workload.Keys), Text: "notifications", At: tick()})
	}
	add(&rd, ledger.Event{Kind: ledger.SnapshotEnd, Text: "notifications", N: int64(len(effects)), At: tick()})
	js := []journal{eng, prod, cons, rd}
	for i := range js {
		js[i].Events = append(js[i].Events, ledger.Event{Kind: ledger.SegmentEnd, At: tick()})
	}
	return h, js
}

// No legal queue is ever flagged.
func TestLegalQueuesHold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 7))
		h, js := legalQueue(r)
		r.Shuffle(len(js), func(i, j int) { js[i], js[j] = js[j], js[i] })
		v, err := Audit(h, opener(t, js))
		if err != nil {
			rt.Fatal(err)
		}
		if v.Arm != Held || len(v.Findings) > 0 {
			f := ""
			if len(v.Findings) > 0 {
				f = strings.Join(v.Findings[0].Witnesses, "; ")
			}
			rt.Fatalf("%s %q %q\n%s", v.Arm, summary(v), v.Reasons, f)
		}
	})
}

// What is missing of a queue's messages died where the ledger says.
func TestQueueAttributions(t *testing.T) {
	for mutation, want := range map[string]string{"ack-early": SettledEarly, "forget-unsettled": Broker} {
		r := rand.New(rand.NewPCG(3, 8))
		h, js := legalQueue(r)
		m, _ := mutate.Lookup(mutation)
		if !m.Apply(r, &h, js) {
			t.Fatalf("no place for %s", mutation)
		}
		v, err := Audit(h, opener(t, js))
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Findings) == 0 || v.Findings[0].Anomaly != MissingEffect || v.Findings[0].Attribution != want {
			t.Errorf("%s: %q, want %s/%s", mutation, summary(v), MissingEffect, want)
		}
	}
}

// A consumer that acks what has failed and is killed right after owes the rest; one that goes on has skipped it.
func TestQueueFailedAndAcked(t *testing.T) {
	for how, want := range map[string]string{"killed": SettledEarly, "exited": Skipped} {
		r := rand.New(rand.NewPCG(5, 8))
		h, js := legalQueue(r)
		cons := &js[2]
		last := cons.Events[len(cons.Events)-2]
		for last.Kind != ledger.Settled || last.Text != "ack" {
			t.Fatal("the seed's last event is no ack: draw another")
		}
		each(js, func(e *ledger.Event) {
			switch {
			case e.Kind == ledger.Handled && e.ID() == last.ID():
				e.Outcome, e.Text = ledger.Failed, "retried"
			case e.Kind == ledger.WorkerEnd && e.Text == "consumer-1" && how == "killed":
				e.Detail = "killed at a crash point"
			}
		})
		remove(js, func(e *ledger.Event) bool { return e.Kind == ledger.Effect && e.EventID == ledger.EventID(1, last.Seq) })
		each(js, func(e *ledger.Event) {
			if e.Kind == ledger.SnapshotEnd {
				e.N--
			}
		})
		v, err := Audit(h, opener(t, js))
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Findings) != 1 || v.Findings[0].Anomaly != MissingEffect || v.Findings[0].Attribution != want {
			t.Errorf("%s: %q, want %s/%s", how, summary(v), MissingEffect, want)
		}
	}
}

// Messages of a queue are late when they are delivered the first time, whatever comes after; another stream may be due later.
func TestQueueDelays(t *testing.T) {
	for name, c := range map[string]struct {
		delay ledger.Delay
		want  string
	}{
		"in time":       {ledger.Delay{Allowance: time.Hour}, ""},
		"late":          {ledger.Delay{Allowance: 1}, Late},
		"early":         {ledger.Delay{Due: time.Hour}, Early},
		"other stream":  {ledger.Delay{Due: time.Hour, Other: 1, OtherDue: 1, Allowance: time.Hour}, ""},
		"other's early": {ledger.Delay{Due: 1, Other: 1, OtherDue: time.Hour}, Early},
	} {
		r := rand.New(rand.NewPCG(9, 8))
		h, js := legalQueue(r)
		h.Delay = c.delay
		v, err := Audit(h, opener(t, js))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if len(v.Findings) > 0 {
			got = v.Findings[0].Anomaly
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if c.want == Late && v.Findings[0].Count != distinct(js) {
			t.Errorf("%s: %d times, %d messages were delivered", name, v.Findings[0].Count, distinct(js))
		}
	}
}

// distinct counts the messages that were delivered.
func distinct(js []journal) int {
	seen := map[ledger.MessageID]bool{}
	each(js, func(e *ledger.Event) {
		if e.Kind == ledger.Received {
			seen[e.ID()] = true
		}
	})
	return len(seen)
}
