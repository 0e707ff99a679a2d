package suites

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"conform/harness"
	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/system/postgres"
	"conform/harness/worker"
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
			Text:   "after the reconciliation each committed order is published and has its effect exactly once, whatever the code lost or did twice, and where nothing was wrong nothing is found",
			Start:  "the commit of the order's transaction",
			End:    "the effects, read in one snapshot with the outbox once relays, consumers and the job have nothing left to do",
			Places: []string{"outbox", "effect"},
			Rules:  map[string]ledger.Rule{audit.DeadLetterWrong: {}}, // a false difference
		},
		Scenarios: []harness.Scenario{b.lostAndTwice(), b.seenNotDone(), b.givenUp(), b.passedOver(), b.notClosed(), b.paidTwice(), b.askedTwice(), b.overwritten(), b.behind()},
	}
}

var reconcileSources = []string{
	"Pat Helland, Life beyond Distributed Transactions: apologies and compensation",
	"Gregor Hohpe, Your Coffee Shop Doesn't Use Two-Phase Commit: write-off, retry, compensating action",
}

const (
	reconciler   = "reconciler"
	nothingWrong = "nothing-wrong"
	reportOnly   = "report-only"
	repaired     = "repaired"
	// compared is the gate of a job that has compared everything at least once since it was started.
	compared = "the job has compared"
)

// reconciled are the arms of a damage: with the job that repairs it, with one that only reports it, and the job where safe code
// has met the same fault. made makes an arm of unsafe or of safe code.
func (b broker) reconciled(anomaly string, also []string, made func(a *harness.Arm, safe bool)) []harness.Arm {
	arm := func(name string, role harness.Role, job string, safe bool) harness.Arm {
		a := harness.Arm{Name: name, Role: role, Destination: b.destination, Code: &harness.Code{Guarded: "Reconcile"}}
		made(&a, safe)
		a.Processes = append(a.Processes, b.comparing(job))
		return a
	}
	control := arm(reportOnly, harness.Control, "ReportOnly", false)
	control.Code.Unsafe = "ReportOnly"
	place := "effect"
	if anomaly == audit.Unpublished {
		place = "outbox"
	}
	control.Break = &harness.Break{Knob: paramJob + "=ReportOnly", Place: place, Anomaly: anomaly, Also: also}
	return []harness.Arm{arm(repaired, harness.Guarded, "Reconcile", false), arm(nothingWrong, harness.Guarded, "Reconcile", true), control}
}

// comparing is the process of a reconciliation. It belongs to the consumers' group only to ask where that stands.
func (b broker) comparing(job string) harness.Process {
	p := b.relay(reconciler, map[string]string{paramJob: job, paramEvery: "200ms", paramDeadline: "2s", paramRedeliver: "1s"})
	p.Group, p.Manual = group, true
	return p
}

// reconciling fills in what the scenarios have in common: when the damage is done the job is started while the load goes on, and
// compares at least once.
func reconciling(s harness.Scenario, alarms func(arm string) bool, started plan.Step) harness.Scenario {
	s = chained(s)
	s.Load.Rate = 30 // three chains side by side, and each event has a transaction of its own: the consumers are to keep up
	s.Snapshot = snapshotWithAlarms(alarms, s.Tables...)
	if s.Gates == nil {
		s.Gates = map[string]harness.Gate{}
	}
	s.Gates[compared] = func(ctx context.Context, e harness.Env, p plan.State) (bool, string, error) {
		return rowsIn(ctx, e, p.Arms, 1, "SELECT runs FROM reconciliation")
	}
	started.Name, started.Do, started.Process = "reconciling", harness.DoStartProcess, reconciler
	s.Steps = append(s.Steps, started, plan.Step{
		Name: "compared", Until: []plan.State{{Kind: plan.Handled, N: seen, Since: "reconciling"}, {Kind: plan.Custom, Name: compared}},
	})
	return s
}

