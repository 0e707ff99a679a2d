package suites

import (
	"strconv"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/worker"
	"conform/suites/chain"
)

func init() {
	register(harness.Suite{
		Name:   "rabbitmq-deadletter",
		System: rabbitSystem,
		With:   []system.System{postgresSystem.System},
		Title:  "a message that was confirmed is in its queue or in the dead-letter queue, whatever becomes of that",
		Promise: ledger.Promise{
			Text:   "a confirmed message that expires, or fails, is in its queue or in its dead-letter target at least once, with the record of why",
			Start:  "the confirm that the publisher saw",
			End:    "the queue and its dead-letter target, drained at the end",
			Places: []string{"store"},
			Rules:  rabbitRules,
		},
		Scenarios: []harness.Scenario{
			rabbitDeadLetterTargetMissing(), rabbitDeadLetterTargetDown(), rabbitDeadLetterTargetUndecided(), rabbitTransientInTarget(), rabbitTargetOverflows(), rabbitAckThenRepublish(),
		},
	})
}

// lettered is how many messages each arm must have in the state that the fault is about. What a queue keeps meanwhile it hands
// over slowly, 32 at a time (dead_letter_worker_consumer_prefetch).
const lettered = 80

// expiring is a queue whose messages are dead-lettered after a moment, since nobody consumes them.
func expiring(target, strategy string) map[string]string {
	return with(quorumQueue, "x-message-ttl", "300", "x-overflow", "reject-publish", "dead-letter", target, "x-dead-letter-strategy", strategy)
}

// deadLettered fills in what the scenarios have whose messages nobody consumes.
func deadLettered(s harness.Scenario) harness.Scenario {
	s.Load = harness.Load{Rate: 60}
	s.Drained = deadLettersDrained
	s.Redelivery = 5 * time.Second // dead_letter_worker_publisher_confirm_timeout, with room
	return s
}

// onceAtMost is the control of a guarded arm with at-least-once dead lettering.
func onceAtMost(name, target string, more ...string) harness.Arm {
	return harness.Arm{
		Name: name, Role: harness.Control, Client: awaited, Destination: with(expiring(target, "at-most-once"), more...),
		Break: &harness.Break{Knob: "x-dead-letter-strategy=at-most-once", Place: "store", Anomaly: "lost", Attribution: "dead-letter-dropped"},
	}
}

const lookForDropped = "rabbitmq_global_messages_dead_lettered_expired_total{dead_letter_strategy=\"at_most_once\"} (and _rejected_, _maxlen_, _delivery_limit_) that grows faster than the dead-letter queue"

func rabbitDeadLetterTargetMissing() harness.Scenario {
	exchange, binding := []string{"guarded", "at-most-once"}, []string{"guarded-binding", "at-most-once-binding"}
	guarded := func(name string) harness.Arm {
		return harness.Arm{Name: name, Role: harness.Guarded, Client: awaited, Destination: expiring("quorum", "at-least-once")}
	}
	return deadLettered(harness.Scenario{
		Name: "target-missing", Cost: 40 * time.Second,
		Summary: "the dead-letter exchange is deleted, or the binding between it and the dead-letter queue, and made again later",
		Guarded: "at-least-once dead lettering: what has nowhere to go is kept in the source, and tried again",
		LookFor: lookForDropped + "; queues whose x-dead-letter-exchange does not exist",
		Sources: []string{docDeadLetter + ": safety", docAtLeast},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms:    []harness.Arm{guarded("guarded"), onceAtMost("at-most-once", "quorum"), guarded("guarded-binding"), onceAtMost("at-most-once-binding", "quorum")},
		Steps: []plan.Step{
			{
				Name: "exchange-gone", Until: []plan.State{{Kind: plan.Confirmed, N: lettered}},
				Inject: &plan.Exposure{Fault: "dead-letters-cut", Target: "leader", Params: map[string]string{"what": "exchange"}, Arms: exchange},
			},
			{
				Name:   "binding-gone",
				Inject: &plan.Exposure{Fault: "dead-letters-cut", Target: "leader", Params: map[string]string{"what": "binding"}, Arms: binding},
			},
			// Here time itself is part of the fault: messages expire.
			{Name: "nowhere", Until: []plan.State{
				{Kind: plan.Bit, Since: "exchange-gone"},
				{Kind: plan.Bit, Since: "binding-gone"},
				{Kind: plan.Confirmed, N: lettered, Since: "binding-gone"},
				{Kind: plan.Elapsed, Hold: 2 * time.Second, Since: "binding-gone"},
			}},
			{Name: "exchange-back", Heal: "exchange-gone"},
			{Name: "binding-back", Heal: "binding-gone"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.Confirmed, N: lettered, Since: "binding-back"}}},
		},
		Evidence: ledger.Evidence{Before: lettered, After: lettered, Bites: []string{"exchange-gone", "binding-gone"}},
	})
}

