package plan

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Role picks nodes from live metadata. It is resolved once, when a step first names the
// target, and the result is recorded.
type Role string

// The roles. Leader and the followers are those of partition 0 of the arms' destinations,
// which are placed on the same nodes for every arm.
const (
	Leader        Role = "leader"
	Follower      Role = "follower"       // one follower, drawn from the seed
	OtherFollower Role = "other-follower" // the follower that Follower did not pick
	Followers     Role = "followers"
	// LeaderAndOther is all but the follower that Follower picked.
	LeaderAndOther Role = "leader-and-other"
	Others         Role = "others"     // all nodes but the leader, whether they hold a replica or not
	Controller     Role = "controller" // the active controller
	// DeadLetters is the node that holds the arms' dead-letter destinations.
	DeadLetters Role = "dead-letters"
	One         Role = "one" // drawn from the seed
	Majority    Role = "majority"
	All         Role = "all"
)

// On returns the role on another system of the suite than its broker: On("postgres", One). Only
// One, Majority and All can be asked for there.
func On(system string, r Role) Role { return r + "@" + Role(system) }

// Split returns a role and the system that it is on; empty = the suite's broker.
func (r Role) Split() (role Role, system string) {
	name, system, _ := strings.Cut(string(r), "@")
	return Role(name), system
}

// Kind is a kind of state that a step can wait for.
type Kind string

// The kinds of state. Counts are per arm and since the step named by Since.
const (
	Confirmed Kind = "confirmed" // >= N sends confirmed to the client
	Claimed   Kind = "claimed"   // >= N sends of which the caller was told "sent"
	Sent      Kind = "sent"      // >= N sends handed to the client
	InFlight  Kind = "in-flight" // >= N sends handed to the client and not completed
	Refused   Kind = "refused"   // >= N sends explicitly refused
	// Ordered: >= N business transactions committed.
	Ordered Kind = "ordered"
	// Published: >= N outbox rows marked as published.
	Published Kind = "published"
	// Received, Handled, Settled: >= N deliveries handed to consumers, processed, settled.
	Received Kind = "received"
	Handled  Kind = "handled"
	Settled  Kind = "settled"
	// ProcessEnded: the arms' process ended as planned, by its crash point or a step.
	ProcessEnded Kind = "process-ended"
	// ProcessAt: the arms' process is held at Point, or has crashed there.
	ProcessAt Kind = "process-at"
	// ConfirmedBy: >= N messages confirmed by the target node itself, counted on its link.
	ConfirmedBy Kind = "confirmed-by"
	// SentTo: >= N messages sent to the target node, counted on its link.
	SentTo Kind = "sent-to"
	// InSync: the in-sync replicas of the arms' destinations are exactly the target's nodes.
	InSync Kind = "in-sync"
	// FullyInSync: every replica is in sync again.
	FullyInSync Kind = "fully-in-sync"
	// LeaderNot: a node outside the target leads.
	LeaderNot Kind = "leader-not"
	// LeaderIs: a node of the target leads.
	LeaderIs Kind = "leader-is"
	// LeaderNone: nobody leads.
	LeaderNone Kind = "leader-none"
	// LeaderAny: somebody leads.
	LeaderAny Kind = "leader-any"
	// Bit: the injection named by Since has proof that it bit.
	Bit Kind = "bit"
	// Ended: the arms' producers ended (exit or planned crash).
	Ended Kind = "ended"
	// Elapsed: Hold has passed since the step named by Since was taken, or else since this one was
	// entered. Only where time itself is the fault (a cut of 4 s), never in place of a state.
	Elapsed Kind = "elapsed"
	// Custom: the scenario's own gate, by Name.
	Custom Kind = "custom"
)

// State is one state to wait for. All fields but Kind are optional.
type State struct {
	Kind   Kind
	N      int
	Arms   []string // arm names; empty = all
	Since  string   // step name; empty = start of the load. For Bit: the injection
	Target string   // target name
	Hold   time.Duration
	Name   string // Custom only
	// Process is the process that ProcessEnded and ProcessAt are about, or the only one that counts
	// are about; "producer" is the load. Arms without such a process are not asked.
	Process string
	Point   string // ProcessAt only; empty = any point
}

