package suites

import (
	"context"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/suites/chain"
)

func init() { register(reconcile(onKafka)) }

// reconcile is the suite of the job that compares both ends of the chain.
func reconcile(b broker) harness.Suite {
	return harness.Suite{
		Name:   "reconcile",
		System: b.system,
		With:   []system.System{postgresSystem.System},
		Title:  "what no pattern has prevented is found by comparing both ends, and repaired",
		Promise: ledger.Promise{
			Text:   "after the reconciliation each committed order is published and has its effect exactly once, whatever the code lost or did twice, and where nothing was wrong nothing has changed",
			Start:  "the commit of the order's transaction",
			End:    "the effects, read in one snapshot with the outbox once relays, consumers and the job have nothing left to do",
			Places: []string{"outbox", "effect"},
		},
		Scenarios: []harness.Scenario{b.lostAndTwice(), b.stuckRows()},
	}
}

var reconcileSources = []string{
	"Pat Helland, Life beyond Distributed Transactions: apologies and compensation",
	"Gregor Hohpe, Your Coffee Shop Doesn't Use Two-Phase Commit: write-off, retry, compensating action",
}

// patience is how old an order without an effect must be: a consumer that died is missed after its session.
const patience = session + 4*time.Second

// reconciled are the arms of a damage: with the job that repairs it, without for each of the anomalies, and the job where
// there is none. made makes an arm of unsafe or of safe code.
func (b broker) reconciled(made func(a *harness.Arm, safe bool), anomalies ...string) []harness.Arm {
	arm := func(name string, role harness.Role, job string, safe bool) harness.Arm {
		a := harness.Arm{Name: name, Role: role, Destination: b.destination}
		made(&a, safe)
		params := map[string]string{paramJob: job, paramEvery: "200ms", paramRedeliver: patience.String()}
		if safe {
			params[paramFinds] = "nothing"
		}
		a.Processes = append(a.Processes, b.relay("reconciler", params))
		return a
	}
	arms := []harness.Arm{arm("repaired", harness.Guarded, "Reconcile", false), arm("nothing-wrong", harness.Guarded, "Reconcile", true)}
	for _, anomaly := range anomalies {
		place := "effect"
		if anomaly == "unpublished" {
			place = "outbox"
		}
		a := arm("report-only-"+anomaly, harness.Control, "ReportOnly", false)
		a.Break = &harness.Break{Knob: paramJob + "=ReportOnly", Place: place, Anomaly: anomaly}
		for _, other := range append(anomalies, "missing-effect") {
			if other != anomaly {
				a.Break.Also = append(a.Break.Also, other)
			}
		}
		arms = append(arms, a)
	}
	return arms
}

func (b broker) lostAndTwice() harness.Scenario {
	return chained(harness.Scenario{
		Name: "lost-and-twice", Cost: 35 * time.Second,
		Summary: "an orders service without an outbox is killed between commit and publish, and a consumer without an inbox between commit and settle",
		Guarded: "a job compares orders and effects: what has none is published again under its own event id, what happened twice is taken back",
		LookFor: "orders without an effect that are older than any delivery takes, and effects without an order or with several: count both, hourly, and alarm on the first",
		Sources: reconcileSources,
		Arms: b.reconciled(func(a *harness.Arm, safe bool) {
			command, handler := "PlaceOrderThenPublish", "ApplyAlways"
			if safe {
				command, handler = "PlaceOrder", "ApplyOnce"
			}
			a.Producer = b.orders(map[string]string{paramCommand: command},
				harness.Incarnation{CrashAt: chain.AfterOrderCommit, CrashNth: seen}, harness.Incarnation{})
			p := b.reader("consumer-1", map[string]string{paramHandler: handler})
			p.CrashAt, p.CrashNth, p.Restart = chain.AfterBusinessCommit, seen, true
			a.Processes = []harness.Process{b.relay("relay-1", nil), p}
		}, "unpublished", "duplicate-effect"),
		Steps: []plan.Step{
			{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "producer"}, {Kind: plan.ProcessEnded, Process: "consumer-1"}}},
			handledMore("crashed"),
		},
		Evidence: ledger.Evidence{Bites: []string{"crash-producer", "crash-consumer-1"}, HandledAfter: seen},
	})
}

func (b broker) stuckRows() harness.Scenario {
	return chained(harness.Scenario{
		Name: "stuck-rows", Cost: 35 * time.Second,
		Summary: "the brokers are away until a relay without patience has given up what waits",
		Guarded: "a job finds orders without an effect, whatever the state of their rows, and makes them pending again",
		LookFor: lookFor("outbox/broker-outage"),
		Sources: reconcileSources,
		Targets: map[string]plan.Role{"brokers": plan.All},
		Arms: b.reconciled(func(a *harness.Arm, safe bool) {
			run := "RunRelayGivingUp"
			if safe {
				run = "RunRelay"
			}
			a.Producer = b.orders(nil)
			a.Processes = []harness.Process{
				b.relay("relay-1", map[string]string{paramRun: run, paramTimeout: "500ms", paramTries: "3"}), b.reader("consumer-1", nil),
			}
		}, "unpublished"),
		Gates: map[string]harness.Gate{
			"rows were given up": func(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
				return rowsIn(ctx, e, s.Arms, 1, "SELECT count(*) FROM outbox WHERE status = 'given up'")
			},
		},
		Steps: []plan.Step{
			{
				Name: "away", Until: []plan.State{{Kind: plan.Handled, N: seen}},
				Inject: &plan.Exposure{Fault: "link-cut", Target: "brokers", Params: map[string]string{"mode": "reset"}},
			},
			{
				Name: "back", Heal: "away",
				Until: []plan.State{
					{Kind: plan.Bit, Since: "away"},
					{Kind: plan.Ordered, N: 2 * seen, Since: "away"},
					{Kind: plan.Custom, Name: "rows were given up", Arms: []string{"report-only-unpublished"}},
				},
			},
			handledMore("back"),
		},
		Evidence: ledger.Evidence{Bites: []string{"away"}, HandledBefore: seen, HandledAfter: seen},
	})
}
