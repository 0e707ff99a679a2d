package suites

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
)

func init() {
	register(harness.Suite{
		Name:   "kafka-retention",
		System: kafkaSystem,
		With:   []system.System{postgresSystem.System},
		Title:  "unprocessed records are not deleted",
		Promise: ledger.Promise{
			Text:   "each record whose send was confirmed stays in the log until its effect is in the database, however long its consumer is away within the longest outage",
			Start:  "the confirm that the producer saw",
			End:    "the log and the effects, read once the group has no lag",
			Places: []string{"store", "effect"},
		},
		Scenarios: []harness.Scenario{outageBeyondRetention(), oldTimestamps(), compaction()},
	})
}

// hurried are the node settings under which retention and compaction act within seconds. Kafka's defaults are beside them.
var hurried = map[string]string{
	"log.retention.check.interval.ms": "1000", // 300000
	"log.cleaner.backoff.ms":          "500",  // 15000
}

// rolling is how often a segment is closed: the active one is neither deleted nor compacted.
const rolling = "1000"

const (
	doKeep       = "end-retention"
	gateExpired  = "unprocessed records are deleted"
	gateCompact  = "records are compacted away"
	longestAway  = "3600000" // ms: longer than any outage here
	tooShort     = "3000"    // ms
	smallestSize = "1048576" // bytes: segments cannot be smaller from 4.0 on (KIP-1030)
)

// keep ends retention, so that the log stands still for its final read.
func keep(ctx context.Context, e harness.Env, _ plan.Step) (string, error) {
	configurer, ok := e.Cluster.(system.Configurer)
	if !ok {
		return "", fmt.Errorf("cluster changes no settings of a destination in use: %w", system.ErrNotApplicable)
	}
	for _, destination := range e.Destinations {
		if err := configurer.Configure(ctx, destination, map[string]string{"retention.ms": "-1", "retention.bytes": "-1"}); err != nil {
			return "", err
		}
	}
	return "retention.ms=-1, retention.bytes=-1", nil
}

// expired waits until the log start has passed the group's position.
func expired(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
	groups, ok := e.Cluster.(system.GroupPositions)
	if !ok {
		return false, "", fmt.Errorf("cluster tells no positions of groups: %w", system.ErrNotApplicable)
	}
	all := true
	var seen []string
	for _, arm := range s.Arms {
		destination, there := e.Destinations[arm]
		if !there {
			continue
		}
		positions, err := groups.GroupPositions(ctx, destination, e.Group(arm, group))
		if err != nil {
			return false, "", err
		}
		gone := int64(0)
		for _, p := range positions {
			gone += max(0, p.Start-max(0, p.Committed))
		}
		all = all && gone > 0
		seen = append(seen, fmt.Sprintf("%s %d", arm, gone))
	}
	return all, strings.Join(seen, ", "), nil
}

