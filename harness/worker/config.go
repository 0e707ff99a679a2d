package worker

import (
	"conform/harness/ledger"
	"conform/harness/system"
)

// Config is what a worker is told on its first line of stdin.
type Config struct {
	Role    string // a registered role
	Worker  string // name in the ledger, and of its segment: "producer-1"
	Journal string // path of the segment file; must not exist
	// Run, Arm and Header tie its segment to its arm, see ledger.Segment.
	Run, Arm, Header string
	Seed             uint64
	Client           system.ClientConfig

	// Of producers.
	Stream      uint32 // its incarnation, from 1
	Destination uint16 // index for ledger positions
	Workload    ledger.Workload
	Rate        int    // messages per second; 0 = as fast as the window allows
	Window      int    // sends handed over and not completed, at most; 0 = 1000
	Messages    int    // ends after so many were handed over; 0 = at stop
	Claim       string // confirm (default), enqueue, written
	End         string // flush (default), exit, kill

	// Of consumers.
	Consumer uint32

	// CrashAt is the named point at which the worker kills itself, the CrashNth time (0 = the first)
	// that it gets there with a message that CrashIf picks.
	CrashAt  string
	CrashNth int
	CrashIf  Match
	// HoldAt is the named point at which it stops until it is released, likewise.
	HoldAt  string
	HoldNth int
	HoldIf  Match

	// With says how the other systems of the suite are reached, by system name, and Schema which
	// schema is the arm's own there.
	With   map[string]Endpoint
	Schema string
	// Listen is the loopback address that the worker serves at, if it is to serve, and Peers are those
	// of the arm's processes that do, by process name.
	Listen string
	Peers  map[string]string
	// Params are for roles of a suite's own.
	Params map[string]string
}

// Endpoint is how a system beside the broker is reached, through its fault-injecting links.
type Endpoint struct {
	Endpoints []string
	// DSN is a connection string of this worker's own. It holds a password: it goes over stdin only,
	// and into no log, ledger or report.
	DSN string
}

// Match picks messages by their identity. The zero value picks all, and also points that are
// about no message.
type Match struct {
	EventID uint64  // 0 = any
	Key     *uint32 // nil = any
}

func (m Match) picks(event uint64, key uint32) bool {
	return (m.EventID == 0 || m.EventID == event) && (m.Key == nil || *m.Key == key)
}

// When "sent" is claimed, Config.Claim.
const (
	ClaimAtConfirm = "confirm"
	ClaimAtEnqueue = "enqueue"
	ClaimAtWritten = "written"
)

// How a producer ends once its messages were handed over, Config.End.
const (
	EndFlush = "flush"
	EndExit  = "exit"
	EndKill  = "kill"
)

// The crash points of the roles in this package. Suites name points of their own.
const (
	PointBuffered     = "buffered"      // producers: all messages handed to the client, nothing flushed
	PointAfterFetch   = "after-fetch"   // consumers: deliveries are recorded and not settled
	PointBeforeSettle = "before-settle" // consumers: processed, the settle not yet asked for
	PointAfterSettle  = "after-settle"  // consumers: the settle is confirmed
)

// Counts are totals since the worker started.
type Counts struct {
	Sent      int64 `json:"sent,omitempty"`
	Confirmed int64 `json:"confirmed,omitempty"`
	Refused   int64 `json:"refused,omitempty"`
	InDoubt   int64 `json:"in_doubt,omitempty"`
	Claimed   int64 `json:"claimed,omitempty"`
	Received  int64 `json:"received,omitempty"`
	Settled   int64 `json:"settled,omitempty"`
	Ordered   int64 `json:"ordered,omitempty"`   // business transactions committed
	Published int64 `json:"published,omitempty"` // outbox rows marked as published
	Handled   int64 `json:"handled,omitempty"`   // deliveries processed
}
