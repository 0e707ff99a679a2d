package harness

import (
	"context"
	"time"

	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
)

// Suite proves one promise of one system.
type Suite struct {
	Name    string // e.g. "kafka-acks"; pattern suites are named "outbox@kafka"
	System  System
	Title   string // the promise, as a user would say it
	Promise ledger.Promise
	// Scenarios in the order they run. Arms with equal Node share one cluster, also across scenarios.
	Scenarios []Scenario
}

// System binds a suite to an adapter: the cluster, and the worker roles that drive it.
type System struct {
	system.System
	// Producer and Consumer are the names of the worker roles that open this system's clients.
	Producer string
	Consumer string
}

// Role is the role of an arm in its scenario.
type Role string

// The roles.
const (
	Guarded     Role = "guarded"
	Control     Role = "control"
	Observation Role = "observation"
)

// Break is what makes a control unsafe: one knob, with what it forces.
type Break struct {
	Knob        string   // e.g. "acks=1"
	Forces      []string // e.g. "enable.idempotence=false"
	Place       string   // where in the chain the anomaly stands: store, delivery, effect, outbox, liveness
	Anomaly     string   // the one anomaly it must reproduce
	Attribution string   // empty = any
}

// Arm is one configuration under the scenario's faults.
type Arm struct {
	Name string // unique in its scenario: "guarded", "acks-1"
	Role Role
	// Break is set on controls only, Reason on observations only.
	Break  *Break
	Reason string
	// Client, Destination and Node are the knobs, by the system's own names. Arms with equal Node run
	// side by side on one cluster under the same injection; the others one after the other.
	Client      map[string]string
	Destination map[string]string
	Node        map[string]string
	// Producer says how the producers of this arm behave.
	Producer Producer
	// During is what its clients must have seen between strike and heal.
	During ledger.During
	// Promise replaces the suite's promise for this arm, if its text is set.
	Promise ledger.Promise
}

// ClaimAt says when the application tells its caller "sent".
type ClaimAt string

// When "sent" is claimed.
const (
	AtConfirm ClaimAt = "confirm" // at the broker's confirm (default)
	AtEnqueue ClaimAt = "enqueue" // as soon as the client has taken the record
	AtWritten ClaimAt = "written" // when the client calls it done without a confirm (acks=0)
)

// Ending says how a producer process ends.
type Ending string

// How producers end.
const (
	EndFlush Ending = "flush" // flush, then exit (default)
	EndExit  Ending = "exit"  // exit without a flush
	EndKill  Ending = "kill"  // SIGKILL itself at the crash point
)

// Producer says how the producers of an arm behave.
type Producer struct {
	Claim ClaimAt // default AtConfirm
	// Incarnations are run one after the other, each with its own stream. Empty = one that ends
	// with EndFlush when the load ends.
	Incarnations []Incarnation
}

// Incarnation is one producer process.
type Incarnation struct {
	Messages int    // ends after so many were handed to the client; 0 = when the load ends
	End      Ending // default EndFlush
}

// Load is what every arm's producer is asked to do.
type Load struct {
	Rate        int           // messages per second and arm; 0 = 2000 (or Config.Rate)
	Keys        uint32        // 0 = 64
	PayloadSize int           // bytes; 0 = 160
	Partitions  int           // 0 = 1
	Window      int           // sends handed to the client and not completed, at most; 0 = 1000
	Tail        time.Duration // load after the last step; 0 = 2 s
}

// Scenario is one fault window under a promise.
type Scenario struct {
	Name     string // kebab-case, unique in the suite
	Window   string // W1..W6, or empty
	Summary  string // the fault, in one sentence
	Guarded  string // what makes the guarded arm safe, one sentence
	LookFor  string // how to look for the anomaly in one's own system (metric, SQL, command)
	Sources  []string
	Load     Load
	Arms     []Arm
	Targets  map[string]plan.Role
	Steps    []plan.Step
	Gates    map[string]Gate
	Actions  map[string]Action
	Evidence ledger.Evidence // During is taken from the arm; Bites nil = every injection of the plan
	// Destructive says that the cluster is checked against its baseline (and rebuilt if it fails) after it.
	Destructive bool
	Cost        time.Duration // usual duration with all arms, for `conform list`
}

// Env is what a gate or an action of a scenario sees.
type Env struct {
	Cluster      system.Cluster
	Targets      map[string][]system.Node // resolved so far
	Destinations map[string]string        // arm -> destination name
	Clients      map[string]string        // arm -> client id prefix
	Counts       func(arm string) Counts  // since the start of the load
}

// Counts are what an arm's producers have reported so far.
type Counts struct {
	Sent, Confirmed, Refused, InDoubt, Claimed int
}

// InFlight returns the sends that have been handed over and not completed.
func (c Counts) InFlight() int { return c.Sent - c.Confirmed - c.Refused - c.InDoubt }

// Gate is a scenario's own state to wait for: whether it is reached, and what was seen.
type Gate func(ctx context.Context, e Env, s plan.State) (reached bool, seen string, err error)

// Action is a scenario's own step.
type Action func(ctx context.Context, e Env, s plan.Step) (done string, err error)
