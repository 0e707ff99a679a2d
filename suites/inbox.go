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
	"conform/harness/system/valkey"
	"conform/harness/worker"
	"conform/suites/chain"
)

// inbox is the suite of the inbox pattern on a broker.
func inbox(b broker) harness.Suite {
	return harness.Suite{
		Name:    b.suite("inbox"),
		System:  b.system,
		With:    []system.System{postgresSystem.System, valkey.System{}},
		Title:   "an event that comes many times has its effect once for each consumer",
		Promise: inboxPromise,
		Scenarios: []harness.Scenario{
			b.redelivery(), b.separateTransaction(), b.digestConflict(), b.twoConsumers(), b.purged(), b.setNX(), b.stateMachine(),
		},
	}
}

var inboxPromise = ledger.Promise{
	Text:   "each event whose send was confirmed has its effect exactly once for each consumer, however often and concurrently it comes",
	Start:  "the confirm that the producer saw",
	End:    "the effects, read in one snapshot once the consumers' groups have no lag",
	Places: []string{"effect"},
}

// delivered fills in what all scenarios have whose events begin at a producer.
func delivered(s harness.Scenario) harness.Scenario {
	s.Load.Rate, s.Load.Keys, s.Load.Partitions, s.Load.Tail = min(chainLoad.Rate, chainRate/len(s.Arms)), chainLoad.Keys, chainLoad.Partitions, chainLoad.Tail
	s.Setup, s.Drained = makeTables, chainDrained
	if s.Tables == nil {
		s.Snapshot = snapshotTables(tableNotifications, tableReceipts, ledger.TableInbox, ledger.TableDeadLetter)
		s.Tables = []string{tableNotifications, tableReceipts, ledger.TableInbox, ledger.TableDeadLetter}
	}
	if s.Chain.Effects == nil {
		s.Chain = ledger.Chain{Effects: []ledger.EffectTable{{Name: tableNotifications, Versions: true}}}
	}
	s.Redelivery = max(s.Redelivery, session)
	if s.Cost == 0 {
		s.Cost = 25 * time.Second
	}
	return s
}

// receipts says that an arm's effects are in the table with a key.
func receipts(a *harness.Arm) {
	a.Chain = &ledger.Chain{Effects: []ledger.EffectTable{{Name: tableReceipts, Versions: true}}}
}

// The events that faults are about, by their number in the load's first stream.
const (
	raced   = 100 // is in the hands of two consumers at once
	failing = 160 // its work fails
	forged  = 3   // the first ones come with another content, too
)

var inboxSources = []string{
	"Chris Richardson, Microservices Patterns, chapter 3: idempotent consumer, tracking message ids",
	"PostgreSQL documentation, INSERT: ON CONFLICT waits for a concurrent transaction that inserts the same key",
}

