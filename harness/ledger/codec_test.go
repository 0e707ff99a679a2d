package ledger

import (
	"bytes"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// anyEvent draws events with hostile values in any field.
func anyEvent(t *rapid.T) Event {
	i64 := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{0, 1, -1, math.MaxInt64, math.MinInt64}))
	u64 := rapid.OneOf(rapid.Uint64(), rapid.SampledFrom([]uint64{0, 1, math.MaxUint64}))
	u32 := rapid.Uint32()
	text := rapid.OneOf(rapid.Just(""), rapid.SampledFrom([]string{"timeout", "reset", "refused"}), rapid.String())
	return Event{
		Kind: Kind(rapid.IntRange(1, int(kindsEnd)-1).Draw(t, "kind")), Outcome: Outcome(rapid.IntRange(0, 2).Draw(t, "outcome")),
		Claim: Claim(rapid.IntRange(0, 2).Draw(t, "claim")), View: View(rapid.IntRange(0, 2).Draw(t, "view")),
		Foreign: rapid.Bool().Draw(t, "foreign"), Consumer: u32.Draw(t, "consumer"), Stream: u32.Draw(t, "stream"),
		Seq: u64.Draw(t, "seq"), To: u64.Draw(t, "to"), EventID: u64.Draw(t, "event"), Key: u32.Draw(t, "key"),
		Attempt: u32.Draw(t, "attempt"), At: i64.Draw(t, "at"), Sent: i64.Draw(t, "sent"),
		Pos:    Position{uint16(rapid.IntRange(0, math.MaxUint16).Draw(t, "dest")), rapid.Int32().Draw(t, "part"), i64.Draw(t, "off")},
		Digest: u64.Draw(t, "digest"), N: i64.Draw(t, "n"), Low: i64.Draw(t, "low"), Count: i64.Draw(t, "count"),
		Text: text.Draw(t, "text"), Detail: text.Draw(t, "detail"),
	}
}

// write encodes events, flushed after every flush-th, and closes the segment.
func write(t testing.TB, events []Event, flush int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, Segment{Name: "producer-1", Role: "producer", Worker: "producer-1"})
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range events {
		w.Append(e)
		if flush > 0 && i%flush == flush-1 {
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// readAll returns what can be read, and the damage met.
func readAll(t testing.TB, b []byte) (events []Event, damage []*DamageError, r *Reader) {
	t.Helper()
	r, err := NewReader(bytes.NewReader(b), "x.seg")
	if err != nil {
		if errors.Is(err, ErrSchema) {
			return nil, []*DamageError{{Reason: err.Error()}}, &Reader{}
		}
		t.Fatal(err)
	}
	for range 1 << 20 {
		var e Event
		err := r.Next(&e)
		var d *DamageError
		switch {
		case err == nil:
			events = append(events, e)
		case errors.As(err, &d):
			damage = append(damage, d)
		case errors.Is(err, io.EOF):
			return events, damage, r
		default:
			t.Fatal(err)
		}
	}
	t.Fatal("the segment does not end")
	return nil, nil, nil
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		events := rapid.SliceOfN(rapid.Custom(anyEvent), 0, 40).Draw(rt, "events")
		got, damage, r := readAll(t, write(t, events, rapid.IntRange(0, 5).Draw(rt, "flush")))
		if len(damage) > 0 || !r.Closed() {
			rt.Fatalf("damage %v, closed %v", damage, r.Closed())
		}
		if want := append(events, Event{Kind: SegmentEnd}); !reflect.DeepEqual(got, want) {
			rt.Fatalf("got  %+v\nwant %+v", got, want)
		}
		if r.Segment() != (Segment{Schema: SchemaVersion, Name: "producer-1", Role: "producer", Worker: "producer-1"}) {
			rt.Fatalf("segment %+v", r.Segment())
		}
	})
}

// sends is an ordinary producer's segment.
func sends(n int) []Event {
	var out []Event
	for i := range n {
		at := int64(i)*1e6 + 1e12
		if i%64 == 0 {
			out = append(out, Event{Kind: Invoke, Stream: 3, Seq: uint64(i), To: uint64(i) + 64, At: at})
		}
		out = append(out, Event{Kind: Complete, Stream: 3, Seq: uint64(i), Outcome: OK, Claim: ClaimSent, Sent: at, At: at + 3e6, Pos: Position{0, int32(i % 3), int64(i / 3)}})
	}
	return out
}