func inNothingWrong(arm string) bool { return arm == nothingWrong }

// snapshotWithAlarms reads tables like snapshotTables. Where nothing is wrong whatever the job has found is an alarm about a good
// message: it is read as one of the dead letters.
func snapshotWithAlarms(alarms func(arm string) bool, tables ...string) func(context.Context, harness.ArmEnv, func(ledger.Event)) error {
	return func(ctx context.Context, e harness.ArmEnv, sink func(ledger.Event)) error {
		db, err := database(e.Env)
		if err != nil {
			return err
		}
		return db.Snapshot(ctx, func(tx pgx.Tx) error {
			for _, table := range tables {
				var failed error
				err := readTable(ctx, tx, e.Schema, table, func(event ledger.Event) {
					if event.Kind == ledger.SnapshotEnd && table == ledger.TableDeadLetter && alarms(e.Arm.Name) {
						var n int64
						n, failed = readAlarms(ctx, tx, e.Schema, sink)
						event.N += n
					}
					sink(event)
				})
				if err == nil {
					err = failed
				}
				if err != nil {
					return fmt.Errorf("read %s: %w", table, err)
				}
			}
			return nil
		})
	}
}

// readAlarms records what a reconciliation has found, and returns how much that was.
func readAlarms(ctx context.Context, tx pgx.Tx, schema string, sink func(ledger.Event)) (n int64, err error) {
	rows, err := tx.Query(ctx, "SELECT event_id, kind, found_at FROM "+pgx.Identifier{schema, "discrepancy"}.Sanitize()+" WHERE found_at IS NOT NULL")
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var event int64
		var kind string
		var at time.Time
		if err := rows.Scan(&event, &kind, &at); err != nil {
			return n, err
		}
		when := at.UTC().Format(time.RFC3339Nano)
		detail, err := json.Marshal(ledger.FailureRecord{
			EventID: strconv.FormatInt(event, 10), Destination: "orders", Class: string(chain.Unknown), Attempts: 1,
			FirstFailed: when, LastFailed: when, Error: "the reconciliation found: " + kind,
		})
		if err != nil {
			return n, err
		}
		sink(ledger.Event{Kind: ledger.Effect, At: worker.Now(), EventID: uint64(event), Text: ledger.TableDeadLetter, Detail: string(detail)})
		n++
	}
	return n, rows.Err()
}

func (b broker) lostAndTwice() harness.Scenario {
	return reconciling(harness.Scenario{
		Name: "lost-and-twice", Cost: 40 * time.Second,
		Summary: "an orders service without an outbox is killed between commit and publish, and a consumer without an inbox between commit and settle",
		Guarded: "a job compares orders and effects: what has none once the consumer is past all that was published is published again under its own event id, what happened twice is taken back",
		LookFor: "orders without an effect though the consumers have no lag, and effects without an order or with several: count both, hourly, and alarm on the first",
		Sources: reconcileSources,
		Arms: b.reconciled(audit.DuplicateEffect, []string{audit.Unpublished, audit.MissingEffect}, func(a *harness.Arm, safe bool) {
			command, handler := "PlaceOrderThenPublish", "ApplyAlways"
			if safe {
				command, handler = "PlaceOrder", "ApplyOnce"
			}
			a.Producer = b.orders(map[string]string{paramCommand: command},
				harness.Incarnation{CrashAt: chain.AfterOrderCommit, CrashNth: seen}, harness.Incarnation{})
			a.Processes = []harness.Process{b.relay("relay-1", nil), dying(b.reader("consumer-1", map[string]string{paramHandler: handler}), chain.AfterBusinessCommit)}
		}),
		Evidence: ledger.Evidence{Bites: []string{"crash-producer", "crash-consumer-1"}, HandledAfter: seen},
	}, inNothingWrong, plan.Step{Until: []plan.State{{Kind: plan.ProcessEnded, Process: "producer"}, {Kind: plan.ProcessEnded, Process: "consumer-1"}}})
}

