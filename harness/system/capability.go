package system

import (
	"context"
	"io"
)

// The capabilities. All are optional, asked for by type assertion on a Cluster. Actions that
// last are returned as a running Injection: whoever injects returns the heal.

// Killer ends a node by SIGKILL (page cache survives) and starts it again.
type Killer interface {
	// Kill returns once the process is gone; proof is e.g. its pid and exit code.
	Kill(ctx context.Context, n Node) (proof string, err error)
	// Start starts a node that was killed or stopped, and waits until it serves. A running one is no error.
	Start(ctx context.Context, n Node) error
}

// Stopper ends a node gracefully.
type Stopper interface {
	Stop(ctx context.Context, n Node) (proof string, err error)
}

// Pauser freezes a node's processes and lets them go on. Kill of a paused node must work.
type Pauser interface {
	Pause(ctx context.Context, n Node) (proof string, err error)
	// Resume lets n go on; one that is not paused or not running is no error.
	Resume(ctx context.Context, n Node) error
}

// Direction of traffic, seen from the node that is cut.
type Direction string

// The directions.
const (
	Both     Direction = "both"
	Inbound  Direction = "in"
	Outbound Direction = "out"
)

// Isolation says what to cut between a node and its peers.
type Isolation struct {
	Peers     []Node   // empty = all other nodes
	Listeners []string // the system's names for broker-to-broker listeners, e.g. "replication", "controller"; empty = all
	// Direction: Outbound cuts connections that the node opens to its peers' listeners, Inbound those
	// that the peers open to the node's, Both both.
	Direction Direction
	// Share is how many percent of the packets are dropped, at random; 0 = all. A part of them slows a link.
	Share int
}

// Isolator cuts a node from peers while clients still reach it.
type Isolator interface {
	Isolate(ctx context.Context, n Node, i Isolation) (Injection, error)
}

// CutMode says how a client link is cut.
type CutMode string

// The modes.
const (
	Reset     CutMode = "reset"      // connections reset, new ones refused
	BlackHole CutMode = "black-hole" // bytes vanish, connections stay
)

// LinkCutter cuts the link between the clients and a node. Inbound (to the node) or Outbound
// (from the node) make a black hole in one direction only.
type LinkCutter interface {
	CutLink(ctx context.Context, n Node, mode CutMode, d Direction) (Injection, error)
}

// WireRule picks requests on a client link by what they are.
type WireRule struct {
	Kind   string // the framer's name for it, e.g. "produce"
	Client string // client id prefix; empty = any
	Nth    int    // the n-th such request from now on (1 = the next)
	Count  int    // how many in a row; 0 = 1
	// Behind holds the answer of a refused request back until so many later requests of the same
	// client and kind have been forwarded, so that they overtake it by construction.
	Behind int
}

// ResponseDropper lets the picked request pass and swallows its response, then resets the
// connection. Proof: the request was forwarded and its response, seen, was not.
type ResponseDropper interface {
	DropResponse(ctx context.Context, n Node, r WireRule) (Injection, error)
}

// RequestDropper swallows the picked request, which the node never sees, and resets the connection. Proof: the request came
// whole and was not forwarded.
type RequestDropper interface {
	DropRequest(ctx context.Context, n Node, r WireRule) (Injection, error)
}

// RequestRefuser answers the picked request with a retriable refusal, code being the system's
// name for it, without forwarding it; others pass.
type RequestRefuser interface {
	RefuseRequest(ctx context.Context, n Node, r WireRule, code string) (Injection, error)
}

// Diskful loses the data disk of a node that is down: it comes back with an empty one.
type Diskful interface {
	LoseDisk(ctx context.Context, n Node) (proof string, err error)
}

// DiskBacked tells whether the nodes have disks of their own whose power can be cut, that can be filled or slowed down.
type DiskBacked interface {
	// DiskBacked returns nil, or why not, wrapping ErrNotApplicable.
	DiskBacked() error
}

// Powered cuts the power of nodes: what was not flushed to their disks is gone.
type Powered interface {
	DiskBacked
	// CutPower cuts the power of all nodes at once. It returns when their processes are gone and their disks hold only
	// what was durable. The evidence is whole then; the heal starts the nodes, together.
	CutPower(ctx context.Context, nodes []Node) (Injection, error)
}

