package suites

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/suites/chain"
)

func init() {
	register(harness.Suite{
		Name:   "kafka-consume",
		System: kafkaSystem,
		With:   []system.System{postgresSystem.System},
		Title:  "an order is processed at least once, and its effect happens once",
		Promise: ledger.Promise{
			Text:   "each record whose send was confirmed is processed at least once and has its effect in the database exactly once, whatever happens to the consumers of its group",
			Start:  "the confirm that the producer saw",
			End:    "the effects, read in one snapshot once the group has no lag",
			Places: []string{"delivery", "effect"},
			// At least once: what a rebalance, a crash or a reset delivers again is the inbox's to find.
			Rules: map[string]ledger.Rule{
				"duplicate-delivery": {Allowed: true}, "redelivered-after-settle": {Allowed: true}, "reordered-delivery": {Allowed: true},
				"commit-rewind": {Allowed: true}, "double-owner": {Allowed: true},
			},
		},
		Scenarios: []harness.Scenario{
			crashBeforeCommit(), crashAfterBusinessCommit(), commitThenProcess(), failedRecordThenCommit(),
			rebalanceMidBatch(), slowHandler(), staticMember(), newPartitions(), newPartitionsUnseen(),
			offsetExpired(), offsetBelowStart(), offsetBeyondEnd(),
		},
	})
}

// group is the consumer group of each arm.
const group = "consumers"

// consumed is how many deliveries each arm must have handled before and after the fault, and struckAt which one it strikes.
const (
	consumed = 40
	struckAt = 60
	// unread is how many records are written that nobody reads until later.
	unread = 100
)

// The load of kafka-consume is small: what counts is the window, and every delivery has a transaction and a commit of its own.
var consumeLoad = harness.Load{Rate: 30, Keys: 32, Partitions: 1, Tail: time.Second}

// member are the client settings of a consumer under each protocol. Under KIP-848, session and heartbeat are the broker's.
var member = map[string]map[string]string{
	"classic":  {"group.protocol": "classic", "session.timeout.ms": "6000", "heartbeat.ms": "500", "max.poll.records": "50", "fetch.max.wait.ms": "100"},
	"consumer": {"group.protocol": "consumer", "max.poll.records": "50", "fetch.max.wait.ms": "100"},
}

// session is how long a silent member stays in its group.
const session = 6 * time.Second

// consumer is a process of the group with the reference code. It commits once a batch, unless params say otherwise.
func consumer(name, protocol string, params, client map[string]string) harness.Process {
	settings, all := maps.Clone(member[protocol]), map[string]string{paramCommit: "batch"}
	maps.Copy(settings, client)
	maps.Copy(all, params)
	return harness.Process{Name: name, Role: roleKafkaConsume, Group: group, Params: all, Client: settings}
}

// perProtocol makes the arms of a scenario under both protocols of groups. The names of those under KIP-848 end in "-848".
func perProtocol(arms func(protocol string) []harness.Arm) []harness.Arm {
	all := arms("classic")
	for _, a := range arms("consumer") {
		a.Name += protocol848
		all = append(all, a)
	}
	return all
}

const protocol848 = "-848"

// both names arms under both protocols.
func both(names ...string) []string {
	for _, n := range slices.Clone(names) {
		names = append(names, n+protocol848)
	}
	return names
}

// pairOf returns the guarded arm and the control of a pair of suites/chain. processes makes them of the parameters that name
// the function: knob is paramLoop or paramHandler.
func pairOf(pair, knob string, processes func(params map[string]string) []harness.Process) []harness.Arm {
	i := slices.IndexFunc(chain.Pairs(), func(p chain.Pair) bool { return p.Name == pair })
	if i < 0 {
		panic("chain has no pair " + pair)
	}
	p := chain.Pairs()[i]
	anomaly, attribution, _ := strings.Cut(p.Anomaly, "/")
	return []harness.Arm{
		{
			Name: "guarded", Role: harness.Guarded, Processes: processes(map[string]string{knob: p.Guarded}),
			Code: &harness.Code{Guarded: p.Guarded},
		},
		{
			Name: kebab(p.Unsafe), Role: harness.Control, Processes: processes(map[string]string{knob: p.Unsafe}),
			Code:  &harness.Code{Guarded: p.Guarded, Unsafe: p.Unsafe},
			Break: &harness.Break{Knob: knob + "=" + p.Unsafe, Place: "effect", Anomaly: anomaly, Attribution: attribution},
		},
	}
}

