package suites

import (
	"context"
	"fmt"
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
		Name:   "rocketmq-delay",
		System: rocketSystem,
		With:   []system.System{postgresSystem.System},
		Title:  "a delayed message comes, once it is due and not before, and has its effect once",
		Promise: ledger.Promise{
			Text:   "each delayed message that was answered by SEND_OK is delivered at least once, never before it is due, and has its effect exactly once",
			Start:  "the SEND_OK that the producer saw",
			End:    "the effects, read in one snapshot once nothing has come for longer than the delay",
			Places: []string{"delivery", "effect"},
			// At least once: what comes again is the inbox's to find.
			Rules: map[string]ledger.Rule{
				"duplicate-delivery": {Allowed: true}, "redelivered-after-settle": {Allowed: true}, "reordered-delivery": {Allowed: true},
				"commit-rewind": {Allowed: true}, "duplicate-store": {Allowed: true}, "reordered-store": {Allowed: true},
			},
		},
		Scenarios: []harness.Scenario{rocketDelayKilled(), rocketInMemory(), rocketOutOfRange(), rocketDelayMasterLost()},
	})
}

// slowly is the rate of arms that run through a restart of the broker: what piles up meanwhile has to be waited for.
const slowly = 25

// due is the delay of all arms: level 2 of messageDelayLevel, and as much for timed messages.
const due = 5 * time.Second

func rocketDelayKilled() harness.Scenario {
	const pair = "kafka-consume/crash-after-business-commit" // the code is the same for any broker
	arms := func(client string) []harness.Arm {
		return onRocketMQ.pairArms(pair, "effect", paramHandler, func(a *harness.Arm, function string) {
			a.Producer = harness.Producer{Role: roleRetrying, Params: map[string]string{paramClient: client}}
			a.Processes = []harness.Process{onRocketMQ.reader("consumer-1", map[string]string{paramHandler: function})}
		})
	}
	level := arms(byLevel)[0]
	level.Name = "guarded-level"
	s := delivered(harness.Scenario{
		Name: "broker-killed", Cost: 65 * time.Second,
		Summary: "the broker is killed by SIGKILL while it holds delayed messages, and restarted",
		Guarded: "the delay is the broker's, on its disk, and the consumer's inbox knows what comes twice",
		LookFor: "timed messages (TIMER_DELIVER_MS) that come twice after a broker's crash: what was put into the timer since its last checkpoint is put into it again",
		Sources: []string{
			"RIP-43 (timed messages at any time)",
			"RocketMQ 5.5.0 source, TimerMessageStore.recover (from the checkpoint, written every timerFlushIntervalMs)",
		},
		Targets: map[string]plan.Role{"broker": plan.All},
		Arms:    onNode(rocketNode(rocketmq.Single), append(arms(byTimer), level)...),
		Steps: []plan.Step{
			{
				Name: "killed", Until: []plan.State{{Kind: plan.Confirmed, N: seen}, {Kind: plan.Handled, N: seen}},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "broker"},
			},
			{Name: "restarted", Until: []plan.State{{Kind: plan.Bit, Since: "killed"}}, Heal: "killed"},
			handledMore("restarted"),
		},
		Evidence:    ledger.Evidence{Before: seen, After: seen, Bites: []string{"killed"}, HandledBefore: seen, HandledAfter: seen},
		Delay:       ledger.Delay{Due: due},
		Redelivery:  2 * due,
		Destructive: true,
	})
	s.Load.Rate = slowly
	s.Drained = quiet(2*due, true, withoutEffect(confirmed, tableNotifications)) // timed messages may come twice
	return s
}

// The settings of a producer whose messages are delayed by the broker, for as long as due.
const (
	byLevel = "delay.level=2"
	byTimer = "delay.ms=5000"
)

// claimedEffects is the drain of producers that say "sent" themselves.
var claimedEffects = quiet(2*due, false, withoutEffect(claimed, tableNotifications))

func rocketInMemory() harness.Scenario {
	const pair = "rocketmq-delay/in-memory"
	s := delivered(harness.Scenario{
		Name: "in-memory", Window: "W1", Cost: 45 * time.Second,
		Summary: "the producer is killed, and started again, while messages that it was asked to send are not due yet",
		Guarded: "the message is sent at once, and the broker holds it until it is due",
		LookFor: lookFor(pair),
		Sources: []string{"RocketMQ documentation, Delay Message"},
		Arms: onNode(rocketNode(rocketmq.Single), onRocketMQ.pairArms(pair, "effect", paramCommand, func(a *harness.Arm, function string) {
			params := map[string]string{paramCommand: function, paramClaims: "true", paramDelay: due.String()}
			if a.Role == harness.Guarded {
				params[paramClient] = byLevel
			}
			a.Producer = onRocketMQ.orders(params, harness.Incarnation{CrashAt: chain.BeforePublish, CrashNth: 2 * seen}, harness.Incarnation{})
			a.Processes = []harness.Process{onRocketMQ.reader("consumer-1", nil)}
		})...),
		Steps: []plan.Step{
			{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "producer"}}},
			handledMore("crashed"),
		},
		Evidence:   ledger.Evidence{Bites: []string{"crash-producer"}, HandledAfter: seen},
		Redelivery: 2 * due,
	})
	s.Drained = claimedEffects
	return s
}

