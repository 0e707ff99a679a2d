package suites

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
)

func init() {
	register(harness.Suite{
		Name:   "backlog@kafka",
		System: kafkaSystem,
		With:   []system.System{postgresSystem.System},
		Title:  "a backlog drains in backlog / (capacity - incoming), or never",
		Promise: ledger.Promise{
			Text:   "once the consumers are back, a backlog drains in the time that its first fifth predicts, within a fifth",
			Start:  "the consumers' return",
			End:    "the last message of the backlog handled",
			Places: []string{"liveness"},
			Drain:  ledger.Drain{Since: stepBack, Least: backlog / backlogPartitions / 2, Tolerance: 0.2},
		},
		Scenarios: []harness.Scenario{backlogDrain(), moreConsumers(), retryStorm()},
	})
}

const (
	backlog           = 270 // messages that wait when the consumers come back
	backlogPartitions = 3
	stepBack          = "back"
)

// backlogArm has so many consumers, each of which takes so long for one message.
func backlogArm(name string, role harness.Role, work string, consumers int) harness.Arm {
	a := harness.Arm{Name: name, Role: role}
	for i := range consumers {
		// One partition each, until there are no more. Few records a poll, so that a consumer stops soon when it is told to.
		c := consumer(fmt.Sprintf("consumer-%d", i+1), "classic", map[string]string{paramWork: work}, map[string]string{"max.poll.records": "4"})
		c.Manual = i >= backlogPartitions
		a.Processes = append(a.Processes, c)
	}
	a.Processes = append(a.Processes, harness.Process{
		Name: "burst", Role: roleWriter, Manual: true,
		Params: map[string]string{paramMessages: strconv.Itoa(backlog), paramRate: "400"},
	})
	return a
}

// draining lets the consumers go, a backlog grow, and the consumers, as many as given, come back. until is when to end.
func draining(consumers int, until ...plan.State) []plan.Step {
	var steps []plan.Step
	for i := range backlogPartitions {
		s := plan.Step{Name: fmt.Sprintf("away-%d", i+1), Do: harness.DoStopProcess, Process: fmt.Sprintf("consumer-%d", i+1)}
		if i == 0 {
			s.Until = []plan.State{{Kind: plan.Handled, N: backlogPartitions}}
		}
		steps = append(steps, s)
	}
	steps = append(steps, plan.Step{Name: "burst", Do: harness.DoStartProcess, Process: "burst"})
	for i := range consumers {
		s := plan.Step{Name: fmt.Sprintf("returns-%d", i+1), Do: harness.DoStartProcess, Process: fmt.Sprintf("consumer-%d", i+1)}
		if i == 0 {
			s.Until = []plan.State{{Kind: plan.Confirmed, N: backlog, Process: "burst"}}
		}
		steps = append(steps, s)
	}
	return append(steps,
		plan.Step{Name: "joined", Until: []plan.State{{Kind: plan.Custom, Name: membersGate(consumers)}}},
		plan.Step{Name: stepBack, Until: []plan.State{{Kind: plan.Handled, N: backlogPartitions, Since: "joined"}}},
		plan.Step{Name: "drained", Until: until, Cap: 90 * time.Second},
	)
}

// backlogScenario fills in what the scenarios have in common.
func backlogScenario(s harness.Scenario) harness.Scenario {
	s.Load = harness.Load{Rate: backlogPartitions, Keys: 48, Partitions: backlogPartitions, Tail: time.Second}
	s.Setup = makeTables
	s.Snapshot = snapshotTables(tableNotifications)
	s.Tables = []string{tableNotifications}
	s.Chain = ledger.Chain{Effects: []ledger.EffectTable{{Name: tableNotifications}}}
	s.Redelivery = session
	s.Sources = []string{
		"Kafka documentation, monitoring: records-lag-max of the consumer",
		"the arithmetic of queues: drain time = backlog / (capacity - incoming)",
	}
	s.Cost = 45 * time.Second
	// What a control has not worked off is what it is there to show.
	s.Drained = func(ctx context.Context, e harness.ArmEnv) (bool, string, int64, error) {
		left, err := lag(ctx, e.Env, e.Arm.Name)
		return e.Arm.Role == harness.Control || left == 0 && err == nil, fmt.Sprintf("lag %d", left), -left, err
	}
	return s
}

// lag is how much an arm's group has not passed.
func lag(ctx context.Context, e harness.Env, arm string) (int64, error) {
	groups, ok := e.Cluster.(system.GroupPositions)
	if !ok {
		return 0, fmt.Errorf("cluster tells no positions of groups: %w", system.ErrNotApplicable)
	}
	positions, err := groups.GroupPositions(ctx, e.Destinations[arm], e.Group(arm, group))
	if err != nil {
		return 0, err
	}
	left := int64(0)
	for _, p := range positions {
		left += p.Lag()
	}
	return left, nil
}

const gateDrained = "the backlog is gone"

// backlogGone waits until no more is left than what is under way.
func backlogGone(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
	all, seen := true, ""
	for _, arm := range s.Arms {
		left, err := lag(ctx, e, arm)
		if err != nil {
			return false, "", err
		}
		all = all && left <= 4*backlogPartitions
		seen += fmt.Sprintf("%s lag %d ", arm, left)
	}
	return all, seen, nil
}

