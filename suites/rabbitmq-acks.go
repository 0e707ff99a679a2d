package suites

import (
	"strconv"
	"time"

	"conform/harness"
	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/worker"
	"conform/suites/chain"
)

func init() {
	register(harness.Suite{
		Name:    "rabbitmq-acks",
		System:  rabbitSystem,
		With:    []system.System{postgresSystem.System},
		Title:   "a message is processed at least once, and its effect happens once",
		Promise: rabbitAcksPromise,
		Scenarios: []harness.Scenario{
			rabbitCrashBeforeAck(), rabbitCrashAfterCommit(), rabbitAckBeforeCommit(), rabbitMultipleFlag(), rabbitStaleTag(),
			rabbitConsumerTimeout(), rabbitPoison(), rabbitNackLoop(), rabbitPrefetch(),
		},
	})
}

var rabbitAcksPromise = ledger.Promise{
	Text:   "each message whose publish was confirmed is processed at least once, and has its effect in the database exactly once or is kept as a dead letter, whatever happens to its consumers",
	Start:  "the confirm that the publisher saw",
	End:    "the effects and the dead letters, read once the queue is empty",
	Places: []string{"delivery", "effect"},
	// What is given back comes behind what was delivered meanwhile: the order is another suite's.
	Rules: map[string]ledger.Rule{"reordered-delivery": {Allowed: true}},
}

// Sources of the RabbitMQ suites with consumers.
const (
	docAcks     = "RabbitMQ documentation, Consumer Acknowledgements and Publisher Confirms"
	docQuorum   = "RabbitMQ documentation, Quorum Queues: poison message handling"
	docPrefetch = "RabbitMQ documentation, Consumer Prefetch"
)

// bounded are the settings of a consumer with a prefetch, as all should have one.
var bounded = map[string]string{"prefetch": "10"}

// fromQueue fills in what all scenarios have whose messages are consumed from a queue.
func fromQueue(s harness.Scenario) harness.Scenario {
	if s.Load.Rate == 0 {
		s.Load.Rate = consumeLoad.Rate
	}
	if s.Load.Keys == 0 {
		s.Load.Keys = consumeLoad.Keys
	}
	s.Load.Tail = consumeLoad.Tail
	s.Setup, s.Drained = makeTables, queueDrained
	if s.Tables == nil {
		s.Tables = []string{tableNotifications, ledger.TableDeadLetter}
		s.Chain = ledger.Chain{Effects: []ledger.EffectTable{{Name: tableNotifications}}}
	}
	s.Snapshot = snapshotTables(s.Tables...)
	if s.Cost == 0 {
		s.Cost = 35 * time.Second
	}
	return s
}

// queuePair are the arms of a pair of suites/chain on a quorum queue.
func queuePair(pair, knob string, processes func(params map[string]string) []harness.Process) []harness.Arm {
	arms := pairOf(pair, knob, processes)
	for i := range arms {
		arms[i].Destination = quorumQueue
	}
	return arms
}

// handledAround asks that both sides of a fault have handled so many deliveries.
func handledAround(e ledger.Evidence) ledger.Evidence {
	e.HandledBefore, e.HandledAfter = consumed, consumed
	return e
}

func rabbitCrashBeforeAck() harness.Scenario {
	held := func(ack string) []harness.Process {
		p := queueReader("consumer-1", map[string]string{paramPoll: "ahead"}, with(bounded, settingAck, ack))
		p.HoldAt, p.HoldNth = chain.BeforeBusinessCommit, struckAt
		return []harness.Process{p}
	}
	return fromQueue(harness.Scenario{
		Name: "crash-before-ack", Window: "W4",
		Summary: "a consumer is killed between a delivery and its business commit, with more deliveries in hand",
		Guarded: "manual acks after the business transaction: what is not acked is delivered again",
		LookFor: "consumers of basic.consume with no_ack=true (rabbitmqctl list_consumers queue_name ack_required); rabbitmq_global_messages_delivered_consume_auto_ack_total above 0; after a crash, event ids that are in no inbox and in no queue",
		Sources: []string{docAcks + ": automatic acknowledgement should be considered unsafe"},
		Arms: []harness.Arm{
			{Name: "guarded", Role: harness.Guarded, Destination: quorumQueue, Processes: held("manual"), Code: &harness.Code{Guarded: "Consume"}},
			{
				Name: "auto-ack", Role: harness.Control, Destination: quorumQueue, Processes: held("auto"),
				Break: &harness.Break{
					Knob: "ack=auto", Place: "effect", Anomaly: "missing-effect", Attribution: "settled-early",
					Also: []string{"missing-effect/broker"}, // let go of by the broker, and not yet read by the one that died
				},
			},
		},
		Steps: []plan.Step{
			{Name: "in-hand", Until: []plan.State{
				{Kind: plan.ProcessAt, Process: "consumer-1", Point: chain.BeforeBusinessCommit}, {Kind: plan.Received, N: struckAt + 5},
			}},
			{Name: "killed", Do: harness.DoKillProcess, Process: "consumer-1"},
			{Name: "restarted", Do: harness.DoStartProcess, Process: "consumer-1"},
			goesOn("restarted"),
		},
		Evidence: handledAround(ledger.Evidence{Bites: []string{"killed"}}),
	})
}