// isSubsequence says whether got is events with some left out.
func isSubsequence(got, events []Event) bool {
	i := 0
	for _, e := range got {
		for i < len(events) && events[i] != e {
			i++
		}
		if i == len(events) {
			return false
		}
		i++
	}
	return true
}

func TestTruncated(t *testing.T) {
	events := sends(300)
	whole := write(t, events, 50)
	for cut := range whole {
		got, damage, r := readAll(t, whole[:cut])
		if r.Closed() {
			t.Fatalf("cut at %d: taken for closed", cut)
		}
		if len(got) > len(events) || !reflect.DeepEqual(got, append([]Event{}, events...)[:len(got)]) && len(got) > 0 {
			t.Fatalf("cut at %d: %d events that were not written so", cut, len(got))
		}
		for _, d := range damage {
			if !d.Tail {
				t.Fatalf("cut at %d: %v is not at the tail", cut, d)
			}
		}
	}
}

func TestFlippedBit(t *testing.T) {
	events := sends(60)
	whole := write(t, events, 20)
	for i := range len(whole) * 8 {
		b := bytes.Clone(whole)
		b[i/8] ^= 1 << (i % 8)
		got, damage, _ := readAll(t, b)
		if len(damage) == 0 {
			t.Fatalf("bit %d: accepted", i)
		}
		if !isSubsequence(got, append(events, Event{Kind: SegmentEnd})) {
			t.Fatalf("bit %d: an event that was not written", i)
		}
	}
}

// A damaged frame takes only its own events along.
func TestResynchronizes(t *testing.T) {
	events := sends(300)
	whole := write(t, events, 50)
	b := bytes.Clone(whole)
	b[len(b)/2] ^= 1
	got, damage, r := readAll(t, b)
	if len(damage) != 1 || damage[0].File != "x.seg" || damage[0].Offset == 0 || !r.Closed() {
		t.Fatalf("damage %v, closed %v", damage, r.Closed())
	}
	if len(got) != len(events)+1-50 {
		t.Errorf("%d of %d events were read, one batch of 50 is damaged", len(got), len(events))
	}
}

func TestFramesMissingOrRepeated(t *testing.T) {
	whole := write(t, sends(300), 50)
	var frames [][]byte
	for b := whole; len(b) > 0; {
		n := frameHead + int(b[0]) + int(b[1])<<8
		frames, b = append(frames, b[:n]), b[n:]
	}
	join := func(order ...int) []byte {
		var b []byte
		for _, i := range order {
			b = append(b, frames[i]...)
		}
		return b
	}
	for name, b := range map[string][]byte{
		"missing":  join(0, 1, 3, 4),
		"repeated": join(0, 1, 1, 2),
		"swapped":  join(0, 2, 1, 3),
	} {
		if got, damage, _ := readAll(t, b); len(damage) == 0 || !isSubsequence(got, sends(300)) {
			t.Errorf("%s: %d events, damage %v", name, len(got), damage)
		}
	}
}

func TestZeros(t *testing.T) {
	if got, damage, r := readAll(t, append(write(t, sends(10), 0), make([]byte, 4096)...)); len(damage) == 0 || len(got) != 12 {
		t.Errorf("a tail of zeros: %d events, damage %v, closed %v", len(got), damage, r.Closed())
	}
	if _, damage, r := readAll(t, nil); len(damage) != 1 || r.Closed() {
		t.Errorf("an empty segment: damage %v", damage)
	}
}

func TestOnly(t *testing.T) {
	events := append(sends(200), Event{Kind: Inject, Text: "cut", At: 1})
	b := write(t, events, 50)
	r, err := NewReader(bytes.NewReader(b), "x")
	if err != nil {
		t.Fatal(err)
	}
	r.Only(Inject, SegmentEnd)
	n, found := 0, false
	for {
		var e Event
		if err := r.Next(&e); err != nil {
			break
		}
		n++
		found = found || e.Kind == Inject
	}
	if !found || n > 60 || !r.Closed() || !r.Has(Complete) || r.Has(Stored) {
		t.Errorf("found %v among %d events, closed %v", found, n, r.Closed())
	}
}

type failing struct{ n int }

func (f *failing) Write(b []byte) (int, error) {
	if f.n--; f.n < 0 {
		return 0, io.ErrShortWrite
	}
	return len(b), nil
}

// countWrites counts calls: one a flush.
type countWrites struct{ n int }

func (c *countWrites) Write(b []byte) (int, error) { c.n++; return len(b), nil }

