package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// -update writes the golden ledger of the current schema anew. Only do so before that schema was
// released: the point of the file is that ledgers of old binaries stay readable.
var update = flag.Bool("update", false, "write the golden ledger of the current schema")

const goldens = "../../fixtures/ledgers"

// specimen has every kind and every field once.
func specimen() (Header, []Event) {
	most := 0
	h := Header{
		Schema: 1, Run: "golden", Suite: "kafka-acks", System: "kafka", Version: "4.2.0", Scenario: "leader-isolated", Arm: "acks-1",
		Role: "control", Window: "W3", Seed: 7, Repeat: 1,
		Destinations: []Destination{{Name: "t", Partitions: 3}, {Name: "t.dead", Partitions: 1, DeadLetter: true}},
		Workload:     Workload{Keys: 16, PayloadSize: 160},
		Promise:      Promise{Text: "p", Start: "a", End: "b", Places: []string{"store"}, Rules: map[string]Rule{"lost": {Bound: 2}}, MaxUnavailable: time.Second},
		Expect:       &Expect{Anomaly: "lost", Attribution: "broker", Knob: "acks=1", Forces: []string{"idempotence=false"}, Place: "store"},
		Evidence:     Evidence{Before: 200, InFlight: 1, During: During{Confirmed: 1, MaxConfirmed: &most}, After: 200, Bites: []string{"isolated"}, Ends: []string{"producer-1"}},
		Deadlines:    map[string]time.Duration{"drain": time.Minute}, Settings: map[string]string{"client acks": "1"},
		Timing: map[string]string{"replica.lag.time.max.ms": "3000"}, Plan: []string{"until ..."}, Checks: map[string]int{"lost": 1}, Reproduce: "conform run",
	}
	id := MessageID{Stream: 3, Seq: 991}
	payload := AppendPayload(nil, h.Seed, h.Tag(), id, 5, h.Workload.PayloadSize)
	key := KeyOf(h.Seed, id, 16)
	pos := Position{Partition: PartitionOf(key, 3), Offset: 4711}
	events := []Event{
		{Kind: Invoke, Stream: 3, Seq: 991, To: 992, EventID: 5, At: 1000},
		{Kind: Claimed, Stream: 3, Seq: 991, Claim: ClaimSent, At: 1100},
		{Kind: Complete, Stream: 3, Seq: 991, Outcome: OK, Claim: ClaimSent, Sent: 1050, At: 2000, Pos: pos},
		{Kind: Complete, Stream: 3, Seq: 992, Outcome: Failed, Claim: ClaimFailed, Sent: 1060, At: 2100, Text: "refused", Foreign: true},
		{Kind: Complete, Stream: 3, Seq: 993, Sent: 1070, At: 2200, Text: "timeout", Pos: Position{Offset: -1}},
		StoredRecord(h.Tag(), ViewRaw, pos, []byte(KeyName(key)), payload, 9000),
		StoredRecord(h.Tag(), ViewCommitted, pos, []byte("?"), payload[1:], 9000),
		{Kind: StoreEnd, Pos: pos, N: 4712, Low: 12, Count: -1, At: 9100},
		{Kind: Received, Consumer: 2, Stream: 3, Seq: 991, Pos: pos, Digest: Digest(payload), View: ViewCommitted, Attempt: 2, At: 3000},
		{Kind: Settled, Consumer: 2, Stream: 3, Seq: 991, Pos: pos, Text: "commit", Outcome: OK, At: 3100},
		{Kind: Assigned, Consumer: 2, Pos: Position{Partition: 2}, At: 2500},
		{Kind: Revoked, Consumer: 2, Pos: Position{Partition: 2}, At: 3500},
		{Kind: Effect, EventID: 5, Key: key, N: 3, Count: 1, Text: "orders", At: 3600},
		{Kind: OutboxRow, EventID: 5, Key: key, Text: "published", At: 3700},
		{Kind: Ordered, EventID: 5, Key: key, Outcome: OK, At: 900},
		{Kind: Inject, Text: "isolated", Detail: "node-isolated on kafka-2", At: 1500},
		{Kind: Bite, Text: "isolated", Outcome: OK, Detail: "7 packets", N: 7, At: 1600},
		{Kind: Heal, Text: "isolated", Outcome: OK, At: 2600},
		{Kind: Step, Text: "deposed", Detail: "kafka-3 leads", Outcome: OK, At: 1700},
		{Kind: Phase, Text: "load", At: 800},
		{Kind: Quiet, Outcome: OK, Detail: "two reads 2 s apart", At: 8000},
		{Kind: ClockSample, At: 100, N: 1796000000000000000},
		{Kind: WorkerEnd, Text: "producer-1", Detail: "killed at crash point after-send", Outcome: OK, At: 2700},
		{Kind: TxnEnd, Stream: 3, Seq: 991, To: 993, Outcome: Failed, Sent: 2300, At: 2400},
	}
	return h, events
}

