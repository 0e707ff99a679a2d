package suites

import (
	"context"
	"strconv"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
)

func init() { register(stateOrder(onKafka)) }

// stateOrder is the suite of states that old events must not undo.
func stateOrder(b broker) harness.Suite {
	tables := []string{tableBalances, ledger.TableDeadLetter}
	return harness.Suite{
		Name:   "state-order",
		System: b.system,
		With:   []system.System{postgresSystem.System},
		Title:  "the newest state of a key stands, in whatever order its events come",
		Promise: ledger.Promise{
			Text:   "the state of each key is that of its newest event that was applied, whatever comes after it",
			Start:  "the confirm that the producer saw",
			End:    "the states, read in one snapshot once the consumers' group has no lag",
			Places: []string{"effect"},
		},
		Scenarios: []harness.Scenario{delivered(harness.Scenario{
			Name: "old-after-new", Cost: 20 * time.Second,
			Summary:  "when the last event of each key has been applied, the first ones come once more: a resend whose confirm was lost, or a replay",
			Guarded:  "the versions are compared by the update itself",
			LookFor:  lookFor("state-order/old-after-new"),
			Sources:  []string{"Pat Helland, Life beyond Distributed Transactions: messages that come out of order", "Kafka documentation, design: ordering is that of the log, not of the business"},
			Tables:   tables,
			Chain:    ledger.Chain{Effects: []ledger.EffectTable{{Name: tableBalances, State: true}}},
			Snapshot: snapshotTables(tables...),
			Arms: b.pairArms("state-order/old-after-new", "effect", paramHandler, func(a *harness.Arm, function string) {
				a.Processes = []harness.Process{
					b.reader("consumer-1", map[string]string{paramHandler: function}),
					b.replayer("replayer", map[string]string{paramEvents: strconv.Itoa(old)}),
				}
			}),
			Gates:    map[string]harness.Gate{"nothing is left": noLag},
			Steps:    oldAfterNew(),
			Evidence: ledger.Evidence{Bites: []string{strikeReplay}, HandledBefore: seen},
		})},
	}
}

// oldAfterNew are the steps in which old events come once more when all is applied. The gate says when that is.
func oldAfterNew() []plan.Step {
	return []plan.Step{
		{Name: "over", Until: []plan.State{{Kind: plan.Handled, N: 2 * seen}}, Do: harness.DoStopLoad},
		{
			Name: "again", Do: harness.DoStartProcess, Process: "replayer",
			Until: []plan.State{{Kind: plan.Ended}, {Kind: plan.Custom, Name: "nothing is left"}},
		},
		{Name: "handled", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "replayer"}, {Kind: plan.Handled, N: old, Since: "again"}}},
	}
}

// noLag waits until every arm's group has passed all that is there.
func noLag(ctx context.Context, e harness.Env, _ plan.State) (bool, string, error) {
	groups, ok := e.Cluster.(system.GroupPositions)
	if !ok {
		return false, "", system.ErrNotApplicable
	}
	lag := int64(0)
	for arm, destination := range e.Destinations {
		positions, err := groups.GroupPositions(ctx, destination, e.Group(arm, group))
		if err != nil {
			return false, "", err
		}
		for _, p := range positions {
			lag += p.Lag()
		}
	}
	return lag == 0, "lag " + strconv.FormatInt(lag, 10), nil
}