// String says the state in words.
func (s State) String() string {
	var b strings.Builder
	switch s.Kind {
	case Confirmed, Claimed, Sent, Refused, Ordered, Published, Received, Handled, Settled:
		fmt.Fprintf(&b, ">= %d %s", s.N, s.Kind)
	case InFlight:
		fmt.Fprintf(&b, ">= %d in flight", s.N)
	case ProcessEnded:
		fmt.Fprintf(&b, "%s has ended", s.Process)
	case ProcessAt:
		fmt.Fprintf(&b, "%s is at %s", s.Process, cmp.Or(s.Point, "its point"))
	case ConfirmedBy:
		fmt.Fprintf(&b, ">= %d confirmed by %s alone", s.N, s.Target)
	case SentTo:
		fmt.Fprintf(&b, ">= %d sent to %s", s.N, s.Target)
	case InSync:
		fmt.Fprintf(&b, "in-sync replicas = {%s}", s.Target)
	case FullyInSync:
		b.WriteString("all replicas in sync")
	case LeaderNot:
		fmt.Fprintf(&b, "another than %s leads", s.Target)
	case LeaderIs:
		fmt.Fprintf(&b, "%s leads", s.Target)
	case LeaderNone:
		b.WriteString("nobody leads")
	case LeaderAny:
		b.WriteString("somebody leads")
	case Bit:
		fmt.Fprintf(&b, "%s has bitten", s.Since)
	case Ended:
		b.WriteString("producers have ended")
	case Elapsed:
		fmt.Fprintf(&b, "%s have passed", s.Hold)
	default:
		fmt.Fprintf(&b, "%s", s.Name)
	}
	if s.Process != "" && s.Kind != ProcessEnded && s.Kind != ProcessAt {
		fmt.Fprintf(&b, " by %s", s.Process)
	}
	if s.Since != "" && s.Kind != Bit {
		fmt.Fprintf(&b, " since %q", s.Since)
	}
	if len(s.Arms) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(s.Arms, ", "))
	}
	return b.String()
}

// Exposure is a fault in a scenario: which fault, on which target, with which parameters.
// Strings only, so that it can be recorded and replayed.
type Exposure struct {
	Fault  string            // name in the faults registry
	Target string            // target name
	Params map[string]string // fault parameters, documented by the fault; "draw:lo..hi" is drawn from the seed
	Arms   []string          // arms it is limited to, for faults on client links; empty = all
}

// Step waits for Until (all of them) and then acts, at most one of Inject, Heal, Do.
type Step struct {
	Name   string
	Until  []State
	Inject *Exposure
	Heal   string // name of the step whose injection is healed
	Do     string // scenario or system action by name, e.g. "elect-unclean"
	Target string // of Do
	// Process is the one that Do starts, stops, kills, freezes, thaws or releases, in those of the
	// arms that have it.
	Process string
	Arms    []string
	Cap     time.Duration // past it the step is inconclusive; 0 = DefaultCap
}

// DefaultCap bounds a step that names no cap of its own.
const DefaultCap = 45 * time.Second

// String says the step in words, as recorded in the ledger's header.
func (s Step) String() string {
	var b strings.Builder
	if len(s.Until) > 0 {
		b.WriteString("until ")
		for i, u := range s.Until {
			if i > 0 {
				b.WriteString(" and ")
			}
			b.WriteString(u.String())
		}
		b.WriteString(": ")
	}
	switch {
	case s.Inject != nil:
		fmt.Fprintf(&b, "%s on %s", s.Inject.Fault, s.Inject.Target)
	case s.Heal != "":
		fmt.Fprintf(&b, "heal %q", s.Heal)
	case s.Do != "":
		b.WriteString(s.Do)
		if s.Target != "" {
			fmt.Fprintf(&b, " %s", s.Target)
		}
		if s.Process != "" {
			fmt.Fprintf(&b, " %s", s.Process)
		}
	default:
		b.WriteString("go on")
	}
	return b.String()
}

// Plan is the drawn plan of one run of one scenario.
type Plan struct {
	Seed    uint64
	Targets map[string]Role
	Steps   []Step
}

// streamPlan keeps the draws of plans apart from what else is drawn from a seed, so that a longer
// payload does not shift the plan.
const streamPlan = 0x706c616e