// kebab turns a name of Go into one of an arm.
func kebab(name string) string {
	var b strings.Builder
	lower := false
	for _, r := range name {
		if r >= 'A' && r <= 'Z' {
			if lower {
				b.WriteByte('-')
			}
			r += 'a' - 'A'
			lower = false
		} else {
			lower = true
		}
		b.WriteRune(r)
	}
	return b.String()
}

// effects fills in what all scenarios with effects have.
func effects(s harness.Scenario) harness.Scenario {
	s.Load.Rate, s.Load.Keys, s.Load.Tail = consumeLoad.Rate, consumeLoad.Keys, consumeLoad.Tail
	s.Setup = makeTables
	s.Snapshot = snapshotTables(tableNotifications, ledger.TableDeadLetter)
	s.Tables = []string{tableNotifications, ledger.TableDeadLetter}
	s.Chain = ledger.Chain{Effects: []ledger.EffectTable{{Name: tableNotifications, Versions: true}}}
	s.Redelivery = max(s.Redelivery, session)
	s.Evidence.HandledBefore, s.Evidence.HandledAfter = consumed, consumed
	s.Cost = 40 * time.Second
	return s
}

// goesOn waits until the arms have handled more after a step.
func goesOn(since string) plan.Step {
	return plan.Step{Name: "recovered", Until: []plan.State{{Kind: plan.Handled, N: consumed, Since: since}}}
}

func crashBeforeCommit() harness.Scenario {
	arms := perProtocol(func(protocol string) []harness.Arm {
		held := func(params, client map[string]string) []harness.Process {
			p := consumer("consumer-1", protocol, params, client)
			p.HoldAt, p.HoldNth = chain.BeforeBusinessCommit, struckAt
			return []harness.Process{p}
		}
		breaks := func(knob string, forces ...string) *harness.Break {
			return &harness.Break{
				Knob: knob, Forces: append(forces, "commit=never (the client commits)", "auto.commit.interval.ms=200"),
				Place: "effect", Anomaly: "missing-effect", Attribution: "settled-early",
			}
		}
		return []harness.Arm{
			{
				Name: "guarded", Role: harness.Guarded, Code: &harness.Code{Guarded: "Consume"},
				Processes: held(nil, map[string]string{"auto.commit": "false"}),
			},
			{
				Name: "greedy", Role: harness.Control, Break: breaks("auto.commit=greedy"),
				Processes: held(map[string]string{paramCommit: "never"}, map[string]string{"auto.commit": "greedy", "auto.commit.interval.ms": "200"}),
			},
			{
				Name: "poll-ahead", Role: harness.Control, Break: breaks("poll=ahead", "auto.commit=true"),
				Processes: held(map[string]string{paramCommit: "never", paramPoll: "ahead"}, map[string]string{"auto.commit": "true", "auto.commit.interval.ms": "200"}),
			},
		}
	})
	controls := both("greedy", "poll-ahead")
	return effects(harness.Scenario{
		Name: "crash-before-commit", Window: "W4",
		Summary: "a consumer is killed between the fetch and the business commit of a delivery, after an auto-commit of that delivery was seen",
		Guarded: "the offset is committed after the business transaction",
		LookFor: "enable.auto.commit=true together with work that is handed to another thread: after a restart, event ids below the committed offset that are in no inbox",
		Sources: []string{
			"Kafka documentation, consumer configuration: enable.auto.commit",
			"franz-go documentation: GreedyAutoCommit, DisableAutoCommit",
		},
		Load: harness.Load{Partitions: 1},
		Arms: arms,
		Gates: map[string]harness.Gate{
			"committed past what is handled": committedAhead,
		},
		Steps: []plan.Step{
			{Name: "fetched", Until: []plan.State{{Kind: plan.ProcessAt, Process: "consumer-1", Point: chain.BeforeBusinessCommit}}},
			{
				Name: "killed", Do: harness.DoKillProcess, Process: "consumer-1",
				Until: []plan.State{{Kind: plan.Custom, Name: "committed past what is handled", Arms: controls}},
			},
			{Name: "restarted", Do: harness.DoStartProcess, Process: "consumer-1"},
			goesOn("restarted"),
		},
		Evidence: ledger.Evidence{Bites: []string{"killed"}},
	})
}

