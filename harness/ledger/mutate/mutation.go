package mutate

import (
	"math/rand/v2"
	"slices"

	"conform/harness/ledger"
)

// Mutation is one planted corruption.
type Mutation struct {
	Name    string
	Meaning string
	// Apply plants it once, at a place drawn from r, and says whether there was a place for it. It may
	// alter journals and, where a corruption needs it, the header.
	Apply func(r *rand.Rand, h *ledger.Header, journals []Journal) bool
}

// Mutations returns all planted corruptions.
func Mutations() []Mutation { return slices.Concat(mutations, chainMutations, queueMutations) }

// Lookup returns a mutation by name.
func Lookup(name string) (Mutation, bool) {
	for _, m := range Mutations() {
		if m.Name == name {
			return m, true
		}
	}
	return Mutation{}, false
}

var mutations = []Mutation{
	// What a broker can do.
	{"lose-confirmed", "a confirmed record is gone from the store", loseConfirmed},
	{"lose-claimed", "a send that was only claimed is gone from the store", loseClaimed},
	{"duplicate-stored", "a record stands at a second position", duplicateStored},
	{"swap-of-key", "two records of one producer and key change places", swapOfKey},
	{"alter-digest", "a record's content is altered", alterDigest},
	{"unreadable", "a record's identity can no longer be read", unreadable},
	{"foreign", "a record of another arm stands in the destination", foreign},
	{"move-partition", "a record stands in another partition", movePartition},
	{"alter-key", "a record stands under another key", alterKey},
	{"phantom", "a record that nobody sent", phantom},
	{"resurrect", "a refused send is in the store", resurrect},
	{"two-values", "the committed view shows another record at a position than the raw one", twoValues},
	{"hide-committed", "a record outside of any transaction is missing in the committed view", hideCommitted},
	{"abort-visible", "the transaction of a visible record was aborted", abortVisible},
	{"tear-transaction", "one record of a committed transaction is missing in the committed view", tearTransaction},
	{"read-early", "a consumer of the committed view had a record before its commit was asked for", readEarly},
	{"long-silence", "no confirm for longer than the promise bounds", longSilence},
	// What clients and applications can do.
	{"claim-refused", "the caller was told \"sent\" of a refused send", claimRefused},
	{"claim-unsent", "the caller was told \"sent\" of a message that was never handed to the client", claimUnsent},
	// What the recording can do.
	{"confirm-unsent", "a confirm of a message that was never sent", confirmUnsent},
	{"contradict", "one send is both confirmed and refused", contradict},
	{"drop-store-end", "the end of a partition's final read is missing", drop(ledger.StoreEnd, "")},
	{"move-end", "the end of a partition moved while it was read", moveEnd},
	{"miscount", "the broker counts another number of records than were read", miscount},
	{"drop-bite", "the proof that the fault bit is missing", drop(ledger.Bite, "")},
	{"unproven-strike", "a strike came again, and nothing proves that it bit", unprovenStrike},
	{"drop-heal", "the end of a strike is missing", drop(ledger.Heal, "")},
	{"drop-inject", "the strike is missing", drop(ledger.Inject, "")},
	{"drop-quiet", "it is not recorded that the store was quiet", drop(ledger.Quiet, "")},
	{"drop-end-position", "the end of a partition at quiescence is not recorded", drop(ledger.EndPosition, "")},
	{"short-read", "the final read ended before the store did", shortRead},
	{"cut-segment", "a worker had written more than its segment holds", cutSegment},
	{"drop-worker-end", "the planned end of a worker is missing", dropWorkerEnd},
	{"unreached-step", "a step of the plan was not reached", outcome(ledger.Step, ledger.InDoubt)},
	{"failed-heal", "a strike could not be healed", outcome(ledger.Heal, ledger.Failed)},
	{"still-moving", "the store still moved before the final read", outcome(ledger.Quiet, ledger.InDoubt)},
	{"worker-died", "a worker died of itself", outcome(ledger.WorkerEnd, ledger.InDoubt)},
	{"node-died", "a node died outside the plan", nodeDied},
	{"drop-segment-end", "a segment was not closed", drop(ledger.SegmentEnd, "")},
	{"unknown-check", "the recording binary had a check that this one lacks", unknownCheck},
	{"drop-sends", "nothing was sent after all", dropSends},
	{"truncate", "a segment is cut short", damage(truncate)},
	{"flip-bit", "one bit of a segment is flipped", damage(flipBit)},
	{"drop-frame", "a frame is missing in the middle of a segment", damage(dropFrame)},
}

