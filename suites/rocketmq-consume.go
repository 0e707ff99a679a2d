package suites

import (
	"time"

	"conform/harness"
	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/system/rocketmq"
	"conform/suites/chain"
)

func init() {
	register(harness.Suite{
		Name:   "rocketmq-consume",
		System: rocketSystem,
		With:   []system.System{postgresSystem.System},
		Title:  "an order is processed at least once, and its effect happens once",
		Promise: ledger.Promise{
			Text:   "each message whose send was answered by SEND_OK is processed at least once and has its effect in the database exactly once, whatever happens to its consumer",
			Start:  "the SEND_OK that the producer saw",
			End:    "the effects, read in one snapshot once the group has no lag",
			Places: []string{"delivery", "effect"},
			// At least once: what a crash delivers again is the inbox's to find. The broker writes positions every 5 s.
			Rules: map[string]ledger.Rule{
				"duplicate-delivery": {Allowed: true}, "redelivered-after-settle": {Allowed: true}, "reordered-delivery": {Allowed: true},
				"commit-rewind": {Allowed: true},
			},
		},
		Scenarios: []harness.Scenario{
			rocketCrashBeforeAck(), rocketSettledFirst(), rocketShutdown(), rocketFirstStart(), rocketSubscriptionMismatch(),
		},
	})
}

// rocketCrashing is a consumer that kills itself once at a point and is started again.
func rocketCrashing(params map[string]string, point string) []harness.Process {
	p := onRocketMQ.reader("consumer-1", params)
	p.CrashAt, p.CrashNth, p.Restart = point, struckAt, true
	return []harness.Process{p}
}

var rocketConsumeSources = []string{
	"RocketMQ documentation, Consumer: consumption progress management, consumption retry",
	"rocketmq-client-go, remoteBrokerOffsetStore: positions are sent one-way, by request or every 5 s",
}

func rocketCrashBeforeAck() harness.Scenario {
	const pair = "kafka-consume/crash-after-business-commit" // the code is the same for any broker
	return effects(harness.Scenario{
		Name: "crash-before-ack", Window: "W5",
		Summary: "a consumer is killed between the business commit and the commit of its position: the delivery comes again",
		Guarded: "an inbox in the business transaction: what was done before is found and left alone",
		LookFor: lookFor(pair),
		Sources: rocketConsumeSources,
		Load:    harness.Load{Partitions: 1},
		Arms: onNode(rocketNode(rocketmq.Single), pairOf(pair, paramHandler, func(params map[string]string) []harness.Process {
			params[paramCommit] = "batch"
			return rocketCrashing(params, chain.AfterBusinessCommit)
		})...),
		Steps:    crashed(),
		Evidence: ledger.Evidence{Bites: []string{"crash-consumer-1"}, Redelivered: 1},
	})
}

func rocketSettledFirst() harness.Scenario {
	const pair = "kafka-consume/commit-then-process"
	return effects(harness.Scenario{
		Name: "settled-first", Window: "W6",
		Summary: "a consumer is killed right after the broker has its new position",
		Guarded: "processed first, then committed",
		LookFor: lookFor(pair),
		Sources: rocketConsumeSources,
		Load:    harness.Load{Partitions: 1},
		Arms: onNode(rocketNode(rocketmq.Single), pairOf(pair, paramLoop, func(params map[string]string) []harness.Process {
			params[paramCommit] = "each"
			return rocketCrashing(params, chain.AfterSettle)
		})...),
		Steps:    crashed(),
		Evidence: ledger.Evidence{Bites: []string{"crash-consumer-1"}},
	})
}

func rocketShutdown() harness.Scenario {
	const pair = "rocketmq-consume/shutdown"
	return effects(harness.Scenario{
		Name: "shutdown", Window: "W6",
		Summary: "a consumer is stopped, as by a deployment, with messages in hand, and started again",
		Guarded: "what is in hand is done, and settled, before the process ends",
		LookFor: lookFor(pair),
		Sources: rocketConsumeSources,
		Load:    harness.Load{Partitions: 1},
		Arms: onNode(rocketNode(rocketmq.Single), pairOf(pair, paramLoop, func(params map[string]string) []harness.Process {
			// The work takes as long as the messages come, so that some are in hand at any time.
			params[paramCommit], params[paramWork], params[paramTell] = "batch", (time.Second / time.Duration(consumeLoad.Rate)).String(), tellStopped
			return []harness.Process{onRocketMQ.reader("consumer-1", params)}
		})...),
		Steps: []plan.Step{
			{Name: "stopped", Until: []plan.State{{Kind: plan.Handled, N: consumed}}, Do: harness.DoStopProcess, Process: "consumer-1"},
			{Name: "started", Do: harness.DoStartProcess, Process: "consumer-1"},
			goesOn("started"),
		},
		Evidence: ledger.Evidence{Bites: []string{tellStopped}},
	})
}

