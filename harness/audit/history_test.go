package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

const ms = int64(1e6)

// history is a ledger written in a few words: one producer, one key, one partition.
//
//	send:   ok info fail none    how each send ended (none = never)
//	        sent sent-fail sent-none sent-ok   the same, and the caller was told "sent" first (sent = in doubt)
//	        only-claimed         the caller was told "sent", and nothing was ever invoked
//	        ok@7                 confirmed at offset 7 instead of the next one
//	store:  0 1 2                the messages in the order of the log
//	        -                    an offset without a record
//	        0x 0p 0k             altered content, in partition 1, under another key
//	        ? !                  unreadable, foreign
//
// Send i is invoked at 10 i ms, handed over 1 ms later and completes 5 ms after that. The strike
// comes before send `strike`, the heal before send `heal`.
type history struct {
	send, store  string
	committed    string // "" = as store, "none" = not read
	txns         string // "0-1:ok 2-3:fail"
	low          int64
	strike, heal int // 0 = none
	header       func(h *ledger.Header)
	events       func(js []mutate.Journal) // last touches
}

type journal = mutate.Journal

// dropView takes a view out of a history.
func dropView(view ledger.View) func(js []journal) {
	return func(js []journal) {
		js[reader].Events = slices.DeleteFunc(js[reader].Events, func(e ledger.Event) bool {
			return (e.Kind == ledger.Stored || e.Kind == ledger.StoreEnd) && e.View == view
		})
	}
}

// drops makes the broker say that it has let go of n messages from a time on.
func drops(why string, from, n int64) func(js []journal) {
	return func(js []journal) {
		js[reader].Events = slices.Insert(js[reader].Events, 0, ledger.Event{
			Kind: ledger.Dropped, Text: why, Detail: "no binding", Sent: from, At: math.MaxInt64, Count: n,
		})
	}
}

// journals of a history, by index.
const (
	engine = iota
	producer
	reader
)

func baseHeader() ledger.Header {
	return ledger.Header{
		Schema: 1, Run: "r1", Suite: "s", Scenario: "c", Arm: "guarded", Role: roleGuarded, Seed: 7,
		Destinations: []ledger.Destination{{Name: "t", Partitions: 1}},
		Workload:     ledger.Workload{Keys: 1, PayloadSize: 128},
		Promise:      ledger.Promise{Places: []string{"store"}},
		Evidence:     ledger.Evidence{Ends: []string{"producer-1"}},
		Checks:       Checks(),
	}
}

func (x history) build(t testing.TB) (ledger.Header, []mutate.Journal) {
	t.Helper()
	h := baseHeader()
	if x.header != nil {
		x.header(&h)
	}
	js := []mutate.Journal{
		{Segment: ledger.Segment{Name: "engine", Role: "engine"}},
		{Segment: ledger.Segment{Name: "producer-1", Role: "producer", Worker: "producer-1"}},
		{Segment: ledger.Segment{Name: "reader", Role: "reader"}},
	}
	add := func(j int, e ledger.Event) { js[j].Events = append(js[j].Events, e) }

	add(engine, ledger.Event{Kind: ledger.Phase, Text: "load", At: 0})
	end := int64(0)
	for i, word := range strings.Fields(x.send) {
		id := ledger.MessageID{Stream: 1, Seq: uint64(i)}
		at := int64(i+1) * 10 * ms
		end = at + 10*ms
		pos := ledger.Position{Offset: int64(i)}
		if w, off, ok := strings.Cut(word, "@"); ok {
			word = w
			n, err := strconv.Atoi(off)
			if err != nil {
				t.Fatal(err)
			}
			pos.Offset = int64(n)
		}
		if word != "only-claimed" {
			add(producer, ledger.Event{Kind: ledger.Invoke, Stream: id.Stream, Seq: id.Seq, To: id.Seq + 1, At: at})
		}
		if strings.HasPrefix(word, "sent") || word == "only-claimed" {
			add(producer, ledger.Event{Kind: ledger.Claimed, Stream: id.Stream, Seq: id.Seq, Claim: ledger.ClaimSent, At: at + 2*ms})
		}
		done := ledger.Event{Kind: ledger.Complete, Stream: id.Stream, Seq: id.Seq, Sent: at + ms, At: at + 6*ms}
		switch word {
		case "ok", "sent-ok":
			done.Outcome, done.Pos = ledger.OK, pos
			add(producer, done)
		case "info", "sent":
			done.Text = "timeout"
			add(producer, done)
		case "fail", "sent-fail":
			done.Outcome, done.Text = ledger.Failed, "refused"
			add(producer, done)
		case "none", "sent-none", "only-claimed":
		default:
			t.Fatalf("unknown send %q", word)
		}
	}
	if x.strike > 0 {
		add(engine, ledger.Event{Kind: ledger.Inject, Text: "cut", Detail: "link-cut on kafka-1", At: int64(x.strike+1)*10*ms - ms})
		add(engine, ledger.Event{Kind: ledger.Bite, Text: "cut", Outcome: ledger.OK, Detail: "7 packets dropped", N: 7, At: int64(x.strike+1) * 10 * ms})
	}
	if x.heal > 0 {
		add(engine, ledger.Event{Kind: ledger.Heal, Text: "cut", Outcome: ledger.OK, At: int64(x.heal+1)*10*ms - ms})
	}
	for _, w := range strings.Fields(x.txns) {
		var from, to int
		var how string
		if _, err := fmt.Sscanf(strings.NewReplacer("-", " ", ":", " ").Replace(w), "%d %d %s", &from, &to, &how); err != nil {
			t.Fatal(err)
		}
		o := map[string]ledger.Outcome{"ok": ledger.OK, "fail": ledger.Failed, "info": ledger.InDoubt}[how]
		at := int64(to+1)*10*ms + 7*ms
		add(producer, ledger.Event{Kind: ledger.TxnEnd, Stream: 1, Seq: uint64(from), To: uint64(to) + 1, Outcome: o, Sent: at, At: at + ms})
	}
	add(engine, ledger.Event{Kind: ledger.Step, Text: "done", Outcome: ledger.OK, At: end})
	add(engine, ledger.Event{Kind: ledger.Phase, Text: "heal", At: end})
	add(engine, ledger.Event{Kind: ledger.WorkerEnd, Text: "producer-1", Detail: "exited", Outcome: ledger.OK, At: end})
	add(engine, ledger.Event{Kind: ledger.Quiet, Outcome: ledger.OK, At: end})

	views := map[ledger.View]string{ledger.ViewRaw: x.store, ledger.ViewCommitted: x.committed}
	if x.committed == "" {
		views[ledger.ViewCommitted] = x.store
	}
	rawEnd := x.low + int64(len(strings.Fields(x.store)))
	for view := ledger.ViewRaw; view <= ledger.ViewCommitted; view++ {
		if views[view] == "none" {
			continue
		}
		offset, count := x.low, int64(0)
		for _, word := range strings.Fields(views[view]) {
			if word != "-" {
				e := x.record(t, h, word)
				e.View, e.Pos.Offset, e.At = view, offset, end
				add(reader, e)
				count++
			}
			offset++
		}
		for n := range max(1, h.Destinations[0].Partitions) {
			e := ledger.Event{Kind: ledger.StoreEnd, View: view, Pos: ledger.Position{Partition: int32(n), Offset: rawEnd}, N: rawEnd, Low: x.low, Count: -1, At: end}
			if h.Destinations[0].Partitions == 1 {
				e.Count = count
			}
			add(reader, e)
		}
	}
	rest(js, engine, reader)
	for i := range js {
		add(i, ledger.Event{Kind: ledger.SegmentEnd})
	}
	if x.events != nil {
		x.events(js)
	}
	return h, js
}