// ref points at an event.
type ref struct{ journal, event int }

// pick draws an event for which want holds.
func pick(r *rand.Rand, js []Journal, want func(*ledger.Event) bool) (ref, bool) {
	var found []ref
	for i := range js {
		for k := range js[i].Events {
			if want(&js[i].Events[k]) {
				found = append(found, ref{i, k})
			}
		}
	}
	if len(found) == 0 {
		return ref{}, false
	}
	return found[r.IntN(len(found))], true
}

func at(js []Journal, p ref) *ledger.Event { return &js[p.journal].Events[p.event] }

func remove(js []Journal, gone func(*ledger.Event) bool) {
	for i := range js {
		js[i].Events = slices.DeleteFunc(js[i].Events, func(e ledger.Event) bool { return gone(&e) })
	}
}

func insert(js []Journal, p ref, e ledger.Event) {
	js[p.journal].Events = slices.Insert(js[p.journal].Events, p.event, e)
}

// each visits all events.
func each(js []Journal, f func(*ledger.Event)) {
	for i := range js {
		for k := range js[i].Events {
			f(&js[i].Events[k])
		}
	}
}

// ids returns the messages of which an event satisfies want.
func ids(js []Journal, want func(*ledger.Event) bool) map[ledger.MessageID]bool {
	out := map[ledger.MessageID]bool{}
	each(js, func(e *ledger.Event) {
		if want(e) {
			out[e.ID()] = true
		}
	})
	return out
}

func isStored(e *ledger.Event) bool { return e.Kind == ledger.Stored && e.Stream != 0 }

func isRaw(e *ledger.Event) bool { return isStored(e) && e.View == ledger.ViewRaw }

func isConfirmed(e *ledger.Event) bool { return e.Kind == ledger.Complete && e.Outcome == ledger.OK }

func isRefused(e *ledger.Event) bool { return e.Kind == ledger.Complete && e.Outcome == ledger.Failed }

// adjust changes the broker's count of a partition in every view of which views holds, as a real
// corruption of the store would.
func adjust(js []Journal, pos ledger.Position, by int64, views ...ledger.View) {
	each(js, func(e *ledger.Event) {
		if e.Kind == ledger.StoreEnd && e.Count >= 0 && e.Pos.Destination == pos.Destination && e.Pos.Partition == pos.Partition && slices.Contains(views, e.View) {
			e.Count += by
		}
	})
}

// appendRecord puts a record behind the end of its partition, in both views.
func appendRecord(js []Journal, like ledger.Event) bool {
	grown := false
	for i := range js {
		for k := 0; k < len(js[i].Events); k++ {
			end := &js[i].Events[k]
			if end.Kind != ledger.StoreEnd || end.Pos.Destination != like.Pos.Destination || end.Pos.Partition != like.Pos.Partition {
				continue
			}
			e := like
			e.View = end.View
			e.Pos.Offset = end.N
			end.Pos.Offset++
			end.N++
			if end.Count >= 0 {
				end.Count++
			}
			insert(js, ref{i, k}, e)
			k++
			grown = true
		}
	}
	return grown
}

// takeOut removes the records at which gone points from the store, and from the broker's counts. A
// position read twice counts once.
func takeOut(js []Journal, gone func(*ledger.Event) bool) {
	type place struct {
		pos  ledger.Position
		view ledger.View
	}
	taken := map[place]bool{}
	each(js, func(e *ledger.Event) {
		if isStored(e) && gone(e) {
			taken[place{e.Pos, e.View}] = true
		}
	})
	for p := range taken {
		adjust(js, p.pos, -1, p.view)
	}
	remove(js, func(e *ledger.Event) bool { return isStored(e) && gone(e) })
}

func loseWhere(r *rand.Rand, js []Journal, said map[ledger.MessageID]bool) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool { return isRaw(e) && said[e.ID()] })
	if !ok {
		return false
	}
	id := at(js, p).ID()
	takeOut(js, func(e *ledger.Event) bool { return e.ID() == id })
	return true
}

func loseConfirmed(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	return loseWhere(r, js, ids(js, isConfirmed))
}