// committedAhead waits until the group's positions are beyond what its members have handled.
func committedAhead(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
	groups, ok := e.Cluster.(system.GroupPositions)
	if !ok {
		return false, "", fmt.Errorf("cluster tells no positions of groups: %w", system.ErrNotApplicable)
	}
	all := true
	var seen []string
	for _, arm := range s.Arms {
		destination, there := e.Destinations[arm]
		if !there {
			continue // it runs on another cluster
		}
		positions, err := groups.GroupPositions(ctx, destination, e.Group(arm, group))
		if err != nil {
			return false, "", err
		}
		committed := int64(0)
		for _, p := range positions {
			committed += max(0, p.Committed)
		}
		handled := int64(e.Counts(arm).Handled)
		all = all && committed > handled
		seen = append(seen, fmt.Sprintf("%s committed %d, handled %d", arm, committed, handled))
	}
	return all, strings.Join(seen, ", "), nil
}

// crashing is a consumer that kills itself once at a point and is started again.
func crashing(protocol, point string) func(map[string]string) []harness.Process {
	return func(params map[string]string) []harness.Process {
		p := consumer("consumer-1", protocol, params, nil)
		p.CrashAt, p.CrashNth, p.Restart = point, struckAt, true
		return []harness.Process{p}
	}
}

// crashed waits for the crash, and for what comes after.
func crashed() []plan.Step {
	return []plan.Step{
		{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "consumer-1"}}},
		goesOn("crashed"),
	}
}

func crashAfterBusinessCommit() harness.Scenario {
	return effects(harness.Scenario{
		Name: "crash-after-business-commit", Window: "W5",
		Summary: "a consumer is killed between the business commit and the offset commit: the delivery comes again",
		Guarded: "an inbox in the business transaction: what was done before is found and left alone",
		LookFor: lookFor("kafka-consume/crash-after-business-commit"),
		Sources: []string{"Kafka documentation, design: message delivery semantics"},
		Load:    harness.Load{Partitions: 1},
		Arms: perProtocol(func(protocol string) []harness.Arm {
			return pairOf("kafka-consume/crash-after-business-commit", paramHandler, crashing(protocol, chain.AfterBusinessCommit))
		}),
		Steps:    crashed(),
		Evidence: ledger.Evidence{Bites: []string{"crash-consumer-1"}, Redelivered: 1},
	})
}

func commitThenProcess() harness.Scenario {
	return effects(harness.Scenario{
		Name: "commit-then-process", Window: "W6",
		Summary: "a consumer is killed right after its offset commit",
		Guarded: "processed first, then committed",
		LookFor: lookFor("kafka-consume/commit-then-process"),
		Sources: []string{"Kafka documentation, design: message delivery semantics (at most once)"},
		Load:    harness.Load{Partitions: 1},
		Arms: perProtocol(func(protocol string) []harness.Arm {
			return pairOf("kafka-consume/commit-then-process", paramLoop, func(params map[string]string) []harness.Process {
				params[paramCommit] = "each"
				return crashing(protocol, chain.AfterSettle)(params)
			})
		}),
		Steps:    crashed(),
		Evidence: ledger.Evidence{Bites: []string{"crash-consumer-1"}},
	})
}

// lookFor returns how to look for the anomaly of a pair of suites/chain.
func lookFor(pair string) string {
	for _, p := range chain.Pairs() {
		if p.Name == pair {
			return p.LookFor
		}
	}
	panic("chain has no pair " + pair)
}

func failedRecordThenCommit() harness.Scenario {
	failing := func(protocol string) func(map[string]string) []harness.Process {
		return func(params map[string]string) []harness.Process {
			params[paramFail] = strconv.Itoa(struckAt)
			return []harness.Process{consumer("consumer-1", protocol, params, nil)}
		}
	}
	return effects(harness.Scenario{
		Name: "failed-record-then-commit", Window: "W6",
		Summary: "the handler fails for one delivery of a batch",
		Guarded: "the consumer stops at the failed record and tries again, or parks it as a dead letter, before it commits past it",
		LookFor: lookFor("kafka-consume/failed-record-then-commit"),
		Sources: []string{"Kafka documentation, design: consumer position (a commit covers all before it)"},
		Load:    harness.Load{Partitions: 1},
		Arms: perProtocol(func(protocol string) []harness.Arm {
			arms := pairOf("kafka-consume/failed-record-then-commit", paramLoop, failing(protocol))
			parked := pairOf("kafka-consume/failed-record-then-commit/park", paramLoop, failing(protocol))[0]
			parked.Name, parked.Letters.Others = "parked", 1
			return []harness.Arm{arms[0], parked, arms[1]}
		}),
		Steps: []plan.Step{
			{Name: "failed", Until: []plan.State{{Kind: plan.Handled, N: struckAt}}},
			goesOn("failed"),
		},
		Evidence: ledger.Evidence{Bites: []string{strikeFailure}},
	})
}

