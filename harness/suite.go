package harness

import (
	"context"
	"time"

	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/worker"
)

// Suite proves one promise of one system.
type Suite struct {
	Name    string // e.g. "kafka-acks"; pattern suites are named "outbox@kafka"
	System  System
	With    []system.System // others that run beside System: databases, caches
	Title   string          // the promise, as a user would say it
	Promise ledger.Promise
	// Scenarios in the order they run. Arms with equal Node and WithNode share one cluster, also across scenarios.
	Scenarios []Scenario
}

// Systems lists all systems that the suite runs on, its broker first.
func (s *Suite) Systems() []system.System {
	return append([]system.System{s.System.System}, s.With...)
}

// MemoryMiB estimates the memory that its systems take together.
func (s *Suite) MemoryMiB() int {
	sum := 0
	for _, one := range s.Systems() {
		sum += one.MemoryMiB(0)
	}
	return sum
}

// promiseOf returns the promise by which an arm is judged.
func (s *Suite) promiseOf(a Arm) ledger.Promise {
	if a.Promise.Text != "" {
		return a.Promise
	}
	return s.Promise
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
	Also        []string // other anomalies that it, or what it forces, is known to cause
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
	// WithNode holds the node settings of the systems in Suite.With, by system name.
	WithNode map[string]map[string]string
	// Producer says how the producers of this arm behave: the load.
	Producer Producer
	// Processes run beside the load: relays, consumers, services.
	Processes []Process
	// Code is the reference code that this arm runs, for `conform explain`.
	Code *Code
	// During is what its clients must have seen between strike and heal.
	During ledger.During
	// Evidence replaces the scenario's for this arm, if it is not nil.
	Evidence *ledger.Evidence
	// Promise replaces the suite's promise for this arm, if its text is set, and Chain the scenario's
	// chain, if it is not nil.
	Promise ledger.Promise
	Chain   *ledger.Chain
	// Letters are the dead letters that it may leave where ledger.TableDeadLetter is among the tables; default none.
	Letters ledger.Letters
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
	None   bool              // the arm has no load, only processes
	Role   string            // worker role; empty = System.Producer
	Params map[string]string // documented by the role
	Claim  ClaimAt           // default AtConfirm
	// Incarnations are run one after the other, each with its own stream. Empty = one that ends
	// with EndFlush when the load ends.
	Incarnations []Incarnation
}

// Incarnation is one producer process. Its worker is named "producer-1" and so on.
type Incarnation struct {
	Messages int    // ends after so many were handed to the client; 0 = when the load ends
	End      Ending // default EndFlush
	// CrashAt and HoldAt are as in Process. After a crash the next incarnation begins.
	CrashAt  string
	CrashNth int
	CrashIf  worker.Match
	HoldAt   string
	HoldNth  int
	HoldIf   worker.Match
}

// Process is a worker beside the load producer. Its first worker bears its name, the one that
// follows it after a crash or a stop is named "NAME-r2" and so on.
type Process struct {
	Name   string            // unique in the arm: "relay-1", "consumer-2", "payment"
	Role   string            // worker role registered by the suite
	Params map[string]string // documented by the role
	Client map[string]string // client settings on top of the arm's
	// Group is the name of its consumer group within the arm; on the cluster it is Env.Group.
	Group  string
	Manual bool // started by a step only; otherwise before the load
	// Listen reserves a loopback address for it, which it finds in worker.Config.Listen, and the
	// arm's other workers in Config.Peers by its name. It stays the same from one worker to the next.
	Listen bool
	// CrashAt is the named point at which its first worker kills itself, the CrashNth time (0 = the
	// first) that it gets there with a message that CrashIf picks. The crash is a strike, by the name
	// "crash-NAME"; it is healed when the next worker of the process is ready, or after the plan.
	CrashAt  string
	CrashNth int
	CrashIf  worker.Match
	// HoldAt is the named point at which its first worker stops until a step releases it, likewise.
	// It is a strike, by the name "hold-NAME", healed by the release.
	HoldAt  string
	HoldNth int
	HoldIf  worker.Match
	// Restart starts the next worker as soon as one has crashed as planned. It has no crash or hold point.
	Restart bool
}

// Code names the reference code that an arm runs, as `conform explain` shows it: functions in
// suites/chain.
type Code struct {
	Guarded string // the function that keeps the promise
	Unsafe  string // its twin that differs in one marked line; empty on guarded arms
}

