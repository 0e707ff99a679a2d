package mutate

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"conform/harness/ledger"
)

// Corruptions of a chain: from an order's commit to its effect.
var chainMutations = []Mutation{
	// What a broker can do.
	{"undeliver", "a record was never delivered to its group", undeliver},
	{"skip-record", "the group's position passed a record that nobody was handed", skipRecord},
	{"commit-ahead", "a position beyond all that was delivered was committed", commitAhead},
	{"rewind", "a group's position went back", rewind},
	{"lose-position", "a group's position is gone at the end", losePosition},
	{"two-owners", "the broker took settles of two owners of a partition", twoOwners},
	{"redeliver-settled", "a record was delivered again after its settle was confirmed", redeliverSettled},
	{"deliver-twice", "a record that was processed was delivered again for no reason", deliverTwice},
	{"swap-delivered", "two records of one key were delivered in the other order", swapDelivered},
	{"early", "a record was delivered before it was due", early},
	{"late", "a record was delivered long after it was due", late},
	{"outlive", "a record was delivered after its time to live", outlive},
	// What an application, or its database, can do.
	{"lose-letter", "a dead letter is gone", loseLetter},
	{"bare-letter", "a dead letter tells nothing", alterLetter("{}")},
	{"leak-secret", "a dead letter holds a secret", alterLetter("secret")},
	{"needless-letter", "a good event is among the dead letters", needlessLetter},
	{"needless-letters", "all effects are dead letters, and the consumers say so", needlessLetters},
	{"letter-for-effect", "a dead letter stands in place of an effect, and its consumer says so", letterForEffect},
	{"lose-effect", "the effect of an event is gone", loseEffect},
	{"double-effect", "an event has a second effect", doubleEffect},
	{"resend-anew", "one business act was asked for under two event ids", resendAnew},
	{"old-state", "an older state stands over a newer one", oldState},
	{"empty-states", "a table of states is empty", emptyStates},
	{"future-state", "a state is of a version that its event has not", futureState},
	{"alter-row-key", "an effect stands under another key", alterRowKey},
	{"row-of-nobody", "an effect of what no writer can have written", rowOfNobody},
	{"made-up-effect", "an effect of an event that nobody asked for", madeUpEffect},
	{"not-published", "a committed order was never published", notPublished},
	{"roll-back", "the transaction of a published order was rolled back", rollBack},
	{"lose-order", "a committed order is gone from the database", loseOrder},
	{"lose-orders", "all orders are gone from the database", loseOrders},
	{"tear-order", "of an order's two rows, one is gone", tearOrder},
	{"unmark-row", "a row of the outbox that is published does not say so", unmarkRow},
	{"stop-draining", "nothing moves any more, and it is not drained", stopDraining},
	{"hang-caller", "a caller waited for longer than the promise bounds", hangCaller},
	{"slow-recovery", "the first success came later than the promise bounds", slowRecovery},
	// What the recording can do.
	{"drop-snapshot-end", "the end of the read of a table is missing", drop(ledger.SnapshotEnd, "")},
	{"deliver-unsent", "a message was delivered that nobody sent", deliverUnsent},
	{"other-space", "a table was read in another arm's schema", otherSpace},
	{"early-snapshot", "a table was read before the load had ended", earlySnapshot},
	{"read-twice", "a table was read twice", readTwice},
	{"miscount-rows", "a table has another number of rows than were recorded", miscountRows},
	{"drop-group-end", "the final position of a group is missing", drop(ledger.GroupEnd, "")},
}

// ChainMutations returns the planted corruptions that only the ledger of a chain has a place for. They are among
// Mutations too.
func ChainMutations() []Mutation { return slices.Clone(chainMutations) }

func kind(k ledger.Kind) func(*ledger.Event) bool {
	return func(e *ledger.Event) bool { return e.Kind == k }
}

func confirmedCommit(e *ledger.Event) bool {
	return e.Kind == ledger.Settled && e.Text == "commit" && e.Outcome == ledger.OK
}

func eventOf(e *ledger.Event) uint64 { return ledger.EventOf(e.ID(), e.EventID) }

func samePartition(a, b ledger.Position) bool {
	return a.Destination == b.Destination && a.Partition == b.Partition
}