func loseClaimed(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	// In-doubt and stored: the caller is told "sent", and the record vanishes.
	sure := ids(js, func(e *ledger.Event) bool { return isConfirmed(e) || isRefused(e) })
	p, ok := pick(r, js, func(e *ledger.Event) bool { return isRaw(e) && !sure[e.ID()] })
	if !ok {
		return false
	}
	id := at(js, p).ID()
	q, ok := pick(r, js, func(e *ledger.Event) bool {
		return e.Kind == ledger.Invoke && e.Stream == id.Stream && e.Seq <= id.Seq && id.Seq < e.To
	})
	if !ok {
		return false
	}
	insert(js, ref{q.journal, q.event + 1}, ledger.Event{Kind: ledger.Claimed, Stream: id.Stream, Seq: id.Seq, Claim: ledger.ClaimSent, At: at(js, q).At + 1})
	return loseWhere(r, js, map[ledger.MessageID]bool{id: true})
}

func duplicateStored(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, isRaw)
	return ok && appendRecord(js, *at(js, p))
}

func swapOfKey(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	var records []ledger.Event
	each(js, func(e *ledger.Event) {
		if isRaw(e) {
			records = append(records, *e)
		}
	})
	r.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	for i, a := range records {
		for _, b := range records[:i] {
			if a.Stream == b.Stream && a.Seq != b.Seq && a.Key == b.Key && a.Pos.Destination == b.Pos.Destination && a.Pos.Partition == b.Pos.Partition {
				each(js, func(e *ledger.Event) {
					switch {
					case !isStored(e):
					case e.Pos == a.Pos:
						become(e, b)
					case e.Pos == b.Pos:
						become(e, a)
					}
				})
				return true
			}
		}
	}
	return false
}

// become puts the content of another record at e's position.
func become(e *ledger.Event, other ledger.Event) {
	e.Stream, e.Seq, e.EventID, e.Key, e.Digest, e.Text = other.Stream, other.Seq, other.EventID, other.Key, other.Digest, other.Text
}

// alter changes one record in all views.
func alter(r *rand.Rand, js []Journal, change func(e *ledger.Event)) bool {
	p, ok := pick(r, js, isRaw)
	if !ok {
		return false
	}
	pos := at(js, p).Pos
	each(js, func(e *ledger.Event) {
		if isStored(e) && e.Pos == pos {
			change(e)
		}
	})
	return true
}

func alterDigest(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	bit := uint64(1) << r.IntN(64)
	return alter(r, js, func(e *ledger.Event) { e.Digest ^= bit })
}

func unreadable(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	return alter(r, js, func(e *ledger.Event) {
		e.Stream, e.Seq, e.EventID, e.Text = 0, 0, 0, ledger.TextUnreadable
	})
}

func foreign(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, isRaw)
	if !ok {
		return false
	}
	e := *at(js, p)
	e.Stream, e.Seq, e.EventID, e.Text, e.Digest = 0, 0, 0, ledger.TextForeign, e.Digest+1
	return appendRecord(js, e)
}

func movePartition(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool {
		return isRaw(e) && h.Destinations[e.Pos.Destination].Partitions > 1
	})
	if !ok {
		return false
	}
	e := *at(js, p)
	takeOut(js, func(x *ledger.Event) bool { return x.Pos == e.Pos })
	e.Pos.Partition = (e.Pos.Partition + 1) % int32(h.Destinations[e.Pos.Destination].Partitions)
	return appendRecord(js, e)
}

func alterKey(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	return alter(r, js, func(e *ledger.Event) { e.Key++ })
}

// madeUp returns a record with the right content for a message, to be appended.
func madeUp(h *ledger.Header, id ledger.MessageID) ledger.Event {
	key := ledger.KeyOf(h.Seed, id, h.Workload.Keys)
	return ledger.Event{
		Kind: ledger.Stored, Stream: id.Stream, Seq: id.Seq, Key: key,
		Digest: ledger.Digest(ledger.AppendPayload(nil, h.Seed, h.Tag(), id, 0, h.Workload.PayloadSize)),
		Pos:    ledger.Position{Partition: ledger.PartitionOf(key, h.Destinations[0].Partitions)},
	}
}

// unsent returns a message that no invoke covers.
func unsent(js []Journal) ledger.MessageID {
	id := ledger.MessageID{Stream: 1}
	each(js, func(e *ledger.Event) {
		if e.Kind == ledger.Invoke && e.Stream == 1 {
			id.Seq = max(id.Seq, e.To)
		}
	})
	return id
}