func TestWriter(t *testing.T) {
	var c countWrites
	w, err := NewWriter(&c, Segment{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if c.n != 0 {
		t.Error("written before the first flush")
	}
	for i := range 3 {
		w.Append(Event{Kind: Claimed, Seq: uint64(i)})
		w.Append(Event{Kind: Claimed, Seq: uint64(i)})
		if err := w.Flush(); err != nil || c.n != i+1 {
			t.Fatalf("flush %d: %d writes, %v", i, c.n, err)
		}
	}
	if err := w.Flush(); err != nil || c.n != 3 {
		t.Errorf("an empty flush: %d writes, %v", c.n, err)
	}

	w, err = NewWriter(&failing{1}, Segment{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	for i := range 1 << 16 { // enough for Append to flush by itself
		w.Append(Event{Kind: Claimed, Seq: uint64(i * i), Digest: 1})
	}
	if err := w.Flush(); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("the error of a write by Append is gone: %v", err)
	}
	if err := w.Close(); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("close: %v", err)
	}
}

func TestLongText(t *testing.T) {
	long := strings.Repeat("x", MaxText+1)
	got, damage, _ := readAll(t, write(t, []Event{{Kind: Step, Text: long, Detail: long}}, 0))
	if len(damage) > 0 || len(got[0].Text) != MaxText || len(got[0].Detail) != MaxText {
		t.Errorf("%d %d %v", len(got[0].Text), len(got[0].Detail), damage)
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	w, err := NewWriter(io.Discard, Segment{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	events := sends(1000)
	i := 0
	one := func() {
		w.Append(events[i%len(events)])
		i++
		if i%512 == 0 {
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 4096 {
		one()
	}
	if n := testing.AllocsPerRun(4096, one); n > 0 {
		t.Errorf("%v allocations an event", n)
	}
}

func TestOtherSchema(t *testing.T) {
	b := write(t, nil, 0)
	// A segment of schema 9 with a right checksum.
	var out bytes.Buffer
	w := &Writer{w: &out, buf: append(make([]byte, frameHead), `{"Schema":9}`...)}
	w.seal()
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := NewReader(bytes.NewReader(out.Bytes()), "x"); !errors.Is(err, ErrSchema) {
		t.Errorf("schema 9: %v", err)
	}
	if _, err := NewReader(bytes.NewReader(b), "x"); err != nil {
		t.Error(err)
	}
}

func FuzzReader(f *testing.F) {
	whole := write(f, sends(100), 10)
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte{})
	f.Add(make([]byte, 64))
	flipped := bytes.Clone(whole)
	flipped[70] ^= 4
	f.Add(flipped)
	f.Fuzz(func(t *testing.T, b []byte) {
		events, damage, r := readAll(t, b)
		if r.Closed() && len(events) == 0 {
			t.Error("closed without an event")
		}
		// What is accepted without damage comes back from the writer.
		if len(damage) == 0 && r.Closed() {
			got, again, _ := readAll(t, write(t, events[:len(events)-1], 0))
			if len(again) > 0 || len(got) != len(events) {
				t.Errorf("%d events came back as %d, damage %v", len(events), len(got), again)
			}
		}
	})
}

// FuzzBatch reads batches whose checksum is right, as a hostile or broken writer would leave them.
func FuzzBatch(f *testing.F) {
	var c encoder
	for _, e := range sends(20) {
		c.append(&e)
	}
	f.Add(c.appendBatch(nil, 1))
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > MaxFrame {
			return
		}
		var out bytes.Buffer
		w, err := NewWriter(&out, Segment{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		w.buf = append(append(w.buf, make([]byte, frameHead)...), body...)
		w.seal()
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		readAll(t, out.Bytes())
	})
}

func BenchmarkAppend(b *testing.B) {
	w, err := NewWriter(io.Discard, Segment{Name: "x"})
	if err != nil {
		b.Fatal(err)
	}
	events := sends(1 << 10)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		w.Append(events[i&(1<<10-1)])
	}
}

func BenchmarkNext(b *testing.B) {
	data := write(b, sends(1<<14), 0)
	b.ReportAllocs()
	var e Event
	for n := 0; n < b.N; {
		r, err := NewReader(bytes.NewReader(data), "x")
		if err != nil {
			b.Fatal(err)
		}
		for ; n < b.N; n++ {
			if r.Next(&e) != nil {
				break
			}
		}
	}
}