// dying is a process that is killed at a point, and restarted.
func dying(p harness.Process, point string) harness.Process {
	p.CrashAt, p.CrashNth, p.Restart = point, seen, true
	return p
}

func (b broker) seenNotDone() harness.Scenario {
	return reconciling(harness.Scenario{
		Name: "seen-not-done", Cost: 40 * time.Second,
		Summary: "a consumer that marks an event as seen in a transaction of its own is killed before it has done the work",
		Guarded: "a job finds what was published and has no effect, makes the consumer forget it, and publishes it again",
		LookFor: lookFor("inbox/separate-transaction/mark-first"),
		Sources: reconcileSources,
		Arms: b.reconciled(audit.MissingEffect, nil, func(a *harness.Arm, safe bool) {
			handler := "ApplyAfterMark"
			if safe {
				handler = "ApplyOnce"
			}
			a.Producer = b.orders(nil)
			a.Processes = []harness.Process{b.relay("relay-1", nil), dying(b.reader("consumer-1", map[string]string{paramHandler: handler}), chain.BeforeBusinessCommit)}
		}),
		Evidence: ledger.Evidence{Bites: []string{"crash-consumer-1"}, HandledAfter: seen},
	}, inNothingWrong, plan.Step{Until: []plan.State{{Kind: plan.ProcessEnded, Process: "consumer-1"}}})
}

func (b broker) givenUp() harness.Scenario {
	return reconciling(harness.Scenario{
		Name: "given-up", Cost: 40 * time.Second,
		Summary: "the brokers are away until a relay without patience has given up what waits",
		Guarded: "a job finds the rows that were given up, and makes them pending again",
		LookFor: lookFor("outbox/broker-outage"),
		Sources: reconcileSources,
		Targets: map[string]plan.Role{"brokers": plan.All},
		Arms: b.reconciled(audit.Unpublished, []string{audit.MissingEffect}, func(a *harness.Arm, safe bool) {
			run := "RunRelayGivingUp"
			if safe {
				run = "RunRelay"
			}
			a.Producer = b.orders(nil)
			a.Processes = []harness.Process{
				b.relay("relay-1", map[string]string{paramRun: run, paramTimeout: "500ms", paramTries: "3"}), b.reader("consumer-1", nil),
			}
		}),
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
					{Kind: plan.Ordered, N: seen, Since: "away"},
					{Kind: plan.Custom, Name: "rows were given up", Arms: []string{repaired, reportOnly}},
				},
			},
		},
		Evidence: ledger.Evidence{Bites: []string{"away"}, HandledBefore: seen, HandledAfter: seen},
	}, inNothingWrong, plan.Step{})
}

