package suites

import (
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
)

func init() {
	register(harness.Suite{
		Name:   "rabbitmq-routing",
		System: rabbitSystem,
		Title:  "confirmed does not mean routed: a message whose confirm I saw is in a queue, or I was told that it is not",
		Promise: ledger.Promise{
			Text:   "a message that was confirmed, and not returned, is in its queue or in the one set up for what the queue cannot keep",
			Start:  "the confirm (or the claim) that the publisher's caller saw",
			End:    "the queue, its dead-letter target and its alternate, drained at the end",
			Places: []string{"store"},
			Rules:  rabbitRules,
		},
		Scenarios: []harness.Scenario{rabbitUnroutable(), rabbitOverflow(), rabbitTTL(), rabbitQueueGone()},
	})
}

func rabbitUnroutable() harness.Scenario {
	mandatory := with(awaited, "mandatory", "true")
	return harness.Scenario{
		Name: "unroutable", Window: "W2", Cost: 20 * time.Second,
		Summary: "the binding between exchange and queue is deleted while messages flow, and made again",
		Guarded: "mandatory publishes whose return is taken for a refusal; or an alternate exchange with a queue behind it",
		LookFor: "rabbitmq_global_messages_unroutable_dropped_total above 0: messages that were confirmed and that nobody has",
		Sources: []string{
			"RabbitMQ documentation, Publishers: unroutable message handling",
			"RabbitMQ documentation, Publisher Confirms: when will published messages be confirmed by the broker (unroutable ones, once the exchange has found that out)",
			"RabbitMQ documentation, Alternate Exchanges",
		},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			guardedArm(ledger.During{Refused: struck}, mandatory, quorumQueue),
			{
				Name: "alternate", Role: harness.Guarded, Client: with(awaited, "mandatory", "false"), Destination: with(quorumQueue, "alternate", "true"),
				During: ledger.During{Confirmed: struck},
			},
			{
				Name: "not-mandatory", Role: harness.Control, Client: with(awaited, "mandatory", "false"), Destination: quorumQueue,
				Break:  &harness.Break{Knob: "mandatory=false", Place: "store", Anomaly: "lost", Attribution: "unroutable"},
				During: ledger.During{Confirmed: struck},
			},
		},
		Steps: []plan.Step{
			{
				Name: "unbound", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{Fault: "binding-deleted", Target: "leader"},
			},
			{Name: "nowhere", Until: []plan.State{
				{Kind: plan.Bit, Since: "unbound"},
				{Kind: plan.Refused, N: struck, Since: "unbound", Arms: []string{"guarded"}},
				{Kind: plan.Confirmed, N: struck, Since: "unbound", Arms: []string{"alternate", "not-mandatory"}},
			}},
			{Name: "bound", Heal: "unbound"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.Confirmed, N: struck, Since: "bound"}}},
		},
		Evidence: ledger.Evidence{Before: struck, After: struck, Bites: []string{"unbound"}},
	}
}

func rabbitOverflow() harness.Scenario {
	retried := with(awaited, "nacked", "resend")
	return harness.Scenario{
		Name: "overflow", Cost: 20 * time.Second,
		Summary: "a policy limits the queue to fewer messages than it holds and is sent, and is lifted again",
		Guarded: "x-overflow=reject-publish: what does not fit is nacked, and published again until it does",
		LookFor: "rabbitmq_global_messages_dead_lettered_maxlen_total with dead_letter_strategy=disabled above 0: a full queue drops its oldest messages by default",
		Sources: []string{"RabbitMQ documentation, Queue Length Limit: default max-length behaviour is drop-head"},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			guardedArm(ledger.During{Silent: struck}, retried, with(quorumQueue, "x-overflow", "reject-publish")),
			{
				Name: "drop-head", Role: harness.Control, Client: retried, Destination: with(quorumQueue, "x-overflow", "drop-head"),
				Break:  &harness.Break{Knob: "x-overflow=drop-head", Place: "store", Anomaly: "lost", Attribution: "overflowed"},
				During: ledger.During{Confirmed: struck},
			},
		},
		Steps: []plan.Step{
			{
				Name: "limited", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{Fault: "queue-limited", Target: "leader", Params: map[string]string{"max-length": "100"}},
			},
			{Name: "full", Until: []plan.State{
				{Kind: plan.Bit, Since: "limited"},
				{Kind: plan.InFlight, N: struck, Arms: []string{"guarded"}},
				{Kind: plan.Confirmed, N: struck, Since: "limited", Arms: []string{"drop-head"}},
			}},
			{Name: "lifted", Heal: "limited"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.Confirmed, N: struck, Since: "lifted"}}},
		},
		Evidence: ledger.Evidence{Before: struck, After: struck, Bites: []string{"limited"}},
	}
}

