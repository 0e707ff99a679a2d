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
		Title:  "a message that waits in a queue with a TTL comes to its consumer when it is due: not before, not much later, and surely",
		Promise: ledger.Promise{
			Text:   "a delayed message that was confirmed is delivered once its delay is over, never before, within the allowance where nothing fails, and has its effect once",
			Start:  "the confirm that the publisher saw",
			End:    "the deliveries and their effects, and the queues, drained at the end",
			Places: []string{"store", "delivery", "effect"},
			// A confirm that is not awaited long enough makes a dead letter come twice, and behind others.
			Rules: map[string]ledger.Rule{"duplicate-store": {Allowed: true}, "reordered-delivery": {Allowed: true}, "reordered-store": {Allowed: true}},
		},
		Scenarios: []harness.Scenario{rabbitDelayTargetMissing(), rabbitHeadOfLine(), rabbitDelayNodeKilled()},
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

// longDelay is how long the messages of the other writer wait, and longWriter its name.
const (
	longDelay  = 5 * time.Second
	longWriter = "writer"
)

func rabbitHeadOfLine() harness.Scenario {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	arms := func(suffix, kind string) []harness.Arm {
		destination := func(delay string) map[string]string {
			d := map[string]string{"type": "quorum", "delay.type": kind, "delay": delay}
			if kind == "quorum" { // classic queues dead-letter at most once
				d = delays(d, "at-least-once")
			}
			return d
		}
		return []harness.Arm{
			{Name: "guarded" + suffix, Role: harness.Guarded, Client: oneDelay, Destination: destination(ms(delayed) + "," + ms(longDelay))},
			{
				Name: "one-queue" + suffix, Role: harness.Control, Client: with(oneDelay, "delay.by", "message"), Destination: destination("message"),
				Break: &harness.Break{Knob: "delay=message", Forces: []string{"delay.by=message"}, Place: "delivery", Anomaly: "late"},
			},
		}
	}
	s := delay(harness.Scenario{
		Name:    "head-of-line",
		Summary: "messages that are due in 5 s come in front of messages that are due in 1 s",
		Guarded: "one queue for each delay",
		LookFor: "queues without consumers that hold messages of several expirations; deliveries that come in bursts",
		Sources: []string{docTTL + ": messages are expired at the head of the queue only"},
		// Slow enough for the consumers of all arms: what is late here must be so because of the queue.
		Load: harness.Load{Rate: 8},
		// The writer is the second of two processes beside the load.
		Delay: ledger.Delay{Due: delayed, Allowance: 2 * time.Second, Other: firstStream + 2, OtherDue: longDelay},
		Arms:  append(arms("", "quorum"), arms("-classic", "classic")...),
		Steps: []plan.Step{
			{Name: "long-ones", Until: []plan.State{{Kind: plan.Handled, N: consumed}}, Do: harness.DoStartProcess, Process: longWriter},
			{Name: "waited", Until: []plan.State{{Kind: plan.Handled, N: 60, Since: "long-ones"}}},
		},
		Evidence: handledAround(ledger.Evidence{Bites: []string{strikeOther}}),
	})
	for i := range s.Arms {
		s.Arms[i].Processes = append(s.Arms[i].Processes, harness.Process{
			Name: longWriter, Role: roleQueueWriter, Manual: true, Params: map[string]string{paramMessages: "5", paramRate: "5"},
			Client: map[string]string{"delay.ms": ms(longDelay)},
		})
	}
	return s
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
