package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// SchemaVersion is the version of header and codec written by this package. The previous
// version is read too; a golden ledger per version keeps that true.
const SchemaVersion = 1

// Destination is a topic, queue or table of an arm. Position.Destination indexes
// Header.Destinations.
type Destination struct {
	Name       string
	Partitions int
	DeadLetter bool `json:",omitempty"`
	// Grown lists the numbers of partitions that it had before some were added in the run.
	Grown []int `json:",omitempty"`
	// Compacted says that a record may be replaced by a later one of its key; it is then expired.
	Compacted bool `json:",omitempty"`
	// Dense says that each position from the start to the end holds a record: there are no transactions, whose ends take
	// some, and nothing is compacted.
	Dense bool `json:",omitempty"`
}

// Workload is what the producers were asked to send; with the seed it makes keys, payloads
// and partitions pure functions of (stream, seq).
type Workload struct {
	Keys        uint32 // number of distinct keys, >= 1
	PayloadSize int    // bytes, >= MinPayload
}

// Header is the JSON file that opens the ledger of one arm and holds all that the audit
// needs beside the segments: `conform audit` judges by it, not by the binary's own tables.
type Header struct {
	Schema       int
	Run          string // run id
	Suite        string
	System       string
	Version      string // of the system, as asked for
	Scenario     string
	Arm          string
	Role         string // guarded, control, observation
	Window       string // W1..W6, or empty
	Seed         uint64
	Repeat       int // from 0, with --runs
	Destinations []Destination
	Workload     Workload
	Promise      Promise
	Expect       *Expect  `json:",omitempty"` // controls only
	Evidence     Evidence // what must have been seen for a verdict to count
	Deadlines    map[string]time.Duration
	Settings     map[string]string // "client acks" etc.: the knobs of this arm
	Timing       map[string]string // timing settings lowered to keep runs short
	Plan         []string          // the plan in words, a line a step
	Checks       map[string]int    // check name -> version, of the binary that recorded
	Reproduce    string            // the command that runs this arm's scenario again
	// Tables lists the tables whose final read must have a SnapshotEnd.
	Tables []string `json:",omitempty"`
	// Space is the schema in which the tables stand: the Detail of each SnapshotEnd. Empty = a ledger from before that was
	// recorded.
	Space string `json:",omitempty"`
	// Groups lists the consumer groups whose final positions must be known.
	Groups []Group `json:",omitempty"`
	// Background lists the processes for whose sends no caller waits: relays and jobs. Their workers are named "NAME",
	// or "NAME-rN" when they followed another. Whoever is not listed is waited for.
	Background []string `json:",omitempty"`
	Chain      Chain    `json:",omitzero"`
	Delay      Delay    `json:",omitzero"`
}

// Group is a consumer group.
type Group struct {
	Name string
	// Destinations are indexes of Header.Destinations that the group reads; none = all but dead letters.
	Destinations []uint16 `json:",omitempty"`
}

// Chain says which parts of an order's way, from its commit to its effect, an arm has. The zero value is
// an arm of stores alone.
type Chain struct {
	// Ordered says that business events begin in a database: those whose Ordered is OK, or whose row is
	// found at the end, must have their effect. Otherwise they begin at the producer, and those whose send
	// was confirmed, or claimed sent, must.
	Ordered bool `json:",omitempty"`
	// Tasks says that Delay is that of a task which the transaction of a business event writes: it is counted from there, not
	// from the send of a message.
	Tasks bool `json:",omitempty"`
	// Orders is the table (TableOutbox or the Text of Effect rows) that holds a row of each committed
	// business event for ever. A committed one without a row is lost, a published one that was not
	// committed for certain and has no row is published-uncommitted. Empty = there is no such table.
	Orders string `json:",omitempty"`
	// Outbox says that the transaction of a business event writes its row into TableOutbox too, where it stays: one
	// row without the other is torn-txn.
	Outbox bool `json:",omitempty"`
	// Published is the state of a row of TableOutbox whose event is published. Empty = a ledger from before that was
	// recorded, or the rows are not marked.
	Published string `json:",omitempty"`
	// Effects lists where each business event must have its effect: at most 4.
	Effects []EffectTable `json:",omitempty"`
	// Unread says that nobody reads dead letters: an event there has no effect, and that is missing.
	// Otherwise a dead letter is an end like an effect.
	Unread bool `json:",omitempty"`
	// Letters bounds the rows of TableDeadLetter. Nil = a ledger from before that was recorded: any event may have one. What a
	// broker dead-letters itself is another matter.
	Letters *Letters `json:",omitempty"`
}