func outageBeyondRetention() harness.Scenario {
	topic := func(name, value string) map[string]string {
		all := map[string]string{
			"segment.ms": rolling, "segment.bytes": smallestSize, "file.delete.delay.ms": "1000",
			"retention.ms": longestAway, "retention.bytes": "-1",
		}
		if name != "" {
			all[name] = value
		}
		return all
	}
	arm := func(name string, role harness.Role, topic map[string]string) harness.Arm {
		return harness.Arm{
			Name: name, Role: role, Destination: topic, Node: hurried,
			Processes: []harness.Process{consumer("consumer-1", "classic", nil, map[string]string{"auto.offset.reset": "earliest"})},
		}
	}
	control := func(name, setting, value string) harness.Arm {
		a := arm(name, harness.Control, topic(setting, value))
		a.Break = &harness.Break{Knob: setting + "=" + value, Place: "effect", Anomaly: "missing-effect", Attribution: "expired"}
		return a
	}
	controls := []string{"short", "small"}
	s := effects(harness.Scenario{
		Name:    "outage-beyond-retention",
		Summary: "the consumer is away until retention has deleted records that it has not read",
		Guarded: "retention longer than the longest outage, with an alarm on the age of the oldest unprocessed record",
		LookFor: "the age of the oldest unprocessed record: the timestamp at the group's committed offset (kafka-get-offsets, kafka-consumer-groups --describe) against retention.ms; a LOG-START-OFFSET above CURRENT-OFFSET means that it has happened",
		Sources: []string{
			"Kafka documentation, topic configuration: retention.ms, retention.bytes, segment.ms",
			"KIP-1030 (segment.bytes is at least 1 MiB)",
		},
		Load: harness.Load{Partitions: 1, PayloadSize: 16384},
		Arms: []harness.Arm{
			arm("guarded", harness.Guarded, topic("", "")),
			control(controls[0], "retention.ms", tooShort), control(controls[1], "retention.bytes", smallestSize),
		},
		Gates:   map[string]harness.Gate{gateExpired: expired},
		Actions: map[string]harness.Action{doKeep: keep},
		Steps: []plan.Step{
			{Name: "away", Until: []plan.State{{Kind: plan.Handled, N: consumed}}, Do: harness.DoKillProcess, Process: "consumer-1"},
			{
				Name: "back", Do: harness.DoStartProcess, Process: "consumer-1",
				Until: []plan.State{
					{Kind: plan.Confirmed, N: unread, Since: "away"},
					{Kind: plan.Custom, Name: gateExpired, Arms: controls},
				},
			},
			{Name: "kept", Until: []plan.State{{Kind: plan.Handled, N: consumed, Since: "back"}}, Do: doKeep},
		},
		Evidence: ledger.Evidence{Bites: []string{"away"}},
	})
	s.Load.Tail = 2 * time.Second
	return s
}

func oldTimestamps() harness.Scenario {
	arm := func(name string, role harness.Role, timestamps string) harness.Arm {
		return harness.Arm{
			Name: name, Role: role, Node: hurried,
			Promise: ledger.Promise{
				Text:   "each record whose send was confirmed stays in the log for as long as retention.ms says",
				Start:  "the confirm that the producer saw",
				End:    "the log, read to its end",
				Places: []string{"store"},
			},
			Client: map[string]string{"timestamp.age.ms": strconv.Itoa(int(time.Hour.Milliseconds()))},
			Destination: map[string]string{
				"segment.ms": rolling, "file.delete.delay.ms": "1000", "retention.ms": "1800000", "message.timestamp.type": timestamps,
			},
		}
	}
	control := arm("create-time", harness.Control, "CreateTime")
	control.Break = &harness.Break{Knob: "message.timestamp.type=CreateTime", Place: "store", Anomaly: "lost", Attribution: "expired"}
	return harness.Scenario{
		Name: "old-timestamps", Cost: 25 * time.Second,
		Summary: "the records carry a time that is older than retention.ms, as those of a replay or of a client with a wrong clock",
		Guarded: "message.timestamp.type=LogAppendTime: a record's age is counted from its append",
		LookFor: "message.timestamp.type=CreateTime (the default) in topics that old data are loaded into; a log start that follows the end: kafka-get-offsets --time earliest and latest",
		Sources: []string{"Kafka documentation, topic configuration: message.timestamp.type, message.timestamp.before.max.ms, retention.ms"},
		Load:    harness.Load{Rate: 200},
		Arms:    []harness.Arm{arm("guarded", harness.Guarded, "LogAppendTime"), control},
		Gates: map[string]harness.Gate{gateExpired: func(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
			for _, arm := range s.Arms {
				starts, err := startPositions(ctx, e.Cluster, e.Destinations[arm])
				if err != nil || len(starts) == 0 || starts[0] == 0 {
					return false, "nothing is deleted yet", err
				}
			}
			return true, "deleted", nil
		}},
		Actions: map[string]harness.Action{doKeep: keep},
		Steps: []plan.Step{
			{Name: "written", Until: []plan.State{{Kind: plan.Confirmed, N: struck}}},
			{Name: "kept", Until: []plan.State{{Kind: plan.Custom, Name: gateExpired, Arms: []string{"create-time"}}}, Do: doKeep},
		},
		Evidence: ledger.Evidence{Ends: []string{"producer-1"}},
	}
}

