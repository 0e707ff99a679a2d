package suites

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
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
			rocketCrashBeforeAck(), rocketSettledFirst(), rocketRetryExhausted(), rocketOrder(), rocketShutdown(), rocketFirstStart(),
			rocketSubscriptionMismatch(),
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
	const rate, work = 10, 200 * time.Millisecond // twice as many messages come as are done: at any time some are in hand, for seconds
	s := effects(harness.Scenario{
		Name: "shutdown", Window: "W6",
		Summary: "a consumer is stopped, as by a deployment, with messages in hand, and started again",
		Guarded: "what is in hand is done, and settled, before the process ends",
		LookFor: lookFor(pair),
		Sources: rocketConsumeSources,
		Load:    harness.Load{Partitions: 1},
		Arms: onNode(rocketNode(rocketmq.Single), pairOf(pair, paramLoop, func(params map[string]string) []harness.Process {
			params[paramCommit], params[paramWork], params[paramTell] = "batch", work.String(), tellStopped
			return []harness.Process{onRocketMQ.reader("consumer-1", params)}
		})...),
		Steps: []plan.Step{
			{Name: "stopped", Until: []plan.State{{Kind: plan.Handled, N: consumed}}, Do: harness.DoStopProcess, Process: "consumer-1"},
			{Name: "started", Do: harness.DoStartProcess, Process: "consumer-1"},
			goesOn("started"),
		},
		Evidence: ledger.Evidence{Bites: []string{tellStopped}},
	})
	s.Load.Rate = rate
	return s
}

func rocketFirstStart() harness.Scenario {
	arm := func(name string, role harness.Role, from string) harness.Arm {
		p := onRocketMQ.reader("consumer-1", map[string]string{paramTell: tellFirst, paramCommit: "batch"})
		p.Client, p.Manual = with(p.Client, "consume.from", from), true
		return harness.Arm{Name: name, Role: role, Node: rocketNode(rocketmq.Single), Processes: []harness.Process{p}, Code: &harness.Code{Guarded: "Consume"}}
	}
	control := arm("last", harness.Control, "last")
	control.Break = &harness.Break{Knob: "consume.from=last", Place: "effect", Anomaly: audit.MissingEffect, Attribution: audit.Skipped}
	s := effects(harness.Scenario{
		Name: "first-start", Window: "W4",
		Summary: "a group starts for the first time when messages are there already, in a queue whose first ones are gone by retention",
		Guarded: "ConsumeFromFirstOffset: a group without a position begins where the queue does",
		LookFor: "new groups whose first effects are younger than the topic's first messages; consumers that do not set ConsumeFromWhere (the default is the last offset), a difference that only shows on queues that are old",
		Sources: []string{
			"RocketMQ documentation, Consumer: ConsumeFromWhere (CONSUME_FROM_LAST_OFFSET by default)",
			"RocketMQ 5.5.0 source, ConsumerManageProcessor.queryConsumerOffset: a queue that still has its offset 0, in memory, is served from there to any new group",
		},
		Load: harness.Load{Partitions: 1, PayloadSize: 64 << 10}, // a file of the commit log is full within seconds
		Arms: []harness.Arm{arm("guarded", harness.Guarded, "first"), control},
		Actions: map[string]harness.Action{
			doExpire: func(ctx context.Context, e harness.Env, _ plan.Step) (string, error) {
				c, ok := e.Cluster.(*rocketmq.Cluster)
				if !ok {
					return "", system.ErrNotApplicable
				}
				return c.Expire(ctx, slices.Collect(maps.Values(e.Destinations)))
			},
		},
		Steps: []plan.Step{
			{Name: "expired", Until: []plan.State{{Kind: plan.Confirmed, N: oneFile}}, Do: doExpire},
			{Name: "started", Until: []plan.State{{Kind: plan.Confirmed, N: consumed, Since: "expired"}}, Do: harness.DoStartProcess, Process: "consumer-1"},
			goesOn("started"),
		},
		Evidence: ledger.Evidence{Bites: []string{tellFirst}},
	})
	s.Evidence.HandledBefore = 0 // nobody was there
	s.Load.Rate = 60
	for i := range s.Arms {
		s.Arms[i].Promise = afterRetention
	}
	return s
}

