package ledger

import "fmt"

// Outcome is what the protocol says about a send. The zero value is InDoubt: whatever is
// not explicitly confirmed or refused may be there or not, and neither is an anomaly.
type Outcome uint8

const (
	// InDoubt is neither confirmed nor refused (a timeout, a reset, a crash). On disk: "info".
	InDoubt Outcome = iota
	// OK is an explicit confirm by the broker.
	OK
	// Failed is an explicit refusal: the broker, or the client before anything left it, said no.
	Failed
)

// String returns the name used in exports and reports: info, ok or fail.
func (o Outcome) String() string {
	switch o {
	case OK:
		return "ok"
	case Failed:
		return "fail"
	default:
		return "info"
	}
}

// Claim is what the application told its caller about a send. It is kept apart from the
// Outcome because a lie told by the application is a loss too.
type Claim uint8

const (
	// ClaimNone means that the caller was told nothing.
	ClaimNone Claim = iota
	// ClaimSent means that the caller was told "sent".
	ClaimSent
	// ClaimFailed means that the caller was told "not sent".
	ClaimFailed
)

// String returns none, sent or failed.
func (c Claim) String() string {
	switch c {
	case ClaimSent:
		return "sent"
	case ClaimFailed:
		return "failed"
	default:
		return "none"
	}
}

// MessageID is the dense identity of one message: Stream is one producer incarnation
// (numbered from 1 within an arm), Seq counts from 0 within it. Tags, offsets and other
// broker positions are never identities.
type MessageID struct {
	Stream uint32
	Seq    uint64
}

// String returns "stream/seq", the form that `conform audit --message` takes.
func (id MessageID) String() string { return fmt.Sprintf("%d/%d", id.Stream, id.Seq) }

// Position is where a message stands in a destination. Destination indexes
// Header.Destinations. Offset is opaque: an offset, a queue position, a row number.
// A Position with Offset < 0 is unknown.
type Position struct {
	Destination uint16
	Partition   int32
	Offset      int64
}

// Kind is the type of an event.
type Kind uint8