// Load is what every arm's producer is asked to do.
type Load struct {
	Rate        int           // messages per second and arm; 0 = 2000 (or Config.Rate)
	Keys        uint32        // 0 = 64
	PayloadSize int           // bytes; 0 = 160
	Partitions  int           // 0 = 1
	GrowTo      int           // partitions of the destination once the scenario has added some; 0 = it adds none
	Window      int           // sends handed to the client and not completed, at most; 0 = 1000
	Tail        time.Duration // load after the last step; 0 = 2 s
}

// Destination is one beside the arm's own. On the cluster it is named as the arm's own, a dot and Name.
type Destination struct {
	Name       string
	Partitions int // 0 = 1
	DeadLetter bool
	Settings   map[string]string
}

// Scenario is one fault window under a promise.
type Scenario struct {
	Name     string // kebab-case, unique in the suite
	Window   string // W1..W6, or empty
	Summary  string // the fault, in one sentence
	Guarded  string // what makes the guarded arm safe, one sentence
	LookFor  string // how to look for the anomaly in one's own system (metric, SQL, command)
	Sources  []string
	Since    string // first version of the suite's system that does what it is about, "4.3"; empty = all that are supported
	Load     Load
	Arms     []Arm
	Targets  map[string]plan.Role
	Steps    []plan.Step
	Gates    map[string]Gate
	Actions  map[string]Action
	Evidence ledger.Evidence // During is taken from the arm; Bites nil = every injection of the plan
	// Redelivery is the longest redelivery, lock, lease, session or delay in the settings of its arms.
	// An arm in which nothing has moved for three times as long (at least 30 s) is stuck.
	Redelivery time.Duration
	// Setup makes what an arm needs beyond its destination and schema, before its clients start.
	Setup func(ctx context.Context, e ArmEnv) error
	// Drained says whether an arm has nothing left to do once its load has ended: what was seen, and
	// any number that grows while something moves. Nil = the groups of its processes have no lag.
	Drained func(ctx context.Context, e ArmEnv) (done bool, seen string, progress int64, err error)
	// Snapshot reads the final state of an arm's tables in one transaction, after its processes
	// have ended, with a ledger.SnapshotEnd for each table.
	Snapshot func(ctx context.Context, e ArmEnv, sink func(ledger.Event)) error
	// Destinations are made and read beside each arm's own: retry topics, dead letters.
	Destinations []Destination
	// Tables, Chain and Delay are recorded for the audit, see ledger.Header.
	Tables []string
	Chain  ledger.Chain
	Delay  ledger.Delay
	// Cleanup removes what Setup made, whatever became of the run. It may run without Setup having ended.
	Cleanup func(ctx context.Context, e ArmEnv) error
	// Destructive says that the cluster is checked against its baseline (and rebuilt if it fails) after it.
	Destructive bool
	Cost        time.Duration // usual duration with all arms, for `conform list`
}

// Env is what a gate or an action of a scenario sees.
type Env struct {
	Cluster      system.Cluster
	With         map[string]system.Cluster // the clusters of Suite.With, by system name
	Targets      map[string][]system.Node  // resolved so far
	Destinations map[string]string         // arm -> destination name
	Clients      map[string]string         // arm -> client id prefix
	Schemas      map[string]string         // arm -> name of its own schema in the databases of With
	Counts       func(arm string) Counts   // since the start of the load
}

// Group returns the name on the cluster of a group of an arm's processes.
func (e Env) Group(arm, group string) string { return e.Clients[arm] + group }

// ArmEnv is what the hooks of a scenario see of one arm.
type ArmEnv struct {
	Env
	Arm         Arm
	Destination string
	Client      string // client id prefix
	Schema      string // made before Setup and dropped after Cleanup, where a system of With has schemas
	Seed        uint64
	Tag         uint32
	Workload    ledger.Workload
}

// Group returns the name on the cluster of a group of the arm's processes.
func (e ArmEnv) Group(group string) string { return e.Client + group }

// Counts are what an arm's workers have reported so far, producers and processes together.
type Counts struct {
	Sent, Confirmed, Refused, InDoubt, Claimed int
	// Ordered business transactions were committed, Published outbox rows were marked so, Received
	// deliveries were handed to consumers, Handled ones were processed, Settled ones settled.
	Ordered, Published, Received, Handled, Settled int
}

// InFlight returns the sends that have been handed over and not completed.
func (c Counts) InFlight() int { return c.Sent - c.Confirmed - c.Refused - c.InDoubt }

// Gate is a scenario's own state to wait for: whether it is reached, and what was seen.
type Gate func(ctx context.Context, e Env, s plan.State) (reached bool, seen string, err error)

// Action is a scenario's own step.
type Action func(ctx context.Context, e Env, s plan.Step) (done string, err error)