// crashingReader is a consumer that kills itself once at a point and is started again.
func crashingReader(point string) func(map[string]string) []harness.Process {
	return func(params map[string]string) []harness.Process {
		p := queueReader("consumer-1", params, bounded)
		p.CrashAt, p.CrashNth, p.Restart = point, struckAt, true
		return []harness.Process{p}
	}
}

func rabbitCrashAfterCommit() harness.Scenario {
	const pair = "kafka-consume/crash-after-business-commit"
	return fromQueue(harness.Scenario{
		Name: "crash-after-commit", Window: "W5",
		Summary:  "a consumer is killed between the business commit and the ack: the message is delivered again",
		Guarded:  "an inbox in the business transaction: what was done before is found and left alone",
		LookFor:  lookFor(pair) + "; rabbitmq_global_messages_redelivered_total after each restart of consumers",
		Sources:  []string{docAcks + ": consumers must be prepared to handle redeliveries"},
		Arms:     queuePair(pair, paramHandler, crashingReader(chain.AfterBusinessCommit)),
		Steps:    crashed(),
		Evidence: handledAround(ledger.Evidence{Bites: []string{"crash-consumer-1"}, Redelivered: 1}),
	})
}

func rabbitAckBeforeCommit() harness.Scenario {
	return fromQueue(harness.Scenario{
		Name: "ack-before-commit", Window: "W6",
		Summary:  "a consumer is killed right after an ack",
		Guarded:  "processed first, then acked",
		LookFor:  "consumers that ack at the top of their handler; after a crash, event ids that are in no inbox and in no queue",
		Sources:  []string{docAcks + ": when to acknowledge"},
		Arms:     queuePair("kafka-consume/commit-then-process", paramLoop, crashingReader(chain.AfterSettle)),
		Steps:    crashed(),
		Evidence: handledAround(ledger.Evidence{Bites: []string{"crash-consumer-1"}}),
	})
}

func rabbitMultipleFlag() harness.Scenario {
	const pair, size = "rabbitmq-acks/multiple-flag", 5
	arms := queuePair(pair, paramLoop, func(params map[string]string) []harness.Process {
		p := queueReader("consumer-1", with(params, paramGather, strconv.Itoa(size)), with(bounded, "ack.multiple", strconv.FormatBool(params[paramLoop] == "ConsumeInParallelUpTo")))
		p.HoldAt, p.HoldIf = chain.BeforeBusinessCommit, worker.Match{EventID: ledger.EventID(firstStream, struckAt)}
		return []harness.Process{p}
	})
	arms[1].Break.Forces = []string{"ack.multiple=true"}
	return fromQueue(harness.Scenario{
		Name: "multiple-flag", Window: "W6",
		Summary: "of five deliveries that are worked on at once, the first one's work ends last: the consumer is killed when the four others are acked",
		Guarded: "each delivery is acked for itself (or multiple, up to the lowest whose work has ended)",
		LookFor: lookFor(pair),
		Sources: []string{docAcks + ": acknowledging multiple deliveries at once"},
		Arms:    arms,
		Steps: []plan.Step{
			{
				Name: "killed", Do: harness.DoKillProcess, Process: "consumer-1",
				Until: []plan.State{
					{Kind: plan.ProcessAt, Process: "consumer-1", Point: chain.BeforeBusinessCommit}, {Kind: plan.Settled, N: struckAt + size - 1},
				},
			},
			{Name: "restarted", Do: harness.DoStartProcess, Process: "consumer-1"},
			goesOn("restarted"),
		},
		Evidence: handledAround(ledger.Evidence{Bites: []string{"killed"}}),
	})
}