func (b broker) redelivery() harness.Scenario {
	arms := func(pair string) []harness.Arm {
		return b.pairArms(pair, "effect", paramHandler, func(a *harness.Arm, function string) {
			fails := map[string]string{paramHandler: function, paramFailEvent: strconv.Itoa(failing), paramFailAs: chain.BeforeBusinessCommit}
			first := b.reader("consumer-1", fails)
			first.HoldAt, first.HoldIf = chain.BeforeBusinessCommit, worker.Match{EventID: ledger.EventID(firstStream, raced)}
			second := b.reader("consumer-2", fails)
			second.Group = "consumers-again" // it is handed everything once more, as after a rebalance or a replay
			// It waits at the event until the first has it in work, and then is there at the same time.
			second.HoldAt, second.HoldIf = chain.AfterFetch, first.HoldIf
			a.Processes = []harness.Process{first, second}
			if function == "ApplyByBusinessKey" {
				a.Name = "guarded-business-key"
				receipts(a)
			}
		})
	}
	all := arms("inbox/redelivery/check-then-write")
	all = append(all, arms("inbox/redelivery/mark-before-work")[1])
	all = append(all, arms("inbox/redelivery/business-key")...)
	return delivered(harness.Scenario{
		Name: "redelivery", Window: "W5",
		Summary: "each event is handed to two processes of one consumer; for one event both are at work at once, and the work on another fails the first time",
		Guarded: "a unique (consumer, event id) in the business transaction: the second waits for the first; or a unique business key on the effect itself",
		LookFor: lookFor("inbox/redelivery/check-then-write") + "; " + lookFor("inbox/redelivery/mark-before-work") + "; " + lookFor("inbox/redelivery/business-key"),
		Sources: inboxSources,
		Arms:    all,
		Steps: []plan.Step{
			{Name: "at-work", Until: []plan.State{
				{Kind: plan.ProcessAt, Process: "consumer-1", Point: chain.BeforeBusinessCommit}, {Kind: plan.ProcessAt, Process: "consumer-2", Point: chain.AfterFetch},
			}},
			{Name: "both-at-work", Do: harness.DoReleaseProcess, Process: "consumer-2"},
			// Who does not wait for the first goes on; who does is seen to wait by the database.
			{
				Name: "committed", Do: harness.DoReleaseProcess, Process: "consumer-1",
				Until: []plan.State{{Kind: plan.Custom, Name: "the second waits for the first, or is past it"}},
			},
			{Name: "failed", Until: []plan.State{{Kind: plan.Handled, N: failing + 1, Process: "consumer-1"}, {Kind: plan.Handled, N: failing + 1, Process: "consumer-2"}}},
			handledMore("failed"),
		},
		Gates: map[string]harness.Gate{
			"the second waits for the first, or is past it": func(ctx context.Context, e harness.Env, _ plan.State) (bool, string, error) {
				all := true
				for arm, schema := range e.Schemas {
					waiting, err := countRows(ctx, e, schema, fmt.Sprintf(
						"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE '%s%%'", e.Clients[arm]))
					if err != nil {
						return false, "", err
					}
					past, err := countRows(ctx, e, schema, fmt.Sprintf(`SELECT (SELECT count(*) FROM notifications WHERE event_id > %[1]d)
						+ (SELECT count(*) FROM receipts WHERE event_id > %[1]d)`, ledger.EventID(firstStream, raced)))
					if err != nil {
						return false, "", err
					}
					all = all && waiting+past > 0
				}
				return all, fmt.Sprint(all), nil
			},
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-consumer-1", "hold-consumer-2", strikeFailure}, HandledBefore: seen, HandledAfter: seen},
	})
}

func (b broker) separateTransaction() harness.Scenario {
	arms := func(pair string) []harness.Arm {
		return b.pairArms(pair, "effect", paramHandler, func(a *harness.Arm, function string) {
			p := b.reader("consumer-1", map[string]string{paramHandler: function})
			p.CrashAt, p.CrashNth, p.Restart = chain.BeforeBusinessCommit, 2*seen, true
			a.Processes = []harness.Process{p}
		})
	}
	workFirst, markFirst := arms("inbox/separate-transaction/work-first"), arms("inbox/separate-transaction/mark-first")
	workFirst[0].Name = "guarded-work-first"
	return delivered(harness.Scenario{
		Name: "separate-transaction", Window: "W5",
		Summary: "a consumer is killed right before its last commit: between its two transactions, where it has two",
		Guarded: "what is remembered and what is done are one transaction",
		LookFor: lookFor("inbox/separate-transaction/work-first") + "; " + lookFor("inbox/separate-transaction/mark-first"),
		Sources: inboxSources,
		Arms:    append(markFirst, workFirst...),
		Steps:   crashedOnce(),
		Evidence: ledger.Evidence{
			Bites: []string{"crash-consumer-1"}, HandledBefore: seen, HandledAfter: seen, Redelivered: 1,
		},
	})
}

// crashedOnce waits for the crash of the consumer, and for what comes after.
func crashedOnce() []plan.Step {
	return []plan.Step{
		{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "consumer-1"}}},
		handledMore("crashed"),
	}
}

