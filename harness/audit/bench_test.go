package audit

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"conform/harness/ledger"
)

// bigLedger records n messages of four producers, confirmed and in both views of the store, as a run
// does: 6 partitions, 1,000 keys, payloads of 256 bytes. lose leaves every lose-th record out.
func bigLedger(tb testing.TB, n int, lose int) (ledger.Header, Open, int) {
	tb.Helper()
	h := baseHeader()
	h.Destinations[0].Partitions = 6
	h.Workload = ledger.Workload{Keys: 1000, PayloadSize: 256}
	h.Evidence = ledger.Evidence{Before: 200, InFlight: 1, After: 200, Bites: []string{"cut"}}
	const producers = 4
	per := n / producers
	var files [][]byte
	var names []string
	open := func(s ledger.Segment) (*ledger.Writer, *bytes.Buffer) {
		var b bytes.Buffer
		w, err := ledger.NewWriter(&b, s)
		if err != nil {
			tb.Fatal(err)
		}
		return w, &b
	}
	done := func(s ledger.Segment, w *ledger.Writer, b *bytes.Buffer) {
		if err := w.Close(); err != nil {
			tb.Fatal(err)
		}
		files, names = append(files, b.Bytes()), append(names, s.Name)
	}
	const step = 500_000 // 2,000/s in all
	partition := func(id ledger.MessageID) int32 {
		return ledger.PartitionOf(ledger.KeyOf(h.Seed, id, h.Workload.Keys), 6)
	}
	offsets := make([]int64, 6)
	position := make([][]int64, producers)
	for i := range per {
		for p := range producers {
			part := partition(ledger.MessageID{Stream: uint32(p + 1), Seq: uint64(i)})
			position[p] = append(position[p], offsets[part])
			offsets[part]++
		}
	}
	for p := range producers {
		s := ledger.Segment{Name: fmt.Sprintf("producer-%d", p+1), Role: "producer"}
		w, b := open(s)
		for i := range per {
			at := int64(1e9) + int64(i*producers+p)*step
			if i%64 == 0 {
				w.Append(ledger.Event{Kind: ledger.Invoke, Stream: uint32(p + 1), Seq: uint64(i), To: uint64(min(per, i+64)), At: at})
				if err := w.Flush(); err != nil {
					tb.Fatal(err)
				}
			}
			id := ledger.MessageID{Stream: uint32(p + 1), Seq: uint64(i)}
			w.Append(ledger.Event{Kind: ledger.Complete, Stream: id.Stream, Seq: id.Seq, Outcome: ledger.OK, Claim: ledger.ClaimSent, Sent: at, At: at + 3_000_000 + int64(i%1000)*1000, Pos: ledger.Position{Partition: partition(id), Offset: position[p][i]}})
		}
		done(s, w, b)
	}
	s := ledger.Segment{Name: "engine", Role: "engine"}
	w, b := open(s)
	third := int64(n) * step / 3
	for _, e := range []ledger.Event{
		{Kind: ledger.Phase, Text: "load", At: 1e9},
		{Kind: ledger.Inject, Text: "cut", At: 1e9 + third},
		{Kind: ledger.Bite, Text: "cut", Outcome: ledger.OK, At: 1e9 + third},
		{Kind: ledger.Heal, Text: "cut", Outcome: ledger.OK, At: 1e9 + 2*third},
		{Kind: ledger.Phase, Text: "heal", At: 1e9 + 4*third},
		{Kind: ledger.Quiet, Outcome: ledger.OK, At: 1e9 + 5*third},
	} {
		w.Append(e)
	}
	done(s, w, b)
	s = ledger.Segment{Name: "reader", Role: "reader"}
	w, b = open(s)
	payload, tag := make([]byte, 0, 256), h.Tag()
	for view := ledger.ViewRaw; view <= ledger.ViewCommitted; view++ {
		for part := range int32(6) {
			count := int64(0)
			for i := range per {
				for p := range producers {
					id := ledger.MessageID{Stream: uint32(p + 1), Seq: uint64(i)}
					key := ledger.KeyOf(h.Seed, id, h.Workload.Keys)
					if ledger.PartitionOf(key, 6) != part || lose > 0 && (i*producers+p)%lose == 0 {
						continue
					}
					payload = ledger.AppendPayload(payload[:0], h.Seed, tag, id, 0, 256)
					w.Append(ledger.Event{Kind: ledger.Stored, View: view, Stream: id.Stream, Seq: id.Seq, Key: key, Digest: ledger.Digest(payload), Pos: ledger.Position{Partition: part, Offset: position[p][i]}, At: 1e15})
					count++
				}
			}
			w.Append(ledger.Event{Kind: ledger.StoreEnd, View: view, Pos: ledger.Position{Partition: part, Offset: offsets[part]}, N: offsets[part], Count: count, At: 1e15})
		}
	}
	done(s, w, b)
	bytesTotal := 0
	for _, f := range files {
		bytesTotal += len(f)
	}
	return h, func() ([]Source, error) {
		out := make([]Source, len(files))
		for i := range files {
			out[i] = Source{Name: names[i], R: bytes.NewReader(files[i])}
		}
		return out, nil
	}, bytesTotal
}

// heapOf returns what the auditor holds after its main pass, which is when it holds most.
func heapOf(tb testing.TB, h ledger.Header, open Open) int64 {
	tb.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	v, err := takeSurvey(open)
	if err != nil {
		tb.Fatal(err)
	}
	a := newAuditor(h, open, v)
	if err := a.run(); err != nil {
		tb.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(a)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

func benchmarkAudit(b *testing.B, n, lose int, want ArmResult) {
	h, open, size := bigLedger(b, n, lose)
	heap := heapOf(b, h, open)
	if limit := int64(64<<20) + 16*int64(n); heap > limit {
		b.Fatalf("%d bytes of heap, the limit is %d", heap, limit)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // on one core, its garbage collector included
	cpu := cpuTime()
	for b.Loop() {
		v, err := Audit(h, open)
		if err != nil || v.Arm != want {
			b.Fatalf("%s %v %q", v.Arm, err, v.Reasons)
		}
	}
	b.ReportMetric(float64(heap)/float64(n), "heapB/msg")
	b.ReportMetric(float64(size)/float64(n), "diskB/msg")
	b.ReportMetric((cpuTime()-cpu).Seconds()/float64(b.N), "cpu-s/op")
}

func BenchmarkAudit1M(b *testing.B) {
	b.Run("held", func(b *testing.B) { benchmarkAudit(b, 1_000_000, 0, Held) })
	// 1 % lost: two more passes, for the windows and for a story.
	b.Run("lost", func(b *testing.B) { benchmarkAudit(b, 1_000_000, 100, Broke) })
}

func BenchmarkAudit10M(b *testing.B) {
	if testing.Short() {
		b.Skip("takes a gigabyte for the ledger")
	}
	benchmarkAudit(b, 10_000_000, 0, Held)
}

// The slope of the heap: what a message more costs.
func TestHeapPerMessage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds ledgers of 300,000 messages")
	}
	h, open, _ := bigLedger(t, 50_000, 0)
	small := heapOf(t, h, open)
	h, open, _ = bigLedger(t, 250_000, 0)
	big := heapOf(t, h, open)
	if slope := float64(big-small) / 200_000; slope > 16 {
		t.Errorf("%.1f bytes of heap a message, the limit is 16", slope)
	}
}