func (b broker) passedOver() harness.Scenario {
	// A row counts as passed over once the lane has gone on after it was suspected. Then the job will find it.
	const lane = `SELECT count(*) FROM discrepancy d JOIN outbox o USING (event_id) WHERE event_id = %d AND (d.found_at IS NOT NULL OR EXISTS (
		SELECT FROM outbox p WHERE p.lane = o.lane AND p.status = 'published' AND p.seq > o.seq AND p.created_at > d.suspected_at)
		OR EXISTS (SELECT FROM relay_lane l WHERE l.lane = o.lane AND l.nothing_at > d.suspected_at))`
	s := reconciling(harness.Scenario{
		Name: "passed-over", Cost: 40 * time.Second,
		Summary: "the transaction of an order is held open until a relay that reads on from the last id has passed its row",
		Guarded: "a job finds rows that stay pending while what was written later is published, and gives them a new place",
		LookFor: lookFor("outbox/late-commit-gap/status"),
		Sources: reconcileSources,
		Arms: b.reconciled(audit.Unpublished, []string{audit.MissingEffect}, func(a *harness.Arm, safe bool) {
			job := "RelayPastLast"
			if safe {
				job = "Relay"
			}
			a.Producer = b.orders(nil, harness.Incarnation{HoldAt: chain.BeforeOrderCommit, HoldIf: worker.Match{EventID: heldOrder}})
			a.Processes = []harness.Process{b.relay("relay-1", map[string]string{paramJob: job}), b.reader("consumer-1", nil)}
		}),
		Gates: map[string]harness.Gate{
			"the relay has passed the held order": func(ctx context.Context, e harness.Env, _ plan.State) (bool, string, error) {
				return rowsIn(ctx, e, nil, allLanes, fmt.Sprintf(overtakenByStatus, heldOrder))
			},
			"its lane has gone on": func(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
				return rowsIn(ctx, e, s.Arms, 1, fmt.Sprintf(lane, heldOrder))
			},
		},
		Steps: []plan.Step{
			{Name: "held", Until: []plan.State{{Kind: plan.ProcessAt, Process: "producer", Point: chain.BeforeOrderCommit}}},
			{
				Name: "committed", Do: harness.DoReleaseProcess, Process: "producer",
				Until: []plan.State{{Kind: plan.Ordered, N: seen, Since: "held"}, {Kind: plan.Custom, Name: "the relay has passed the held order"}},
			},
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-producer"}, HandledAfter: seen},
	}, inNothingWrong, plan.Step{})
	last := &s.Steps[len(s.Steps)-1]
	last.Until = append(last.Until, plan.State{Kind: plan.Custom, Name: "its lane has gone on", Arms: []string{repaired, reportOnly}})
	return s
}

func (b broker) notClosed() harness.Scenario {
	return b.paymentsCompared(harness.Scenario{
		Name:    "not-closed",
		Summary: "the payment service makes a payment and does not answer in time; an executor that takes a timeout for a refusal cancels the order",
		Guarded: "a job compares the orders that are not paid with the provider's book, and closes them as they ought to be",
		LookFor: lookFor("external-effect/act-then-timeout/timeout-is-failure"),
	}, audit.PhantomEffect, "ChargeOrFail", "SELECT count(*) FROM orders WHERE state <> 'paid'")
}

func (b broker) paidTwice() harness.Scenario {
	return b.paymentsCompared(harness.Scenario{
		Name:    "paid-twice",
		Summary: "the payment service makes a payment and does not answer in time; an executor without an idempotency key asks for it again, and it is made twice",
		Guarded: "a job reads the provider's book in, finds two payments for one order, and has the second refunded",
		LookFor: lookFor("external-effect/act-then-timeout/without-key"),
		// The book that was read in is as new as the last payment, and holds each of them once.
	}, audit.DuplicateEffect, "ChargeWithoutKey", `SELECT (SELECT count(*) FROM payment_intents i WHERE NOT EXISTS (SELECT FROM payment_book b WHERE b.reference = i.event_id))
		+ (SELECT count(*) - count(DISTINCT reference) FROM payment_book)`)
}

// paymentsCompared are scenarios of an executor that works by an unsafe function while the payment service is silent. left counts
// what the job has yet to repair.
func (b broker) paymentsCompared(s harness.Scenario, anomaly, unsafe, left string) harness.Scenario {
	s.Cost = 40 * time.Second
	s.Sources = append([]string{"Stripe documentation, reconciliation: the provider's record is compared with one's own"}, reconcileSources...)
	s.Arms = b.reconciled(anomaly, nil, func(a *harness.Arm, safe bool) {
		charge := unsafe
		if safe {
			charge = "Charge"
		}
		a.Producer = b.orders(nil)
		a.Processes = []harness.Process{
			b.reader("consumer-1", map[string]string{paramHandler: "PlacePaidOrder"}), executor(map[string]string{paramCharge: charge}),
			paymentService(nil, seen), b.relay("relay-1", nil),
		}
	})
	s.Steps = silence()[:2]
	s.Evidence = ledger.Evidence{Bites: []string{"hold-" + processPayment}, HandledAfter: seen}
	s = reconciling(s, inNothingWrong, plan.Step{})
	s.Chain.Effects = []ledger.EffectTable{{Name: tablePayments}}
	s.Tables = []string{tableOrders, ledger.TableOutbox, ledger.TableDeadLetter, tablePayments}
	read := snapshotWithAlarms(inNothingWrong, tableOrders, ledger.TableOutbox, ledger.TableDeadLetter) // the service records its book itself
	s.Snapshot = func(ctx context.Context, e harness.ArmEnv, sink func(ledger.Event)) error {
		if err := read(ctx, e, sink); err != nil {
			return err
		}
		return lastWords(ctx, e, sink)
	}
	s.Drained = repairsDrained("SELECT count(*) FROM payment_intents WHERE status = 'pending'", left)
	return s
}

// repairsDrained is a drain in which guarded arms have repaired what left counts, too. Whoever only reports leaves it.
func repairsDrained(always, left string) func(context.Context, harness.ArmEnv) (bool, string, int64, error) {
	return func(ctx context.Context, e harness.ArmEnv) (done bool, seen string, progress int64, err error) {
		queries := []string{always, leftFor["Relay"]}
		if e.Arm.Role == harness.Guarded {
			queries = append(queries, left)
		}
		rows, err := countRows(ctx, e.Env, e.Schema, queries...)
		if err != nil {
			return false, "", 0, err
		}
		lag, progress, err := lagOf(ctx, e)
		return rows+lag == 0, fmt.Sprintf("%d rows and %d records left", rows, lag), progress - rows, err
	}
}

func (b broker) askedTwice() harness.Scenario {
	return reconciling(harness.Scenario{
		Name: "asked-twice", Cost: 40 * time.Second,
		Summary: fmt.Sprintf("the answers to %d COMMITs of orders are swallowed; an orders service that takes them for failed places the orders again under new ids", swallowed),
		Guarded: "a job finds orders of one wish by what their asker calls it, cancels the second and takes its effect back",
		LookFor: lookFor("outbox/commit-in-doubt"),
		Sources: reconcileSources,
		Targets: map[string]plan.Role{"database": plan.On(postgres.Name, plan.One)},
		Arms: b.reconciled(audit.DuplicateEffect, nil, func(a *harness.Arm, safe bool) {
			command := "PlaceOrderBlindly"
			if safe {
				command = "PlaceOrderSurely"
			}
			a.Producer = b.orders(map[string]string{paramCommand: command})
			a.Processes = []harness.Process{b.relay("relay-1", nil), b.reader("consumer-1", nil)}
		}),
		Steps:    commitsSwallowed(),
		Evidence: ledger.Evidence{Bites: []string{"swallowed"}, HandledBefore: seen, HandledAfter: seen},
	}, inNothingWrong, plan.Step{})
}

func (b broker) overwritten() harness.Scenario {
	s := reconciling(harness.Scenario{
		Name: "overwritten", Cost: 40 * time.Second,
		Summary: "when the last event of each key has been applied, the first ones come once more, and a consumer that takes the order of arrival for that of business overwrites newer states",
		Guarded: "a job compares each state with the newest order of its key, and brings it up to date",
		LookFor: lookFor("state-order/old-after-new"),
		Sources: reconcileSources,
		Arms: b.reconciled(audit.StaleEffect, nil, func(a *harness.Arm, safe bool) {
			handler := "OverwriteState"
			if safe {
				handler = "ApplyState"
			}
			a.Producer = b.orders(nil)
			a.Processes = []harness.Process{
				b.relay("relay-1", nil), b.reader("consumer-1", map[string]string{paramHandler: handler}),
				b.replayer("replayer", map[string]string{paramEvents: strconv.Itoa(old)}),
			}
		}),
		Gates: map[string]harness.Gate{
			"nothing is left": func(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
				for arm := range e.Schemas {
					if left, told, err := rowsIn(ctx, e, []string{arm}, 1, leftFor["Relay"]); err != nil || left {
						return false, told, err
					}
				}
				return noLag(ctx, e, s)
			},
		},
		Steps:    oldAfterNew(),
		Evidence: ledger.Evidence{Bites: []string{strikeReplay}, HandledBefore: seen},
	}, inNothingWrong, plan.Step{})
	// There is no load any more, which would bring states up to date by itself.
	s.Steps[len(s.Steps)-1].Until = []plan.State{{Kind: plan.Custom, Name: compared}}
	s.Chain.Effects = []ledger.EffectTable{{Name: tableBalances, State: true}}
	s.Tables = []string{tableOrders, ledger.TableOutbox, tableBalances, ledger.TableDeadLetter}
	s.Snapshot = snapshotWithAlarms(inNothingWrong, s.Tables...)
	s.Drained = repairsDrained("SELECT 0", "SELECT count(*) FROM balances b WHERE version < (SELECT max(version) FROM orders o WHERE o.key = b.key)")
	return s
}

// lastWords records what the shop believes of each order in the end.
func lastWords(ctx context.Context, e harness.ArmEnv, sink func(ledger.Event)) error {
	db, err := database(e.Env)
	if err != nil {
		return err
	}
	return db.Snapshot(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT event_id, state FROM "+pgx.Identifier{e.Schema, tableOrders}.Sanitize()+" WHERE state <> 'new'")
		if err != nil {
			return fmt.Errorf("read states of orders: %w", err)
		}
		defer rows.Close()
		for rows.Next() {
			var event int64
			var state string
			if err := rows.Scan(&event, &state); err != nil {
				return fmt.Errorf("read states of orders: %w", err)
			}
			claim := ledger.ClaimFailed
			if state == "paid" {
				claim = ledger.ClaimSent
			}
			sink(ledger.Event{Kind: ledger.Claimed, At: worker.Now(), EventID: uint64(event), Claim: claim})
		}
		return rows.Err()
	})
}

