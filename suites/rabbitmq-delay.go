package suites

import (
	"strconv"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
)

func init() {
	register(harness.Suite{
		Name:   "rabbitmq-delay",
		System: rabbitSystem,
		With:   []system.System{postgresSystem.System},
		Title:  "a message that waits in a queue with a TTL comes to its consumer when it is due: not before, and surely",
		Promise: ledger.Promise{
			Text:   "a delayed message that was confirmed is delivered once its delay is over, never before, and has its effect once",
			Start:  "the confirm that the publisher saw",
			End:    "the deliveries and their effects, and the queues, drained at the end",
			Places: []string{"store", "delivery", "effect"},
			// A confirm that is not awaited long enough makes a dead letter come twice, and behind others.
			Rules: map[string]ledger.Rule{"duplicate-store": {Allowed: true}, "reordered-delivery": {Allowed: true}, "reordered-store": {Allowed: true}},
		},
		Scenarios: []harness.Scenario{rabbitDelayTargetMissing(), rabbitDelayNodeKilled()},
	})
}

const (
	docTTL        = "RabbitMQ documentation, Time-To-Live and Expiration"
	docDeadLetter = "RabbitMQ documentation, Dead Letter Exchanges"
	docAtLeast    = "RabbitMQ documentation, Quorum Queues: at-least-once dead lettering"
)

// delayed is how long messages wait in the delay suites.
const delayed = time.Second

// oneDelay are the settings of a producer whose messages wait in the queue of their one delay, and of such a destination.
var (
	oneDelay = with(awaited, "delay.by", "queue", "delay.ms", strconv.FormatInt(delayed.Milliseconds(), 10))
	waiting  = with(quorumQueue, "delay", strconv.FormatInt(delayed.Milliseconds(), 10))
)

// delays puts the settings that make dead letters of the delay queues sure, or not, into a destination.
func delays(destination map[string]string, strategy string) map[string]string {
	return with(destination, "delay.x-dead-letter-strategy", strategy, "delay.x-overflow", "reject-publish")
}

// delay fills in what all delay scenarios have.
func delay(s harness.Scenario) harness.Scenario {
	for i := range s.Arms {
		s.Arms[i].Processes = []harness.Process{queueReader("consumer-1", nil, bounded)}
	}
	s.Redelivery = max(s.Redelivery, 5*time.Second)
	if s.Delay.Due == 0 {
		s.Delay.Due = delayed
	}
	return fromQueue(s)
}

func rabbitDelayTargetMissing() harness.Scenario {
	return delay(harness.Scenario{
		Name:    "target-missing",
		Summary: "the queue to which delayed messages go is not bound, as if it had not been declared yet or under another name, when their delay is over; later it is",
		Guarded: "the target is declared and checked before the first publish; and at-least-once dead lettering keeps what has nowhere to go",
		LookFor: "delay queues whose dead-letter exchange or routing key leads nowhere (rabbitmqctl list_queues name arguments, list_bindings); rabbitmq_global_messages_dead_lettered_expired_total{dead_letter_strategy=\"at_most_once\"} that grows faster than the target's deliveries",
		Sources: []string{docTTL, docDeadLetter + ": safety", docAtLeast},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			{Name: "guarded", Role: harness.Guarded, Client: oneDelay, Destination: delays(waiting, "at-least-once")},
			{
				Name: "at-most-once", Role: harness.Control, Client: oneDelay, Destination: delays(waiting, "at-most-once"),
				Break: &harness.Break{Knob: "delay.x-dead-letter-strategy=at-most-once", Place: "store", Anomaly: "lost", Attribution: "dead-letter-dropped"},
			},
		},
		Steps: []plan.Step{
			{
				Name: "unbound", Until: []plan.State{{Kind: plan.Handled, N: consumed}},
				Inject: &plan.Exposure{Fault: "binding-deleted", Target: "leader"},
			},
			// Here time itself is part of the fault: delays end.
			{Name: "nowhere", Until: []plan.State{
				{Kind: plan.Bit, Since: "unbound"},
				{Kind: plan.Confirmed, N: consumed, Since: "unbound"},
				{Kind: plan.Elapsed, Hold: 3 * delayed, Since: "unbound"},
			}},
			{Name: "bound", Heal: "unbound"},
			goesOn("bound"),
		},
		Evidence: handledAround(ledger.Evidence{Bites: []string{"unbound"}}),
	})
}

func rabbitDelayNodeKilled() harness.Scenario {
	arm := func(name string, role harness.Role, kind, persistent string) harness.Arm {
		return harness.Arm{
			Name: name, Role: role, Client: with(oneDelay, "persistent", persistent),
			Destination: with(waiting, "delay.type", kind),
		}
	}
	guarded, control := arm("guarded", harness.Guarded, "quorum", "true"), arm("classic-transient", harness.Control, "classic", "false")
	control.Break = &harness.Break{Knob: "delay.type=classic", Forces: []string{"persistent=false"}, Place: "store", Anomaly: "lost", Attribution: "broker"}
	s := delay(harness.Scenario{
		Name: "node-killed", Window: "W3", Cost: 50 * time.Second,
		Summary: "the node of the delay queue is killed by SIGKILL while messages wait there, and restarted",
		Guarded: "a quorum delay queue: what waits is on two nodes, and its time runs on",
		LookFor: "delay queues of type classic, and delayed messages of delivery mode 1",
		Sources: []string{docTTL, "RabbitMQ documentation, Quorum Queues: data safety"},
		Targets: map[string]plan.Role{"home": plan.Leader},
		Arms:    []harness.Arm{guarded, control},
		Steps: []plan.Step{
			{
				Name: "killed", Until: []plan.State{{Kind: plan.Handled, N: consumed}},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "home"},
			},
			{Name: "restarted", Until: []plan.State{{Kind: plan.Bit, Since: "killed"}}, Heal: "killed"},
			goesOn("restarted"),
		},
		Evidence:    handledAround(ledger.Evidence{Bites: []string{"killed"}}),
		Destructive: true,
	})
	return s
}