// all returns the events for which want holds.
func all(js []Journal, want func(*ledger.Event) bool) []ledger.Event {
	var out []ledger.Event
	each(js, func(e *ledger.Event) {
		if want(e) {
			out = append(out, *e)
		}
	})
	return out
}

// resize changes the number of rows of a table.
func resize(js []Journal, table string, by int64) {
	each(js, func(e *ledger.Event) {
		if e.Kind == ledger.SnapshotEnd && e.Text == table {
			e.N += by
		}
	})
}

// takeRows removes rows of the final snapshot, and from the counts of their tables.
func takeRows(js []Journal, gone func(*ledger.Event) bool) {
	table := func(e *ledger.Event) string {
		switch e.Kind {
		case ledger.OutboxRow:
			return ledger.TableOutbox
		case ledger.InboxRow:
			return ledger.TableInbox
		case ledger.Effect:
			name, _, _ := strings.Cut(e.Text, "/")
			return name
		}
		return ""
	}
	each(js, func(e *ledger.Event) {
		if t := table(e); t != "" && gone(e) {
			resize(js, t, -1)
		}
	})
	remove(js, func(e *ledger.Event) bool { return table(e) != "" && gone(e) })
}

// addRow adds a row to the table's read.
func addRow(js []Journal, table string, row ledger.Event) bool {
	for i := range js {
		for k := range js[i].Events {
			if end := js[i].Events[k]; end.Kind == ledger.SnapshotEnd && end.Text == table {
				row.At = end.At
				js[i].Events[k].N++
				insert(js, ref{i, k}, row)
				return true
			}
		}
	}
	return false
}

// records counts the records of each event.
func records(js []Journal) map[uint64]int {
	out := map[uint64]int{}
	each(js, func(e *ledger.Event) {
		if isRaw(e) {
			out[eventOf(e)]++
		}
	})
	return out
}

// forget removes all that consumers said of a record, and all its event left in the database.
func forget(js []Journal, record ledger.Event) {
	event := eventOf(&record)
	remove(js, func(e *ledger.Event) bool {
		return (e.Kind == ledger.Received || e.Kind == ledger.Handled) && e.ID() == record.ID()
	})
	takeRows(js, func(e *ledger.Event) bool { return e.Kind != ledger.OutboxRow && e.EventID == event })
}

// pickRecord draws a record whose event has no other one, and that a group reads.
func pickRecord(r *rand.Rand, js []Journal) (ledger.Event, bool) {
	if len(all(js, kind(ledger.GroupEnd))) == 0 {
		return ledger.Event{}, false
	}
	n := records(js)
	p, ok := pick(r, js, func(e *ledger.Event) bool { return isRaw(e) && n[eventOf(e)] == 1 })
	if !ok {
		return ledger.Event{}, false
	}
	return *at(js, p), true
}

func undeliver(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	record, ok := pickRecord(r, js)
	if !ok {
		return false
	}
	forget(js, record)
	each(js, func(e *ledger.Event) {
		if e.Kind == ledger.GroupEnd && samePartition(e.Pos, record.Pos) {
			e.Pos.Offset = min(e.Pos.Offset, record.Pos.Offset)
		}
	})
	return true
}

func skipRecord(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	record, ok := pickRecord(r, js)
	if !ok || !slices.ContainsFunc(all(js, kind(ledger.GroupEnd)), func(e ledger.Event) bool {
		return samePartition(e.Pos, record.Pos) && e.Pos.Offset > record.Pos.Offset
	}) {
		return false
	}
	forget(js, record)
	return true
}

// put inserts an event of the consumer that wrote like, by time.
func put(js []Journal, like, e ledger.Event) {
	e.Consumer = like.Consumer
	for i := range js {
		if !slices.ContainsFunc(js[i].Events, func(x ledger.Event) bool { return x == like }) {
			continue
		}
		k := slices.IndexFunc(js[i].Events, func(x ledger.Event) bool { return x.At > e.At || x.Kind == ledger.SegmentEnd })
		if k < 0 {
			k = len(js[i].Events)
		}
		js[i].Events = slices.Insert(js[i].Events, k, e)
		return
	}
}