// DiskFiller fills the data disk of a node but for leave bytes. The heal frees it, and starts a node that has ended.
type DiskFiller interface {
	DiskBacked
	FillDisk(ctx context.Context, n Node, leave int64) (Injection, error)
}

// DiskThrottler limits what a node can write to its data disk, in bytes per second.
type DiskThrottler interface {
	DiskBacked
	ThrottleDisk(ctx context.Context, n Node, bytesPerSecond int64) (Injection, error)
}

// Rot says how a file decays. The file is the last, by name, that matches Pattern and is not empty.
type Rot struct {
	Pattern string // shell pattern below the data disk's root, e.g. "orders-0/*.log"
	Offset  int64  // of the byte whose lowest bit is flipped, modulo the file's size
	Cut     int64  // > 0: so many bytes are cut off its end instead
}

// BitRotter damages a file of a node that is down. The proof names file, place and what changed.
type BitRotter interface {
	RotFile(ctx context.Context, n Node, r Rot) (proof string, err error)
}

// LeaderFinder tells who leads a partition, and which node is the active controller.
type LeaderFinder interface {
	Leadership(ctx context.Context, destination string, partition int32) (Leadership, error)
	Controller(ctx context.Context) (Node, error)
}

// Elector makes a replica that is not in sync lead, where nobody does.
type Elector interface {
	ElectUnclean(ctx context.Context, destination string) error
}

// WireCounts are what a node's client link has seen of one client since it was opened.
type WireCounts struct {
	Sent      int64 // messages in requests that reached the link and were forwarded
	Confirmed int64 // messages in responses without an error that were handed to the client
	Refused   int64 // messages in responses with an error that were handed to the client
}

// WireCounter counts messages per node and client on the links.
type WireCounter interface {
	WireCounts(n Node, client string) WireCounts
}

// LogCollector copies the log of a node.
type LogCollector interface {
	CollectLog(ctx context.Context, n Node, w io.Writer) error
}

// Evidence is proof that a fault bit, or what is missing.
type Evidence struct {
	Bit    bool
	Idle   bool  // it is in force, which was proven, and nobody was there to feel it: of several targets one must have bitten
	Count  int64 // packets, frames, nodes
	Detail string
	// AtRisk is what a loss of power would have taken from the nodes when it struck, and for how long that is so: bytes and
	// messages. Empty for faults that take nothing from the page cache.
	AtRisk string
}

// Injection is a running fault.
type Injection interface {
	// Evidence tells whether the fault has bitten so far. It stays valid after Heal.
	Evidence(ctx context.Context) (Evidence, error)
	// Heal ends the fault and returns once that is confirmed. It may run twice, and is called with a
	// context that does not end with the run's.
	Heal(ctx context.Context) error
}

// Connector tells how clients reach a system for which addresses are not enough. client names
// them on the wire, so that link rules can pick them. direct = past the fault-injecting links, for the engine.
// The string holds a password: it never goes into argv, a log, a ledger or a report.
type Connector interface {
	DSN(client string, direct bool) string
}

// Schemas are rooms of their own for the arms that share a database.
type Schemas interface {
	// CreateSchema fails for one that exists already, which is left as it is.
	CreateSchema(ctx context.Context, name string) error
	// DropSchema removes a schema that CreateSchema made; one that is gone is no error.
	DropSchema(ctx context.Context, name string) error
}

// Reachable tells how a person reaches a cluster that is left up, where its addresses are not enough.
type Reachable interface {
	// Reach returns a command or a sentence, without a password.
	Reach() string
}

// Watched tells of nodes that went down although nobody took them down.
type Watched interface {
	// Died returns nil, or which node died and how, with the end of its log if there is one.
	Died(ctx context.Context) error
}

// Incarnated tells one life of a node's process from the next.
type Incarnated interface {
	// Incarnation returns words that stay the same for as long as the process of n does, and differ from
	// those of any other process of n, before or after it, and from those of none.
	Incarnation(ctx context.Context, n Node) (string, error)
}