func rebalanceMidBatch() harness.Scenario {
	members := func(protocol string) func(map[string]string) []harness.Process {
		return func(params map[string]string) []harness.Process {
			params[paramRevoke] = "commit"
			first := consumer("consumer-1", protocol, params, nil)
			first.HoldAt, first.HoldNth = chain.BeforeSettle, struckAt
			third := consumer("consumer-3", protocol, params, nil)
			third.Manual = true
			return []harness.Process{first, consumer("consumer-2", protocol, params, nil), third}
		}
	}
	stable := func(n int) plan.State { return plan.State{Kind: plan.Custom, Name: membersGate(n)} }
	return effects(harness.Scenario{
		Name: "rebalance-mid-batch", Window: "W5", Redelivery: session,
		Summary: "while a consumer is in the middle of a batch, between a business commit and its offset commit, another joins, one leaves, and it is frozen itself until the group goes on without it",
		Guarded: "what is processed is committed when partitions are revoked, and an inbox finds what could not be committed",
		LookFor: lookFor("kafka-consume/crash-after-business-commit") + "; rebalance-rate-and-time of the consumers, and commits that fail with UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION",
		Sources: []string{
			"Kafka documentation, consumer configuration: session.timeout.ms, max.poll.interval.ms",
			"KIP-848 (the next generation of the consumer rebalance protocol)",
		},
		Load: harness.Load{Partitions: 4},
		Arms: perProtocol(func(protocol string) []harness.Arm {
			return pairOf("kafka-consume/crash-after-business-commit", paramHandler, members(protocol))
		}),
		Gates: memberGates(1, 2, 3),
		Steps: []plan.Step{
			{
				Name: "joins", Do: harness.DoStartProcess, Process: "consumer-3",
				Until: []plan.State{{Kind: plan.ProcessAt, Process: "consumer-1", Point: chain.BeforeSettle}, {Kind: plan.Handled, N: consumed}},
			},
			{Name: "leaves", Until: []plan.State{stable(3)}, Do: harness.DoStopProcess, Process: "consumer-2"},
			{Name: "stalls", Until: []plan.State{stable(2)}, Do: harness.DoFreezeProcess, Process: "consumer-1"},
			{Name: "goes-on", Until: []plan.State{stable(1)}, Do: harness.DoReleaseProcess, Process: "consumer-1"},
			{Name: "returns", Do: harness.DoThawProcess, Process: "consumer-1"},
			goesOn("returns"),
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-consumer-1", "stalls"}, Redelivered: 1},
	})
}

func membersGate(n int) string { return fmt.Sprintf("the group is stable with %d", n) }

// memberGates wait until the groups of all arms are stable with so many members.
func memberGates(counts ...int) map[string]harness.Gate {
	gates := map[string]harness.Gate{}
	for _, n := range counts {
		gates[membersGate(n)] = func(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
			groups, ok := e.Cluster.(system.GroupMembers)
			if !ok {
				return false, "", fmt.Errorf("cluster tells no members of groups: %w", system.ErrNotApplicable)
			}
			all := true
			var seen []string
			for _, arm := range slices.Sorted(maps.Keys(e.Destinations)) {
				if len(s.Arms) > 0 && !slices.Contains(s.Arms, arm) {
					continue
				}
				state, err := groups.GroupMembers(ctx, e.Group(arm, group))
				if err != nil {
					return false, "", err
				}
				all = all && (state.Stable || n == 0) && state.Members == n
				seen = append(seen, fmt.Sprintf("%s %s, %s with %d", arm, state.Protocol, state.State, state.Members))
			}
			return all, strings.Join(seen, "; "), nil
		}
	}
	return gates
}

func slowHandler() harness.Scenario {
	blocking := map[string]string{"block.rebalance.on.poll": "true", "rebalance.timeout.ms": "4000"}
	members := func(protocol string) func(map[string]string) []harness.Process {
		return func(params map[string]string) []harness.Process {
			first := consumer("consumer-1", protocol, params, blocking)
			first.HoldAt, first.HoldNth = chain.BeforeSettle, struckAt
			second := consumer("consumer-2", protocol, params, blocking)
			second.Manual = true
			return []harness.Process{first, second}
		}
	}
	return effects(harness.Scenario{
		Name: "slow-handler", Window: "W5", Redelivery: session,
		Summary: "a consumer holds rebalances up while it works on a batch, for longer than the rebalance timeout, and another joins: the group goes on without the slow one",
		Guarded: "batches that are bounded, and an inbox for what is handed to both",
		LookFor: "max.poll.interval.ms exceeded in the Java client's log (\"leaving the group\"), with franz-go a rebalance that lasts as long as the rebalance timeout; then " + lookFor("kafka-consume/crash-after-business-commit"),
		Sources: []string{
			"Kafka documentation, consumer configuration: max.poll.interval.ms, max.poll.records",
			"franz-go documentation: BlockRebalanceOnPoll, RebalanceTimeout",
		},
		Load: harness.Load{Partitions: 2},
		Arms: perProtocol(func(protocol string) []harness.Arm {
			return pairOf("kafka-consume/crash-after-business-commit", paramHandler, members(protocol))
		}),
		Gates: memberGates(1),
		Steps: []plan.Step{
			{
				Name: "joins", Do: harness.DoStartProcess, Process: "consumer-2",
				Until: []plan.State{{Kind: plan.ProcessAt, Process: "consumer-1", Point: chain.BeforeSettle}},
			},
			{
				Name: "goes-on", Do: harness.DoReleaseProcess, Process: "consumer-1",
				Until: []plan.State{
					{Kind: plan.Custom, Name: membersGate(1)},
					{Kind: plan.Handled, N: consumed, Process: "consumer-2"},
				},
			},
			goesOn("goes-on"),
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-consumer-1"}, Redelivered: 1},
	})
}

func staticMember() harness.Scenario {
	// The group waits for a dead member that it does not know again until its session is over.
	const long, limit = 20 * time.Second, 10 * time.Second
	settings := map[string]string{"session.timeout.ms": strconv.FormatInt(long.Milliseconds(), 10)}
	arm := func(name string, role harness.Role, static bool) harness.Arm {
		a := harness.Arm{Name: name, Role: role, Promise: ledger.Promise{
			Text:   "a member that is back within its session goes on with its partitions, and the others never stop",
			Start:  "the confirm that the producer saw",
			End:    "the end of the work on each record",
			Places: []string{"delivery", "effect"}, MaxStall: limit,
			Rules: map[string]ledger.Rule{
				"duplicate-delivery": {Allowed: true}, "redelivered-after-settle": {Allowed: true}, "reordered-delivery": {Allowed: true},
			},
		}}
		for _, member := range []string{"consumer-1", "consumer-2"} {
			client := maps.Clone(settings)
			if static {
				client["group.instance.id"] = member
			}
			p := consumer(member, "classic", nil, client)
			if member == "consumer-1" {
				p.CrashAt, p.CrashNth, p.Restart = chain.BeforeBusinessCommit, struckAt, true
			}
			a.Processes = append(a.Processes, p)
		}
		return a
	}
	control := arm("dynamic", harness.Control, false)
	control.Break = &harness.Break{Knob: "group.instance.id unset", Place: "liveness", Anomaly: "stall"}
	return effects(harness.Scenario{
		Name: "static-member", Window: "W4", Redelivery: long,
		Summary: "one of two members is killed with a delivery in hand, and restarted at once, long before its session of " + long.String() + " is over",
		Guarded: "group.instance.id: the group knows the member again, and nothing is rebalanced",
		LookFor: "rebalances at every deployment: kafka.consumer:type=consumer-coordinator-metrics,name=rebalance-rate-per-hour; kafka-consumer-groups --describe --members shows no GROUP-INSTANCE-ID",
		Sources: []string{"KIP-345 (static membership)", "Kafka documentation, consumer configuration: group.instance.id, session.timeout.ms"},
		Load:    harness.Load{Partitions: 2},
		Arms:    []harness.Arm{arm("guarded", harness.Guarded, true), control},
		Steps: []plan.Step{
			{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "consumer-1"}, {Kind: plan.Handled, N: 1, Process: "consumer-2"}}},
			{Name: "recovered", Until: []plan.State{
				{Kind: plan.Handled, N: consumed, Since: "crashed", Process: "consumer-1"}, {Kind: plan.Handled, N: consumed, Since: "crashed", Process: "consumer-2"},
			}},
		},
		Evidence: ledger.Evidence{Bites: []string{"crash-consumer-1"}},
	})
}