func rabbitStaleTag() harness.Scenario {
	const pair = "rabbitmq-acks/stale-tag"
	return fromQueue(harness.Scenario{
		Name: "stale-tag", Window: "W6",
		Summary: "the connection is reset when two of three deliveries are acked; the third one's work ends after the reconnect, and the consumer is killed",
		Guarded: "a delivery is settled on the channel that it came on, or not at all: then it comes again and the inbox finds it",
		LookFor: lookFor(pair),
		Sources: []string{
			docAcks + ": delivery tags are scoped per channel",
			"amqp091-go documentation, Delivery: an acknowledgement must be sent on the channel that received the delivery",
		},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: queuePair(pair, paramSettler, func(params map[string]string) []harness.Process {
			// Whose three first deliveries bear the tags 1 to 3.
			second := queueReader("consumer-2", with(params, paramPoll, "ahead", paramGather, "3"), map[string]string{"prefetch": "3"})
			second.Manual, second.Restart = true, true
			second.HoldAt, second.HoldNth = chain.BeforeSettle, 3
			second.CrashAt = pointStale
			return []harness.Process{queueReader("consumer-1", nil, bounded), second}
		}),
		Steps: []plan.Step{
			{Name: "left", Until: []plan.State{{Kind: plan.Handled, N: consumed}}, Do: harness.DoStopProcess, Process: "consumer-1"},
			{Name: "taken-over", Do: harness.DoStartProcess, Process: "consumer-2"},
			{
				Name: "reset", Until: []plan.State{{Kind: plan.ProcessAt, Process: "consumer-2", Point: chain.BeforeSettle}},
				Inject: &plan.Exposure{Fault: "link-cut", Target: "leader", Params: map[string]string{"mode": "reset"}},
			},
			{Name: "reconnected", Until: []plan.State{{Kind: plan.Bit, Since: "reset"}}, Heal: "reset"},
			{
				Name: "ended", Do: harness.DoReleaseProcess, Process: "consumer-2",
				Until: []plan.State{{Kind: plan.Received, N: 6, Process: "consumer-2"}},
			},
			{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "consumer-2"}}},
			goesOn("crashed"),
		},
		Evidence: handledAround(ledger.Evidence{Bites: []string{"reset", "hold-consumer-2", "crash-consumer-2"}, Redelivered: 1}),
	})
}

// consumerTimeout is how long a delivery may stay unsettled.
const consumerTimeout = 5 * time.Second