func (b broker) behind() harness.Scenario {
	s := reconciling(harness.Scenario{
		Name: "behind", Cost: 30 * time.Second,
		Summary: "the consumer stands still, with all that is published before it, while the job compares; then it goes on",
		Guarded: "the job waits until the consumer is past all that the broker held when something seemed to be missing: late is not lost",
		LookFor: lookFor("reconcile/behind"),
		Sources: reconcileSources,
		Arms: b.pairArms("reconcile/behind", "delivery", paramJob, func(a *harness.Arm, function string) {
			p := b.reader("consumer-1", nil)
			p.HoldAt, p.HoldNth = chain.AfterFetch, seen
			a.Producer = b.orders(nil)
			a.Processes = []harness.Process{b.relay("relay-1", nil), p, b.comparing(function)}
		}),
		Gates: map[string]harness.Gate{
			"the job has looked": func(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
				return rowsIn(ctx, e, s.Arms, 1, "SELECT count(*) FROM discrepancy")
			},
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-consumer-1"}, HandledAfter: seen},
	}, func(string) bool { return true }, plan.Step{Until: []plan.State{
		{Kind: plan.ProcessAt, Process: "consumer-1", Point: chain.AfterFetch}, {Kind: plan.Ordered, N: 2 * seen},
	}})
	// It compares against the consumer that stands still: who waits for it has suspicions, who does not has compared.
	end := s.Steps[len(s.Steps)-1]
	end.Until[0].Since = "released"
	s.Steps[len(s.Steps)-1] = plan.Step{
		Name: "released", Do: harness.DoReleaseProcess, Process: "consumer-1",
		Until: []plan.State{
			{Kind: plan.Custom, Name: "the job has looked"},
			{Kind: plan.Custom, Name: compared, Arms: []string{"reconcile-by-age"}},
		},
	}
	s.Steps = append(s.Steps, end)
	return s
}
