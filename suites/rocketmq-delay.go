package suites

import (
	"context"
	"fmt"
	"sync"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/system/rocketmq"
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
		Scenarios: []harness.Scenario{rocketDelayKilled()},
	})
}

// due is the delay of all arms: level 2 of messageDelayLevel, and as much for timed messages.
const due = 5 * time.Second

func rocketDelayKilled() harness.Scenario {
	const pair = "kafka-consume/crash-after-business-commit" // the code is the same for any broker
	const timed, leveled = "delay.ms=5000", "delay.level=2"
	arms := func(client string) []harness.Arm {
		return onRocketMQ.pairArms(pair, "effect", paramHandler, func(a *harness.Arm, function string) {
			a.Producer = harness.Producer{Role: roleRetrying, Params: map[string]string{paramClient: client}}
			a.Processes = []harness.Process{onRocketMQ.reader("consumer-1", map[string]string{paramHandler: function})}
		})
	}
	level := arms(leveled)[0]
	level.Name = "guarded-level"
	s := delivered(harness.Scenario{
		Name: "broker-killed", Cost: 105 * time.Second,
		Summary: "the broker is killed by SIGKILL while it holds delayed messages, and restarted",
		Guarded: "the delay is the broker's, on its disk, and the consumer's inbox knows what comes twice",
		LookFor: "timed messages (TIMER_DELIVER_MS) that come twice after a broker's crash: what was put into the timer since its last checkpoint is put into it again",
		Sources: []string{
			"RIP-43 (timed messages at any time)",
			"RocketMQ 5.5.0 source, TimerMessageStore.recover (from the checkpoint, written every timerFlushIntervalMs)",
		},
		Targets: map[string]plan.Role{"broker": plan.All},
		Arms:    onNode(rocketNode(rocketmq.Single), append(arms(timed), level)...),
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
	s.Drained = afterDelay(s.Drained)
	return s
}

// afterDelay is the drain of messages that the broker holds back where no position tells them: nothing is left once there are
// as many effects of different events as sends were confirmed, and what comes twice has had its time.
func afterDelay(drained func(context.Context, harness.ArmEnv) (bool, string, int64, error)) func(context.Context, harness.ArmEnv) (bool, string, int64, error) {
	type last struct {
		end int64
		at  time.Time
	}
	var mu sync.Mutex
	ends := map[string]last{}
	return func(ctx context.Context, e harness.ArmEnv) (bool, string, int64, error) {
		done, seen, _, err := drained(ctx, e)
		positions, ok := e.Cluster.(system.Positions)
		if err != nil || !ok {
			return done, seen, 0, err
		}
		now, err := positions.EndPositions(ctx, e.Destination)
		if err != nil {
			return false, "", 0, err
		}
		var end int64
		for _, p := range now {
			end += p
		}
		effects, err := countRows(ctx, e.Env, e.Schema, "SELECT count(DISTINCT event_id) FROM notifications")
		if err != nil {
			return false, "", 0, err
		}
		mu.Lock()
		defer mu.Unlock()
		l, known := ends[e.Destination]
		if !known || l.end != end {
			l = last{end, time.Now()}
			ends[e.Destination] = l
		}
		confirmed := int64(e.Counts(e.Arm.Name).Confirmed)
		seen = fmt.Sprintf("%s, %d of %d have their effect", seen, effects, confirmed)
		return done && effects >= confirmed && time.Since(l.at) > 2*due, seen, effects + end, nil
	}
}
