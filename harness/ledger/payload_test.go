package ledger

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestPayloadGolden(t *testing.T) {
	got := string(AppendPayload(nil, 7, 0x1a2b3c4d, MessageID{Stream: 3, Seq: 991}, 0xfeed, 140))
	const want = "conform arm=1a2b3c4d id=00000003/00000000000003df event=000000000000feed check="
	if len(got) != 140 || got[:len(want)] != want {
		t.Errorf("%q", got)
	}
	for _, c := range got {
		if c < ' ' || c > '~' {
			t.Errorf("%q does not read well in a topic browser", got)
		}
	}
}

func TestPayloadRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := PayloadHeader{Tag: rapid.Uint32().Draw(rt, "tag"), ID: MessageID{rapid.Uint32().Draw(rt, "stream"), rapid.Uint64().Draw(rt, "seq")}, EventID: rapid.Uint64().Draw(rt, "event")}
		size := rapid.IntRange(0, 300).Draw(rt, "size")
		b := AppendPayload([]byte("before"), rapid.Uint64().Draw(rt, "seed"), h.Tag, h.ID, h.EventID, size)[6:]
		if len(b) != max(size, MinPayload) {
			rt.Fatalf("%d bytes, want %d", len(b), size)
		}
		if got, ok := ParsePayload(b); !ok || got != h {
			rt.Fatalf("%+v %v, want %+v", got, ok, h)
		}
		// Any single altered bit of the header makes it unreadable, any other one alters the digest.
		bit := rapid.IntRange(0, len(b)*8-1).Draw(rt, "bit")
		c := bytes.Clone(b)
		c[bit/8] ^= 1 << (bit % 8)
		if _, ok := ParsePayload(c); ok && bit/8 < MinPayload {
			rt.Fatalf("bit %d of the header is not missed", bit)
		}
		if Digest(b) == Digest(c) {
			rt.Fatal("one digest for two payloads")
		}
	})
}

func TestPayloadIsPure(t *testing.T) {
	seen := map[uint64]string{}
	for _, seed := range []uint64{1, 2} {
		for stream := range uint32(4) {
			for seq := range uint64(50) {
				id := MessageID{stream, seq}
				b := AppendPayload(nil, seed, 1, id, 0, 200)
				if !bytes.Equal(b, AppendPayload(nil, seed, 1, id, 0, 200)) {
					t.Fatal("not a function of its arguments")
				}
				d := Digest(b[MinPayload:])
				if other, ok := seen[d]; ok {
					t.Fatalf("seed %d %s has the filler of %s", seed, id, other)
				}
				seen[d] = fmt.Sprintf("seed %d %s", seed, id)
			}
		}
	}
}

func TestKeys(t *testing.T) {
	counts := make([]int, 16)
	for seq := range uint64(16000) {
		k := KeyOf(9, MessageID{1, seq}, 16)
		counts[k]++
		if got, ok := ParseKey(KeyName(k)); !ok || got != k {
			t.Fatalf("%s reads as %d %v", KeyName(k), got, ok)
		}
	}
	for k, n := range counts {
		if n < 800 || n > 1200 {
			t.Errorf("key %d has %d of 16000 messages", k, n)
		}
	}
	for _, bad := range []string{"", "key-", "key-0000000g", "key-000000001", "KEY-00000001"} {
		if k, ok := ParseKey(bad); ok || k != NoKey {
			t.Errorf("%q reads as %d", bad, k)
		}
	}
	if KeyOf(9, MessageID{1, 5}, 0) != 0 || KeyOf(9, MessageID{1, 5}, 1) != 0 {
		t.Error("a single key is 0")
	}
	if PartitionOf(7, 3) != 1 || PartitionOf(7, 0) != 0 || PartitionOf(NoKey, 3) < 0 {
		t.Error("partitions are out of range")
	}
}

func TestTag(t *testing.T) {
	tags := map[uint32]string{}
	for _, a := range [][5]any{
		{"r", "s", "c", "a", 0},
		{"r", "s", "c", "a", 1},
		{"r", "s", "c", "b", 0},
		{"r2", "s", "c", "a", 0},
		{"r", "sc", "", "a", 0},
		{"r", "s", "ca", "", 0},
		{"", "", "", "", 0},
	} {
		tag := Tag(a[0].(string), a[1].(string), a[2].(string), a[3].(string), a[4].(int))
		if other, ok := tags[tag]; ok || tag == 0 {
			t.Errorf("%v has the tag %d of %s", a, tag, other)
		}
		tags[tag] = fmt.Sprint(a)
	}
}

func TestStoredRecord(t *testing.T) {
	payload := AppendPayload(nil, 7, 42, MessageID{3, 5}, 9, 200)
	pos := Position{0, 1, 17}
	e := StoredRecord(42, ViewCommitted, pos, []byte(KeyName(4)), payload, 99)
	want := Event{Kind: Stored, View: ViewCommitted, Stream: 3, Seq: 5, EventID: 9, Key: 4, Pos: pos, Digest: Digest(payload), At: 99}
	if e != want {
		t.Errorf("%+v", e)
	}
	if e := StoredRecord(43, ViewRaw, pos, []byte("else"), payload, 99); e.Stream != 0 || e.Text != TextForeign || e.Key != NoKey {
		t.Errorf("%+v", e)
	}
	payload[20] ^= 1
	if e := StoredRecord(42, ViewRaw, pos, nil, payload, 99); e.Stream != 0 || e.Text != TextUnreadable {
		t.Errorf("%+v", e)
	}
}

func FuzzParsePayload(f *testing.F) {
	f.Add(AppendPayload(nil, 7, 42, MessageID{3, 5}, 9, 200))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, ok := ParsePayload(b); ok {
			if got := AppendPayload(nil, 0, h.Tag, h.ID, h.EventID, 0); !bytes.Equal(got, b[:MinPayload]) {
				t.Errorf("%q is accepted, %q would be written", b[:MinPayload], got)
			}
		}
	})
}

func BenchmarkPayload(b *testing.B) {
	var buf []byte
	var sum uint64
	for i := 0; b.Loop(); i++ {
		buf = AppendPayload(buf[:0], 7, 42, MessageID{3, uint64(i)}, 0, 256)
		sum += Digest(buf)
	}
	_ = sum
}