// Letters says which business events may be among the dead letters. Any other one there is dead-letter-wrong.
type Letters struct {
	// Events are those for which that is an end like an effect.
	Events []uint64 `json:",omitempty"`
	// Others is how many more may be there, of which nobody knows before which they are; likewise.
	Others int `json:",omitempty"`
	// Passing are those that come back from there: they must have their effect all the same.
	Passing []uint64 `json:",omitempty"`
}

// EffectTable is a table of effects.
type EffectTable struct {
	// Name is the Text of its Effect rows: "notifications", or "notifications/mailer" where each consumer has its own there.
	// The consumer is then known by the name of its process, of its group, or by that in the inbox: what another one did is
	// not about its effects.
	Name string
	// State says that it holds one row a key, the newest state, N = its version, instead of one row an
	// event.
	State bool `json:",omitempty"`
	// Versions says that N is the version of the row's event, as it always is in a table of states.
	Versions bool `json:",omitempty"`
}

// Delay is what an arm asked the broker, or a table of tasks, to wait with each message.
type Delay struct {
	Due       time.Duration `json:",omitempty"` // due so long after it was sent; 0 = at once, nothing is early
	Allowance time.Duration `json:",omitempty"` // late is what comes later than this after it was due; 0 = not judged
	TTL       time.Duration `json:",omitempty"` // not to be delivered so long after its confirm; 0 = for ever
	// Messages of the stream Other, if not 0, are due after OtherDue instead.
	Other    uint32        `json:",omitempty"`
	OtherDue time.Duration `json:",omitempty"`
}

// DueOf returns after how long a stream's messages are due.
func (d Delay) DueOf(stream uint32) time.Duration {
	if d.Other != 0 && stream == d.Other {
		return d.OtherDue
	}
	return d.Due
}

// FailureRecord is what a dead letter must tell, as JSON in the Detail of its Effect row. Every field
// must be filled in but Secret.
type FailureRecord struct {
	EventID     string `json:"event_id"`
	Destination string `json:"destination"`
	Class       string `json:"class"` // temporary, permanent or unknown
	Attempts    int    `json:"attempts"`
	FirstFailed string `json:"first_failed_at"`
	LastFailed  string `json:"last_failed_at"`
	Error       string `json:"error"`
	// Secret says that the reader met a secret in the row, which it must not copy into the ledger.
	Secret bool `json:"secret,omitempty"`
}

// DeathRecord is what a broker writes into a message that it dead-letters, as JSON in the Detail of its Stored in
// ViewDeadLetter: why it was given up the first time. "{}" = there is no such record, "" = the broker keeps none.
type DeathRecord struct {
	Queue  string `json:"queue,omitempty"`  // in which it was, by its name on the cluster
	Reason string `json:"reason,omitempty"` // expired, rejected, maxlen or delivery_limit
	Count  int64  `json:"count,omitempty"`  // how often for that reason
	Time   string `json:"time,omitempty"`
}

// Rule says what a promise makes of one anomaly. The zero value is Forbidden: a promise
// that forgets to name an anomaly does not permit it.
type Rule struct {
	Allowed bool `json:",omitempty"`
	// Bound, if > 0, is the highest number of occurrences that keeps the promise.
	Bound int `json:",omitempty"`
}