func commitAhead(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	received := all(js, kind(ledger.Received))
	r.Shuffle(len(received), func(i, j int) { received[i], received[j] = received[j], received[i] })
	for _, first := range received {
		if slices.ContainsFunc(received, func(e ledger.Event) bool {
			return samePartition(e.Pos, first.Pos) && e.At < first.At && e.Pos.Offset >= first.Pos.Offset
		}) {
			continue // not the first delivery of it
		}
		for _, other := range received { // of a consumer that never comes so far
			if other.Consumer != first.Consumer && !slices.ContainsFunc(received, func(e ledger.Event) bool {
				return e.Consumer == other.Consumer && samePartition(e.Pos, first.Pos) && e.Pos.Offset >= first.Pos.Offset
			}) {
				pos := first.Pos
				pos.Offset++
				put(js, other, ledger.Event{Kind: ledger.Settled, Text: "commit", Outcome: ledger.OK, Pos: pos, Sent: first.At - 2, At: first.At - 1})
				return true
			}
		}
	}
	return false
}

func rewind(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	// A commit of the very beginning that is in doubt may take effect at any time.
	unsure := all(js, func(e *ledger.Event) bool {
		return e.Kind == ledger.Settled && e.Outcome == ledger.InDoubt && e.Pos.Offset <= 0
	})
	p, ok := pick(r, js, func(e *ledger.Event) bool {
		return confirmedCommit(e) && e.Pos.Offset > 0 && !slices.ContainsFunc(unsure, func(u ledger.Event) bool { return samePartition(u.Pos, e.Pos) })
	})
	if !ok {
		return false
	}
	e := *at(js, p)
	e.Pos.Offset, e.Sent, e.At = 0, e.At+1, e.At+2
	put(js, *at(js, p), e)
	return true
}

func losePosition(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	commits := all(js, confirmedCommit)
	p, ok := pick(r, js, func(e *ledger.Event) bool {
		return e.Kind == ledger.GroupEnd && slices.ContainsFunc(commits, func(c ledger.Event) bool { return samePartition(c.Pos, e.Pos) })
	})
	if ok {
		at(js, p).Pos.Offset = -1
	}
	return ok
}

func twoOwners(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, confirmedCommit)
	if !ok {
		return false
	}
	mine := *at(js, p)
	q, ok := pick(r, js, func(e *ledger.Event) bool { return e.Kind == ledger.Received && e.Consumer != mine.Consumer })
	if !ok {
		return false
	}
	other := *at(js, q)
	put(js, other, ledger.Event{Kind: ledger.Assigned, Pos: mine.Pos, At: mine.At + 1})
	settle := mine
	settle.Sent, settle.At = mine.At+2, mine.At+3
	put(js, other, settle)
	settle.Sent, settle.At = mine.At+4, mine.At+5
	put(js, mine, settle)
	return true
}

// assignments visits the events of each consumer and partition from one assignment to the next.
func assignments(js []Journal, visit func(es []ledger.Event)) {
	for i := range js {
		for _, a := range js[i].Events {
			if a.Kind != ledger.Assigned {
				continue
			}
			var es []ledger.Event
			for _, e := range js[i].Events {
				if e.Consumer != a.Consumer || !samePartition(e.Pos, a.Pos) || e.At < a.At {
					continue
				}
				if e.At > a.At && (e.Kind == ledger.Assigned || e.Kind == ledger.Revoked) {
					break
				}
				es = append(es, e)
			}
			visit(es)
		}
	}
}

func redeliverSettled(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	type place struct{ settle, again ledger.Event }
	var places []place
	unsure := all(js, func(e *ledger.Event) bool { return e.Kind == ledger.Settled && e.Outcome == ledger.InDoubt })
	assignments(js, func(es []ledger.Event) {
		for i, s := range es {
			if !confirmedCommit(&s) || slices.ContainsFunc(unsure, func(e ledger.Event) bool { return samePartition(e.Pos, s.Pos) }) {
				continue
			}
			for _, e := range es[:i] {
				if e.Kind == ledger.Received && e.Pos.Offset < s.Pos.Offset {
					places = append(places, place{s, e})
				}
			}
		}
	})
	if len(places) == 0 {
		return false
	}
	p := places[r.IntN(len(places))]
	again := p.again
	again.At = p.settle.At + 1
	put(js, p.settle, again)
	return true
}