// elsewhereTo is the setting of a dead-letter target on another node than its source's.
var elsewhereTo = []string{"dead-letter.node", "other"}

func rabbitDeadLetterTargetDown() harness.Scenario {
	return deadLettered(harness.Scenario{
		Name: "target-down", Cost: 50 * time.Second,
		Summary: "the node of a classic dead-letter queue is killed by SIGKILL, and restarted",
		Guarded: "at-least-once dead lettering: what the target cannot take is kept in the source, and tried again",
		LookFor: lookForDropped,
		Sources: []string{docDeadLetter + ": safety", docAtLeast},
		Targets: map[string]plan.Role{"target": plan.DeadLetters},
		Arms: []harness.Arm{
			{Name: "guarded", Role: harness.Guarded, Client: awaited, Destination: with(expiring("classic", "at-least-once"), elsewhereTo...)},
			onceAtMost("at-most-once", "classic", elsewhereTo...),
		},
		Steps: []plan.Step{
			{
				Name: "killed", Until: []plan.State{{Kind: plan.Confirmed, N: lettered}},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "target"},
			},
			{Name: "restarted", Until: []plan.State{{Kind: plan.Bit, Since: "killed"}, {Kind: plan.Confirmed, N: lettered, Since: "killed"}}, Heal: "killed"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: lettered, Since: "restarted"}}},
		},
		Evidence:    ledger.Evidence{Before: lettered, After: lettered, Bites: []string{"killed"}},
		Destructive: true,
	})
}

func rabbitDeadLetterTargetUndecided() harness.Scenario {
	// The source has its one member on a node that stays: what is in question is the target alone. That is led elsewhere, for a
	// leader that stays would write down what it cannot yet agree upon.
	alone := append([]string{"x-quorum-initial-group-size", "1"}, elsewhereTo...)
	return deadLettered(harness.Scenario{
		Name: "target-majority-down", Cost: 60 * time.Second,
		Summary: "two of the three nodes of a quorum dead-letter queue are killed by SIGKILL, its leader among them, and restarted",
		Guarded: "at-least-once dead lettering: what the target cannot agree upon is kept in the source, and tried again",
		LookFor: lookForDropped,
		Sources: []string{docDeadLetter + ": safety", docAtLeast},
		Targets: map[string]plan.Role{"others": plan.Others},
		Arms: []harness.Arm{
			{Name: "guarded", Role: harness.Guarded, Client: awaited, Destination: with(expiring("quorum", "at-least-once"), alone...)},
			onceAtMost("at-most-once", "quorum", alone...),
		},
		Steps: []plan.Step{
			{
				Name: "killed", Until: []plan.State{{Kind: plan.Confirmed, N: lettered}},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "others"},
			},
			{Name: "restarted", Until: []plan.State{{Kind: plan.Bit, Since: "killed"}, {Kind: plan.Confirmed, N: lettered, Since: "killed"}}, Heal: "killed"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: lettered, Since: "restarted"}}},
		},
		Evidence:    ledger.Evidence{Before: lettered, After: lettered, Bites: []string{"killed"}},
		Destructive: true,
	})
}

func rabbitTransientInTarget() harness.Scenario {
	arm := func(name string, role harness.Role, target, persistent string) harness.Arm {
		return harness.Arm{
			Name: name, Role: role, Client: with(awaited, "persistent", persistent),
			// What is published when the node begins to stop is in the target before it has.
			Destination: with(expiring(target, "at-least-once"), append([]string{"x-message-ttl", "20"}, elsewhereTo...)...),
		}
	}
	control := arm("transient", harness.Control, "classic", "false")
	control.Break = &harness.Break{Knob: "persistent=false", Place: "store", Anomaly: "lost", Attribution: "broker"}
	return deadLettered(harness.Scenario{
		Name: "transient-in-target", Window: "W3", Cost: 50 * time.Second,
		Summary: "messages of a quorum queue are dead-lettered into a classic queue, whose node is stopped in order and started again",
		Guarded: "they were published persistent, or their target is a quorum queue: a message keeps its delivery mode when it is dead-lettered",
		LookFor: "dead-letter queues of type classic behind publishers with delivery_mode 1: each rolling restart empties them",
		Sources: []string{docDeadLetter + ": effects on messages", "RabbitMQ documentation, Queues: durability"},
		Targets: map[string]plan.Role{"target": plan.DeadLetters},
		Arms:    []harness.Arm{arm("guarded", harness.Guarded, "classic", "true"), arm("quorum-target", harness.Guarded, "quorum", "false"), control},
		Steps: []plan.Step{
			{
				Name: "stopped", Until: []plan.State{{Kind: plan.Confirmed, N: 2 * lettered}},
				Inject: &plan.Exposure{Fault: "node-stopped", Target: "target"},
			},
			{Name: "started", Until: []plan.State{{Kind: plan.Bit, Since: "stopped"}}, Heal: "stopped"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: lettered, Since: "started"}}},
		},
		Evidence:    ledger.Evidence{Before: lettered, After: lettered, Bites: []string{"stopped"}},
		Destructive: true,
	})
}