// grown is how many partitions a topic of one has in the end.
const grown = 3

// resetArms are a guarded arm that resets to the earliest offset and a control that resets to the latest.
func resetArms(processes func(client map[string]string) []harness.Process) []harness.Arm {
	arm := func(reset string) []harness.Process {
		return processes(map[string]string{"auto.offset.reset": reset})
	}
	return []harness.Arm{
		{Name: "guarded", Role: harness.Guarded, Processes: arm("earliest"), Code: &harness.Code{Guarded: "ApplyOnce"}},
		{
			Name: "latest", Role: harness.Control, Processes: arm("latest"),
			// What its killed member had in hand is passed over, too.
			Break: &harness.Break{Knob: "auto.offset.reset=latest", Place: "effect", Anomaly: "missing-effect", Attribution: "skipped", Also: []string{"missing-effect/settled-early"}},
		},
	}
}

// growing has a consumer, and a producer that writes to the partitions that are added.
func growing(protocol string) func(map[string]string) []harness.Process {
	return func(client map[string]string) []harness.Process {
		return []harness.Process{
			consumer("consumer-1", protocol, nil, client),
			{Name: "writer", Role: roleKafkaWriter, Manual: true, Params: map[string]string{
				paramPartitions: strconv.Itoa(grown), paramMessages: "1500",
			}},
		}
	}
}