func deliverTwice(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	var places []ledger.Event
	var mine []ledger.Event
	assignments(js, func(es []ledger.Event) {
		open := map[int64]bool{} // handed out, and its work has not ended
		for _, e := range es {
			switch {
			case e.Kind == ledger.Received:
				open[e.Pos.Offset] = true
			case e.Kind == ledger.Settled, e.Kind == ledger.Handled && e.Outcome != ledger.OK:
				return // from here on something may have to be read again
			case e.Kind == ledger.Handled:
				delete(open, e.Pos.Offset)
				first := true
				for o := range open {
					first = first && o > e.Pos.Offset
				}
				if first {
					places = append(places, e)
					mine = es
				}
			}
		}
	})
	// What another consumer has settled meanwhile is another corruption.
	places = slices.DeleteFunc(places, func(p ledger.Event) bool {
		return slices.ContainsFunc(all(js, confirmedCommit), func(e ledger.Event) bool {
			return samePartition(e.Pos, p.Pos) && e.At < p.At && e.Pos.Offset > p.Pos.Offset
		})
	})
	if len(places) == 0 || len(mine) == 0 {
		return false
	}
	p := places[r.IntN(len(places))]
	again := p
	again.Kind, again.Outcome, again.Text, again.At = ledger.Received, ledger.InDoubt, "", p.At+1
	put(js, p, again)
	return true
}

func swapDelivered(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	once := map[uint64]int{}
	received := all(js, kind(ledger.Received))
	for i := range received {
		once[eventOf(&received[i])]++
	}
	r.Shuffle(len(received), func(i, j int) { received[i], received[j] = received[j], received[i] })
	key := func(e ledger.Event) uint32 { return ledger.KeyOfEvent(h.Seed, eventOf(&e), h.Workload.Keys) }
	writer := func(e ledger.Event) uint32 { stream, _ := ledger.SplitEventID(eventOf(&e)); return stream }
	for i, a := range received {
		for _, b := range received[:i] {
			if once[eventOf(&a)] != 1 || once[eventOf(&b)] != 1 || a.Pos == b.Pos || a.At == b.At || key(a) != key(b) || writer(a) != writer(b) || !samePartition(a.Pos, b.Pos) {
				continue
			}
			each(js, func(e *ledger.Event) {
				switch *e {
				case a:
					e.Stream, e.Seq, e.EventID, e.Key, e.Pos, e.Digest = b.Stream, b.Seq, b.EventID, b.Key, b.Pos, b.Digest
				case b:
					e.Stream, e.Seq, e.EventID, e.Key, e.Pos, e.Digest = a.Stream, a.Seq, a.EventID, a.Key, a.Pos, a.Digest
				}
			})
			return true
		}
	}
	return false
}

// delivered draws a delivery of a confirmed message.
func delivered(r *rand.Rand, js []Journal) (got ledger.Event, sent ledger.Event, ok bool) {
	confirmed := ids(js, isConfirmed)
	p, ok := pick(r, js, func(e *ledger.Event) bool { return e.Kind == ledger.Received && confirmed[e.ID()] })
	if !ok {
		return got, sent, false
	}
	got = *at(js, p)
	return got, all(js, func(c *ledger.Event) bool { return isConfirmed(c) && c.ID() == got.ID() })[0], true
}

func early(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	got, sent, ok := delivered(r, js)
	if ok {
		h.Delay = ledger.Delay{Due: time.Duration(got.At - sent.Sent + 1)}
	}
	return ok
}

func late(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	_, _, ok := delivered(r, js)
	if ok {
		h.Delay = ledger.Delay{Allowance: 1}
	}
	return ok
}

func outlive(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	got, sent, ok := delivered(r, js)
	if ok {
		h.Delay = ledger.Delay{TTL: time.Duration(max(1, got.At-sent.At-1))}
	}
	return ok && got.At-sent.At > 2
}

func isLetter(e *ledger.Event) bool {
	name, _, _ := strings.Cut(e.Text, "/")
	return e.Kind == ledger.Effect && name == ledger.TableDeadLetter
}

func loseLetter(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, isLetter)
	if ok {
		event := at(js, p).EventID
		takeRows(js, func(e *ledger.Event) bool { return isLetter(e) && e.EventID == event })
	}
	return ok
}

func alterLetter(how string) func(*rand.Rand, *ledger.Header, []Journal) bool {
	return func(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
		p, ok := pick(r, js, isLetter)
		if !ok {
			return false
		}
		e := at(js, p)
		if how == "secret" {
			e.Detail = strings.Replace(e.Detail, "{", `{"secret":true,`, 1)
		} else {
			e.Detail = how
		}
		return true
	}
}