func rabbitConsumerTimeout() harness.Scenario {
	const pair = "kafka-consume/crash-after-business-commit"
	slow := func(params map[string]string) []harness.Process {
		p := queueReader("consumer-1", params, with(bounded, "argument.x-consumer-timeout", strconv.FormatInt(consumerTimeout.Milliseconds(), 10)))
		p.HoldAt, p.HoldNth = chain.AfterBusinessCommit, struckAt
		return []harness.Process{p}
	}
	arms := queuePair(pair, paramHandler, slow)
	arms = append(arms, harness.Arm{
		Name: "cancel-unread", Role: harness.Control, Destination: quorumQueue,
		Processes: slow(map[string]string{paramHandler: "ApplyOnce", paramCancel: "ignore"}),
		Break: &harness.Break{
			Knob: paramCancel + "=ignore", Place: "liveness", Anomaly: audit.Stuck, Also: []string{"missing-effect", "undelivered"},
		},
		Evidence: &ledger.Evidence{Bites: []string{"hold-consumer-1", strikeCancelled}, HandledBefore: consumed},
	})
	for i := range arms {
		if arms[i].Evidence == nil {
			arms[i].Evidence = &ledger.Evidence{Bites: []string{"hold-consumer-1", strikeCancelled}, HandledBefore: consumed, HandledAfter: consumed, Redelivered: 1}
		}
	}
	recovering := []string{arms[0].Name, arms[1].Name}
	return fromQueue(harness.Scenario{
		Name: "consumer-timeout", Window: "W5", Cost: 60 * time.Second,
		Since:   "4.3", // before it channels count the time, once a minute, and close
		Summary: "a handler takes longer than x-consumer-timeout: the node cancels the consumer, and gives its messages to the next who asks",
		Guarded: "the cancel is noticed and answered by a new subscription, and an inbox finds what was done in vain",
		LookFor: "\"Consumer ... has timed out\" and \"delivery acknowledgement timed out\" in the node's log; rabbitmqctl list_consumers shows fewer consumers than there are processes; " + lookFor(pair),
		Sources: []string{
			docAcks + ": delivery acknowledgement timeout",
			"RabbitMQ documentation, Consumers: consumer cancel notification",
			"RabbitMQ 4.3 release notes: consumer timeouts are evaluated by quorum queues, and answered by basic.cancel",
		},
		Arms: arms,
		Steps: []plan.Step{
			{Name: "at-work", Until: []plan.State{{Kind: plan.ProcessAt, Process: "consumer-1", Point: chain.AfterBusinessCommit}}},
			// Here time itself is the fault.
			{
				Name: "too-late", Do: harness.DoReleaseProcess, Process: "consumer-1",
				Until: []plan.State{{Kind: plan.Elapsed, Hold: consumerTimeout + 2*time.Second, Since: "at-work"}},
			},
			{Name: "recovered", Until: []plan.State{{Kind: plan.Handled, N: consumed, Since: "too-late", Arms: recovering}}},
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-consumer-1", strikeCancelled}, HandledBefore: consumed},
	})
}

// deliveryLimit is the delivery limit of quorum queues that nobody has changed.
const deliveryLimit = 20

func rabbitPoison() harness.Scenario {
	arms := func(suffix, how, prefetch string) []harness.Arm {
		poisoned := []harness.Process{queueReader("consumer-1", map[string]string{
			paramLoop: "ConsumeReturning", paramReturn: how,
			paramFailEvent: strconv.Itoa(struckAt), paramFailAs: "permanent", paramFailTimes: "-1",
		}, map[string]string{"prefetch": prefetch})}
		return []harness.Arm{
			{Name: "guarded" + suffix, Role: harness.Guarded, Destination: with(quorumQueue, "dead-letter", "quorum"), Processes: poisoned},
			{
				Name: "no-target" + suffix, Role: harness.Control, Destination: with(quorumQueue, "dead-letter", "none"), Processes: poisoned,
				Break: &harness.Break{Knob: "dead-letter=none", Place: "effect", Anomaly: "missing-effect", Attribution: "dead-letter-dropped"},
			},
		}
	}
	return fromQueue(harness.Scenario{
		Name:    "poison",
		Summary: "a message comes whose work can never succeed: it is rejected with requeue, or takes its connection down, until the queue's delivery limit, which is 20 by default",
		Guarded: "a dead-letter target: what reaches the limit is kept there",
		LookFor: "rabbitmq_global_messages_dead_lettered_delivery_limit_total{dead_letter_strategy=\"disabled\"} above 0: messages that were deleted for having failed too often",
		Sources: []string{docQuorum, "RabbitMQ 4.0 release notes: quorum queues have a default delivery limit of 20"},
		// A consumer that dies takes what it has prefetched with it, and that counts for each of them: so it has one at a time.
		Arms: append(arms("", "reject-requeue", "10"), arms("-dying", "abandon", "1")...),
		Steps: []plan.Step{
			{Name: "failed", Until: []plan.State{{Kind: plan.Handled, N: struckAt}}},
			goesOn("failed"),
		},
		Evidence: handledAround(ledger.Evidence{Bites: []string{strikeFailure}, Redelivered: deliveryLimit}),
	})
}

func rabbitNackLoop() harness.Scenario {
	const pair = "rabbitmq-acks/nack-loop"
	arms := queuePair(pair, paramLoop, func(params map[string]string) []harness.Process {
		return []harness.Process{queueReader("consumer-1", with(params, paramReturn, "nack-requeue", paramWork, "20ms",
			paramFailEvent, strconv.Itoa(struckAt), paramFailAs, "temporary", paramFailTimes, "-1"), map[string]string{"prefetch": "1"})}
	})
	promise := rabbitAcksPromise
	promise.MaxStall = 4 * time.Second
	promise.Text += ", and none holds up those behind it for longer than a few seconds"
	for i := range arms {
		arms[i].Promise = promise
	}
	arms[0].Letters.Others = 1
	arms[1].Break.Place, arms[1].Break.Also = "liveness", also["RetryForever"]
	return fromQueue(harness.Scenario{
		Name:    "nack-loop",
		Since:   "4.3", // before it a nack counts towards the delivery limit, as a reject does
		Summary: "a message whose work always fails is given back by basic.nack with requeue, which quorum queues do not count (from 4.3 on)",
		Guarded: "the consumer counts the attempts itself, and parks the message after the last one",
		LookFor: lookFor(pair),
		Sources: []string{docQuorum, "RabbitMQ 4.3 release notes: basic.nack with requeue does not count towards the delivery limit"},
		Arms:    arms,
		Steps: []plan.Step{
			{Name: "failed", Until: []plan.State{{Kind: plan.Handled, N: struckAt}}},
			// Here time itself is what the promise is about.
			{Name: "waited", Until: []plan.State{
				{Kind: plan.Elapsed, Hold: 6 * time.Second, Since: "failed"}, {Kind: plan.Handled, N: consumed, Since: "failed", Arms: []string{"guarded"}},
			}},
		},
		Evidence: ledger.Evidence{Bites: []string{strikeFailure}, HandledBefore: consumed},
	})
}

func rabbitPrefetch() harness.Scenario {
	const prefetch = 10
	promise := rabbitAcksPromise
	promise.Text += ", and no more than a consumer's prefetch are late because it is"
	promise.Rules = map[string]ledger.Rule{"reordered-delivery": {Allowed: true}, "late": {Bound: prefetch}}
	readers := func(prefetch string) []harness.Process {
		// One at a time: what lies in the client has not reached the application.
		settings := map[string]string{"prefetch": prefetch, "max.poll": "1"}
		first := queueReader("consumer-1", nil, settings)
		first.Manual = true
		first.HoldAt = chain.AfterFetch
		second := queueReader("consumer-2", nil, settings)
		second.Manual = true
		return []harness.Process{first, second}
	}
	return fromQueue(harness.Scenario{
		Name:    "prefetch",
		Summary: "one consumer comes first, takes what it is given, and freezes; another is idle beside it",
		Guarded: "a bounded prefetch: what the frozen one has not taken goes to the other",
		LookFor: "rabbitmqctl list_consumers: prefetch_count 0; rabbitmq_detailed_channel_messages_unacked that is large on one channel while others are idle",
		Sources: []string{docPrefetch, docAcks + ": channel prefetch setting (QoS)"},
		Load:    harness.Load{Rate: 100},
		Delay:   ledger.Delay{Allowance: 3 * time.Second},
		Arms: []harness.Arm{
			{Name: "guarded", Role: harness.Guarded, Destination: quorumQueue, Processes: readers(strconv.Itoa(prefetch)), Promise: promise},
			{
				Name: "unlimited", Role: harness.Control, Destination: quorumQueue, Processes: readers("0"), Promise: promise,
				Break: &harness.Break{Knob: "prefetch=0", Place: "delivery", Anomaly: "late"},
			},
		},
		Steps: []plan.Step{
			{Name: "takes", Until: []plan.State{{Kind: plan.Confirmed, N: 100}}, Do: harness.DoStartProcess, Process: "consumer-1"},
			{Name: "frozen", Until: []plan.State{{Kind: plan.ProcessAt, Process: "consumer-1", Point: chain.AfterFetch}}, Do: harness.DoStartProcess, Process: "consumer-2"},
			// Here time itself is what the promise is about.
			{
				Name: "goes-on", Do: harness.DoReleaseProcess, Process: "consumer-1",
				Until: []plan.State{{Kind: plan.Handled, N: consumed, Process: "consumer-2"}, {Kind: plan.Elapsed, Hold: 5 * time.Second, Since: "frozen"}},
			},
			goesOn("goes-on"),
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-consumer-1"}, HandledAfter: consumed},
	})
}