// chainSpecimen has what schema 1 learned with the chain: a ledger without it reads as before.
func chainSpecimen() (Header, []Event) {
	h, _ := specimen()
	h.Suite, h.Scenario, h.Arm, h.Role, h.Expect = "kafka-consume", "crash-after-business-commit", "inbox", "guarded", nil
	h.Destinations[0].Grown, h.Destinations[0].Compacted = []int{2}, true
	h.Promise.MaxStall, h.Promise.MaxRTO = time.Minute, time.Minute
	h.Evidence = Evidence{Bites: []string{"crash-consumer-1"}, Ordered: 1, HandledBefore: 1, HandledAfter: 1, Redelivered: 1}
	h.Tables = []string{TableOutbox, TableInbox, TableDeadLetter, "notifications"}
	h.Groups = []Group{{Name: "g", Destinations: []uint16{0}}}
	h.Chain = Chain{Ordered: true, Orders: TableOutbox, Effects: []EffectTable{{Name: "notifications"}, {Name: "balances", State: true}}, Unread: true}
	h.Delay = Delay{Due: time.Second, Allowance: time.Second, TTL: time.Minute}
	id := EventID(1, 16)
	pos := Position{Partition: 2, Offset: 7}
	return h, []Event{
		{Kind: Invoke, Stream: 1, Seq: 16, To: 17, At: 100},
		{Kind: Ordered, EventID: id, Key: 3, N: 17, Outcome: OK, Text: "order", Sent: 110, At: 120},
		{Kind: Resent, EventID: id, To: EventID(1, 15), At: 130},
		{Kind: Invoke, Stream: 2, Seq: 0, To: 1, EventID: id, At: 140},
		{Kind: Received, Consumer: 1, Stream: 2, EventID: id, Key: 3, Pos: pos, At: 200},
		{Kind: Handled, Consumer: 1, Stream: 2, EventID: id, Key: 3, Pos: pos, Outcome: OK, Text: "applied", At: 210},
		{Kind: Handled, Consumer: 1, Stream: 2, EventID: id, Key: 3, Pos: pos, Text: "applied", Detail: "connection reset", At: 220},
		{Kind: Settled, Consumer: 1, Pos: Position{Partition: 2, Offset: 8}, Text: "commit", Outcome: OK, Sent: 230, At: 240},
		{Kind: Quiet, Outcome: Failed, N: 30e9, Detail: "lag 1", At: 300},
		{Kind: OutboxRow, EventID: id, Key: 3, Text: "published", At: 400},
		{Kind: SnapshotEnd, Text: TableOutbox, N: 1, At: 400},
		{Kind: InboxRow, EventID: id, Text: "g", At: 400},
		{Kind: Effect, EventID: id, Key: 3, N: 17, Count: 2, Text: "notifications", To: EventID(1, 15), At: 400},
		{Kind: GroupEnd, Text: "g", Pos: Position{Partition: 2, Offset: -1}, At: 400},
	}
}

func TestGoldenLedgers(t *testing.T) {
	t.Run("v1", func(t *testing.T) {
		h, events := specimen()
		testGolden(t, filepath.Join(goldens, "v1"), h, events)
	})
	t.Run("v1-chain", func(t *testing.T) {
		h, events := chainSpecimen()
		testGolden(t, filepath.Join(goldens, "v1-chain"), h, events)
	})
	t.Run("v1-jobs", func(t *testing.T) {
		h, events := jobSpecimen()
		testGolden(t, filepath.Join(goldens, "v1-jobs"), h, events)
	})
	t.Run("v1-bounds", func(t *testing.T) {
		h, events := boundSpecimen()
		testGolden(t, filepath.Join(goldens, "v1-bounds"), h, events)
	})
}

