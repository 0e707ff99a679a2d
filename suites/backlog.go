package suites

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
)

// backlogs is the suite of backlogs on a broker.
func backlogs(b broker) harness.Suite {
	s := harness.Suite{
		Name:   b.suite("backlog"),
		System: b.system,
		With:   []system.System{postgresSystem.System},
		Title:  "a backlog drains in backlog / (capacity - incoming), or never",
		Promise: ledger.Promise{
			Text:   "once the consumers are back, a backlog drains in the time that its first fifth predicts, within a fifth",
			Start:  "the consumers' return",
			End:    "the last message of the backlog handled",
			Places: []string{"liveness"},
			Drain:  ledger.Drain{Since: stepBack, Least: backlog / b.lanes() / 2, Tolerance: 0.2},
		},
		Scenarios: []harness.Scenario{b.backlogDrain(), b.moreConsumers(), b.retryStorm()},
	}
	if b.queues {
		s.Scenarios = append(s.Scenarios, b.hiddenInConsumers())
	}
	return s
}

const (
	backlog          = 270 // messages that wait when the consumers come back
	backlogConsumers = 3
	stepBack         = "back"
)

// lanes is how many partitions a backlog is spread over: as many as it has consumers, or one where they share a queue.
func (b broker) lanes() int {
	if b.queues {
		return 1
	}
	return backlogConsumers
}

// backlogArm has so many consumers, each of which takes so long for one message.
func (b broker) backlogArm(name string, role harness.Role, work string, consumers int) harness.Arm {
	a := harness.Arm{Name: name, Role: role, Destination: b.destination}
	for i := range consumers {
		// Few records a poll, so that a consumer stops soon when it is told to.
		c := b.reader(fmt.Sprintf("consumer-%d", i+1), map[string]string{paramWork: work, paramCommit: "batch"})
		c.Client = maps.Clone(c.Client)
		maps.Copy(c.Client, b.few)
		c.Manual = i >= backlogConsumers
		a.Processes = append(a.Processes, c)
	}
	a.Processes = append(a.Processes, b.burst(backlog))
	return a
}

// burst is the producer that makes a backlog of so many messages.
func (b broker) burst(messages int) harness.Process {
	return harness.Process{
		Name: "burst", Role: b.role(roleWriter), Manual: true,
		Params: map[string]string{paramMessages: strconv.Itoa(messages), paramRate: "400"},
	}
}

// draining lets the consumers go, a backlog grow, and the consumers, as many as given, come back. atWork is how many the
// broker then counts, and until when to end.
func draining(consumers, atWork int, until ...plan.State) []plan.Step {
	var steps []plan.Step
	for i := range backlogConsumers {
		s := plan.Step{Name: fmt.Sprintf("away-%d", i+1), Do: harness.DoStopProcess, Process: fmt.Sprintf("consumer-%d", i+1)}
		if i == 0 {
			s.Until = []plan.State{{Kind: plan.Handled, N: backlogConsumers}}
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
		plan.Step{Name: "joined", Until: []plan.State{{Kind: plan.Custom, Name: membersGate(atWork)}}},
		plan.Step{Name: stepBack, Until: []plan.State{{Kind: plan.Handled, N: backlogConsumers, Since: "joined"}}},
		plan.Step{Name: "drained", Until: until, Cap: 90 * time.Second},
	)
}

// backlogScenario fills in what the scenarios have in common.
func (b broker) backlogScenario(s harness.Scenario) harness.Scenario {
	s.Load = harness.Load{Rate: backlogConsumers, Keys: 48, Partitions: b.lanes(), Tail: time.Second}
	s.Setup = makeTables
	s.Snapshot = snapshotTables(tableNotifications)
	s.Tables = []string{tableNotifications}
	s.Chain = ledger.Chain{Effects: []ledger.EffectTable{{Name: tableNotifications}}}
	s.Redelivery = session
	s.Sources = append([]string{"the arithmetic of queues: drain time = backlog / (capacity - incoming)"}, backlogSources[b.system.Name()]...)
	s.Cost = 45 * time.Second
	// What a control has not worked off is what it is there to show.
	s.Drained = func(ctx context.Context, e harness.ArmEnv) (bool, string, int64, error) {
		left, err := lag(ctx, e.Env, e.Arm.Name)
		return e.Arm.Role == harness.Control || left == 0 && err == nil, fmt.Sprintf("lag %d", left), -left, err
	}
	return s
}

// backlogSources say where a broker tells how much waits.
var backlogSources = map[string][]string{
	"kafka":    {"Kafka documentation, monitoring: records-lag-max of the consumer"},
	"rabbitmq": {"RabbitMQ documentation, Monitoring: queue metrics", "RabbitMQ documentation, Consumers: single active consumer"},
}

// lag is how much an arm's group has not passed.
func lag(ctx context.Context, e harness.Env, arm string) (int64, error) {
	if queues, ok := e.Cluster.(system.GroupBacklogs); ok {
		return queues.GroupBacklog(ctx, e.Destinations[arm], e.Group(arm, group))
	}
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
		all = all && left <= 4*backlogConsumers
		seen += fmt.Sprintf("%s lag %d ", arm, left)
	}
	return all, seen, nil
}