func needlessLetter(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	letters := all(js, isLetter)
	if len(letters) == 0 {
		return false
	}
	bad := map[uint64]bool{}
	each(js, func(e *ledger.Event) {
		if e.Kind == ledger.Handled && (e.Outcome != ledger.OK || e.Text == "dead-lettered" || e.Text == "retried") {
			bad[eventOf(e)] = true
		}
	})
	p, ok := pick(r, js, func(e *ledger.Event) bool {
		return e.Kind == ledger.Handled && e.Outcome == ledger.OK && e.Text == "applied" && !bad[eventOf(e)]
	})
	if !ok {
		return false
	}
	letter := letters[0]
	letter.EventID = eventOf(at(js, p))
	return addRow(js, ledger.TableDeadLetter, letter)
}

// asLetters makes dead letters of the effects of events, and of the work on them.
func asLetters(h *ledger.Header, js []Journal, of func(event uint64) bool) bool {
	letter := ledger.FailureRecord{Destination: "t", Class: "permanent", Attempts: 1, FirstFailed: "2026-01-01T00:00:00Z", LastFailed: "2026-01-01T00:00:00Z", Error: "bad"}
	done := false
	each(js, func(e *ledger.Event) {
		switch {
		case perEvent(h)(e) && of(e.EventID):
			done = true
			table, _, _ := strings.Cut(e.Text, "/")
			resize(js, table, -1)
			resize(js, ledger.TableDeadLetter, 1)
			letter.EventID = strconv.FormatUint(e.EventID, 10)
			detail, err := json.Marshal(letter)
			if err != nil {
				panic(err) // it is a struct of strings
			}
			e.Text, e.Detail = ledger.TableDeadLetter, string(detail)
		case e.Kind == ledger.Handled && e.Outcome == ledger.OK && e.Text == "applied" && of(eventOf(e)):
			e.Text = "dead-lettered"
		}
	})
	return done
}

func needlessLetters(_ *rand.Rand, h *ledger.Header, js []Journal) bool {
	return h.Chain.Letters != nil && asLetters(h, js, func(uint64) bool { return true })
}

func letterForEffect(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, perEvent(h))
	if !ok || h.Chain.Letters == nil {
		return false
	}
	event := at(js, p).EventID
	return asLetters(h, js, func(x uint64) bool { return x == event })
}

// perEvent says whether a row is of a table with a row an event.
func perEvent(h *ledger.Header) func(*ledger.Event) bool {
	return func(e *ledger.Event) bool {
		return e.Kind == ledger.Effect && slices.ContainsFunc(h.Chain.Effects, func(t ledger.EffectTable) bool { return !t.State && t.Name == e.Text })
	}
}

func loseEffect(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	happened := ids(js, func(e *ledger.Event) bool { return isConfirmed(e) })
	p, ok := pick(r, js, func(e *ledger.Event) bool {
		if !perEvent(h)(e) {
			return false
		}
		stream, seq := ledger.SplitEventID(e.EventID)
		return h.Chain.Ordered || happened[ledger.MessageID{Stream: stream, Seq: seq}]
	})
	if ok {
		row := *at(js, p)
		takeRows(js, func(e *ledger.Event) bool { return *e == row })
	}
	return ok
}

func doubleEffect(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, perEvent(h))
	return ok && addRow(js, at(js, p).Text, *at(js, p))
}

func resendAnew(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, perEvent(h))
	if !ok {
		return false
	}
	one := *at(js, p)
	q, ok := pick(r, js, func(e *ledger.Event) bool { return perEvent(h)(e) && e.Text == one.Text && e.EventID != one.EventID })
	if ok {
		insert(js, ref{q.journal, 0}, ledger.Event{Kind: ledger.Resent, EventID: at(js, q).EventID, To: one.EventID})
	}
	return ok
}

