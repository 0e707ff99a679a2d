package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// chain is the ledger of a chain in a few words: one orders service (stream 1), one relay (stream 2), one
// key, one partition, one group, one table of effects.
//
//	orders:  ok fail info none    how each COMMIT ended (none = the service died before it was answered)
//	publish: 0 1 1                the orders, in the order in which the relay publishes them: confirmed and
//	                              stored, at the next offset
//	         0? 0?s               in doubt, and not stored, or stored
//	         0! 0- 0u             refused; confirmed and gone; confirmed as unroutable
//	consume: a+ a-                consumer a is assigned the partition, and loses it
//	         a<0                  it is handed offset 0
//	         a=0 a=0d a=0f a=0i   its work on it is applied; skipped as a duplicate; failed; in doubt;
//	         a=0p a=0l a=0r a=0o  parked; dead-lettered; retried; skipped as older
//	         a>1 a>1? a>1!        it settles by a commit of position 1: confirmed, in doubt, refused
//	         a.                   it is killed at a crash point
//	effects: 0 1 1 0*3            the rows of the table; 0*3 = one that says that it was applied 3 times
//	state:   2                    the row of the key, as order 2 makes it; empty = the table holds no states
//	letters: 0 0s 0-              dead letters: good, with a secret, incomplete
//	resent:  3>0                  order 3 is order 0 again
//	rows:    0 1                  the outbox at the end; "" = what is committed
//
// Order i is committed at 10 i ms, the relay comes after the orders, the consumers' words follow each
// other after the relay, 1 ms each.
type chain struct {
	orders, publish, consume, effects, state, letters, resent, rows, seen string
	end                                                                   int64 // the group's position; -1 = none
	header                                                                func(h *ledger.Header)
	events                                                                func(js []mutate.Journal)
}

func chainHeader() ledger.Header {
	h := baseHeader()
	h.Promise.Places = []string{"store", "delivery", "effect", "outbox"}
	h.Tables = []string{ledger.TableOutbox, ledger.TableInbox, ledger.TableDeadLetter, "notifications"}
	h.Groups = []ledger.Group{{Name: "g"}}
	h.Evidence = ledger.Evidence{Ends: []string{"relay-1"}}
	h.Chain = ledger.Chain{Ordered: true, Orders: ledger.TableOutbox, Effects: []ledger.EffectTable{{Name: "notifications"}}}
	return h
}

func orderID(i int) uint64 { return ledger.EventID(1, uint64(i)) }