func (b broker) backlogDrain() harness.Scenario {
	control := b.backlogArm("too-slow", harness.Control, "1500ms", backlogConsumers)
	control.Break = &harness.Break{Knob: "work=1500ms (capacity <= incoming)", Place: "liveness", Anomaly: "stall"}
	gates := memberGates(backlogConsumers)
	gates[gateDrained] = backlogGone
	return b.backlogScenario(harness.Scenario{
		Name:    "drain",
		Summary: "the consumers are away while a backlog grows, and come back under the same load",
		Guarded: "capacity above incoming: the backlog drains in backlog / (capacity - incoming)",
		LookFor: map[string]string{
			"kafka":    "records-lag-max that grows, or the age of the oldest unprocessed record, beside a consumption rate (records-consumed-rate) that is not above the production rate (MessagesInPerSec): then it never drains",
			"rabbitmq": "messages_ready plus messages_unacknowledged that grow (rabbitmqctl list_queues), beside a rate of acks that is not above the rate of publishes: then it never drains",
		}[b.system.Name()],
		Arms:  []harness.Arm{b.backlogArm("guarded", harness.Guarded, "150ms", backlogConsumers), control},
		Gates: gates,
		Steps: draining(backlogConsumers, backlogConsumers,
			plan.State{Kind: plan.Custom, Name: gateDrained, Arms: []string{"guarded"}},
			// The control shows in its first seconds that it never will.
			plan.State{Kind: plan.Elapsed, Since: stepBack, Hold: 11 * time.Second, Arms: []string{"too-slow"}},
		),
		Evidence: ledger.Evidence{Ends: []string{"consumer-1", "consumer-2", "consumer-3"}},
	})
}

func (b broker) moreConsumers() harness.Scenario {
	const more = backlogConsumers + 2
	work, atWork, settings := "150ms", more, b.destination
	words := [...]string{
		"the consumers are away while a backlog grows, and come back with more than there are partitions",
		"as many consumers as partitions: more have nothing to do",
		"members of the group without a partition (kafka-consumer-groups --describe --members, #PARTITIONS 0)",
		"a partition has one owner in its group: consumers beyond the partitions add nothing; compare its capacity with that of drain/guarded",
	}
	if b.queues {
		// One at a time, as who needs order has it. Competing consumers do add, and lose the order.
		work, atWork, settings = "50ms", 1, with(b.destination, "x-single-active-consumer", "true")
		words = [...]string{
			"the consumers are away while a backlog grows, and five of them come back to a queue with a single active consumer",
			"as many queues as consumers that are to work at once: of a queue with a single active consumer all but one have nothing to do",
			"rabbitmqctl list_consumers queue_name active: consumers that are not active",
			"a queue with a single active consumer is worked off by that one: more consumers add nothing; compare its capacity with what one consumer can do",
		}
	}
	a := b.backlogArm("more", harness.Observation, work, more)
	a.Destination, a.Reason = settings, words[3]
	gates := memberGates(atWork)
	gates[gateDrained] = backlogGone
	return b.backlogScenario(harness.Scenario{
		Name:     "more-consumers",
		Summary:  words[0],
		Guarded:  words[1],
		LookFor:  words[2],
		Arms:     []harness.Arm{a},
		Gates:    gates,
		Steps:    draining(more, atWork, plan.State{Kind: plan.Custom, Name: gateDrained, Arms: []string{"more"}}),
		Evidence: ledger.Evidence{Ends: []string{"consumer-1", "consumer-2", "consumer-3"}},
	})
}

