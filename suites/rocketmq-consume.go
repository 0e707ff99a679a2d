package suites

import (
	"conform/harness"
	"conform/harness/ledger"
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
		Scenarios: []harness.Scenario{rocketCrashBeforeAck(), rocketSettledFirst()},
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
