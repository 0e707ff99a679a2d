package system

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"conform/harness/ledger"
)

// Sentinels that adapters wrap.
var (
	// ErrUsage marks a request that can never work (unknown version, unknown setting): exit 2.
	ErrUsage = errors.New("usage")
	// ErrEnvironment marks a failure of the machine, the engine or an image: exit 4.
	ErrEnvironment = errors.New("environment")
	// ErrNotApplicable marks a fault that this cluster cannot suffer.
	ErrNotApplicable = errors.New("not applicable")
)

// Spec says which cluster to start. Settings are data: broker settings by their own names.
type Spec struct {
	Run      string            // run id; every object is labelled with it
	Version  string            // e.g. "4.2.0"
	Image    string            // resolved image reference
	Nodes    int               // 0 = the system's usual number
	Settings map[string]string // node-level broker settings on top of the adapter's own
	Timing   string            // "short" (lowered timeouts, default) or "production"
	Seed     uint64
	Keep     bool // its objects are meant to outlive this process
	Log      *slog.Logger
	Progress io.Writer // one line for the user per stage; may be nil
}

// System is one kind of broker or database.
type System interface {
	Name() string
	// Versions lists the versions known to work, the default first.
	Versions() []string
	// MemoryMiB estimates the memory that a cluster of n nodes takes.
	MemoryMiB(n int) int
	// Start brings a cluster up and waits until it is ready. On error nothing is left behind and the
	// error holds the tail of the log of the node that did not come up.
	Start(ctx context.Context, spec Spec) (Cluster, error)
}

// Cluster is a running system. Methods other than Close may be used from several goroutines.
type Cluster interface {
	System() string
	Version() string
	Nodes() []Node
	// Endpoints returns the client addresses, through the fault-injecting links.
	Endpoints() []string
	// DirectEndpoints returns addresses without links, for the engine's own reads.
	DirectEndpoints() []string
	// Settings returns the effective settings that differ from the system's defaults, and Timing the
	// ones among them that were lowered to keep runs short.
	Settings() map[string]string
	Timing() map[string]string
	// Startup says how long Start took, and MemoryMiB what each node uses now.
	Startup() time.Duration
	MemoryMiB(ctx context.Context) (map[string]int, error)
	// Create makes a destination and waits until it can be used.
	Create(ctx context.Context, d DestinationSpec) error
	// Delete removes a destination; one that is gone already is no error.
	Delete(ctx context.Context, name string) error
	// Baseline checks that the cluster is as good as new: all nodes up, in sync, no rule left.
	Baseline(ctx context.Context) error
	// Close removes every container, network, volume and link. It may run twice.
	Close(ctx context.Context) error
}

// Node is one member of a cluster.
type Node interface {
	Name() string // e.g. "kafka-1"
}

// DestinationSpec describes a topic, queue or table to create.
type DestinationSpec struct {
	Name       string
	Partitions int
	// Leader, if set, is the node that shall lead every partition, with the other nodes as followers.
	Leader   Node
	Settings map[string]string // by the system's own names, e.g. "min.insync.replicas"
}

// Message is one message to send.
type Message struct {
	ID        ledger.MessageID
	EventID   uint64
	Key       []byte
	Payload   []byte
	Partition int32
}

// Receipt is how a send ended. The zero value is in doubt.
type Receipt struct {
	Outcome ledger.Outcome
	Offset  int64  // where the broker said it stands; -1 = not said
	Err     string // error class, for the ledger; empty if none
}

// Producer is a real client that sends. Adapters translate the client library's errors
// by a documented table: only an explicit refusal is Failed.
type Producer interface {
	// Send hands one message to the client and returns once the client has taken it (or ctx ended).
	// done is called exactly once, from any goroutine, also when the message was not taken.
	Send(ctx context.Context, m Message, done func(Receipt))
	// Flush waits until all that was handed over is done.
	Flush(ctx context.Context) error
	// Close ends the client without flushing.
	Close(ctx context.Context) error
}

// Delivery is one message handed to a consumer.
type Delivery struct {
	Key       []byte
	Payload   []byte
	Partition int32
	Offset    int64
	Attempt   int // from 1; 0 = unknown
	Handle    any // the adapter's own, for Settle
}

// Consumer is a real client that receives.
type Consumer interface {
	// Poll waits for deliveries; an empty result with a nil error means that none came before ctx ended.
	Poll(ctx context.Context) ([]Delivery, error)
	// Settle confirms deliveries as processed (offset commit, ack).
	Settle(ctx context.Context, ds []Delivery) error
	Close(ctx context.Context) error
}

// ClientConfig opens a producer or a consumer. Settings are the arm's client settings by the
// adapter's documented names (Kafka: acks, idempotence, in.flight, linger.ms, ...).
type ClientConfig struct {
	System      string
	Endpoints   []string
	DSN         string // what a Connector says a client needs beside the addresses; it holds a password
	ClientID    string // names the arm on the wire, so that link rules can pick it
	Destination string
	Partitions  int
	Group       string
	Settings    map[string]string
	Log         *slog.Logger
}

// Clients opens clients of one system; an adapter implements it.
type Clients interface {
	OpenProducer(ctx context.Context, c ClientConfig) (Producer, error)
	OpenConsumer(ctx context.Context, c ClientConfig) (Consumer, error)
}

// Leadership is the state of one partition as the controllers see it.
type Leadership struct {
	Leader   Node // nil = none
	Epoch    int32
	Replicas []Node
	InSync   []Node
	Gone     bool // the destination does not exist: nobody leads it, and nothing is out of sync
}

// StoreReader reads what the broker holds, by its own client over a link without faults, after
// quiescence: every record as a ledger.Stored event in order, each partition and view closed by
// a ledger.StoreEnd. d is the index for Position.Destination; tag (see ledger.Tag) marks the arm's
// own records and is handed to ledger.StoredRecord.
type StoreReader interface {
	ReadStore(ctx context.Context, destination string, d uint16, tag uint32, sink func(ledger.Event)) error
}

// DenseLogs is a Cluster in whose partitions each position from the start to the end holds a record, where no transactions end and
// nothing is compacted.
type DenseLogs interface {
	DenseLogs()
}

// Positions returns the end position of each partition, for quiescence.
type Positions interface {
	EndPositions(ctx context.Context, destination string) ([]int64, error)
}

// Plain drops the words by which an error says whose it is: the text of ErrUsage and the like at the end of
// a line or before a colon. People are told that by the exit code.
func Plain(text string) string {
	for _, err := range []error{ErrUsage, ErrEnvironment} {
		mark := ": " + err.Error()
		for _, end := range []string{"\n", ": ", "; ", ""} {
			for {
				next := strings.ReplaceAll(text, mark+end, end)
				if end == "" {
					next = strings.TrimSuffix(text, mark)
				}
				if next == text {
					break
				}
				text = next
			}
		}
	}
	return text
}