func rabbitTTL() harness.Scenario {
	// Each message has its time to live from the start: a quorum queue drops what is at its head, and one without would stay there.
	ttl := with(quorumQueue, "x-message-ttl", "1500")
	reader := harness.Process{Name: "consumer-1", Role: rabbitSystem.Consumer, Client: map[string]string{"prefetch": "20"}}
	// No client settings: they would be the consumer's too. Publishers await confirms by default.
	guarded := guardedArm(ledger.During{Confirmed: struck}, nil, with(ttl, "dead-letter", "quorum"))
	guarded.Processes = []harness.Process{reader}
	return harness.Scenario{
		Name: "ttl", Cost: 30 * time.Second,
		Summary: "the only consumer of a queue with a time to live is killed, and comes back after longer than that",
		Guarded: "a dead-letter target: what expires is kept there",
		LookFor: "rabbitmq_global_messages_dead_lettered_expired_total with dead_letter_strategy=disabled above 0: message-ttl without a dead-letter exchange deletes",
		Sources: []string{"RabbitMQ documentation, Time-To-Live and Expiration", "RabbitMQ documentation, Dead Letter Exchanges"},
		Load:    harness.Load{Rate: 300},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			guarded,
			{
				Name: "ttl-alone", Role: harness.Control, Destination: with(ttl, "dead-letter", "none"),
				Processes: []harness.Process{reader},
				Break:     &harness.Break{Knob: "dead-letter=none", Place: "store", Anomaly: "lost", Attribution: "expired"},
				During:    ledger.During{Confirmed: struck},
			},
		},
		Steps: []plan.Step{
			{
				Name: "away", Do: harness.DoKillProcess, Process: "consumer-1",
				Until: []plan.State{{Kind: plan.Confirmed, N: struck}, {Kind: plan.Received, N: struck}},
			},
			// Here time itself is the fault: longer than a message may wait.
			{Name: "waited", Until: []plan.State{
				{Kind: plan.Elapsed, Hold: 4 * time.Second, Since: "away"}, {Kind: plan.Confirmed, N: struck, Since: "away"},
			}},
			{Name: "back", Do: harness.DoStartProcess, Process: "consumer-1"},
			{Name: "recovered", Until: []plan.State{
				{Kind: plan.Confirmed, N: struck, Since: "back"}, {Kind: plan.Received, N: struck, Since: "back"},
			}},
		},
		Evidence: ledger.Evidence{Before: struck, After: struck, Bites: []string{"away"}},
	}
}

func rabbitQueueGone() harness.Scenario {
	attended := with(classicQueue, "attended", "true")
	control := func(name, setting, value string) harness.Arm {
		return harness.Arm{
			Name: name, Role: harness.Control, Client: awaited, Destination: with(attended, setting, value),
			Break: &harness.Break{
				Knob: setting + "=" + value, Place: "store", Anomaly: "lost", Attribution: "unroutable",
				Also: []string{"lost/broker"}, // what was in the queue goes with it
			},
			During: ledger.During{Confirmed: struck},
		}
	}
	return harness.Scenario{
		Name: "queue-gone", Cost: 25 * time.Second,
		Summary: "the queue's only consumer goes away, and publishers go on",
		Guarded: "a durable queue of a name of its own: it waits for its consumer",
		LookFor: "queues with auto-delete, exclusive or x-expires that hold what nobody may lose (rabbitmqctl list_queues name auto_delete exclusive arguments)",
		Sources: []string{"RabbitMQ documentation, Queues: temporary queues", "RabbitMQ documentation, Time-To-Live and Expiration: queue TTL"},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			guardedArm(ledger.During{Confirmed: struck}, awaited, attended),
			control("auto-delete", "auto-delete", "true"),
			control("exclusive", "exclusive", "true"),
			control("expires", "x-expires", "1000"),
		},
		Steps: []plan.Step{
			{
				Name: "left", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{Fault: "consumer-gone", Target: "leader"},
			},
			{Name: "gone", Until: []plan.State{{Kind: plan.Bit, Since: "left"}}},
			{Name: "published", Until: []plan.State{{Kind: plan.Confirmed, N: struck, Since: "gone"}}},
			{Name: "over", Heal: "left"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.Confirmed, N: struck, Since: "over"}}},
		},
		Evidence: ledger.Evidence{Before: struck, After: struck, Bites: []string{"left"}},
	}
}