func number(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func goodLetter(event uint64) string {
	b, _ := json.Marshal(ledger.FailureRecord{
		EventID: fmt.Sprint(event), Destination: "t", Class: "permanent", Attempts: 1,
		FirstFailed: "2026-01-01T00:00:00Z", LastFailed: "2026-01-01T00:00:00Z", Error: "bad",
	})
	return string(b)
}

func (x chain) build(t testing.TB) (ledger.Header, []mutate.Journal) {
	t.Helper()
	h := chainHeader()
	if x.state != "" {
		h.Chain.Effects = []ledger.EffectTable{{Name: "balances", State: true}}
		h.Tables[3] = "balances"
	}
	if x.header != nil {
		x.header(&h)
	}
	eng := mutate.Journal{Segment: ledger.Segment{Name: "engine", Role: "engine"}}
	svc := mutate.Journal{Segment: ledger.Segment{Name: "orders-1", Role: "orders", Worker: "orders-1"}}
	rel := mutate.Journal{Segment: ledger.Segment{Name: "relay-1", Role: "relay", Worker: "relay-1"}}
	rd := mutate.Journal{Segment: ledger.Segment{Name: "reader", Role: "reader"}}
	add := func(j *mutate.Journal, e ledger.Event) { j.Events = append(j.Events, e) }
	end := func(name, how string, at int64) {
		add(&eng, ledger.Event{Kind: ledger.WorkerEnd, Text: name, Detail: how, Outcome: ledger.OK, At: at})
	}

	add(&eng, ledger.Event{Kind: ledger.Phase, Text: "load", At: 0})
	at := int64(0)
	var rows []int
	for i, word := range strings.Fields(x.orders) {
		at = int64(i+1) * 10 * ms
		add(&svc, ledger.Event{Kind: ledger.Invoke, Stream: 1, Seq: uint64(i), To: uint64(i) + 1, At: at})
		e := ledger.Event{Kind: ledger.Ordered, EventID: orderID(i), N: int64(i) + 1, Text: "order", Sent: at + ms, At: at + 2*ms}
		switch word {
		case "ok":
			e.Outcome = ledger.OK
			rows = append(rows, i)
		case "fail":
			e.Outcome = ledger.Failed
		case "info":
		case "none":
			continue
		}
		add(&svc, e)
	}
	for _, word := range strings.Fields(x.resent) {
		a, b, _ := strings.Cut(word, ">")
		add(&svc, ledger.Event{Kind: ledger.Resent, EventID: orderID(number(t, a)), To: orderID(number(t, b)), At: at})
	}
	end("orders-1", "exited", at)

	type record struct {
		id    ledger.MessageID
		event uint64
	}
	var log []record
	gone := map[int]bool{}
	for i, word := range strings.Fields(x.publish) {
		at += 10 * ms
		n := number(t, strings.TrimRight(word, "?!-su"))
		id, event := ledger.MessageID{Stream: 2, Seq: uint64(i)}, orderID(n)
		add(&rel, ledger.Event{Kind: ledger.Invoke, Stream: 2, Seq: uint64(i), To: uint64(i) + 1, EventID: event, At: at})
		e := ledger.Event{Kind: ledger.Complete, Stream: 2, Seq: uint64(i), EventID: event, Sent: at + ms, At: at + 3*ms, Pos: ledger.Position{Offset: -1}}
		switch strings.TrimLeft(word, "0123456789") {
		case "":
			e.Outcome, e.Pos.Offset = ledger.OK, int64(len(log))
			log = append(log, record{id, event})
		case "-":
			gone[len(log)] = true
			e.Outcome, e.Pos.Offset = ledger.OK, int64(len(log))
			log = append(log, record{id, event})
		case "u":
			e.Outcome, e.Text = ledger.OK, Unroutable
		case "?":
			e.Text = "timeout"
		case "?s":
			e.Text = "timeout"
			log = append(log, record{id, event})
		case "!":
			e.Outcome, e.Text = ledger.Failed, "refused"
		default:
			t.Fatal(word)
		}
		add(&rel, e)
	}
	end("relay-1", "exited", at)

	consumers := map[byte]*mutate.Journal{}
	at += 10 * ms
	for _, word := range strings.Fields(x.consume) {
		at += ms
		who := word[0]
		j := consumers[who]
		if j == nil {
			name := "consumer-" + string(who)
			j = &mutate.Journal{Segment: ledger.Segment{Name: name, Role: "consumer", Worker: name, Group: "g"}}
			consumers[who] = j
		}
		e := ledger.Event{Consumer: uint32(who-'a') + 1, At: at}
		arg := word[2:]
		of := func() {
			n := number(t, strings.TrimRight(arg, "dfiplro"))
			e.Pos.Offset = int64(n)
			e.Stream, e.Seq, e.EventID = log[n].id.Stream, log[n].id.Seq, log[n].event
		}
		switch word[1] {
		case '+':
			e.Kind = ledger.Assigned
		case '-':
			e.Kind = ledger.Revoked
		case '<':
			e.Kind = ledger.Received
			of()
		case '=':
			e.Kind, e.Outcome, e.Text = ledger.Handled, ledger.OK, "applied"
			of()
			switch strings.TrimLeft(arg, "0123456789") {
			case "d":
				e.Text = "skipped: duplicate"
			case "f":
				e.Outcome = ledger.Failed
			case "i":
				e.Outcome = ledger.InDoubt
			case "p":
				e.Text = "parked"
			case "l":
				e.Text = "dead-lettered"
			case "r":
				e.Text = "retried"
			case "o":
				e.Text = "skipped: stale"
			}
		case '>':
			e.Kind, e.Text, e.Outcome, e.Sent = ledger.Settled, "commit", ledger.OK, at-ms/2
			e.Pos.Offset = int64(number(t, strings.TrimRight(arg, "?!")))
			switch strings.TrimLeft(arg, "0123456789") {
			case "?":
				e.Outcome = ledger.InDoubt
			case "!":
				e.Outcome = ledger.Failed
			}
		case '.':
			end(j.Segment.Name, "killed at crash point after-business-commit", at)
			j.Segment.Role = "dead"
			continue
		default:
			t.Fatal(word)
		}
		add(j, e)
	}
	at += 10 * ms
	for _, who := range slices.Sorted(func(yield func(byte) bool) {
		for who := range consumers {
			if !yield(who) {
				return
			}
		}
	}) {
		if j := consumers[who]; j.Segment.Role != "dead" {
			end(j.Segment.Name, "exited", at)
		}
	}
	add(&eng, ledger.Event{Kind: ledger.Phase, Text: "heal", At: at})
	add(&eng, ledger.Event{Kind: ledger.Quiet, Outcome: ledger.OK, At: at})

	add(&eng, ledger.Event{Kind: ledger.EndPosition, Pos: ledger.Position{Offset: int64(len(log))}, At: at})
	for view := ledger.ViewRaw; view <= ledger.ViewCommitted; view++ {
		count := int64(0)
		for off, rec := range log {
			if gone[off] {
				continue
			}
			payload := ledger.AppendPayload(nil, h.Seed, h.Tag(), rec.id, rec.event, h.Workload.PayloadSize)
			key := ledger.KeyOfEvent(h.Seed, rec.event, h.Workload.Keys)
			add(&rd, ledger.StoredRecord(h.Tag(), view, ledger.Position{Offset: int64(off)}, []byte(ledger.KeyName(key)), payload, at))
			count++
		}
		add(&rd, ledger.Event{Kind: ledger.StoreEnd, View: view, Pos: ledger.Position{Offset: int64(len(log))}, N: int64(len(log)), Count: count, At: at})
	}
	add(&rd, ledger.Event{Kind: ledger.GroupEnd, Text: "g", Pos: ledger.Position{Offset: x.end}, At: at})
	table := func(name string, words []string, row func(word string) ledger.Event) {
		for _, word := range words {
			e := row(word)
			e.At = at
			add(&rd, e)
		}
		add(&rd, ledger.Event{Kind: ledger.SnapshotEnd, Text: name, N: int64(len(words)), At: at})
	}
	rowWords := strings.Fields(x.rows)
	if x.rows == "" {
		for _, i := range rows {
			rowWords = append(rowWords, fmt.Sprint(i))
		}
	}
	table(ledger.TableOutbox, rowWords, func(w string) ledger.Event {
		return ledger.Event{Kind: ledger.OutboxRow, EventID: orderID(number(t, w)), Text: "published"}
	})
	table(ledger.TableInbox, strings.Fields(x.seen), func(w string) ledger.Event {
		return ledger.Event{Kind: ledger.InboxRow, EventID: orderID(number(t, w)), Text: "g"}
	})
	table(ledger.TableDeadLetter, strings.Fields(x.letters), func(w string) ledger.Event {
		event := orderID(number(t, strings.TrimRight(w, "s-")))
		e := ledger.Event{Kind: ledger.Effect, EventID: event, Text: ledger.TableDeadLetter, Detail: goodLetter(event)}
		switch strings.TrimLeft(w, "0123456789") {
		case "s":
			e.Detail = strings.Replace(e.Detail, "}", `,"secret":true}`, 1)
		case "-":
			e.Detail = `{"event_id":"1"}`
		}
		return e
	})
	if x.state != "" {
		table("balances", strings.Fields(x.state), func(w string) ledger.Event {
			n := number(t, w)
			return ledger.Event{Kind: ledger.Effect, EventID: orderID(n), N: int64(n) + 1, Text: "balances"}
		})
	} else {
		table("notifications", strings.Fields(x.effects), func(w string) ledger.Event {
			w, times, _ := strings.Cut(w, "*")
			e := ledger.Event{Kind: ledger.Effect, EventID: orderID(number(t, w)), Text: "notifications"}
			if times != "" {
				e.Count = int64(number(t, times))
			}
			return e
		})
	}

	js := []mutate.Journal{eng, svc, rel, rd}
	for _, who := range []byte("abcdef") {
		if j := consumers[who]; j != nil {
			if j.Segment.Role != "dead" {
				j.Events = append(j.Events, ledger.Event{Kind: ledger.SegmentEnd})
			}
			j.Segment.Role = "consumer"
			js = append(js, *j)
		}
	}
	for i := range 4 {
		js[i].Events = append(js[i].Events, ledger.Event{Kind: ledger.SegmentEnd})
	}
	if x.events != nil {
		x.events(js)
	}
	return h, js
}

func (x chain) audit(t testing.TB) Verdict {
	t.Helper()
	h, js := x.build(t)
	v, err := Audit(h, opener(t, js))
	if err != nil {
		t.Fatal(err)
	}
	return v
}