// boundSpecimen has what schema 1 learned of what an arm may leave, and where: a ledger without it is not asked.
func boundSpecimen() (Header, []Event) {
	h, _ := chainSpecimen()
	h.Suite, h.Scenario, h.Arm = "outbox@kafka", "crash-between", "guarded"
	h.Destinations[0].Grown, h.Destinations[0].Compacted, h.Destinations[0].Dense = nil, false, true
	h.Evidence = Evidence{
		Bites: []string{"crash-producer"}, Times: map[string]int{"crash-producer": 2},
		Ends: []string{"producer-1"}, EndsAt: map[string]string{"producer-1": "before-order-commit"},
	}
	h.Tables, h.Space = []string{"orders", TableOutbox, TableDeadLetter, "notifications"}, "conform_00000001"
	h.Chain = Chain{
		Ordered: true, Orders: "orders", Outbox: true, Published: "published",
		Effects: []EffectTable{{Name: "notifications", Versions: true}},
		Letters: &Letters{Events: []uint64{EventID(1, 3)}, Others: 1, Passing: []uint64{EventID(1, 4)}},
	}
	return h, []Event{
		{Kind: Effect, EventID: EventID(1, 3), Key: 3, N: 4, Text: "orders", At: 400},
		{Kind: SnapshotEnd, Text: "orders", Detail: h.Space, N: 1, At: 400},
		{Kind: Effect, EventID: EventID(1, 3), Key: 3, N: 4, Text: TableDeadLetter + "/mailer", Detail: "{}", At: 400},
		{Kind: SnapshotEnd, Text: TableDeadLetter, Detail: h.Space, N: 1, At: 400},
	}
}

// jobSpecimen has what schema 1 learned with background jobs: a ledger without it has callers alone.
func jobSpecimen() (Header, []Event) {
	h, _ := chainSpecimen()
	h.Suite, h.Scenario, h.Arm = "kafka-acks", "unbounded-retry", "guarded"
	h.Background = []string{"resender"}
	id := EventID(1, 0)
	return h, []Event{
		{Kind: Invoke, Stream: 1, To: 1, EventID: id, At: 100},
		{Kind: Claimed, Stream: 1, EventID: id, Claim: ClaimSent, Sent: 110, At: 210},
		{Kind: Invoke, Stream: 2, To: 1, EventID: id, At: 300},
		{Kind: Complete, Stream: 2, EventID: id, Outcome: OK, Sent: 310, At: 900, Pos: Position{Offset: 3}},
	}
}

func TestInBackground(t *testing.T) {
	h := Header{Background: []string{"resender", "relay-1", ""}}
	for worker, want := range map[string]bool{
		"resender": true, "resender-r2": true, "resender-r13": true, "relay-1": true, "relay-1-r2": true,
		"producer-1": false, "": false, "resender-r": false, "resender-rx": false, "resender2": false, "relay-10": false, "relay": false,
	} {
		if got := h.InBackground(worker); got != want {
			t.Errorf("%q in the background: %t", worker, got)
		}
	}
	if (&Header{}).InBackground("producer-1") {
		t.Error("a ledger that names no jobs has callers alone")
	}
}