const (
	// doExpire deletes what is old, as retention does.
	doExpire = "expire"
	// oneFile is how many messages of an arm fill a file of the commit log, with those of the other: 16 MiB.
	oneFile = 200
)

// afterRetention is the promise of a group that starts late: of what is still there.
var afterRetention = ledger.Promise{
	Text:   "each message that is still in the queue when a group starts for the first time is processed and has its effect in the database exactly once",
	Start:  "the SEND_OK that the producer saw",
	End:    "the effects, read in one snapshot once the group has no lag",
	Places: []string{"delivery", "effect"},
	Rules: map[string]ledger.Rule{
		"duplicate-delivery": {Allowed: true}, "redelivered-after-settle": {Allowed: true}, "reordered-delivery": {Allowed: true},
		"commit-rewind": {Allowed: true}, "missing-effect/expired": {Allowed: true},
	},
}

func rocketSubscriptionMismatch() harness.Scenario {
	const tags = "tags"
	arm := func(name string, role harness.Role, first, second string) harness.Arm {
		member := func(name, wanted string) harness.Process {
			p := onRocketMQ.reader(name, map[string]string{paramCommit: "batch"})
			p.Client = with(p.Client, "queues", "shared", "route", "refresh", tags, wanted)
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
	control.Break = &harness.Break{
		Knob: "tags=a, tags=b", Place: "effect", Anomaly: audit.MissingEffect, Attribution: audit.Skipped,
		Also: []string{audit.Undelivered, audit.MissingEffect + "/" + audit.Pending}, // positions pass what is not wanted with the next that is
	}
	s := effects(harness.Scenario{
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
	s.Drained = allListened
	return s
}

// onceASecond makes each level of messageDelayLevel, by which messages come again, a second. RocketMQ's are 10 s, 30 s, 1 min and so on.
var onceASecond = rocketNode(rocketmq.Single, "messageDelayLevel", strings.TrimSpace(strings.Repeat("1s ", 18)))

func rocketRetryExhausted() harness.Scenario {
	const most = "2" // tries again
	failing := func() []harness.Process {
		return []harness.Process{listener("consumer-1", map[string]string{"max.reconsume": most}, map[string]string{
			paramFailEvent: strconv.Itoa(struckAt), paramFailAs: "permanent", paramFailTimes: "-1",
		})}
	}
	arm := func(name string, role harness.Role, unread bool) harness.Arm {
		return harness.Arm{
			Name: name, Role: role, Node: onceASecond, Destination: listened, Code: &harness.Code{Guarded: "ApplyOnce"},
			Processes: append(failing(), harness.Process{
				Name: "watcher", Role: onRocketMQ.role(roleConsume), Client: with(onRocketMQ.consumer, deadLettersOf, group),
				Params: map[string]string{paramCommit: "never", paramDestination: "1"}, Manual: unread,
			}),
		}
	}
	control := arm("nobody-reads", harness.Control, true)
	control.Break = &harness.Break{
		Knob: "manual=true of the consumer of %DLQ%GROUP, and nobody starts it", Place: "effect", Anomaly: audit.MissingEffect, Attribution: audit.DeadLetterDropped,
	}
	s := effects(harness.Scenario{
		Name: "retry-exhausted", Window: "W5",
		Summary: "the work on a message fails until the consumer has tried as often as it is told to: it becomes a dead letter",
		Guarded: "the dead letters are read, and handled under their own event id once the cause is gone",
		LookFor: "messages in %DLQ%GROUP: alarm on the first (mqadmin topicStatus -t %DLQ%GROUP); nobody subscribes to it by itself",
		Sources: []string{"RocketMQ documentation, Consumption Retry: maximum reconsume times, dead-letter queue", "rocketmq-client-go, pushConsumer.sendMessageBack"},
		Load:    harness.Load{Partitions: 1},
		Arms:    []harness.Arm{arm("guarded", harness.Guarded, false), control},
		Destinations: []harness.Destination{{
			Name: "dead-letters", DeadLetter: true, Settings: map[string]string{deadLettersOf: group},
		}},
		Steps: []plan.Step{
			{Name: "failed", Until: []plan.State{{Kind: plan.Handled, N: struckAt}}},
			goesOn("failed"),
		},
		Evidence: ledger.Evidence{Bites: []string{strikeFailure}, Redelivered: 1},
	})
	s.Chain.Unread = true
	s.Drained = allListened
	return s
}

// deadLettersOf is the adapter's setting of a destination, or a consumer, that is about a group's dead letters.
const deadLettersOf = "dead.letters"

func rocketOrder() harness.Scenario {
	arm := func(name string, role harness.Role, order string) harness.Arm {
		member := func(name string) harness.Process {
			return listener(name, map[string]string{"order": order}, map[string]string{
				paramHandler: "SetStateOnce", paramFailEvent: strconv.Itoa(turned), paramFailAs: "temporary",
			})
		}
		dying := member("consumer-1")
		dying.CrashAt, dying.CrashNth, dying.Restart = chain.BeforeBusinessCommit, struckAt, true
		other := member("consumer-2")
		dying.Manual, other.Manual = true, true
		return harness.Arm{
			Name: name, Role: role, Node: onceASecond, Destination: listened, Code: &harness.Code{Guarded: "SetStateOnce"},
			Producer:  harness.Producer{Role: roleRetrying, Params: map[string]string{paramClient: "max.in.flight=1"}, Incarnations: []harness.Incarnation{{Messages: ordered}}},
			Processes: []harness.Process{dying, other},
		}
	}
	control := arm("concurrent", harness.Control, "concurrent")
	control.Break = &harness.Break{Knob: "order=concurrent", Place: "effect", Anomaly: audit.StaleEffect}
	s := effects(harness.Scenario{
		Name: "order", Window: "W5",
		Summary: "a consumer is killed in the midst of a queue whose messages are all of one key; of what the other takes over, one message fails once",
		Guarded: "an orderly consumer: the queue is locked for one consumer, and held up by a message that fails",
		LookFor: "states older than the newest message of their key; concurrent listeners (MessageListenerConcurrently) where the order matters",
		Sources: []string{"RocketMQ documentation, Ordered Message: consumption order", "RocketMQ 5.5.0 source, RebalanceLockManager (rocketmq.broker.rebalance.lockMaxLiveTime)"},
		Load:    harness.Load{Partitions: 1},
		Arms:    []harness.Arm{arm("guarded", harness.Guarded, "orderly"), control},
		Steps: []plan.Step{
			published("consumer-1"),
			{Name: "joins", Until: []plan.State{{Kind: plan.Handled, N: 1}}, Do: harness.DoStartProcess, Process: "consumer-2"},
			{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "consumer-1"}}},
			{Name: "over", Until: []plan.State{{Kind: plan.Handled, N: ordered}}},
		},
		Evidence: ledger.Evidence{Bites: []string{"crash-consumer-1", strikeFailure}},
	})
	s.Load.Rate, s.Load.Keys = 200, 1
	s.Tables = []string{tableBalances, ledger.TableDeadLetter}
	s.Snapshot = snapshotTables(s.Tables...)
	s.Chain = ledger.Chain{Effects: []ledger.EffectTable{{Name: tableBalances, State: true}}}
	s.Drained = allListened
	s.Evidence.HandledBefore, s.Evidence.HandledAfter = 1, 1
	return s
}