func oldState(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	applied := map[uint64]bool{}
	for _, e := range all(js, func(e *ledger.Event) bool {
		return e.Kind == ledger.Handled && e.Outcome == ledger.OK && e.Text == "applied"
	}) {
		applied[eventOf(&e)] = true
	}
	committed := map[uint64]bool{}
	each(js, func(e *ledger.Event) {
		if e.Kind == ledger.Ordered && e.Outcome == ledger.OK || !h.Chain.Ordered && isConfirmed(e) {
			committed[eventOf(e)] = true
		}
	})
	older := func(row *ledger.Event) uint64 {
		for event := range applied {
			if ledger.KeyOfEvent(h.Seed, event, h.Workload.Keys) == row.Key && ledger.VersionOf(event) < row.N {
				return event
			}
		}
		return 0
	}
	p, ok := pick(r, js, func(e *ledger.Event) bool {
		return e.Kind == ledger.Effect && e.N != 0 && applied[e.EventID] && committed[e.EventID] && older(e) != 0 &&
			slices.ContainsFunc(h.Chain.Effects, func(t ledger.EffectTable) bool { return t.State && t.Name == e.Text })
	})
	if ok {
		e := at(js, p)
		e.EventID = older(e)
		e.N = ledger.VersionOf(e.EventID)
	}
	return ok
}

func madeUpEffect(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, perEvent(h))
	if !ok {
		return false
	}
	row := *at(js, p)
	row.EventID = ledger.EventID(9, uint64(r.IntN(100)))
	return addRow(js, row.Text, row)
}

func notPublished(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool { return e.Kind == ledger.Ordered && e.Outcome == ledger.OK })
	if !ok || h.Chain.Orders == "" {
		return false
	}
	id := unsent(js)
	e := *at(js, p)
	e.EventID = ledger.EventID(id.Stream, id.Seq)
	e.Key, e.N = ledger.KeyOfEvent(h.Seed, e.EventID, h.Workload.Keys), ledger.VersionOf(e.EventID)
	insert(js, p, e)
	insert(js, p, ledger.Event{Kind: ledger.Invoke, Stream: id.Stream, Seq: id.Seq, To: id.Seq + 1, At: e.At})
	if h.Chain.Orders != ledger.TableOutbox && !addRow(js, h.Chain.Orders, ledger.Event{Kind: ledger.Effect, EventID: e.EventID, Key: e.Key, N: e.N, Text: h.Chain.Orders}) {
		return false
	}
	return addRow(js, ledger.TableOutbox, ledger.Event{Kind: ledger.OutboxRow, EventID: e.EventID, Key: e.Key, Text: "published"})
}

// isOrder says whether a row is that of an order in the table that has them all.
func isOrder(h *ledger.Header, e *ledger.Event) bool {
	return h.Chain.Orders != "" && (e.Kind == ledger.Effect && e.Text == h.Chain.Orders || e.Kind == ledger.OutboxRow && h.Chain.Orders == ledger.TableOutbox)
}

// takeOrder takes all that the transaction of an order wrote.
func takeOrder(h *ledger.Header, js []Journal, event uint64) {
	takeRows(js, func(e *ledger.Event) bool {
		return e.EventID == event && (isOrder(h, e) || e.Kind == ledger.OutboxRow && h.Chain.Outbox)
	})
}

func rollBack(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	n := records(js)
	p, ok := pick(r, js, func(e *ledger.Event) bool {
		return e.Kind == ledger.Ordered && e.Outcome == ledger.OK && n[e.EventID] > 0
	})
	if ok {
		at(js, p).Outcome = ledger.Failed
		takeOrder(h, js, at(js, p).EventID)
	}
	return ok && h.Chain.Orders != ""
}

func loseOrder(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, func(e *ledger.Event) bool { return e.Kind == ledger.Ordered && e.Outcome == ledger.OK })
	if !ok || h.Chain.Orders == "" {
		return false
	}
	takeOrder(h, js, at(js, p).EventID)
	return true
}

func loseOrders(_ *rand.Rand, h *ledger.Header, js []Journal) bool {
	committed := all(js, func(e *ledger.Event) bool { return e.Kind == ledger.Ordered && e.Outcome == ledger.OK })
	takeRows(js, func(e *ledger.Event) bool { return isOrder(h, e) })
	return len(committed) > 0 && h.Chain.Orders != ""
}

func tearOrder(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	if !h.Chain.Outbox {
		return false
	}
	p, ok := pick(r, js, func(e *ledger.Event) bool { return isOrder(h, e) || e.Kind == ledger.OutboxRow })
	if ok {
		row := *at(js, p)
		takeRows(js, func(e *ledger.Event) bool { return *e == row })
	}
	return ok
}

