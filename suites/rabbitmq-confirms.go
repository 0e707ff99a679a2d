package suites

import (
	"fmt"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
)

func init() {
	register(onRabbitMQ.queued(harness.Suite{
		Name:   "rabbitmq-confirms",
		System: rabbitSystem,
		With:   []system.System{postgresSystem.System},
		Title:  "a message whose confirm I saw is in the queue, whatever happens to any one node",
		Promise: ledger.Promise{
			Text:   "a message that was confirmed, or that the application said was sent, is in the queue at least once, whatever happens to any one node",
			Start:  "the confirm (or the claim) that the publisher's caller saw",
			End:    "the queue, drained after recovery",
			Places: []string{"store"},
			Rules:  rabbitRules,
		},
		Scenarios: []harness.Scenario{
			rabbitNodeKilled(), rabbitTransient(), rabbitConfirmLost(), rabbitRestart(), rabbitMinority(), rabbitNacked(), rabbitBlocked(),
			rabbitPowerCut(), rabbitCloseRace(),
		},
	}))
}

func rabbitNodeKilled() harness.Scenario {
	bites := []string{"frozen", "killed"}
	return harness.Scenario{
		Name: "node-killed", Window: "W3", Cost: 45 * time.Second,
		Summary: "the node that leads the queue is frozen until 200 messages lie in its socket, then killed by SIGKILL and restarted",
		Guarded: "a quorum queue and confirms awaited: what was never confirmed was never called sent, and what was is on two nodes",
		LookFor: "publishers that never select confirms: compare what they count as published with the queues' message counts after a node's crash",
		Sources: []string{
			"RabbitMQ documentation, Consumer Acknowledgements and Publisher Confirms",
			"RabbitMQ documentation, Quorum Queues: data safety",
		},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			guardedArm(ledger.During{Silent: 1}, awaited, quorumQueue),
			{
				Name: "no-confirms", Role: harness.Control, Client: map[string]string{"confirms": "false"}, Destination: quorumQueue,
				Producer: harness.Producer{Claim: harness.AtWritten},
				Break: &harness.Break{
					Knob: "confirms=false", Forces: []string{"\"sent\" is said once the message is written, for nothing ever confirms it"},
					Place: "store", Anomaly: "lost", Attribution: "client-buffer",
				},
				// Nothing is in flight for longer than it takes to write it.
				Evidence: &ledger.Evidence{Before: struck, After: struck, Bites: bites},
				During:   ledger.During{MaxConfirmed: new(0)},
			},
		},
		Steps: []plan.Step{
			{
				Name: "frozen", Until: []plan.State{
					{Kind: plan.Confirmed, N: struck, Arms: []string{"guarded"}},
					{Kind: plan.Claimed, N: struck, Arms: []string{"no-confirms"}},
				},
				Inject: &plan.Exposure{Fault: "node-paused", Target: "leader"},
			},
			{
				Name: "killed", Until: []plan.State{
					{Kind: plan.Sent, N: struck, Since: "frozen", Arms: []string{"guarded"}},
					{Kind: plan.SentTo, N: struck, Since: "frozen", Target: "leader", Arms: []string{"no-confirms"}},
				},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "leader"},
			},
			{
				Name: "failed-over", Until: []plan.State{
					{Kind: plan.LeaderNot, Target: "leader"},
					{Kind: plan.Confirmed, N: struck, Since: "killed", Arms: []string{"guarded"}},
				},
			},
			{Name: "restarted", Heal: "killed"},
			{Name: "recovered", Until: []plan.State{
				{Kind: plan.FullyInSync},
				{Kind: plan.Confirmed, N: struck, Since: "restarted", Arms: []string{"guarded"}},
				{Kind: plan.Claimed, N: struck, Since: "restarted", Arms: []string{"no-confirms"}},
			}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: bites},
		Destructive: true,
	}
}