// again are the steps of a replay: a process sends old events once more, when all arms have handled some.
func again(until ...plan.State) []plan.Step {
	return []plan.Step{
		{Name: "handled", Until: append([]plan.State{{Kind: plan.Handled, N: 2 * seen}}, until...)},
		{Name: "again", Do: harness.DoStartProcess, Process: "replayer"},
		{Name: "sent", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "replayer"}}},
		handledMore("sent"),
	}
}

func (b broker) digestConflict() harness.Scenario {
	return delivered(harness.Scenario{
		Name:    "digest-conflict",
		Summary: "events with another content come under ids that are known",
		Guarded: "the digest of the content is remembered with the id: another one is quarantined and alarmed, the first is kept",
		LookFor: lookFor("inbox/digest-conflict"),
		Sources: inboxSources,
		Arms: b.pairArms("inbox/digest-conflict", "effect", paramHandler, func(a *harness.Arm, function string) {
			a.Processes = []harness.Process{
				b.reader("consumer-1", map[string]string{paramHandler: function}),
				b.replayer("replayer", map[string]string{paramForged: "true", paramEvents: strconv.Itoa(forged)}),
			}
			a.Letters.Others = forged
			// The other contents are meant to be other than their ids say.
			a.Promise = inboxPromise
			a.Promise.Rules = map[string]ledger.Rule{"corrupted": {Allowed: true}}
		}),
		Steps:    again(),
		Evidence: ledger.Evidence{Bites: []string{strikeReplay}, HandledBefore: seen, HandledAfter: seen},
	})
}

func (b broker) twoConsumers() harness.Scenario {
	both := ledger.Chain{Effects: []ledger.EffectTable{{Name: tableNotifications + "/mailer", Versions: true}, {Name: tableNotifications + "/biller", Versions: true}}}
	tables := []string{tableNotifications, ledger.TableInbox, ledger.TableDeadLetter}
	return delivered(harness.Scenario{
		Name:    "two-consumers",
		Summary: "two consumers get each event; one of them is held at an event until the other is past it",
		Guarded: "the inbox is unique by consumer and event id",
		LookFor: lookFor("inbox/two-consumers"),
		Sources: inboxSources,
		Tables:  tables, Chain: both,
		Snapshot: snapshotTables(tableNotifications+perConsumer, ledger.TableInbox, ledger.TableDeadLetter),
		Arms: b.pairArms("inbox/two-consumers", "effect", paramHandler, func(a *harness.Arm, function string) {
			mailer := b.reader("mailer", map[string]string{paramHandler: function, paramConsumer: "mailer"})
			mailer.Group = "mailers"
			biller := b.reader("biller", map[string]string{paramHandler: function, paramConsumer: "biller"})
			biller.Group = "billers"
			biller.HoldAt, biller.HoldIf = chain.AfterFetch, worker.Match{EventID: ledger.EventID(firstStream, raced)}
			a.Processes = []harness.Process{mailer, biller}
		}),
		Steps: []plan.Step{
			{
				Name: "behind", Do: harness.DoReleaseProcess, Process: "biller",
				Until: []plan.State{
					{Kind: plan.ProcessAt, Process: "biller", Point: chain.AfterFetch}, {Kind: plan.Handled, N: raced + seen, Process: "mailer"},
				},
			},
			handledMore("behind"),
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-biller"}, HandledBefore: seen, HandledAfter: seen},
	})
}

// old is how many of the first events come again.
const old = 20

func (b broker) purged() harness.Scenario {
	return delivered(harness.Scenario{
		Name:    "purged",
		Summary: "the inbox is purged, and old events are replayed",
		Guarded: "the inbox is kept for longer than the broker redelivers and than anybody replays",
		LookFor: lookFor("inbox/purged"),
		Sources: inboxSources,
		Arms: b.pairArms("inbox/purged", "effect", paramJob, func(a *harness.Arm, function string) {
			purger := b.relay("purger", map[string]string{paramJob: function, paramOnce: "true", paramRedeliver: "300ms", paramReplay: "1h"})
			purger.Manual = true
			a.Processes = []harness.Process{
				b.reader("consumer-1", nil), purger, b.replayer("replayer", map[string]string{paramEvents: strconv.Itoa(old)}),
			}
		}),
		Steps: append([]plan.Step{
			{
				Name: "purge", Do: harness.DoStartProcess, Process: "purger",
				Until: []plan.State{{Kind: plan.Handled, N: 2 * seen}, {Kind: plan.Custom, Name: "the first events are old"}},
			},
			{Name: "purged", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "purger"}}},
		}, again()...),
		Gates: map[string]harness.Gate{
			"the first events are old": func(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
				return rowsIn(ctx, e, s.Arms, old, "SELECT count(*) FROM inbox WHERE received_at < now() - interval '500 ms'")
			},
		},
		Evidence: ledger.Evidence{Bites: []string{strikeReplay}, HandledBefore: seen, HandledAfter: seen},
	})
}