const (
	// hidden is the backlog of hidden-in-consumers: much for the slow consumer, little for the quick one.
	hidden = 60
	// hiddenAllowance is how late a message may come to a consumer there.
	hiddenAllowance = 8 * time.Second
)

func (b broker) hiddenInConsumers() harness.Scenario {
	arm := func(name string, role harness.Role, prefetch string) harness.Arm {
		reader := func(name, work string) harness.Process {
			p := b.reader(name, map[string]string{paramWork: work})
			p.Client = with(p.Client, "prefetch", prefetch, "max.poll", "1")
			p.Manual = true
			return p
		}
		return harness.Arm{
			Name: name, Role: role, Destination: b.destination,
			Processes: []harness.Process{reader("slow", "1s"), reader("quick", "10ms"), b.burst(hidden)},
			Promise: ledger.Promise{
				Text:   "a message is in the hands of a consumer that works on it soon after it was confirmed, whatever becomes of another consumer",
				Start:  "the confirm that the producer saw",
				End:    "the first delivery to the application of any consumer",
				Places: []string{"delivery"},
				Rules: map[string]ledger.Rule{
					"duplicate-delivery": {Allowed: true}, "redelivered-after-settle": {Allowed: true}, "reordered-delivery": {Allowed: true},
				},
			},
		}
	}
	control := arm("unlimited", harness.Control, "0")
	control.Break = &harness.Break{Knob: "prefetch=0 (without limit)", Place: "delivery", Anomaly: "late"}
	s := b.backlogScenario(harness.Scenario{
		Name:    "hidden-in-consumers",
		Summary: "a slow consumer comes to a backlog, a quick one a moment later, and the slow one is killed after a while",
		Guarded: "a small prefetch: the slow consumer holds two messages, and the quick one gets the others; ready and unacknowledged messages are watched together, with the age of the oldest",
		LookFor: "messages_unacknowledged far above consumers times prefetch, beside messages_ready near 0: the queue looks empty, and the backlog is in the memory of consumers; basic.qos that is never called, or with 0",
		Arms:    []harness.Arm{arm("guarded", harness.Guarded, "2"), control},
		Steps: []plan.Step{
			{Name: "burst", Do: harness.DoStartProcess, Process: "burst"},
			{
				Name: "slow-comes", Do: harness.DoStartProcess, Process: "slow",
				Until: []plan.State{{Kind: plan.Confirmed, N: hidden, Process: "burst"}},
			},
			{Name: "quick-comes", Do: harness.DoStartProcess, Process: "quick", Until: []plan.State{{Kind: plan.Handled, N: 1, Process: "slow"}}},
			{Name: "dies", Do: harness.DoKillProcess, Process: "slow", Until: []plan.State{
				// Here time itself is what the promise is about.
				{Kind: plan.Elapsed, Since: "quick-comes", Hold: hiddenAllowance + 2*time.Second},
				{Kind: plan.Handled, N: hidden / 2, Process: "quick", Arms: []string{"guarded"}},
			}},
			{Name: "taken-over", Until: []plan.State{{Kind: plan.Handled, N: hidden / 2, Process: "quick"}}},
		},
		Evidence: ledger.Evidence{Bites: []string{"dies"}},
	})
	s.Delay = ledger.Delay{Allowance: hiddenAllowance}
	s.Drained = chainDrained
	s.Sources = []string{
		"RabbitMQ documentation, Consumer Prefetch", "RabbitMQ documentation, Monitoring: messages_ready and messages_unacknowledged",
	}
	return s
}

// stormStall is how long no work may end well on what a consumer has fetched.
const stormStall = 8 * time.Second

func (b broker) retryStorm() harness.Scenario {
	arm := func(name string, role harness.Role, parallel, pause string) harness.Arm {
		c := b.reader("consumer-1", map[string]string{paramParallel: parallel, paramPause: pause})
		c.Role, c.Manual = b.role(roleStorm), true
		return harness.Arm{
			Name: name, Role: role, Destination: b.destination,
			Processes: []harness.Process{c, b.burst(backlog)},
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
	s := b.backlogScenario(harness.Scenario{
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