const doGrow = "add-partitions"

// grow gives every arm's topic more partitions.
func grow(ctx context.Context, e harness.Env, _ plan.Step) (string, error) {
	adder, ok := e.Cluster.(system.PartitionAdder)
	if !ok {
		return "", fmt.Errorf("cluster adds no partitions: %w", system.ErrNotApplicable)
	}
	for _, destination := range e.Destinations {
		if err := adder.AddPartitions(ctx, destination, grown); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d partitions", grown), nil
}

// resetSources are what documents resets.
var resetSources = []string{
	"Kafka documentation, consumer configuration: auto.offset.reset (latest is the Java client's default)",
	"franz-go documentation: ConsumeResetOffset, Offset.AtCommitted",
}

const resetLookFor = "auto.offset.reset=latest, or not set, in consumers of a group; compare the number of records of the topic (kafka-get-offsets) with the inbox; OffsetOutOfRange and \"Resetting offset\" in the consumer's log"

func newPartitions() harness.Scenario {
	return effects(harness.Scenario{
		Name: "new-partitions", Summary: "partitions are added and written while the consumer is down",
		Guarded: "auto.offset.reset=earliest (franz-go's default): a partition without a committed offset is read from its start",
		LookFor: resetLookFor, Sources: resetSources,
		Load:    harness.Load{Partitions: 1, GrowTo: grown},
		Arms:    perProtocol(func(protocol string) []harness.Arm { return resetArms(growing(protocol)) }),
		Actions: map[string]harness.Action{doGrow: grow},
		Steps: []plan.Step{
			{Name: "killed", Until: []plan.State{{Kind: plan.Handled, N: consumed}}, Do: harness.DoKillProcess, Process: "consumer-1"},
			{Name: "grown", Do: doGrow},
			{Name: "written", Do: harness.DoStartProcess, Process: "writer"},
			{
				Name: "restarted", Do: harness.DoStartProcess, Process: "consumer-1",
				Until: []plan.State{{Kind: plan.Confirmed, N: unread, Process: "writer"}},
			},
			{Name: "recovered", Until: []plan.State{
				{Kind: plan.Handled, N: consumed, Since: "restarted"},
				{Kind: plan.Custom, Name: "every partition has a position"},
			}},
			{Name: "ended", Do: harness.DoStopProcess, Process: "writer"},
		},
		Gates:    map[string]harness.Gate{"every partition has a position": everywhere},
		Evidence: ledger.Evidence{Bites: []string{"killed"}},
	})
}

// everywhere waits until every group has committed in every partition.
func everywhere(ctx context.Context, e harness.Env, _ plan.State) (bool, string, error) {
	groups, ok := e.Cluster.(system.GroupPositions)
	if !ok {
		return false, "", fmt.Errorf("cluster tells no positions of groups: %w", system.ErrNotApplicable)
	}
	without := 0
	for arm, destination := range e.Destinations {
		positions, err := groups.GroupPositions(ctx, destination, e.Group(arm, group))
		if err != nil {
			return false, "", err
		}
		for _, p := range positions {
			if p.Committed < 0 {
				without++
			}
		}
	}
	return without == 0, fmt.Sprintf("%d without", without), nil
}

func newPartitionsUnseen() harness.Scenario {
	return effects(harness.Scenario{
		Name: "new-partitions-unseen", Summary: "partitions are added and written before a running consumer, frozen for that long, has seen them",
		Guarded: "auto.offset.reset=earliest (franz-go's default): a partition without a committed offset is read from its start",
		LookFor: resetLookFor + "; metadata.max.age.ms is how long a running consumer may not know of a partition",
		Sources: resetSources,
		Load:    harness.Load{Partitions: 1, GrowTo: grown},
		Arms: perProtocol(func(protocol string) []harness.Arm {
			return resetArms(func(client map[string]string) []harness.Process {
				client["metadata.max.age.ms"] = "2000"
				return growing(protocol)(client)
			})
		}),
		Actions: map[string]harness.Action{doGrow: grow},
		Steps: []plan.Step{
			{Name: "frozen", Until: []plan.State{{Kind: plan.Handled, N: consumed}}, Do: harness.DoFreezeProcess, Process: "consumer-1"},
			{Name: "grown", Do: doGrow},
			{Name: "written", Do: harness.DoStartProcess, Process: "writer"},
			{
				Name: "thawed", Do: harness.DoThawProcess, Process: "consumer-1",
				Until: []plan.State{{Kind: plan.Confirmed, N: unread, Process: "writer"}},
			},
			{Name: "recovered", Until: []plan.State{
				{Kind: plan.Handled, N: consumed, Since: "thawed"},
				{Kind: plan.Custom, Name: "every partition has a position"},
			}},
			{Name: "ended", Do: harness.DoStopProcess, Process: "writer"},
		},
		Gates:    map[string]harness.Gate{"every partition has a position": everywhere},
		Evidence: ledger.Evidence{Bites: []string{"frozen"}},
	})
}

// positionless are the arms of a consumer that comes back to a position that is not there: it resets to the earliest offset,
// or stops and reports so that an operator sets it, or resets to the latest.
func positionless(protocol string) []harness.Arm {
	processes := func(reset string) []harness.Process {
		second := consumer("consumer-2", protocol, nil, map[string]string{"auto.offset.reset": reset})
		second.Manual = true
		if reset == "none" {
			second.CrashAt = pointNoPosition
		}
		return []harness.Process{consumer("consumer-1", protocol, nil, map[string]string{"auto.offset.reset": "earliest"}), second}
	}
	arms := resetArms(func(client map[string]string) []harness.Process { return processes(client["auto.offset.reset"]) })
	stops := harness.Arm{Name: "stops", Role: harness.Guarded, Processes: processes("none")}
	return []harness.Arm{arms[0], stops, arms[1]}
}

const (
	doLosePosition = "lose-position"
	doSetPosition  = "set-position-to-start"
)

// positionLost is a scenario in which the group's position goes while its consumer is away. lose makes it so.
func positionLost(name, summary string, lose func(ctx context.Context, e harness.Env, arm string) error) harness.Scenario {
	stops := both("stops")
	sc := effects(harness.Scenario{
		Name: name, Summary: summary,
		Guarded: "the consumer resets to the earliest offset, with an inbox for what it has done before; or it stops and reports (Java none, franz-go NewOffset().AtCommitted()) until somebody has decided",
		LookFor: resetLookFor + "; offsets.retention.minutes against the longest time a group is away",
		Sources: append(slices.Clone(resetSources), "Kafka documentation, broker configuration: offsets.retention.minutes"),
		Load:    harness.Load{Partitions: 1},
		Arms:    perProtocol(positionless),
		Actions: map[string]harness.Action{
			doLosePosition: func(ctx context.Context, e harness.Env, _ plan.Step) (string, error) {
				for arm := range e.Destinations {
					if err := lose(ctx, e, arm); err != nil {
						return "", err
					}
				}
				return "done", nil
			},
			doSetPosition: func(ctx context.Context, e harness.Env, s plan.Step) (string, error) {
				for _, arm := range s.Arms {
					destination, there := e.Destinations[arm]
					if !there {
						continue
					}
					starts, err := startPositions(ctx, e.Cluster, destination)
					if err == nil {
						err = setPositions(ctx, e, arm, starts)
					}
					if err != nil {
						return "", err
					}
				}
				return "set to the log start", nil
			},
		},
		Steps: []plan.Step{
			{Name: "killed", Until: []plan.State{{Kind: plan.Handled, N: struckAt}}, Do: harness.DoKillProcess, Process: "consumer-1"},
			{Name: "lost", Until: []plan.State{{Kind: plan.Custom, Name: membersGate(0)}}, Do: doLosePosition},
			{
				Name: "restarted", Do: harness.DoStartProcess, Process: "consumer-2",
				Until: []plan.State{{Kind: plan.Confirmed, N: unread, Since: "lost"}},
			},
			{
				Name: "reported", Do: doSetPosition, Arms: stops,
				Until: []plan.State{{Kind: plan.ProcessEnded, Process: "consumer-2", Arms: stops}},
			},
			{Name: "resumed", Do: harness.DoStartProcess, Process: "consumer-2", Arms: stops},
			goesOn("resumed"),
		},
		Gates:    memberGates(0),
		Evidence: ledger.Evidence{Bites: []string{"killed"}},
	})
	// Another process takes over, so the kill is healed by nothing in the plan: its last gate says that work went on.
	sc.Evidence.HandledAfter = 0
	for i := range sc.Arms {
		if a := &sc.Arms[i]; a.Role == harness.Guarded { // what was read again is what its inbox is there for
			again := sc.Evidence
			again.Redelivered = 1
			a.Evidence = &again
		}
	}
	return sc
}

func offsetExpired() harness.Scenario {
	return positionLost("offset-expired-or-reset", "the group's committed offsets are deleted while its consumer is away, as by offsets.retention.minutes",
		func(ctx context.Context, e harness.Env, arm string) error {
			setter, ok := e.Cluster.(system.GroupSetter)
			if !ok {
				return errNoSetter
			}
			return setter.DeleteGroupPositions(ctx, e.Destinations[arm], e.Group(arm, group))
		})
}

func offsetBelowStart() harness.Scenario {
	return positionLost("offset-below-start", "the group's committed offset is an old one, below the start of the log, as after a restore or a retention that was faster",
		func(ctx context.Context, e harness.Env, arm string) error {
			deleter, ok := e.Cluster.(system.RecordDeleter)
			if !ok {
				return fmt.Errorf("cluster deletes no records: %w", system.ErrNotApplicable)
			}
			// All below was handled; what is lost is the position only.
			if err := deleter.DeleteRecords(ctx, e.Destinations[arm], []int64{consumed / 2}); err != nil {
				return err
			}
			return setPositions(ctx, e, arm, []int64{0})
		})
}

func offsetBeyondEnd() harness.Scenario {
	return positionLost("offset-beyond-end", "the group's committed offset is beyond the end of the log, as after a topic was made anew or its log cut short",
		func(ctx context.Context, e harness.Env, arm string) error {
			const far = 1 << 40
			return setPositions(ctx, e, arm, []int64{far})
		})
}

var errNoSetter = fmt.Errorf("cluster changes no positions of groups: %w", system.ErrNotApplicable)

func setPositions(ctx context.Context, e harness.Env, arm string, next []int64) error {
	setter, ok := e.Cluster.(system.GroupSetter)
	if !ok {
		return errNoSetter
	}
	return setter.SetGroupPositions(ctx, e.Destinations[arm], e.Group(arm, group), next)
}

func startPositions(ctx context.Context, c system.Cluster, destination string) ([]int64, error) {
	starts, ok := c.(system.StartPositions)
	if !ok {
		return nil, errors.New("cluster tells no start positions")
	}
	return starts.StartPositions(ctx, destination)
}