func (x history) record(t testing.TB, h ledger.Header, word string) ledger.Event {
	e := ledger.Event{Kind: ledger.Stored, Digest: 1}
	switch word {
	case "?":
		e.Text, e.Key = ledger.TextUnreadable, ledger.NoKey
		return e
	case "!":
		e.Text = ledger.TextForeign
		return e
	}
	n, err := strconv.Atoi(strings.TrimRight(word, "xpk"))
	if err != nil {
		t.Fatal(err)
	}
	id := ledger.MessageID{Stream: 1, Seq: uint64(n)}
	e.Stream, e.Seq = id.Stream, id.Seq
	e.Key = ledger.KeyOf(h.Seed, id, h.Workload.Keys)
	e.Pos.Partition = ledger.PartitionOf(e.Key, h.Destinations[0].Partitions)
	e.Digest = ledger.Digest(ledger.AppendPayload(nil, h.Seed, h.Tag(), id, 0, h.Workload.PayloadSize))
	if strings.Contains(word, "x") {
		e.Digest++
	}
	if strings.Contains(word, "p") {
		e.Pos.Partition++
	}
	if strings.Contains(word, "k") {
		e.Key++
	}
	return e
}

// rest records the ends that a final read came to as those at quiescence.
func rest(js []journal, engine, reader int) {
	told := map[partitionKey]bool{}
	for _, e := range js[reader].Events {
		if key := (partitionKey{e.Pos.Destination, e.Pos.Partition}); e.Kind == ledger.StoreEnd && !told[key] {
			told[key] = true
			js[engine].Events = append(js[engine].Events, ledger.Event{Kind: ledger.EndPosition, Pos: e.Pos, At: e.At})
		}
	}
}

// measured returns journals in which the ends of workers tell how long their segments are, undamaged, unless
// they tell something already.
func measured(t testing.TB, js []mutate.Journal) []mutate.Journal {
	t.Helper()
	lengths := map[string]int64{}
	for _, j := range js {
		j.Damage = nil
		b, err := j.Encode()
		if err != nil {
			t.Fatal(err)
		}
		lengths[j.Segment.Name] = int64(len(b))
	}
	out := clone(js)
	each(out, func(e *ledger.Event) {
		if e.Kind == ledger.WorkerEnd && e.Count == 0 {
			e.Count = lengths[e.Text]
		}
	})
	return out
}

// opener encodes journals once and opens them any number of times.
func opener(t testing.TB, js []mutate.Journal) Open {
	t.Helper()
	js = measured(t, js)
	files := make([][]byte, len(js))
	for i, j := range js {
		b, err := j.Encode()
		if err != nil {
			t.Fatal(err)
		}
		files[i] = b
	}
	return func() ([]Source, error) {
		out := make([]Source, len(js))
		for i := range js {
			out[i] = Source{Name: js[i].Segment.Name + ".seg", R: bytes.NewReader(files[i])}
		}
		return out, nil
	}
}

func (x history) audit(t testing.TB) Verdict {
	t.Helper()
	h, js := x.build(t)
	v, err := Audit(h, opener(t, js))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// summary prints findings as "name=count", those that are forbidden with "!".
func summary(v Verdict) string {
	var out []string
	for _, f := range v.Findings {
		s := fmt.Sprintf("%s=%d", f.Name(), f.Count)
		if f.Forbidden {
			s += "!"
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