func rabbitTransient() harness.Scenario {
	return harness.Scenario{
		Name: "transient", Window: "W3", Cost: 40 * time.Second,
		Summary: "the node of a classic durable queue is killed by SIGKILL, the page cache survives, and is restarted",
		Guarded: "persistent messages and confirms: what was confirmed is in the node's message store, which a SIGKILL leaves alone",
		LookFor: "publishers with delivery_mode 1, or without any: queues that are empty after a node's restart though they are durable",
		Sources: []string{"RabbitMQ documentation, Publishers: message properties (delivery_mode)", "RabbitMQ documentation, Queues: durability"},
		Targets: map[string]plan.Role{"home": plan.Leader},
		Arms: []harness.Arm{
			guardedArm(ledger.During{}, with(awaited, "persistent", "true"), classicQueue),
			{
				Name: "transient", Role: harness.Control, Client: with(awaited, "persistent", "false"), Destination: classicQueue,
				Break: &harness.Break{Knob: "persistent=false", Place: "store", Anomaly: "lost", Attribution: "broker"},
			},
		},
		Steps: []plan.Step{
			{
				Name: "killed", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "home"},
			},
			{Name: "restarted", Until: []plan.State{{Kind: plan.Bit, Since: "killed"}}, Heal: "killed"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "restarted"}}},
		},
		Evidence:    ledger.Evidence{Before: struck, After: struck, Bites: []string{"killed"}},
		Destructive: true,
	}
}

func rabbitConfirmLost() harness.Scenario {
	const swallowed = 3
	promise := ledger.Promise{
		Text:   "each event of which the application said that it was sent has its effect exactly once",
		Start:  "the claim that the publisher's caller saw",
		End:    "the effects, read in one snapshot once the consumer's queue is empty",
		Places: []string{"effect"},
	}
	return delivered(harness.Scenario{
		Name: "confirm-lost", Window: "W2", Cost: 30 * time.Second,
		Summary: "three confirms are swallowed on their way to the publisher and its connection is reset: the queue has the messages, and the publisher does not know",
		Guarded: "what was not confirmed is published again under the same event id, and the consumer's inbox knows it",
		LookFor: lookFor("kafka-acks/timeout-is-not-failure"),
		Sources: []string{
			"RabbitMQ documentation, Publisher Confirms: the broker may lose the connection after a message is enqueued and before it is confirmed",
			"RabbitMQ documentation, Reliability Guide: duplicates and idempotent consumers",
		},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: onRabbitMQ.pairArms("kafka-acks/timeout-is-not-failure", "effect", paramCommand, func(a *harness.Arm, function string) {
			a.Producer = onRabbitMQ.orders(map[string]string{paramCommand: function, paramClaims: "true"})
			a.Processes = []harness.Process{onRabbitMQ.reader("consumer-1", nil)}
			a.Promise = promise
		}),
		Steps: []plan.Step{
			{
				Name: "swallowed", Until: []plan.State{{Kind: plan.Confirmed, N: seen}, {Kind: plan.Handled, N: seen}},
				Inject: &plan.Exposure{
					Fault: "response-dropped", Target: "leader",
					Params: map[string]string{"kind": "confirm", "count": fmt.Sprint(swallowed), "of": "p1"},
				},
			},
			{Name: "bitten", Until: []plan.State{{Kind: plan.Bit, Since: "swallowed"}}},
			{Name: "healed", Heal: "swallowed"},
			handledMore("healed"),
		},
		Evidence: ledger.Evidence{Before: seen, Bites: []string{"swallowed"}, HandledBefore: seen, HandledAfter: seen},
	})
}