func phantom(_ *rand.Rand, h *ledger.Header, js []Journal) bool {
	return appendRecord(js, madeUp(h, unsent(js)))
}

func resurrect(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, isRefused)
	return ok && appendRecord(js, madeUp(h, at(js, p).ID()))
}

func twoValues(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool { return isStored(e) && e.View == ledger.ViewCommitted })
	if ok {
		at(js, p).Digest ^= 1 << r.IntN(64)
	}
	return ok
}

// txnOf returns the end of a message's transaction, or nil.
func txnOf(js []Journal, id ledger.MessageID) *ledger.Event {
	var out *ledger.Event
	each(js, func(e *ledger.Event) {
		if e.Kind == ledger.TxnEnd && e.Stream == id.Stream && e.Seq <= id.Seq && id.Seq < e.To {
			out = e
		}
	})
	return out
}

func hideWhere(r *rand.Rand, js []Journal, want func(e *ledger.Event) bool) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool { return isStored(e) && e.View == ledger.ViewCommitted && want(e) })
	if !ok {
		return false
	}
	pos := at(js, p).Pos
	takeOut(js, func(e *ledger.Event) bool { return e.View == ledger.ViewCommitted && e.Pos == pos })
	return true
}

func hideCommitted(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	return hideWhere(r, js, func(e *ledger.Event) bool { return txnOf(js, e.ID()) == nil })
}

func tearTransaction(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	visible := map[*ledger.Event]int{}
	each(js, func(e *ledger.Event) {
		if isStored(e) && e.View == ledger.ViewCommitted {
			visible[txnOf(js, e.ID())]++
		}
	})
	return hideWhere(r, js, func(e *ledger.Event) bool {
		t := txnOf(js, e.ID())
		return t != nil && visible[t] > 1
	})
}

func abortVisible(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool {
		return isStored(e) && e.View == ledger.ViewCommitted && txnOf(js, e.ID()) != nil
	})
	if ok {
		txnOf(js, at(js, p).ID()).Outcome = ledger.Failed
	}
	return ok
}

func readEarly(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool {
		t := txnOf(js, e.ID())
		return isStored(e) && t != nil && t.Outcome == ledger.OK
	})
	if !ok {
		return false
	}
	e := *at(js, p)
	e.Kind, e.View, e.Consumer, e.At = ledger.Received, ledger.ViewCommitted, 1, txnOf(js, e.ID()).Sent-1
	insert(js, p, e)
	return true
}

func longSilence(_ *rand.Rand, h *ledger.Header, js []Journal) bool {
	if h.Promise.MaxUnavailable <= 0 {
		return false
	}
	// The second half of all confirms comes later, and so does the end of the load.
	var last int64
	each(js, func(e *ledger.Event) {
		if e.Kind == ledger.Complete {
			last = max(last, e.At)
		}
	})
	id := unsent(js)
	for i := range js {
		for k := range js[i].Events {
			if js[i].Events[k].Kind == ledger.Complete {
				js[i].Events = slices.Insert(js[i].Events, k,
					ledger.Event{Kind: ledger.Invoke, Stream: id.Stream, Seq: id.Seq, To: id.Seq + 1, At: last + 3*int64(h.Promise.MaxUnavailable)})
				return true
			}
		}
	}
	return false
}

func claimRefused(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, isRefused)
	if ok {
		at(js, p).Claim = ledger.ClaimSent
	}
	return ok
}

func claimUnsent(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, isConfirmed)
	if ok {
		id := unsent(js)
		insert(js, p, ledger.Event{Kind: ledger.Claimed, Stream: id.Stream, Seq: id.Seq, Claim: ledger.ClaimSent, At: at(js, p).At})
	}
	return ok
}

func confirmUnsent(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, isConfirmed)
	if ok {
		e := *at(js, p)
		e.Stream, e.Seq = unsent(js).Stream, unsent(js).Seq
		insert(js, p, e)
	}
	return ok
}

func contradict(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, isConfirmed)
	if ok {
		e := *at(js, p)
		e.Outcome = ledger.Failed
		insert(js, p, e)
	}
	return ok
}