func backlogDrain() harness.Scenario {
	control := backlogArm("too-slow", harness.Control, "1500ms", backlogPartitions)
	control.Break = &harness.Break{Knob: "work=1500ms (capacity <= incoming)", Place: "liveness", Anomaly: "stall"}
	gates := memberGates(backlogPartitions)
	gates[gateDrained] = backlogGone
	return backlogScenario(harness.Scenario{
		Name:    "drain",
		Summary: "the consumers are away while a backlog grows, and come back under the same load",
		Guarded: "capacity above incoming: the backlog drains in backlog / (capacity - incoming)",
		LookFor: "records-lag-max that grows, or the age of the oldest unprocessed record, beside a consumption rate (records-consumed-rate) that is not above the production rate (MessagesInPerSec): then it never drains",
		Arms:    []harness.Arm{backlogArm("guarded", harness.Guarded, "150ms", backlogPartitions), control},
		Gates:   gates,
		Steps: draining(backlogPartitions,
			plan.State{Kind: plan.Custom, Name: gateDrained, Arms: []string{"guarded"}},
			// The control shows in its first seconds that it never will.
			plan.State{Kind: plan.Elapsed, Since: stepBack, Hold: 11 * time.Second, Arms: []string{"too-slow"}},
		),
		Evidence: ledger.Evidence{Ends: []string{"consumer-1", "consumer-2", "consumer-3"}},
	})
}

func moreConsumers() harness.Scenario {
	const more = backlogPartitions + 2
	arm := func(name string, consumers int, reason string) harness.Arm {
		a := backlogArm(name, harness.Observation, "150ms", consumers)
		a.Reason = reason
		return a
	}
	gates := memberGates(more)
	gates[gateDrained] = backlogGone
	return backlogScenario(harness.Scenario{
		Name:    "more-consumers",
		Summary: "the consumers are away while a backlog grows, and come back with more than there are partitions",
		Guarded: "as many consumers as partitions: more have nothing to do",
		LookFor: "members of the group without a partition (kafka-consumer-groups --describe --members, #PARTITIONS 0)",
		Arms:    []harness.Arm{arm("more", more, "a partition has one owner in its group: consumers beyond the partitions add nothing; compare its capacity with that of drain/guarded")},
		Gates:   gates,
		Steps:   draining(more, plan.State{Kind: plan.Custom, Name: gateDrained, Arms: []string{"more"}}),
		Evidence: ledger.Evidence{
			Ends: []string{"consumer-1", "consumer-2", "consumer-3"},
		},
	})
}

// stormStall is how long no work may end well on what a consumer has fetched.
const stormStall = 8 * time.Second

func retryStorm() harness.Scenario {
	arm := func(name string, role harness.Role, parallel, pause string) harness.Arm {
		c := consumer("consumer-1", "classic", map[string]string{paramParallel: parallel, paramPause: pause}, nil)
		c.Role, c.Manual = roleStorm, true
		return harness.Arm{
			Name: name, Role: role,
			Processes: []harness.Process{c, {
				Name: "burst", Role: roleWriter, Manual: true,
				Params: map[string]string{paramMessages: strconv.Itoa(backlog), paramRate: "400"},
			}},
			Promise: ledger.Promise{
				Text:     "a backlog is worked off although attempts fail and the database is at its limit: work on what a consumer has fetched never stands still",
				Start:    "the fetch",
				End:      "the end of the work on any of what was fetched",
				Places:   []string{"liveness"},
				MaxStall: stormStall,
			},
		}
	}
	control := arm("immediate", harness.Control, "50", "none")
	control.Break = &harness.Break{
		Knob: "pause=none", Forces: []string{"parallel=50 (whatever was fetched, at once)"}, Place: "liveness", Anomaly: "stall",
	}
	s := backlogScenario(harness.Scenario{
		Name:    "retry-storm",
		Summary: "three of ten attempts fail while a backlog waits, and each needs two of the four connections that the database has to give",
		Guarded: "a pause that grows between attempts, and no more at once than the database can take",
		LookFor: "attempts per message (retries) that grow while the rate of successes falls; callers waiting for the pool (pgxpool EmptyAcquireCount, or connections \"idle in transaction\" in pg_stat_activity, as many as there are)",
		Arms:    []harness.Arm{arm("guarded", harness.Guarded, "2", "backoff"), control},
		Steps: []plan.Step{
			{Name: "burst", Do: harness.DoStartProcess, Process: "burst"},
			{
				Name: stepBack, Do: harness.DoStartProcess, Process: "consumer-1",
				Until: []plan.State{{Kind: plan.Confirmed, N: backlog, Process: "burst"}},
			},
			{Name: "storm", Until: []plan.State{
				{Kind: plan.Handled, N: 100, Arms: []string{"guarded"}},
				{Kind: plan.Elapsed, Since: stepBack, Hold: stormStall + 4*time.Second},
			}},
		},
		Evidence: ledger.Evidence{Bites: []string{strikeTemporary}},
	})
	s.Sources = []string{
		"Google SRE book, chapter 22: addressing cascading failures (retries)",
		"pgxpool documentation: MaxConns, Acquire waits in order",
	}
	return s
}