func rocketFirstStart() harness.Scenario {
	// A broker serves a new group from offset 0 of a queue that it takes to be in memory, whatever the group asks for.
	old := rocketNode(rocketmq.Single, "accessMessageInMemoryMaxRatio", "0")
	arm := func(name string, role harness.Role, from string) harness.Arm {
		p := onRocketMQ.reader("consumer-1", map[string]string{paramTell: tellFirst, paramCommit: "batch"})
		p.Client, p.Manual = with(p.Client, "consume.from", from), true
		return harness.Arm{Name: name, Role: role, Node: old, Processes: []harness.Process{p}, Code: &harness.Code{Guarded: "Consume"}}
	}
	control := arm("last", harness.Control, "last")
	control.Break = &harness.Break{Knob: "consume.from=last", Place: "effect", Anomaly: audit.MissingEffect, Attribution: audit.Skipped}
	s := effects(harness.Scenario{
		Name: "first-start", Window: "W4",
		Summary: "a group starts for the first time when messages are there already, in a queue that is larger than what the broker keeps in memory",
		Guarded: "ConsumeFromFirstOffset: a group without a position begins where the queue does",
		LookFor: "new groups whose first effects are younger than the topic's first messages; consumers that do not set ConsumeFromWhere (the default is the last offset), a difference that only shows on queues that are old",
		Sources: []string{
			"RocketMQ documentation, Consumer: ConsumeFromWhere (CONSUME_FROM_LAST_OFFSET by default)",
			"RocketMQ 5.5.0 source, ConsumerManageProcessor.queryConsumerOffset (accessMessageInMemoryMaxRatio)",
		},
		Load: harness.Load{Partitions: 1},
		Arms: []harness.Arm{arm("guarded", harness.Guarded, "first"), control},
		Steps: []plan.Step{
			{Name: "started", Until: []plan.State{{Kind: plan.Confirmed, N: unread}}, Do: harness.DoStartProcess, Process: "consumer-1"},
			goesOn("started"),
		},
		Evidence: ledger.Evidence{Bites: []string{tellFirst}},
	})
	s.Evidence.HandledBefore = 0 // nobody was there
	return s
}

func rocketSubscriptionMismatch() harness.Scenario {
	const tags = "tags"
	arm := func(name string, role harness.Role, first, second string) harness.Arm {
		member := func(name, wanted string) harness.Process {
			p := onRocketMQ.reader(name, map[string]string{paramCommit: "batch"})
			p.Client = with(p.Client, "queues", "shared", tags, wanted)
			return p
		}
		joining := member("consumer-2", second)
		joining.Manual, joining.Params[paramTell] = true, tellJoined
		return harness.Arm{
			Name: name, Role: role, Node: rocketNode(rocketmq.Single), Code: &harness.Code{Guarded: "Consume"},
			Producer:  harness.Producer{Role: roleRetrying, Params: map[string]string{paramClient: "tags=a,b"}},
			Processes: []harness.Process{member("consumer-1", first), joining},
		}
	}
	control := arm("different", harness.Control, "a", "b")
	control.Break = &harness.Break{Knob: "tags=a, tags=b", Place: "effect", Anomaly: audit.MissingEffect, Attribution: audit.Skipped}
	return effects(harness.Scenario{
		Name: "subscription-mismatch", Window: "W4",
		Summary: "a second member joins a group whose members share the queues of a topic with messages of two tags",
		Guarded: "all members of a group subscribe to the same",
		LookFor: "members of one group with different subscriptions: mqadmin consumerStatus -g GROUP (\"subscription not the same\"); messages of a tag whose positions are passed and that have no effect",
		Sources: []string{"RocketMQ documentation, Subscription: subscription consistency"},
		Load:    harness.Load{Partitions: 4},
		Arms:    []harness.Arm{arm("guarded", harness.Guarded, "a || b", "a || b"), control},
		Steps: []plan.Step{
			{Name: "joins", Until: []plan.State{{Kind: plan.Handled, N: consumed}}, Do: harness.DoStartProcess, Process: "consumer-2"},
			goesOn("joins"),
			{Name: "both", Until: []plan.State{{Kind: plan.Handled, N: consumed, Since: "joins", Process: "consumer-2"}}},
		},
		Evidence: ledger.Evidence{Bites: []string{tellJoined}},
	})
}