func rocketOutOfRange() harness.Scenario {
	const pair = "kafka-acks/swallowed-error" // the code is the same for any broker
	s := delivered(harness.Scenario{
		Name: "out-of-range", Window: "W1", Cost: 40 * time.Second,
		Summary: "of four messages one is due later than timerMaxDelaySec allows, which is 2 s here and 3 days by default, and refused; one is due since a second, and comes at once",
		Guarded: "a refusal is an answer: the message goes to a retry table, and a job sends it again in steps that are allowed",
		LookFor: lookFor(pair),
		Sources: []string{
			"RIP-43 (timed messages at any time)",
			"RocketMQ 5.5.0 source, MessageStoreConfig.timerMaxDelaySec (3 days) and HookUtils.handleScheduleMessage (WHEEL_TIMER_MSG_ILLEGAL)",
		},
		Arms: onNode(rocketNode(rocketmq.Single, "timerMaxDelaySec", "2"), onRocketMQ.pairArms(pair, "effect", paramCommand, func(a *harness.Arm, function string) {
			a.Producer = onRocketMQ.orders(map[string]string{
				paramCommand: function, paramClaims: "true", paramClient: "delay.ms=1000,-1000,1000,5000", paramTell: tellRefused,
			})
			a.Processes = []harness.Process{
				onRocketMQ.reader("consumer-1", nil), onRocketMQ.relay("resender", map[string]string{paramJob: "ResendDue", paramClient: "delay.ms=1000"}),
			}
			if b := a.Break; b != nil {
				b.Anomaly = audit.MissingEffect
			}
		})...),
		Steps:      []plan.Step{{Name: "handled", Until: []plan.State{{Kind: plan.Handled, N: 2 * seen}}}},
		Evidence:   ledger.Evidence{Bites: []string{tellRefused}, HandledAfter: seen},
		Redelivery: due,
	})
	s.Drained = claimedEffects
	return s
}

func rocketDelayMasterLost() harness.Scenario {
	const pair = "kafka-consume/crash-after-business-commit" // the code is the same for any broker
	const doRecreate = "recreate-topics"
	arm := func(name string, role harness.Role, node map[string]string, client string) harness.Arm {
		a := onRocketMQ.pairArms(pair, "effect", paramHandler, func(a *harness.Arm, function string) {
			a.Producer = harness.Producer{Role: roleRetrying, Params: map[string]string{paramClient: client + " route=reopen"}}
			a.Processes = []harness.Process{onRocketMQ.reader("consumer-1", map[string]string{paramHandler: function})}
		})[0]
		a.Name, a.Role, a.Node = name, role, node
		return a
	}
	replicated := controlled("1", "false")
	control := arm("no-replica", harness.Control, rocketNode(rocketmq.Single), byLevel)
	control.Break = &harness.Break{
		Knob: "layout=single", Place: "effect", Anomaly: audit.MissingEffect, Attribution: audit.Broker,
		Forces: []string{"inSyncReplicas unset", "minInSyncReplicas unset", "allAckInSyncStateSet unset", "namesrv.enableElectUncleanMaster unset"},
	}
	s := delivered(harness.Scenario{
		Name: "master-lost", Window: "W3", Cost: 95 * time.Second,
		Summary: "the master is killed and its disk destroyed while it holds delayed messages, and comes back empty",
		Guarded: "a replica that is in sync, under a controller: it is promoted, and delivers what is due",
		LookFor: "delayed messages of before the loss of a broker, whose effects are missing; a classic pair delivers none as long as its master is away, unless enableSlaveActingMaster=true",
		Sources: []string{"RIP-44 (controller mode)", "RIP-32 (slave acting master: why a replica alone runs no delay service)"},
		Targets: map[string]plan.Role{"master": plan.Leader},
		Arms: []harness.Arm{
			arm("guarded", harness.Guarded, replicated, byLevel), arm("guarded-timed", harness.Guarded, replicated, byTimer), control,
		},
		Actions: map[string]harness.Action{
			doRecreate: func(ctx context.Context, e harness.Env, _ plan.Step) (string, error) {
				for _, name := range e.Destinations {
					if err := e.Cluster.Create(ctx, system.DestinationSpec{Name: name, Partitions: 1}); err != nil {
						return "", err
					}
				}
				return fmt.Sprintf("%d topics are there again", len(e.Destinations)), nil
			},
		},
		Steps: []plan.Step{
			{
				Name: "killed", Until: []plan.State{{Kind: plan.Confirmed, N: seen}},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "master"},
			},
			{Name: "disk-taken", Inject: &plan.Exposure{Fault: "disk-lost", Target: "master"}},
			{Name: "led", Until: []plan.State{{Kind: plan.LeaderNot, Target: "master", Arms: []string{"guarded", "guarded-timed"}}}},
			{Name: "restarted", Heal: "killed"},
			{Name: "operated", Do: doRecreate},
			handledMore("operated"),
		},
		Evidence:    ledger.Evidence{Before: seen, After: seen, Bites: []string{"killed", "disk-taken"}, HandledAfter: seen},
		Delay:       ledger.Delay{Due: due},
		Redelivery:  2 * due,
		Destructive: true,
	})
	s.Load.Rate = slowly
	s.Drained = quiet(2*due, true, withoutEffect(confirmed, tableNotifications)) // timed messages may come twice
	return s
}