// The events. Fields of Event not named here are zero for that kind.
const (
	// Invoke covers messages Seq..To-1 of Stream: from At on they may be handed to the client.
	// It is flushed before they are, so that a crash never makes a phantom. EventID, if not 0,
	// is the business event of the (then single) message.
	Invoke Kind = iota + 1
	// Complete ends the send (Stream, Seq) with Outcome at At. Sent is when it was handed to the
	// client; Claim what the caller was told then; Pos where the broker said it stands (OK only);
	// Text the error class, or "unroutable" or "overflowed" where the broker says so of what it confirms.
	// EventID as in its Invoke.
	Complete
	// Claimed tells the caller something apart from, and usually before, the Complete. EventID as in the
	// Invoke. With Stream 0 it is the application's last word on the business event EventID; ClaimFailed with Text CalledOff
	// says that what was to come of it later must not come any more. Sent, if not 0, is when the caller began to wait for it.
	Claimed
	// Stored is one record of the final read, in the order of the destination: (Stream, Seq) as the
	// payload says, Pos, Digest of the payload read, Key as read, View.
	// Stream 0 = a payload whose identity cannot be read, Text says why. StoredRecord makes it. In ViewDeadLetter
	// Detail is a DeathRecord as JSON, where the broker keeps one.
	Stored
	// StoreEnd closes the final read of one partition in one View: Pos.Offset = the end position
	// before the read, N = the end position after it, Low = the first position still there,
	// Count = the broker's own count if it has one, else -1.
	StoreEnd
	// Received is one delivery to Consumer: (Stream, Seq), Pos, Digest, the View it reads in, Attempt
	// (from 1, 0 = unknown). EventID as the payload says, Key. Received and Handled are flushed before the
	// settle that covers them is asked for, so that a crash never makes a gap.
	Received
	// Settled is an ack, nack, reject or offset commit by Consumer: Text says which; Outcome whether
	// the broker confirmed it, Sent when it was asked for (0 = not known). For an offset commit
	// (Text "commit") Pos.Offset is the next position; otherwise (Stream, Seq), EventID and Pos are the
	// delivery's.
	Settled
	// Assigned and Revoked: Consumer owns, or no longer owns, Pos.Partition of Pos.Destination. Lost
	// ones are Revoked too.
	Assigned
	Revoked
	// Effect is one row found in a business table at the end: EventID, Key, N = version or amount,
	// Count = how often it was applied (0 counts as 1), Text = the table, or "table/consumer" where several
	// consumers have their effects in one; To, if not 0, is the business act as in Resent. Text TableDeadLetter,
	// or "TableDeadLetter/consumer", is a dead letter: Detail is then a FailureRecord as JSON.
	Effect
	// OutboxRow is one row of the outbox, found at the end: EventID, Key, Text = its state.
	OutboxRow
	// Ordered is the end of a business transaction, Outcome that of its COMMIT: EventID, Key, N = the
	// version of the key's state (0 = VersionOf the event), Text = what was asked for, Sent when its COMMIT was, or, of one
	// with a delay, when it began. Once more, of a later one that begins the delay of the event again.
	// An Invoke of the writer's stream, without an EventID, covers it before.
	Ordered
	// Inject is the strike of a fault: Text = injection id, Detail = fault and targets. At is before
	// the first effect of the fault. Every Inject needs its Heal; what needs no undoing is healed at once.
	Inject
	// Bite is evidence that the injection Text bit: Outcome OK with Detail = the proof and N = its
	// count, or InDoubt with Detail = what was missing.
	Bite
	// Heal is the confirmed end of the injection Text; Outcome Failed if it could not be healed.
	Heal
	// Step is a plan step that was reached: Text = its name, Detail = the state seen. Outcome InDoubt
	// if its cap passed first.
	Step
	// Phase marks an engine phase: Text = warm, load, heal, drain, read, audit.
	Phase
	// Quiet is the quiescence verdict before the final read: Outcome OK; InDoubt with Detail = what still
	// moved; or Failed: nothing moved for N ns and yet it is not drained (stuck), Detail = what is left.
	Quiet
	// ClockSample pairs the monotonic At with N = wall clock in Unix ns.
	ClockSample
	// WorkerEnd is how a worker ended, seen by the engine: Text = worker (the Segment.Worker of its
	// segment), Detail = exited, killed at crash point X, killed by the engine, died of itself; Outcome
	// OK if that was planned. A planned end whose Detail begins with "killed" excuses a segment without
	// SegmentEnd. N = sends that its client still held (buffered), Count = the length of its segment in bytes
	// then: what is shorter was cut.
	WorkerEnd
	// SegmentEnd is the last event of a segment that was closed in order. Writer.Close appends it.
	SegmentEnd
	// TxnEnd ends the broker transaction that holds messages Seq..To-1 of Stream: Outcome OK =
	// committed, Failed = aborted, InDoubt = nobody was told. Sent is when the end was asked for, At
	// when it was answered.
	TxnEnd
	// Handled is the end of the business work on one delivery to Consumer: (Stream, Seq), EventID, Key
	// and Pos of the delivery; Outcome OK = its business transaction is committed, Failed = rolled back or failed,
	// InDoubt = not known. Text, of which counts what stands before a colon, is "applied", "skipped: duplicate",
	// "skipped: ..." with another reason, "parked", "dead-lettered", "quarantined" (all three given up, to be
	// found among the dead letters) or "retried"; Detail = the error; N = how many ns of it were a wait for the database.
	Handled
	// SnapshotEnd closes the final read of the table Text in the schema Detail: N = its number of rows, each of which is an
	// Effect of that Text (or of "Text/..."), an OutboxRow for TableOutbox, an InboxRow for TableInbox.
	SnapshotEnd
	// GroupEnd is the final position of the consumer group Text in one partition: Pos.Offset = the next
	// position, -1 = the group has none there. One for each partition of each destination that it reads.
	GroupEnd
	// InboxRow is one row of the inbox, found at the end: EventID, Text = the consumer's name.
	InboxRow
	// Resent says that a business act was asked for again under another event id: EventID = the new
	// id, To = the id under which it was first asked for. It is recorded before the new one is sent. So two
	// effects of one act are found although nothing that was sent shows that they belong together.
	Resent
	// NodeDied says that the process of the node Text is not the one that the plan left there: it ended, and
	// may run again, by something else than the plan. Detail = what is there instead. Outcome Failed; InDoubt
	// if it cannot be told.
	NodeDied
	// EndPosition is the end of one partition at quiescence, as the broker told it before and apart from the
	// final read, which must come to the same: Pos.Offset = the end position, or of a queue the number of its
	// messages.
	EndPosition
	// Dropped says that the broker let go of messages that it had confirmed, by its own word: Text = why (unroutable, expired,
	// overflowed, dead-letter-dropped); only messages of Pos.Destination that were under way, from send to confirm, at
	// some time from Sent to At, and Count of them at most. Detail = its word.
	Dropped
	kindsEnd
)

// Names of tables that SnapshotEnd and Effect use.
const (
	TableOutbox     = "outbox"
	TableInbox      = "inbox"
	TableDeadLetter = "dead_letter"
)

// CalledOff is the Text of a last word: the task of a business event was cancelled, or there is nothing left for it to do.
const CalledOff = "called off"

// RowGivenUp is the state of a row of the outbox that its relay has given up, whether the broker has its event or not.
const RowGivenUp = "given up"

// View says which of a store's views a Stored event was read in.
type View uint8

const (
	// ViewRaw sees everything (Kafka: read_uncommitted).
	ViewRaw View = iota
	// ViewCommitted sees only committed transactions (Kafka: read_committed).
	ViewCommitted
	// ViewDeadLetter is the dead-letter destination.
	ViewDeadLetter
)

// Event is one line of the ledger, a flat struct so that recording allocates nothing.
// Times are CLOCK_MONOTONIC in ns, comparable across the processes of one host.
type Event struct {
	Kind     Kind
	Outcome  Outcome
	Claim    Claim
	View     View
	Foreign  bool // stamped by the engine on behalf of a foreign client, not by the client itself
	Consumer uint32
	Stream   uint32
	Seq      uint64
	To       uint64
	EventID  uint64
	Key      uint32
	Attempt  uint32
	At       int64
	Sent     int64
	Pos      Position
	Digest   uint64
	N        int64
	Low      int64
	Count    int64
	Text     string
	Detail   string
}

// ID returns the identity of the message the event is about.
func (e *Event) ID() MessageID { return MessageID{Stream: e.Stream, Seq: e.Seq} }