func (b broker) setNX() harness.Scenario {
	const keep = time.Second
	arms := func(pair string) []harness.Arm {
		return b.pairArms(pair, "effect", paramHandler, func(a *harness.Arm, function string) {
			p := b.reader("consumer-1", map[string]string{paramHandler: function, paramLease: "1s", paramKeep: keep.String()})
			p.CrashAt, p.CrashNth, p.Restart = chain.AfterMarkSeen, 2*seen, true
			a.Processes = []harness.Process{p, b.replayer("replayer", map[string]string{paramEvents: strconv.Itoa(old)})}
			if function != "ApplyWhileKeyLives" {
				receipts(a)
			}
		})
	}
	claimed, expired := arms("inbox/setnx/work"), arms("inbox/setnx/expiry")
	return delivered(harness.Scenario{
		Name: "setnx", Window: "W5",
		Summary: "a consumer is killed when it has set its key in Valkey and not done the work; later the keys expire, and old events are replayed",
		Guarded: "the key says \"at work\", for the length of a lease, and \"done\" only after the commit; the table's unique key has the last word",
		LookFor: lookFor("inbox/setnx/work") + "; " + lookFor("inbox/setnx/expiry"),
		Sources: []string{"Valkey documentation, SET: NX, PX; key eviction", "Redis documentation, distributed locks: what a lock does not guarantee"},
		Arms:    append(claimed, expired[1]),
		Steps: append([]plan.Step{
			{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "consumer-1"}}},
			// Here time itself is the fault: keys expire.
			{Name: "expired", Until: []plan.State{{Kind: plan.Handled, N: seen, Since: "crashed"}, {Kind: plan.Elapsed, Hold: keep + keep/2, Since: "crashed"}}},
		}, again()...),
		Evidence: ledger.Evidence{Bites: []string{"crash-consumer-1", strikeReplay}, HandledBefore: seen, HandledAfter: seen},
	})
}

func (b broker) stateMachine() harness.Scenario {
	s := chained(harness.Scenario{
		Name: "state-machine", Window: "W5",
		Summary: "a consumer is killed between the business commit and the settle: the command comes again",
		Guarded: "the update names the state it starts from; a command that finds another one has been carried out",
		LookFor: lookFor("inbox/state-machine"),
		Sources: inboxSources,
		Arms: b.pairArms("inbox/state-machine", "effect", paramHandler, func(a *harness.Arm, function string) {
			p := b.reader("consumer-1", map[string]string{paramHandler: function})
			p.CrashAt, p.CrashNth, p.Restart = chain.AfterBusinessCommit, 2*seen, true
			a.Producer = b.orders(nil)
			a.Processes = []harness.Process{b.relay("relay-1", nil), p}
		}),
		Steps:    crashedOnce(),
		Evidence: ledger.Evidence{Bites: []string{"crash-consumer-1"}, HandledBefore: seen, HandledAfter: seen, Redelivered: 1},
	})
	return s
}