func testGolden(t *testing.T, golden string, h Header, events []Event) {
	if *update {
		head, err := EncodeHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewReader(bytes.NewReader(write(t, events, 10)), "producer-1.seg")
		if err != nil {
			t.Fatal(err)
		}
		var lines bytes.Buffer
		if err := Export(&lines, h, r); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(golden, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, b := range map[string][]byte{"header.json": head, "producer-1.seg": write(t, events, 10), "events.jsonl": lines.Bytes()} {
			if err := os.WriteFile(filepath.Join(golden, name), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(golden, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	got, err := DecodeHeader(read("header.json"))
	if err != nil {
		t.Fatal(err)
	}
	if a, b := mustJSON(t, got), mustJSON(t, h); !bytes.Equal(a, b) {
		t.Errorf("header\n got %s\nwant %s", a, b)
	}
	r, err := NewReader(bytes.NewReader(read("producer-1.seg")), "producer-1.seg")
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	if err := Export(&lines, got, r); err != nil {
		t.Fatal(err)
	}
	if want := read("events.jsonl"); !bytes.Equal(lines.Bytes(), want) {
		t.Errorf("events\n got %s\nwant %s", lines.Bytes(), want)
	}
	// The lines read back as the events.
	for i, line := range strings.Split(strings.TrimSpace(lines.String()), "\n")[1:] {
		var e Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if want := append(events, Event{Kind: SegmentEnd})[i]; e != want && e.Kind != SegmentEnd {
			t.Errorf("line %d\n got %+v\nwant %+v", i+1, e, want)
		}
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestHeaderIsStrict(t *testing.T) {
	for name, text := range map[string]string{
		"another schema":  `{"Schema":2}`,
		"no schema":       `{}`,
		"an unknown rule": `{"Schema":1,"Promise":{"Forbid":["lost"]}}`,
		"not JSON":        `{`,

		"a huge payload":          `{"Schema":1,"Workload":{"Keys":1,"PayloadSize":1099511627776}}`,
		"a negative payload":      `{"Schema":1,"Workload":{"Keys":1,"PayloadSize":-1}}`,
		"many keys":               `{"Schema":1,"Workload":{"Keys":4294967295,"PayloadSize":160}}`,
		"many partitions":         `{"Schema":1,"Destinations":[{"Name":"t","Partitions":9000000000000000000}]}`,
		"negative partitions":     `{"Schema":1,"Destinations":[{"Name":"t","Partitions":-1}]}`,
		"negative old partitions": `{"Schema":1,"Destinations":[{"Name":"t","Partitions":3,"Grown":[-2]}]}`,
	} {
		if _, err := DecodeHeader([]byte(text)); err == nil {
			t.Errorf("%s is accepted", name)
		} else if strings.Contains(name, "schema") && !errors.Is(err, ErrSchema) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestForeignLines(t *testing.T) {
	for _, bad := range []string{`{"kind":"nonsense"}`, `{"kind":"complete","outcome":"good"}`, `{"kind":"stored","digest":"xyz"}`, `{"kind":"stored","view":"front"}`, `{"kind":"claimed","claim":"maybe"}`, `[]`} {
		var e Event
		if err := json.Unmarshal([]byte(bad), &e); err == nil {
			t.Errorf("%s is accepted as %+v", bad, e)
		}
	}
}

func TestEventIDs(t *testing.T) {
	for _, test := range []struct {
		stream uint32
		seq    uint64
		id     uint64
	}{{1, 0, 1<<40 + 1}, {1, 17, 1<<40 + 18}, {1<<24 - 1, 1<<40 - 2, 1<<64 - 1}} {
		if id := EventID(test.stream, test.seq); id != test.id {
			t.Errorf("EventID(%d, %d) = %d", test.stream, test.seq, id)
		}
		if stream, seq := SplitEventID(test.id); stream != test.stream || seq != test.seq {
			t.Errorf("SplitEventID(%d) = %d, %d", test.id, stream, seq)
		}
		if VersionOf(test.id) != int64(test.seq)+1 || EventOf(MessageID{test.stream, test.seq}, 0) != test.id || EventOf(MessageID{}, 5) != 5 {
			t.Error(test)
		}
		if KeyOfEvent(7, test.id, 16) != KeyOf(7, MessageID{test.stream, test.seq}, 16) {
			t.Error("the key of a message is not that of its event")
		}
	}
	if stream, _ := SplitEventID(0); stream != 0 {
		t.Error("0 is an event")
	}
}

// The zero values are never good news.
func TestZeroValues(t *testing.T) {
	var e Event
	if e.Outcome != InDoubt || e.Outcome.String() != "info" || e.Claim != ClaimNone {
		t.Error("an event without an outcome is not in doubt")
	}
	var r Rule
	if r.Allowed {
		t.Error("a rule that says nothing allows")
	}
	for k := Invoke; k < kindsEnd; k++ {
		if strings.HasPrefix(k.String(), "kind-") {
			t.Errorf("kind %d has no name", k)
		}
	}
}
