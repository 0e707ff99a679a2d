package mutate

import (
	"math/rand/v2"
	"slices"
	"strings"

	"conform/harness/ledger"
)

// Corruptions of a queue, whose deliveries have no positions and whose dead letters carry the broker's own record.
var queueMutations = []Mutation{
	{"ack-early", "a delivery was acked before its work, which was never done", ackEarly},
	{"forget-unsettled", "a delivery that nobody settled is gone from its queue", forgetUnsettled},
	{"swap-queued", "two messages of one key were delivered in the other order", swapQueued},
	{"lose-rejected", "a message that a consumer gave up is in neither queue", loseRejected},
	{"strip-death", "a dead letter has no record of why it is one", alterDeath(func(string) string { return "{}" })},
	{"misdirect-death", "a dead letter says that it came from another queue", alterDeath(func(d string) string {
		return strings.Replace(d, `"queue":"`, `"queue":"another-`, 1)
	})},
	{"uncount-death", "a dead letter does not say how often it was given up", alterDeath(func(d string) string {
		return strings.Replace(d, `"count":1`, `"count":0`, 1)
	})},
	{"rush-death", "a message that was never delivered was given up for having been delivered too often", alterDeath(func(d string) string {
		return strings.Replace(d, `"reason":"expired"`, `"reason":"delivery_limit"`, 1)
	})},
	{"hold-up", "no work ends well for longer than the promise bounds, though deliveries are in hand", holdUp},
}

// QueueMutations returns the planted corruptions that only the ledger of a queue has a place for. They are among Mutations
// too.
func QueueMutations() []Mutation { return slices.Clone(queueMutations) }

func isQueued(k ledger.Kind) func(*ledger.Event) bool {
	return func(e *ledger.Event) bool { return e.Kind == k && e.Pos.Offset < 0 && e.Stream != 0 }
}

// quietly draws a message that was delivered once, applied and acked.
func quietly(r *rand.Rand, js []Journal) (ledger.MessageID, bool) {
	times := map[ledger.MessageID]int{}
	each(js, func(e *ledger.Event) {
		if isQueued(ledger.Received)(e) {
			times[e.ID()]++
		}
	})
	p, ok := pick(r, js, func(e *ledger.Event) bool {
		return isQueued(ledger.Handled)(e) && e.Outcome == ledger.OK && e.Text == "applied" && times[e.ID()] == 1
	})
	if !ok {
		return ledger.MessageID{}, false
	}
	return at(js, p).ID(), true
}

// undo takes the work on a message, and its effect, away.
func undo(js []Journal, id ledger.MessageID) {
	remove(js, func(e *ledger.Event) bool { return e.Kind == ledger.Handled && e.ID() == id })
	takeRows(js, func(e *ledger.Event) bool { return e.EventID == ledger.EventID(id.Stream, id.Seq) })
}

func ackEarly(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	id, ok := quietly(r, js)
	if ok {
		undo(js, id)
	}
	return ok
}

func forgetUnsettled(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	id, ok := quietly(r, js)
	if ok {
		undo(js, id)
		remove(js, func(e *ledger.Event) bool { return e.Kind == ledger.Settled && e.ID() == id })
	}
	return ok
}

func swapQueued(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	first := map[ledger.MessageID]*ledger.Event{}
	var order []*ledger.Event
	each(js, func(e *ledger.Event) {
		if isQueued(ledger.Received)(e) && first[e.ID()] == nil {
			first[e.ID()] = e
			order = append(order, e)
		}
	})
	r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	key := func(e *ledger.Event) uint32 { return ledger.KeyOf(h.Seed, e.ID(), h.Workload.Keys) }
	for i, a := range order {
		for _, b := range order[:i] {
			if a.Stream == b.Stream && key(a) == key(b) {
				a.Seq, b.Seq = b.Seq, a.Seq
				a.Digest, b.Digest = b.Digest, a.Digest
				return true
			}
		}
	}
	return false
}

func loseRejected(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool { return isQueued(ledger.Settled)(e) && e.Text == "reject" })
	if !ok {
		return false
	}
	id := at(js, p).ID()
	remove(js, func(e *ledger.Event) bool { return e.Kind == ledger.Stored && e.ID() == id })
	each(js, func(e *ledger.Event) {
		switch {
		case e.Kind == ledger.StoreEnd && e.View == ledger.ViewDeadLetter:
			e.N, e.Count, e.Pos.Offset = e.N-1, e.Count-1, e.Pos.Offset-1
		case e.Kind == ledger.EndPosition && e.Pos.Partition == 1:
			e.Pos.Offset--
		}
	})
	at := int64(0)
	each(js, func(e *ledger.Event) { // the positions of those behind it
		if e.Kind == ledger.Stored && e.View == ledger.ViewDeadLetter {
			e.Pos.Offset = at
			at++
		}
	})
	return true
}

func alterDeath(how func(string) string) func(*rand.Rand, *ledger.Header, []Journal) bool {
	return func(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
		p, ok := pick(r, js, func(e *ledger.Event) bool {
			return e.Kind == ledger.Stored && e.View == ledger.ViewDeadLetter && how(e.Detail) != e.Detail
		})
		if ok {
			at(js, p).Detail = how(at(js, p).Detail)
		}
		return ok
	}
}

func holdUp(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool { return isQueued(ledger.Handled)(e) && e.Outcome == ledger.OK })
	if !ok || h.Promise.MaxStall <= 0 {
		return false
	}
	from := at(js, p).At // its work takes so much longer, and all that comes later is later
	each(js, func(e *ledger.Event) {
		if e.At >= from {
			e.At += 2 * int64(h.Promise.MaxStall)
			if e.Sent >= from {
				e.Sent += 2 * int64(h.Promise.MaxStall)
			}
		}
	})
	return true
}
