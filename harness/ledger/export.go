package ledger

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

var kindNames = [...]string{
	Invoke: "invoke", Complete: "complete", Claimed: "claimed", Stored: "stored", StoreEnd: "store-end",
	Received: "received", Settled: "settled", Assigned: "assigned", Revoked: "revoked", Effect: "effect",
	OutboxRow: "outbox-row", Ordered: "ordered", Inject: "inject", Bite: "bite", Heal: "heal", Step: "step",
	Phase: "phase", Quiet: "quiet", ClockSample: "clock-sample", WorkerEnd: "worker-end",
	SegmentEnd: "segment-end", TxnEnd: "txn-end",
	Handled: "handled", SnapshotEnd: "snapshot-end", GroupEnd: "group-end", InboxRow: "inbox-row", Resent: "resent",
	NodeDied: "node-died", EndPosition: "end-position", Dropped: "dropped",
}

// String returns the name used in exports: invoke, complete, ..., or kind-N for an unknown one.
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("kind-%d", uint8(k))
}

// String returns raw, committed or dead-letter.
func (v View) String() string {
	switch v {
	case ViewRaw:
		return "raw"
	case ViewCommitted:
		return "committed"
	case ViewDeadLetter:
		return "dead-letter"
	default:
		return fmt.Sprintf("view-%d", uint8(v))
	}
}

func parseName[T ~uint8](what, s string, known ...T) (T, error) {
	for _, v := range known {
		if fmt.Sprint(v) == s {
			return v, nil
		}
	}
	return 0, fmt.Errorf("unknown %s %q", what, s)
}

// eventJSON is an event as a JSON line: names instead of numbers, and no zeros.
type eventJSON struct {
	Segment     string `json:"segment,omitempty"`
	Kind        string `json:"kind"`
	At          int64  `json:"at"`
	Stream      uint32 `json:"stream,omitempty"`
	Seq         uint64 `json:"seq,omitempty"`
	To          uint64 `json:"to,omitempty"`
	EventID     uint64 `json:"event,omitempty"`
	Key         uint32 `json:"key,omitempty"`
	Outcome     string `json:"outcome,omitempty"`
	Claim       string `json:"claim,omitempty"`
	Sent        int64  `json:"sent,omitempty"`
	Destination uint16 `json:"destination,omitempty"`
	Partition   int32  `json:"partition,omitempty"`
	Offset      int64  `json:"offset,omitempty"`
	View        string `json:"view,omitempty"`
	Digest      string `json:"digest,omitempty"` // hexadecimal: JSON numbers lose bits
	Consumer    uint32 `json:"consumer,omitempty"`
	Attempt     uint32 `json:"attempt,omitempty"`
	N           int64  `json:"n,omitempty"`
	Low         int64  `json:"low,omitempty"`
	Count       int64  `json:"count,omitempty"`
	Text        string `json:"text,omitempty"`
	Detail      string `json:"detail,omitempty"`
	Foreign     bool   `json:"foreign,omitempty"`
}

func (e *Event) toJSON(segment string) eventJSON {
	j := eventJSON{
		Segment: segment, Kind: e.Kind.String(), At: e.At, Stream: e.Stream, Seq: e.Seq, To: e.To,
		EventID: e.EventID, Key: e.Key, Sent: e.Sent, Destination: e.Pos.Destination,
		Partition: e.Pos.Partition, Offset: e.Pos.Offset, Consumer: e.Consumer, Attempt: e.Attempt,
		N: e.N, Low: e.Low, Count: e.Count, Text: e.Text, Detail: e.Detail, Foreign: e.Foreign,
	}
	if e.Outcome != InDoubt || e.Kind == Complete || e.Kind == Handled || e.Kind == Ordered {
		j.Outcome = e.Outcome.String()
	}
	if e.Claim != ClaimNone {
		j.Claim = e.Claim.String()
	}
	if e.View != ViewRaw {
		j.View = e.View.String()
	}
	if e.Digest != 0 {
		j.Digest = fmt.Sprintf("%016x", e.Digest)
	}
	return j
}

// MarshalJSON writes the event as one JSON object with names instead of numbers and no zeros.
func (e Event) MarshalJSON() ([]byte, error) { return json.Marshal(e.toJSON("")) }

// UnmarshalJSON reads what MarshalJSON or Export wrote. Unknown names are an error.
func (e *Event) UnmarshalJSON(b []byte) error {
	var j eventJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("decode event: %w", err)
	}
	out := Event{
		At: j.At, Stream: j.Stream, Seq: j.Seq, To: j.To, EventID: j.EventID, Key: j.Key, Sent: j.Sent,
		Pos:      Position{Destination: j.Destination, Partition: j.Partition, Offset: j.Offset},
		Consumer: j.Consumer, Attempt: j.Attempt, N: j.N, Low: j.Low, Count: j.Count, Text: j.Text,
		Detail: j.Detail, Foreign: j.Foreign,
	}
	var err error
	for k, name := range kindNames {
		if name != "" && name == j.Kind {
			out.Kind = Kind(k)
		}
	}
	if out.Kind == 0 {
		return fmt.Errorf("decode event: unknown kind %q", j.Kind)
	}
	if j.Outcome != "" {
		if out.Outcome, err = parseName("outcome", j.Outcome, InDoubt, OK, Failed); err != nil {
			return fmt.Errorf("decode event: %w", err)
		}
	}
	if j.Claim != "" {
		if out.Claim, err = parseName("claim", j.Claim, ClaimNone, ClaimSent, ClaimFailed); err != nil {
			return fmt.Errorf("decode event: %w", err)
		}
	}
	if j.View != "" {
		if out.View, err = parseName("view", j.View, ViewRaw, ViewCommitted, ViewDeadLetter); err != nil {
			return fmt.Errorf("decode event: %w", err)
		}
	}
	if j.Digest != "" {
		v, ok := parseHex([]byte(strings.ToLower(j.Digest)))
		if !ok || len(j.Digest) > 16 {
			return fmt.Errorf("decode event: digest %q is not hexadecimal", j.Digest)
		}
		out.Digest = v
	}
	*e = out
	return nil
}

// Export writes a ledger as JSON lines: {"header": ...}, then one event a line with the name of its
// segment, segment after segment. A damaged part is a line {"damage": ...}. The error is one of w or
// of a reader.
func Export(w io.Writer, h Header, segments ...*Reader) error {
	out := bufio.NewWriterSize(w, 64<<10)
	enc := json.NewEncoder(out)
	if err := enc.Encode(map[string]any{"header": h}); err != nil {
		return fmt.Errorf("export ledger: %w", err)
	}
	var e Event
	for _, r := range segments {
		for {
			err := r.Next(&e)
			var damage *DamageError
			switch {
			case errors.Is(err, io.EOF):
			case errors.As(err, &damage):
				err = enc.Encode(map[string]any{"damage": damage.Error(), "segment": r.name})
			case err == nil:
				err = enc.Encode(e.toJSON(r.segment.Name))
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("export ledger: %w", err)
			}
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("export ledger: %w", err)
	}
	return nil
}