func unmarkRow(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	n := records(js)
	p, ok := pick(r, js, func(e *ledger.Event) bool { return e.Kind == ledger.OutboxRow && n[e.EventID] > 0 })
	if !ok || h.Chain.Published == "" {
		return false
	}
	at(js, p).Text = "pending"
	return true
}

func stopDraining(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, kind(ledger.Quiet))
	if !ok || !slices.Contains(h.Promise.Places, "liveness") {
		return false
	}
	e := at(js, p)
	e.Outcome, e.N, e.Detail = ledger.Failed, int64(30*time.Second), "lag 1"
	return true
}

func hangCaller(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	called := map[*ledger.Event]bool{}
	for i := range js {
		for j := range js[i].Events {
			called[&js[i].Events[j]] = !h.InBackground(js[i].Segment.Worker)
		}
	}
	p, ok := pick(r, js, func(e *ledger.Event) bool { return isConfirmed(e) && e.Sent != 0 && called[e] })
	if !ok || h.Promise.MaxStall <= 0 {
		return false
	}
	at(js, p).Sent -= 2 * int64(h.Promise.MaxStall)
	return true
}

func slowRecovery(_ *rand.Rand, h *ledger.Header, js []Journal) bool {
	strike, after := int64(math.MinInt64), false
	for _, e := range all(js, kind(ledger.Inject)) {
		strike = max(strike, e.At)
	}
	each(js, func(e *ledger.Event) {
		after = after || isConfirmed(e) && strike != math.MinInt64 && e.Sent > strike
	})
	if !after || h.Promise.MaxRTO <= 0 {
		return false
	}
	h.Promise.MaxRTO = 1
	return true
}

func isState(h *ledger.Header) func(*ledger.Event) bool {
	return func(e *ledger.Event) bool {
		return e.Kind == ledger.Effect && slices.ContainsFunc(h.Chain.Effects, func(t ledger.EffectTable) bool { return t.State && t.Name == e.Text })
	}
}

func emptyStates(_ *rand.Rand, h *ledger.Header, js []Journal) bool {
	committed := map[uint64]bool{}
	each(js, func(e *ledger.Event) {
		if e.Kind == ledger.Ordered && e.Outcome == ledger.OK || !h.Chain.Ordered && isConfirmed(e) {
			committed[eventOf(e)] = true
		}
	})
	there := slices.ContainsFunc(all(js, isState(h)), func(e ledger.Event) bool { return committed[e.EventID] })
	takeRows(js, isState(h))
	return there
}

func futureState(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, isState(h))
	if ok {
		at(js, p).N += 1_000_000
	}
	return ok
}

func alterRowKey(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, perEvent(h))
	if ok {
		at(js, p).Key++
	}
	return ok
}

func rowOfNobody(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, perEvent(h))
	if !ok {
		return false
	}
	row := *at(js, p)
	row.EventID = 1 + r.Uint64N(1000)
	return addRow(js, row.Text, row)
}

func deliverUnsent(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, kind(ledger.Received))
	if ok {
		e := *at(js, p)
		e.Seq += 1 << 20
		insert(js, p, e)
	}
	return ok
}

func otherSpace(r *rand.Rand, h *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, kind(ledger.SnapshotEnd))
	if !ok || h.Space == "" {
		return false
	}
	at(js, p).Detail += "0"
	return true
}

func earlySnapshot(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, kind(ledger.SnapshotEnd))
	if ok {
		at(js, p).At = 1
	}
	return ok
}

func readTwice(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, kind(ledger.SnapshotEnd))
	if !ok {
		return false
	}
	end := *at(js, p)
	for _, e := range all(js, func(e *ledger.Event) bool {
		table, _, _ := strings.Cut(e.Text, "/")
		return e.Kind == ledger.Effect && table == end.Text || e.Kind == ledger.OutboxRow && end.Text == ledger.TableOutbox || e.Kind == ledger.InboxRow && end.Text == ledger.TableInbox
	}) {
		insert(js, p, e)
	}
	insert(js, p, end)
	return true
}

func miscountRows(r *rand.Rand, _ *ledger.Header, js []Journal) bool {
	p, ok := pick(r, js, kind(ledger.SnapshotEnd))
	if ok {
		at(js, p).N++
	}
	return ok
}