func rabbitRestart() harness.Scenario {
	// Builds differ in whether they permit queues that are neither durable nor exclusive.
	permit := map[string]string{"deprecated_features.permit.transient_nonexcl_queues": "true"}
	durable := with(classicQueue, "durable", "true")
	persistent := with(awaited, "persistent", "true")
	guarded := guardedArm(ledger.During{}, persistent, durable)
	guarded.Node = permit
	return harness.Scenario{
		Name: "restart", Window: "W3", Cost: 45 * time.Second,
		Summary: "the node of a classic queue is stopped in order and started again",
		Guarded: "a durable queue and persistent messages: a stop in order writes them",
		LookFor: "queues declared durable=false, and publishers with delivery_mode 1: each rolling restart empties them",
		Sources: []string{"RabbitMQ documentation, Queues: durability", "RabbitMQ documentation, deprecated features: transient_nonexcl_queues"},
		Targets: map[string]plan.Role{"home": plan.Leader},
		Arms: []harness.Arm{
			guarded,
			{
				Name: "transient", Role: harness.Control, Client: with(awaited, "persistent", "false"), Destination: durable, Node: permit,
				Break: &harness.Break{Knob: "persistent=false", Place: "store", Anomaly: "lost", Attribution: "broker"},
			},
			{
				Name: "non-durable", Role: harness.Control, Client: persistent, Destination: with(classicQueue, "durable", "false"), Node: permit,
				Break: &harness.Break{Knob: "durable=false", Place: "store", Anomaly: "lost", Attribution: "broker"},
			},
		},
		Steps: []plan.Step{
			{
				Name: "stopped", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{Fault: "node-stopped", Target: "home"},
			},
			{Name: "started", Until: []plan.State{{Kind: plan.Bit, Since: "stopped"}}, Heal: "stopped"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "started"}}},
		},
		Evidence:    ledger.Evidence{Before: struck, After: struck, Bites: []string{"stopped"}},
		Destructive: true,
	}
}

func rabbitMinority() harness.Scenario {
	bites := []string{"cut", "killed", "disk-taken"}
	return harness.Scenario{
		Name: "minority", Window: "W3", Cost: 60 * time.Second,
		Summary: "the node that leads the queue is cut from its peers with its clients on it until another leads and 200 messages were sent there; then it is killed and its disk destroyed",
		Guarded: "a quorum queue: confirms stop on the cut node and the majority goes on, so nothing that was confirmed is on that disk alone",
		LookFor: "classic queues: each message is on one disk; count them with rabbitmqctl list_queues name type, and see what a lost disk would take",
		Sources: []string{
			"RabbitMQ documentation, Quorum Queues: leader election and behaviour on failure",
			"RabbitMQ 4.0 release notes: classic queue mirroring was removed",
		},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			guardedArm(ledger.During{RefusedOrSilent: struck}, awaited, with(nil, "type", "quorum")),
			{
				Name: "classic", Role: harness.Control, Client: awaited, Destination: with(nil, "type", "classic"),
				Break:  &harness.Break{Knob: "type=classic", Place: "store", Anomaly: "lost", Attribution: "broker"},
				During: ledger.During{Confirmed: struck},
				// The queue is gone with its node: there is nothing to recover.
				Evidence: &ledger.Evidence{Before: struck, Bites: bites},
			},
		},
		Steps: []plan.Step{
			{
				Name: "cut", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{Fault: "node-isolated", Target: "leader"},
			},
			{
				Name: "deposed", Until: []plan.State{
					{Kind: plan.LeaderNot, Target: "leader", Arms: []string{"guarded"}},
					{Kind: plan.Sent, N: struck, Since: "cut", Arms: []string{"guarded"}},
					{Kind: plan.ConfirmedBy, N: struck, Since: "cut", Target: "leader", Arms: []string{"classic"}},
					{Kind: plan.Bit, Since: "cut"},
				},
			},
			{Name: "killed", Inject: &plan.Exposure{Fault: "node-killed", Target: "leader"}},
			{Name: "disk-taken", Inject: &plan.Exposure{Fault: "disk-lost", Target: "leader"}},
			{Name: "reconnected", Heal: "cut"},
			{Name: "restarted", Heal: "killed"},
			{Name: "recovered", Until: []plan.State{
				{Kind: plan.FullyInSync},
				{Kind: plan.Confirmed, N: struck, Since: "restarted", Arms: []string{"guarded"}},
			}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: bites},
		Destructive: true,
	}
}