// Promise is what is judged: from where to where it reaches, and its rule for each anomaly
// by name (see package audit): "lost", or more precisely, and then stronger, "lost(claimed)",
// "lost/expired", "lost(claimed)/client-buffer". Anomalies that are not listed are forbidden if their place is
// in Places, and not judged otherwise.
type Promise struct {
	Text   string
	Start  string // e.g. "the broker's confirm"
	End    string // e.g. "the log, read to its end after recovery"
	Places []string
	Rules  map[string]Rule `json:",omitempty"`
	// MaxUnavailable, if > 0, bounds the longest time without a confirm.
	MaxUnavailable time.Duration `json:",omitempty"`
	// MaxStall, if > 0, bounds how long a caller may wait for an answer (the sends of Header.Background have none), and how long a consumer may hold
	// deliveries of a partition without an end to the work on any.
	MaxStall time.Duration `json:",omitempty"`
	// MaxRTO, if > 0, bounds the time from the last strike to the first confirm of a send made after it.
	MaxRTO time.Duration `json:",omitempty"`
	// Drain, if not zero, says how a backlog must drain. One that does not is a stall.
	Drain Drain `json:",omitzero"`
}

// Drain says that a backlog drains, and how well its beginning predicts the rest.
type Drain struct {
	// Since names the plan step from which on the backlog is worked off while the load goes on.
	Since string
	// Least is how many messages must wait in each partition then for the measurement to count.
	Least int
	// Tolerance is by which part of the prediction the rest may take longer or shorter: 0.2. Of the partitions, the one
	// in the middle counts.
	Tolerance float64
	// Outbox says that the backlog is one of rows: of orders that are committed and not published. They count as one partition.
	Outbox bool `json:",omitempty"`
}

// Expect is the one anomaly that a control arm must reproduce.
type Expect struct {
	Anomaly     string
	Attribution string `json:",omitempty"`
	Knob        string // the one knob that differs from the guarded arm
	Forces      []string
	Place       string // where in the chain
	// Also lists the other anomalies that the knob, or what it forces, is known to cause. Any other one that the
	// promise forbids makes the control inconclusive: what it shows is then not what the knob does.
	Also []string `json:",omitempty"`
}

// During says what an arm's clients must have seen in one stretch of the plan: from At until the plan's next
// strike or heal. Only sends count that were made since the strike that At is, or that was the last before it.
type During struct {
	// At names an injection or a step that was reached; empty = the first strike. With a full window nothing new
	// is sent after such a step: sends made before it, since the strike, must then be silent to its end.
	At        string `json:",omitempty"`
	Confirmed int    `json:",omitempty"` // at least so many confirmed within the stretch
	Refused   int    `json:",omitempty"` // at least so many refused within it
	Silent    int    `json:",omitempty"` // at least so many that had not completed at its end, or only in doubt
	// RefusedOrSilent: refused plus silent must reach so many.
	RefusedOrSilent int `json:",omitempty"`
	// MaxConfirmed, if not nil, is the most that may be confirmed within the stretch.
	MaxConfirmed *int `json:",omitempty"`
}