func compaction() harness.Scenario {
	arm := func(name string, role harness.Role, policy string) harness.Arm {
		return harness.Arm{
			Name: name, Role: role, Node: hurried,
			Destination: map[string]string{
				"cleanup.policy": policy, "segment.ms": rolling, "retention.ms": longestAway, "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "1000",
			},
			Processes: []harness.Process{consumer("consumer-1", "classic", nil, map[string]string{"auto.offset.reset": "earliest"})},
		}
	}
	control := arm("compact", harness.Control, "compact")
	control.Break = &harness.Break{Knob: "cleanup.policy=compact", Place: "effect", Anomaly: "missing-effect", Attribution: "expired"}
	s := effects(harness.Scenario{
		Name:    "compaction",
		Summary: "the records are deltas, each of which counts, and two of one key are compacted to the last while the consumer is away",
		Guarded: "cleanup.policy=delete; or whole states, of which only the last counts, instead of deltas",
		LookFor: "cleanup.policy=compact on topics whose records are events: offsets that are missing between two records of a partition",
		Sources: []string{"Kafka documentation, design: log compaction; topic configuration: cleanup.policy, min.cleanable.dirty.ratio, max.compaction.lag.ms"},
		Load:    harness.Load{Partitions: 1},
		Arms:    []harness.Arm{arm("guarded", harness.Guarded, "delete"), control},
		Gates:   map[string]harness.Gate{gateCompact: compactedAway},
		Steps: []plan.Step{
			{Name: "away", Until: []plan.State{{Kind: plan.Handled, N: consumed}}, Do: harness.DoKillProcess, Process: "consumer-1"},
			{
				Name: "back", Do: harness.DoStartProcess, Process: "consumer-1",
				Until: []plan.State{
					{Kind: plan.Confirmed, N: unread, Since: "away"},
					{Kind: plan.Custom, Name: gateCompact, Arms: []string{"compact"}},
				},
			},
			goesOn("back"),
		},
		Evidence: ledger.Evidence{Bites: []string{"away"}},
	})
	// What compaction takes is an anomaly of the effect; the log itself may lose what its key has a newer record of.
	return s
}

// compactedAway waits until records behind the group's position are missing in the log.
func compactedAway(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
	reader, reads := e.Cluster.(system.StoreReader)
	groups, tells := e.Cluster.(system.GroupPositions)
	if !reads || !tells {
		return false, "", fmt.Errorf("cluster cannot be read, or tells no positions of groups: %w", system.ErrNotApplicable)
	}
	var seen []string
	for _, arm := range s.Arms {
		destination := e.Destinations[arm]
		positions, err := groups.GroupPositions(ctx, destination, e.Group(arm, group))
		if err != nil {
			return false, "", err
		}
		from, end, there := max(0, positions[0].Committed), int64(0), int64(0)
		err = reader.ReadStore(ctx, destination, 0, 0, func(ev ledger.Event) {
			switch {
			case ev.View != ledger.ViewRaw || ev.Pos.Partition != 0:
			case ev.Kind == ledger.StoreEnd:
				end = ev.Pos.Offset
			case ev.Pos.Offset >= from:
				there++
			}
		})
		if err != nil {
			return false, "", err
		}
		if there >= end-from {
			return false, fmt.Sprintf("all %d are there", there), nil
		}
		seen = append(seen, fmt.Sprintf("%s: %d of %d are there", arm, there, end-from))
	}
	return true, strings.Join(seen, "; "), nil
}