func rabbitNacked() harness.Scenario {
	full := with(quorumQueue, "x-overflow", "reject-publish")
	return harness.Scenario{
		Name: "nacked", Cost: 20 * time.Second,
		Summary: "a policy limits the queue to fewer messages than it holds, and is lifted again",
		Guarded: "x-overflow=reject-publish and the nack surfaced: the publisher waits and publishes again until it is confirmed",
		LookFor: "publishers that count basic.ack only: rabbitmq_channel_messages_unconfirmed falls though nothing arrives",
		Sources: []string{"RabbitMQ documentation, Queue Length Limit: overflow behaviour", "RabbitMQ documentation, Publisher Confirms: negative acknowledgements"},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			guardedArm(ledger.During{Silent: struck}, with(awaited, "nacked", "resend"), full),
			{
				Name: "nack-ignored", Role: harness.Control, Client: with(awaited, "nacked", "fail"), Destination: full,
				Producer: harness.Producer{Claim: harness.AtEnqueue},
				Break: &harness.Break{
					Knob: "nacked=fail, and the nack is ignored", Forces: []string{"\"sent\" is said when the message is published"},
					Place: "store", Anomaly: "lost", Attribution: "never-published",
				},
				During: ledger.During{Refused: struck},
			},
		},
		Steps: []plan.Step{
			{
				Name: "limited", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{Fault: "queue-limited", Target: "leader", Params: map[string]string{"max-length": "100"}},
			},
			{Name: "refused", Until: []plan.State{
				{Kind: plan.Bit, Since: "limited"},
				{Kind: plan.Refused, N: struck, Since: "limited", Arms: []string{"nack-ignored"}},
				{Kind: plan.InFlight, N: struck, Arms: []string{"guarded"}},
			}},
			{Name: "lifted", Heal: "limited"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.Confirmed, N: struck, Since: "lifted"}}},
		},
		Evidence: ledger.Evidence{Before: struck, After: struck, Bites: []string{"limited"}},
	}
}

func rabbitBlocked() harness.Scenario {
	const messages = 2000 // slowly enough for the alarm, which is raised by a command of a second or two, to come in time
	ending := func(end harness.Ending) []harness.Incarnation {
		return []harness.Incarnation{{Messages: messages, End: end}, {Messages: messages, End: harness.EndFlush}}
	}
	return harness.Scenario{
		Name: "blocked", Cost: 35 * time.Second,
		Summary: "a memory alarm stops the node from reading what publishers send, the publisher ends by SIGKILL, and its connection is reset before the alarm is over",
		Guarded: "connection.blocked is surfaced and \"sent\" is said at the confirm only",
		LookFor: "rabbitmqctl list_connections name state: publishers in state blocked while the application reports success",
		Sources: []string{"RabbitMQ documentation, Blocked Connection Notifications", "RabbitMQ documentation, Memory and Disk Alarms"},
		Load:    harness.Load{Rate: 300, Window: messages},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			{
				Name: "guarded", Role: harness.Guarded, Client: awaited, Destination: quorumQueue,
				Producer: harness.Producer{Claim: harness.AtConfirm, Incarnations: ending(harness.EndKill)},
			},
			{
				Name: "said-at-publish", Role: harness.Control, Client: awaited, Destination: quorumQueue,
				Producer: harness.Producer{Claim: harness.AtEnqueue, Incarnations: ending(harness.EndKill)},
				Break: &harness.Break{
					Knob: "\"sent\" is said at the publish", Place: "store", Anomaly: "lost", Attribution: "client-buffer",
				},
			},
		},
		Steps: []plan.Step{
			{
				Name: "alarm", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{Fault: "resource-alarm", Target: "leader", Params: map[string]string{"resource": "memory"}},
			},
			{Name: "unread", Until: []plan.State{
				{Kind: plan.Bit, Since: "alarm"}, {Kind: plan.Sent, N: messages},
			}},
			{
				Name: "reset", Inject: &plan.Exposure{Fault: "link-cut", Target: "leader", Params: map[string]string{"mode": "reset"}},
			},
			{Name: "reconnected", Heal: "reset"},
			{Name: "lifted", Heal: "alarm"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.Confirmed, N: struck, Since: "lifted"}}},
		},
		Evidence: ledger.Evidence{
			Before: struck, InFlight: struck, InFlightAt: "reset", After: struck, Bites: []string{"alarm", "reset"}, Ends: []string{"producer-1"},
		},
	}
}