// Evidence is what must have been seen for an arm's verdict to count. It is about the fault
// and the load, never about the fault's effect on data. All counts are per arm.
type Evidence struct {
	Before   int    // confirmed (or, where nothing confirms, claimed) before the first strike
	InFlight int    // sends invoked before the strike and not completed at it
	During   During // between strike and heal
	After    int    // confirmed (or claimed) after the last heal
	// Bites lists the injections (by plan name; "crash-NAME" for the planned crash of process NAME)
	// that must have left proof.
	Bites []string
	// Ends lists workers that must have ended as planned, where the crash is the fault.
	Ends []string
	// Times says how often an injection of Bites must have struck, where that is more than once.
	Times map[string]int `json:",omitempty"`
	// EndsAt names the crash points at which workers of Ends must have killed themselves.
	EndsAt map[string]string `json:",omitempty"`
	// InFlightAt names the injection that InFlight is about; empty = the first strike.
	InFlightAt string `json:",omitempty"`
	// EndsBuffered: at each of Ends the worker's client must have held at least so many sends.
	EndsBuffered int `json:",omitempty"`
	// Ordered: at least so many business transactions are committed.
	Ordered int `json:",omitempty"`
	// HandledBefore and HandledAfter: at least so many deliveries were handled OK before the first strike,
	// and after the last heal.
	HandledBefore, HandledAfter int `json:",omitempty"`
	// Redelivered: at least so many deliveries came again to a group since the first strike, where that is what the fault is
	// about.
	Redelivered int `json:",omitempty"`
}

// Tag returns the arm tag that the payloads of this arm carry.
func (h *Header) Tag() uint32 { return Tag(h.Run, h.Suite, h.Scenario, h.Arm, h.Repeat) }

// InBackground says whether a worker belongs to one of the processes of Background.
func (h *Header) InBackground(worker string) bool {
	return slices.ContainsFunc(h.Background, func(process string) bool {
		rest, ok := strings.CutPrefix(worker, process)
		if !ok || process == "" {
			return false
		}
		number, ok := strings.CutPrefix(rest, "-r")
		return rest == "" || ok && number != "" && strings.Trim(number, "0123456789") == ""
	})
}

// EncodeHeader returns h as indented JSON, with Schema set to SchemaVersion.
func EncodeHeader(h Header) ([]byte, error) {
	h.Schema = SchemaVersion
	b, err := json.MarshalIndent(h, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode ledger header: %w", err)
	}
	return append(b, '\n'), nil
}

// DecodeHeader reads what EncodeHeader wrote. The error wraps ErrSchema for another schema. Unknown
// fields are an error: a rule of the promise that is not understood must not be dropped. So are sizes that make
// no sense: the audit makes payloads and walks partitions by them.
func DecodeHeader(b []byte) (Header, error) {
	var version struct{ Schema int }
	if err := json.Unmarshal(b, &version); err != nil {
		return Header{}, fmt.Errorf("decode ledger header: %w", err)
	}
	if !readable(version.Schema) {
		return Header{}, fmt.Errorf("decode ledger header: schema %d, this binary reads %d: %w", version.Schema, SchemaVersion, ErrSchema)
	}
	var h Header
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&h); err != nil {
		return Header{}, fmt.Errorf("decode ledger header: %w", err)
	}
	if err := h.sane(); err != nil {
		return Header{}, fmt.Errorf("decode ledger header: %w", err)
	}
	return h, nil
}

// Bounds of what a header may ask of whoever recomputes payloads and looks at each partition: far beyond
// any run, and far below what takes a machine's memory.
const (
	maxPayload      = 1 << 28
	maxKeys         = 1 << 28
	maxPartitions   = 1 << 16
	maxDestinations = 1 << 10
)

// sane returns an error for sizes that no run has. 0 is no size at all: a field that was not filled in.
func (h *Header) sane() error {
	within := func(what string, n, most int) error {
		if n < 0 || n > most {
			return fmt.Errorf("%s is %d, not within 0..%d", what, n, most)
		}
		return nil
	}
	errs := []error{
		within("the size of payloads", h.Workload.PayloadSize, maxPayload),
		within("the number of keys", int(h.Workload.Keys), maxKeys),
		within("the number of destinations", len(h.Destinations), maxDestinations),
	}
	for _, d := range h.Destinations {
		errs = append(errs, within("the number of partitions of "+d.Name, d.Partitions, maxPartitions))
		for _, n := range d.Grown {
			errs = append(errs, within("an earlier number of partitions of "+d.Name, n, maxPartitions))
		}
	}
	return errors.Join(errs...)
}