// drop takes one event of a kind away, or all with a text.
func drop(kind ledger.Kind, text string) func(*rand.Rand, *ledger.Header, []Journal) bool {
	return func(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
		p, ok := pick(r, js, func(e *ledger.Event) bool { return e.Kind == kind && (text == "" || e.Text == text) })
		if ok {
			js[p.journal].Events = slices.Delete(js[p.journal].Events, p.event, p.event+1)
		}
		return ok
	}
}

func outcome(kind ledger.Kind, to ledger.Outcome) func(*rand.Rand, *ledger.Header, []Journal) bool {
	return func(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
		p, ok := pick(r, js, func(e *ledger.Event) bool { return e.Kind == kind })
		if ok {
			at(js, p).Outcome = to
		}
		return ok
	}
}

func nodeDied(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool { return e.Kind == ledger.Step })
	if ok {
		insert(js, p, ledger.Event{Kind: ledger.NodeDied, Outcome: ledger.Failed, Text: "node-2", Detail: "pid 7, now not running", At: at(js, p).At})
	}
	return ok
}

func unprovenStrike(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool { return e.Kind == ledger.Inject })
	if !ok {
		return false
	}
	again := *at(js, p)
	for _, e := range all(js, func(e *ledger.Event) bool { return e.Kind == ledger.Heal && e.Text == again.Text }) {
		again.At = max(again.At, e.At) + 1
	}
	insert(js, p, ledger.Event{Kind: ledger.Heal, Text: again.Text, Outcome: ledger.OK, At: again.At})
	insert(js, p, again)
	return true
}

func shortRead(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool { return e.Kind == ledger.EndPosition })
	if ok {
		at(js, p).Pos.Offset += 1 + r.Int64N(100)
	}
	return ok
}

func cutSegment(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool { return e.Kind == ledger.WorkerEnd })
	if ok {
		at(js, p).Count = 1 << 40
	}
	return ok
}

func dropWorkerEnd(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool {
		return e.Kind == ledger.WorkerEnd && slices.Contains(h.Evidence.Ends, e.Text)
	})
	if ok {
		js[p.journal].Events = slices.Delete(js[p.journal].Events, p.event, p.event+1)
	}
	return ok
}

func moveEnd(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool { return e.Kind == ledger.StoreEnd })
	if ok {
		at(js, p).N++
	}
	return ok
}

func miscount(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool { return e.Kind == ledger.StoreEnd && e.Count >= 0 })
	if ok {
		at(js, p).Count++
	}
	return ok
}

func unknownCheck(_ *rand.Rand, h *ledger.Header, _ []Journal) bool {
	checks := map[string]int{"of-a-later-binary": 1}
	for k, v := range h.Checks {
		checks[k] = v
	}
	h.Checks = checks
	return true
}

func dropSends(_ *rand.Rand, _ *ledger.Header, js []Journal) bool {
	takeOut(js, func(*ledger.Event) bool { return true })
	remove(js, func(e *ledger.Event) bool {
		switch e.Kind {
		case ledger.Invoke, ledger.Complete, ledger.Claimed, ledger.TxnEnd:
			return true
		}
		return false
	})
	return true
}

// damage alters the bytes of one segment, drawn among those with events.
func damage(f func(r *rand.Rand, b []byte) []byte) func(*rand.Rand, *ledger.Header, []Journal) bool {
	return func(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
		if len(js) == 0 {
			return false
		}
		i := r.IntN(len(js))
		seed := r.Uint64() // so that each pass over the ledger meets the same damage
		js[i].Damage = func(b []byte) []byte { return f(rand.New(rand.NewPCG(seed, 0)), b) }
		return true
	}
}

func truncate(r *rand.Rand, b []byte) []byte { return b[:r.IntN(len(b))] }

func flipBit(r *rand.Rand, b []byte) []byte {
	b = slices.Clone(b)
	b[r.IntN(len(b))] ^= 1 << r.IntN(8)
	return b
}

// dropFrame takes the second frame away, the first one that holds events.
func dropFrame(_ *rand.Rand, b []byte) []byte {
	size := func(at int) int {
		return 8 + int(b[at]) + int(b[at+1])<<8 + int(b[at+2])<<16 + int(b[at+3])<<24
	}
	first := size(0)
	if len(b) <= first {
		return b
	}
	return append(slices.Clone(b[:first]), b[first+size(first):]...)
}