// durablyQueued is how much is confirmed in each arm before the power goes.
const durablyQueued = 1000

func rabbitPowerCut() harness.Scenario {
	persistent := with(awaited, "persistent", "true")
	return harness.Scenario{
		Name: "power-cut", Window: "W3", Cost: 60 * time.Second,
		Summary: "all three nodes lose power at once: whatever was not fsynced is gone on each of them",
		Guarded: "a quorum queue: a message is confirmed when a majority has fsynced it in its write-ahead log",
		LookFor: "durable classic queues whose publishers take the confirm of a persistent message for a copy on the disk: rabbitmqctl list_queues name type durable; ask whether the nodes share a power supply",
		Sources: []string{
			"RabbitMQ documentation, Quorum Queues: data safety and the write-ahead log",
			"RabbitMQ documentation, Classic Queues: persistence, messages are written to the disk in batches",
			"Linux kernel documentation, vm.dirty_expire_centisecs",
		},
		Targets: map[string]plan.Role{"all": plan.All},
		Arms: on(map[string]string{"disk.mib": "512"},
			guardedArm(ledger.During{Silent: 1}, persistent, with(nil, "type", "quorum")),
			harness.Arm{
				Name: "classic", Role: harness.Control, Client: persistent, Destination: with(nil, "type", "classic"),
				Break:  &harness.Break{Knob: "type=classic", Place: "store", Anomaly: "lost", Attribution: "broker"},
				During: ledger.During{Silent: 1},
			}),
		Steps: []plan.Step{
			{
				Name: "power-cut", Until: []plan.State{{Kind: plan.Confirmed, N: durablyQueued}}, Cap: beforePowerCut,
				Inject: &plan.Exposure{Fault: "power-cut", Target: "all"},
			},
			// What is sent while the nodes are frozen fills the clients' windows before the cut is over.
			{Name: "sent-meanwhile", Until: []plan.State{{Kind: plan.InFlight, N: 1}, {Kind: plan.Bit, Since: "power-cut"}}},
			{Name: "started", Heal: "power-cut"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "started"}}},
		},
		Evidence:    ledger.Evidence{Before: durablyQueued, After: struck, Bites: []string{"power-cut"}},
		Destructive: true,
	}
}

func rabbitCloseRace() harness.Scenario {
	return harness.Scenario{
		Name: "connection-close-race", Window: "W1", Cost: 20 * time.Second,
		Summary: "publishes are held on their way to the node until 200 are under way, then the connection is reset",
		Guarded: "what was not confirmed when the connection was lost is published again, under the same id",
		LookFor: "publishers that call a publish done when the library's call returns: it returns once the bytes are in a buffer",
		Sources: []string{"RabbitMQ documentation, Publisher Confirms: publisher confirms and guaranteed delivery", "RabbitMQ documentation, Reliability Guide: data safety on the publisher side"},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			guardedArm(ledger.During{Silent: struck}, republished, quorumQueue),
			{
				Name: "treated-as-sent", Role: harness.Control, Client: with(republished, "unconfirmed", "in-doubt"), Destination: quorumQueue,
				Producer: harness.Producer{Claim: harness.AtEnqueue},
				Break: &harness.Break{
					Knob: "unconfirmed=in-doubt, and treated as sent", Forces: []string{"\"sent\" is said when the message is published"},
					Place: "store", Anomaly: "lost", Attribution: "client-buffer",
				},
				During: ledger.During{Silent: struck},
			},
		},
		Steps: []plan.Step{
			{
				Name: "held", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{Fault: "link-cut", Target: "leader", Params: map[string]string{"mode": "black-hole", "direction": "in"}},
			},
			{
				Name: "reset", Until: []plan.State{{Kind: plan.InFlight, N: struck}, {Kind: plan.Bit, Since: "held"}},
				Inject: &plan.Exposure{Fault: "link-cut", Target: "leader", Params: map[string]string{"mode": "reset"}},
			},
			{Name: "reconnected", Heal: "reset"},
			{Name: "flowing", Heal: "held"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.Confirmed, N: struck, Since: "flowing"}}},
		},
		Evidence: ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"held", "reset"}},
	}
}