func rabbitTargetOverflows() harness.Scenario {
	into := func(overflow string) map[string]string {
		return with(expiring("quorum", "at-least-once"), "dead-letter.x-overflow", overflow)
	}
	return deadLettered(harness.Scenario{
		Name: "target-overflows", Cost: 40 * time.Second,
		Summary: "a policy limits the dead-letter queue to fewer messages than are dead-lettered, and is lifted again",
		Guarded: "x-overflow=reject-publish there: what does not fit is kept in the source, and tried again",
		LookFor: "rabbitmq_global_messages_dead_lettered_maxlen_total with dead_letter_strategy=disabled above 0: a full dead-letter queue drops its oldest messages by default",
		Sources: []string{docAtLeast, "RabbitMQ documentation, Queue Length Limit: default max-length behaviour is drop-head"},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			{Name: "guarded", Role: harness.Guarded, Client: awaited, Destination: into("reject-publish")},
			{
				Name: "drop-head", Role: harness.Control, Client: awaited, Destination: into("drop-head"),
				Break: &harness.Break{Knob: "dead-letter.x-overflow=drop-head", Place: "store", Anomaly: "lost", Attribution: "overflowed"},
			},
		},
		Steps: []plan.Step{
			{
				Name: "limited", Until: []plan.State{{Kind: plan.Confirmed, N: lettered}},
				Inject: &plan.Exposure{Fault: "queue-limited", Target: "leader", Params: map[string]string{"of": "dead-letters", "max-length": "40"}},
			},
			// Here time itself is part of the fault: messages expire.
			{Name: "full", Until: []plan.State{
				{Kind: plan.Bit, Since: "limited"}, {Kind: plan.Confirmed, N: lettered, Since: "limited"}, {Kind: plan.Elapsed, Hold: 2 * time.Second, Since: "limited"},
			}},
			{Name: "lifted", Heal: "limited"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.Confirmed, N: lettered, Since: "lifted"}}},
		},
		Evidence: ledger.Evidence{Before: lettered, After: lettered, Bites: []string{"limited"}},
	})
}

// poisoned is the event that a consumer moves away.
var poisoned = worker.Match{EventID: ledger.EventID(firstStream, struckAt)}

func rabbitAckThenRepublish() harness.Scenario {
	const pair = "rabbitmq-deadletter/ack-then-republish"
	arms := queuePair(pair, paramLoop, func(params map[string]string) []harness.Process {
		p := queueReader("consumer-1", with(params, paramMove, "true",
			paramFailEvent, strconv.Itoa(struckAt), paramFailAs, "permanent", paramFailTimes, "-1"), bounded)
		p.CrashAt, p.CrashIf, p.Restart = chain.HalfMoved, poisoned, true
		return []harness.Process{p}
	})
	promise := rabbitAcksPromise
	for i := range arms {
		arms[i].Destination, arms[i].Promise = with(quorumQueue, "dead-letter", "quorum"), promise
	}
	return fromQueue(harness.Scenario{
		Name: "ack-then-republish", Window: "W6",
		Summary:  "a consumer moves a message that has failed to the dead-letter queue itself, and is killed between the two steps of that",
		Guarded:  "it is published there, and confirmed, before it is acked here; what comes twice of that is found by an inbox",
		LookFor:  lookFor(pair),
		Sources:  []string{docAcks, docDeadLetter},
		Arms:     arms,
		Steps:    crashed(),
		Evidence: handledAround(ledger.Evidence{Bites: []string{"crash-consumer-1", strikeFailure}}),
	})
}
