package suites

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"conform/harness"
	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/system/disks"
	"conform/harness/system/postgres"
	"conform/harness/worker"
	"conform/suites/chain"
)

// outbox is the suite of the outbox pattern on a broker.
func outbox(b broker) harness.Suite {
	return harness.Suite{
		Name:    b.suite("outbox"),
		System:  b.system,
		With:    []system.System{postgresSystem.System},
		Title:   "every order that is committed is published, in the order of its key, and no other",
		Promise: outboxPromise,
		Scenarios: []harness.Scenario{
			b.crashBetween(), b.relayCrash(), b.lateCommitGap(), b.concurrentRelays(), b.commitInDoubt(), b.brokerOutage(),
			b.asyncCommit(), b.asyncCommitPowerCut(),
		},
	}
}

var outboxPromise = ledger.Promise{
	Text:   "an order whose transaction is committed is published and has its effect exactly once, one that is rolled back is not published, and the events of a key come in the order of their commits",
	Start:  "the commit of the order's transaction",
	End:    "the effects, read in one snapshot with the outbox once relays and consumers have nothing left to do",
	Places: []string{"store", "outbox", "effect"},
}

// The load of chains that begin in a database. What counts is the window.
var chainLoad = harness.Load{Rate: 150, Keys: 32, Partitions: 1, Tail: 500 * time.Millisecond}

// chainRate bounds the rate of all arms of a scenario together: what they do not keep up with has to be waited for.
const chainRate = 150

// seen is how many orders each arm must have handled before and after a fault.
const seen = 60

// chained fills in what all scenarios have whose orders begin in a database.
func chained(s harness.Scenario) harness.Scenario {
	s.Load.Rate, s.Load.Keys, s.Load.Partitions, s.Load.Tail = min(chainLoad.Rate, chainRate/len(s.Arms)), chainLoad.Keys, chainLoad.Partitions, chainLoad.Tail
	s.Setup, s.Drained = makeTables, chainDrained
	s.Snapshot = snapshotTables(tableOrders, ledger.TableOutbox, tableNotifications, ledger.TableDeadLetter)
	s.Tables = []string{tableOrders, ledger.TableOutbox, tableNotifications, ledger.TableDeadLetter}
	s.Chain = ledger.Chain{Ordered: true, Orders: tableOrders, Outbox: true, Published: "published", Effects: []ledger.EffectTable{{Name: tableNotifications, Versions: true}}}
	for i := range s.Arms {
		s.Arms[i].Chain = withoutOutbox(s.Arms[i], s.Chain)
	}
	s.Redelivery = max(s.Redelivery, session)
	if s.Evidence.Ordered == 0 {
		s.Evidence.Ordered = seen
	}
	if s.Cost == 0 {
		s.Cost = 25 * time.Second
	}
	return s
}

// withoutOutbox is the chain of an arm whose orders write no row into the outbox, or whose relay keeps a position instead of
// marking rows; nil for the others.
func withoutOutbox(a harness.Arm, c ledger.Chain) *ledger.Chain {
	switch a.Producer.Params[paramCommand] {
	case "PlaceOrderThenPublish", "PublishThenPlaceOrder":
		c.Outbox, c.Published = false, ""
		return &c
	}
	for _, p := range a.Processes {
		if job := p.Params[paramJob]; job == "RelayBelowHorizon" || job == "RelayPastCursor" {
			c.Published = ""
			return &c
		}
	}
	return nil
}

// pairArms are the two arms of a pair of suites/chain. make adds to an arm what runs the function of that name.
func (b broker) pairArms(pair, place, knob string, set func(a *harness.Arm, function string)) []harness.Arm {
	p, ok := chain.Find(pair)
	if !ok {
		panic("chain has no pair " + pair)
	}
	anomaly, attribution, _ := strings.Cut(p.Anomaly, "/")
	guarded := harness.Arm{
		Name: "guarded", Role: harness.Guarded, Destination: b.destination, Code: &harness.Code{Guarded: p.Guarded},
	}
	control := harness.Arm{
		Name: kebab(p.Unsafe), Role: harness.Control, Destination: b.destination,
		Code:  &harness.Code{Guarded: p.Guarded, Unsafe: p.Unsafe},
		Break: &harness.Break{Knob: knob + "=" + p.Unsafe, Place: place, Anomaly: anomaly, Attribution: attribution, Also: also[p.Unsafe]},
	}
	set(&guarded, p.Guarded)
	set(&control, p.Unsafe)
	return []harness.Arm{guarded, control}
}

// also lists what twins cause beside their own anomaly.
var also = map[string][]string{
	"RetryForever": {"undelivered", "missing-effect", "stuck"}, // all that is behind the event that holds it up
	"RetryAsNew":   {"phantom-effect"},                         // nobody asked for anything under the new id
	// It publishes what it has let go of already: the lane's next relay overtakes it.
	"RelayMarkFirst": {"reordered-store"},
	// It executes what was put off by the copy that it has read.
	"ScanWithoutClaim": {"early"},
	// Of what it logs and forgets, the outcome of some is not known.
	"SendOrLog": {"lost/client-buffer"},
}

// handledMore waits until each arm has handled more than at a step.
func handledMore(since string) plan.Step {
	return plan.Step{Name: "recovered", Until: []plan.State{{Kind: plan.Handled, N: seen, Since: since}}}
}

var outboxSources = []string{
	"Chris Richardson, Microservices Patterns, chapter 3: transactional outbox, polling publisher",
	"PostgreSQL documentation, transaction isolation and functions pg_snapshot_xmin, pg_current_snapshot",
}

func (b broker) crashBetween() harness.Scenario {
	crashes := []harness.Incarnation{
		{CrashAt: chain.BeforeOrderCommit, CrashNth: seen},
		{CrashAt: chain.AfterOrderCommit, CrashNth: seen},
		{},
	}
	// The publish that rolls back stands before the first of these points, the one that is forgotten behind the second.
	arms := func(pair, place string) []harness.Arm {
		return b.pairArms(pair, place, paramCommand, func(a *harness.Arm, function string) {
			a.Producer = b.orders(map[string]string{paramCommand: function}, crashes...)
			a.Processes = []harness.Process{b.relay("relay-1", nil), b.reader("consumer-1", nil)}
		})
	}
	forgotten := arms("outbox/crash-between/commit-then-publish", "outbox")
	return chained(harness.Scenario{
		Name: "crash-between", Window: "W1",
		Summary: "the orders service is killed twice: right before the commit of an order, and right after it",
		Guarded: "the event is a row of the order's own transaction, and a relay publishes what is committed",
		LookFor: lookFor("outbox/crash-between/commit-then-publish") + "; " + lookFor("outbox/crash-between/publish-then-commit"),
		Sources: outboxSources,
		Arms:    append(forgotten, arms("outbox/crash-between/publish-then-commit", "outbox")[1]),
		Steps: []plan.Step{
			{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "producer", N: 2}}},
			handledMore("crashed"),
		},
		Evidence: ledger.Evidence{Bites: []string{"crash-producer"}, Ends: []string{"producer-1", "producer-2"}, HandledAfter: seen},
	})
}

func (b broker) relayCrash() harness.Scenario {
	crashing := func(name, job, point string) harness.Process {
		p := b.relay(name, map[string]string{paramJob: job, paramBatch: "5"})
		p.CrashAt, p.CrashNth, p.Restart = point, 10, true
		return p
	}
	return chained(harness.Scenario{
		Name: "relay-crash", Window: "W2",
		Summary: "two relays are killed, one right before it marks what it has published, one right before it publishes",
		Guarded: "a row is marked only when the broker has confirmed it: it is published again, under the same event id, and has one effect",
		LookFor: lookFor("outbox/relay-crash"),
		Sources: outboxSources,
		Arms: b.pairArms("outbox/relay-crash", "outbox", paramJob, func(a *harness.Arm, function string) {
			a.Producer = b.orders(nil)
			a.Processes = []harness.Process{
				crashing("relay-1", function, chain.BeforeMark), crashing("relay-2", function, chain.BeforePublish), b.reader("consumer-1", nil),
			}
		}),
		Steps: []plan.Step{
			{Name: "crashed", Until: []plan.State{
				{Kind: plan.ProcessAt, Process: "relay-1", Point: chain.BeforeMark}, {Kind: plan.ProcessAt, Process: "relay-2", Point: chain.BeforePublish},
			}},
			handledMore("crashed"),
		},
		Evidence: ledger.Evidence{Bites: []string{"crash-relay-1", "crash-relay-2"}, HandledAfter: seen},
	})
}

// heldOrder is the order whose transaction is held open.
var heldOrder = ledger.EventID(firstStream, 2*seen)

// overtaken counts the lanes in which orders were published that were placed after the held one. A relay that keeps a position
// has none, and has published what lies below that.
var overtaken = map[string]string{
	"guarded":           overtakenByStatus,
	"relay-past-last":   overtakenByStatus,
	"relay-past-cursor": "SELECT count(DISTINCT lane) FROM outbox o, relay_cursor c WHERE o.seq <= c.seq AND o.event_id > %d",
}

const (
	overtakenByStatus = "SELECT count(DISTINCT lane) FROM outbox WHERE status = 'published' AND event_id > %d"
	allLanes          = 8
)

func (b broker) lateCommitGap() harness.Scenario {
	arms := func(pair string) []harness.Arm {
		return b.pairArms(pair, "outbox", paramJob, func(a *harness.Arm, function string) {
			a.Producer = b.orders(nil, harness.Incarnation{
				HoldAt: chain.BeforeOrderCommit, HoldIf: worker.Match{EventID: heldOrder},
			})
			a.Processes = []harness.Process{b.relay("relay-1", map[string]string{paramJob: function}), b.reader("consumer-1", nil)}
		})
	}
	byStatus, byPosition := arms("outbox/late-commit-gap/status"), arms("outbox/late-commit-gap/horizon")
	byPosition[0].Name = "guarded-horizon"
	return chained(harness.Scenario{
		Name: "late-commit-gap", Window: "W1",
		Summary: "the transaction of an order is held open, with its row already in the outbox, until the relay has published orders that came after it",
		Guarded: "the relay reads rows by their status, however late they became visible; or only those below the horizon of the open transactions, and waits meanwhile",
		LookFor: lookFor("outbox/late-commit-gap/status") + "; " + lookFor("outbox/late-commit-gap/horizon"),
		Sources: outboxSources,
		Arms:    append(byStatus, byPosition...),
		Gates: map[string]harness.Gate{
			"the relay has passed the held order": func(ctx context.Context, e harness.Env, _ plan.State) (bool, string, error) {
				all := true
				var told []string
				for arm, query := range overtaken {
					schema, there := e.Schemas[arm]
					if !there {
						continue
					}
					n, err := countRows(ctx, e, schema, fmt.Sprintf(query, heldOrder))
					if err != nil {
						return false, "", err
					}
					all = all && n == allLanes
					told = append(told, fmt.Sprintf("%s in %d lanes", arm, n))
				}
				slices.Sort(told)
				return all, strings.Join(told, ", "), nil
			},
		},
		Steps: []plan.Step{
			{Name: "held", Until: []plan.State{{Kind: plan.ProcessAt, Process: "producer", Point: chain.BeforeOrderCommit}}},
			{
				Name: "committed", Do: harness.DoReleaseProcess, Process: "producer",
				Until: []plan.State{
					{Kind: plan.Ordered, N: seen, Since: "held"},
					{Kind: plan.Custom, Name: "the relay has passed the held order"},
				},
			},
			handledMore("committed"),
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-producer"}, HandledAfter: seen},
	})
}

func (b broker) concurrentRelays() harness.Scenario {
	return chained(harness.Scenario{
		Name:    "concurrent-relays",
		Summary: "of two relays, one is held when it has read the first event of a key and not published it, until the other has gone on",
		Guarded: "a lane for each key, which one relay has at a time: what is behind the held event waits with it",
		LookFor: lookFor("outbox/concurrent-relays"),
		Sources: append([]string{"PostgreSQL documentation, SELECT: SKIP LOCKED gives an inconsistent view, as of a queue"}, outboxSources...),
		Arms: b.pairArms("outbox/concurrent-relays", "store", paramJob, func(a *harness.Arm, function string) {
			first := b.relay("relay-1", map[string]string{paramJob: function, paramBatch: "5"})
			first.HoldAt, first.HoldNth = chain.BeforePublish, 10
			second := b.relay("relay-2", map[string]string{paramJob: function, paramBatch: "5"})
			a.Producer = b.orders(nil)
			a.Processes = []harness.Process{first, second, b.reader("consumer-1", nil)}
		}),
		Gates: map[string]harness.Gate{
			"a later event of a held key is published": func(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
				for _, arm := range s.Arms {
					schema, there := e.Schemas[arm]
					if !there {
						continue
					}
					n, err := countRows(ctx, e, schema, `SELECT count(*) FROM outbox a JOIN outbox b USING (key)
						WHERE a.status = 'pending' AND b.status = 'published' AND a.version < b.version`)
					if err != nil || n == 0 {
						return false, fmt.Sprintf("%d", n), err
					}
				}
				return true, "published", nil
			},
		},
		Steps: []plan.Step{
			{Name: "held", Until: []plan.State{{Kind: plan.ProcessAt, Process: "relay-1", Point: chain.BeforePublish}}},
			{
				Name: "released", Do: harness.DoReleaseProcess, Process: "relay-1",
				Until: []plan.State{
					{Kind: plan.Published, N: seen, Since: "held", Process: "relay-2"},
					{Kind: plan.Custom, Name: "a later event of a held key is published", Arms: []string{"relay-without-lanes"}},
				},
			},
			handledMore("released"),
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-relay-1"}, HandledAfter: seen},
	})
}

// swallowed is how many answers to COMMITs commitsSwallowed takes.
const swallowed = 3

// commitsSwallowed are the steps in which answers to COMMITs of orders do not arrive, whatever the service makes of that.
func commitsSwallowed() []plan.Step {
	return []plan.Step{
		{
			Name: "swallowed", Until: []plan.State{{Kind: plan.Ordered, N: seen}, {Kind: plan.Handled, N: seen}},
			Inject: &plan.Exposure{
				Fault: "response-dropped", Target: "database",
				Params: map[string]string{"kind": "commit", "count": fmt.Sprint(swallowed), "of": "p1"},
			},
		},
		{Name: "bitten", Until: []plan.State{{Kind: plan.Bit, Since: "swallowed"}}},
		{Name: "healed", Heal: "swallowed"},
	}
}

func (b broker) commitInDoubt() harness.Scenario {
	return chained(harness.Scenario{
		Name: "commit-in-doubt", Window: "W1",
		Summary: fmt.Sprintf("the answers to %d COMMITs of orders are swallowed and the connections reset: the orders are committed, and their service does not know", swallowed),
		Guarded: "the event id is looked up, and then it is decided; if it is placed again, then under the same id",
		LookFor: lookFor("outbox/commit-in-doubt"),
		Sources: []string{"PostgreSQL documentation, error codes: 08007 transaction_resolution_unknown, 40003 statement_completion_unknown"},
		Targets: map[string]plan.Role{"database": plan.On(postgres.Name, plan.One)},
		Arms: b.pairArms("outbox/commit-in-doubt", "effect", paramCommand, func(a *harness.Arm, function string) {
			a.Producer = b.orders(map[string]string{paramCommand: function})
			a.Processes = []harness.Process{b.relay("relay-1", nil), b.reader("consumer-1", nil)}
		}),
		Steps:    append(commitsSwallowed(), handledMore("healed")),
		Evidence: ledger.Evidence{Bites: []string{"swallowed"}, HandledBefore: seen, HandledAfter: seen},
	})
}

// pacedRelay is an arm whose relay is slow enough to see its rows drain.
func (b broker) pacedRelay() harness.Arm {
	a := harness.Arm{
		Name: "drain", Role: harness.Observation, Destination: b.destination, Producer: b.orders(nil),
		Reason: "says how long the rows take that piled up, beside what their first fifth predicts: backlog / (capacity - incoming)",
		Processes: []harness.Process{
			b.relay("relay-1", map[string]string{paramTimeout: "500ms", paramBatch: "5", paramPace: "10ms"}), b.reader("consumer-1", nil),
		},
	}
	a.Promise = outboxPromise
	a.Promise.Drain = ledger.Drain{Since: "back", Least: seen, Outbox: true}
	a.Promise.Rules = map[string]ledger.Rule{audit.Stall: {Allowed: true}} // one relay is one measurement: it is told, not judged
	return a
}

func (b broker) brokerOutage() harness.Scenario {
	return chained(harness.Scenario{
		Name: "broker-outage", Window: "W1",
		Summary: "the brokers are away from the clients while orders go on, until the relay has failed several times and rows have piled up",
		Guarded: "the relay tries for as long as it takes, with a bounded backoff and jitter: nothing is wrong with the rows",
		LookFor: lookFor("outbox/broker-outage"),
		Sources: []string{"Marc Brooker, Exponential Backoff And Jitter (AWS architecture blog)"},
		Targets: map[string]plan.Role{"brokers": plan.All},
		Arms: append(b.pairArms("outbox/broker-outage", "outbox", paramRun, func(a *harness.Arm, function string) {
			a.Producer = b.orders(nil)
			a.Processes = []harness.Process{
				b.relay("relay-1", map[string]string{paramRun: function, paramTimeout: "500ms", paramTries: "3"}), b.reader("consumer-1", nil),
			}
		}), b.pacedRelay()),
		Gates: map[string]harness.Gate{
			"rows are given up": func(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
				return rowsIn(ctx, e, s.Arms, 1, "SELECT count(*) FROM outbox WHERE status = 'given up'")
			},
			"rows have piled up": func(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
				return rowsIn(ctx, e, s.Arms, seen, "SELECT count(*) FROM outbox WHERE status <> 'published'")
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
					{Kind: plan.Custom, Name: "rows have piled up"},
					{Kind: plan.Custom, Name: "rows are given up", Arms: []string{"run-relay-giving-up"}},
				},
			},
			handledMore("back"),
		},
		Evidence: ledger.Evidence{Bites: []string{"away"}, HandledBefore: seen, HandledAfter: seen},
	})
}

// rowsIn says whether a query returns at least n in each of the arms, or in all.
func rowsIn(ctx context.Context, e harness.Env, arms []string, n int64, query string) (bool, string, error) {
	all := true
	var told []string
	for arm, schema := range e.Schemas {
		if len(arms) > 0 && !slices.Contains(arms, arm) {
			continue
		}
		got, err := countRows(ctx, e, schema, query)
		if err != nil {
			return false, "", err
		}
		all = all && got >= n
		told = append(told, fmt.Sprintf("%s %d", arm, got))
	}
	slices.Sort(told)
	return all, strings.Join(told, ", "), nil
}

func (b broker) asyncCommit() harness.Scenario {
	// What is committed asynchronously stays in shared memory for as long as PostgreSQL allows.
	s := b.commitsLost(map[string]string{"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}, plan.Exposure{Fault: "node-killed", Target: "database"})
	s.Name = "async-commit"
	s.Summary = "PostgreSQL is killed by SIGKILL while orders are placed, and restarted; its WAL writer sleeps for as long as it may"
	return s
}

func (b broker) asyncCommitPowerCut() harness.Scenario {
	s := b.commitsLost(map[string]string{disks.Setting: "512", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}, plan.Exposure{Fault: "power-cut", Target: "database"})
	s.Name = "async-commit-power-cut"
	s.Summary = "PostgreSQL's machine loses power while orders are placed, and is started again"
	return s
}

// commitsLost ends the database by a fault while some of its commits are not on the disk.
func (b broker) commitsLost(settings map[string]string, fault plan.Exposure) harness.Scenario {
	// The guarded arm has a server of its own: every synchronous commit would flush the others' WAL too.
	server := func(commit string) map[string]map[string]string {
		return map[string]map[string]string{postgres.Name: with(settings, "synchronous_commit", commit, "autovacuum", "off")}
	}
	arm := func(name, commit string, role harness.Role) harness.Arm {
		return harness.Arm{
			Name: name, Role: role, Destination: b.destination, WithNode: server(commit), Producer: b.orders(nil),
			Processes: []harness.Process{b.relay("relay-1", nil), b.reader("consumer-1", nil)},
		}
	}
	off := arm("synchronous-commit-off", "off", harness.Control)
	off.Break = &harness.Break{Knob: "synchronous_commit=off", Place: "store", Anomaly: "lost", Attribution: "broker", Also: []string{"published-uncommitted", "phantom-effect", "unpublished", "missing-effect"}} // the consumers' effects are commits too
	const unflushed = 1 << 15
	return chained(harness.Scenario{
		Window: "W3", Cost: 70 * time.Second,
		Guarded: "synchronous_commit=on: COMMIT is answered when its WAL is on the disk",
		LookFor: "SHOW synchronous_commit, also per role, database and session (pg_db_role_setting); pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn() is what a crash would cost",
		Sources: []string{"PostgreSQL documentation, asynchronous commit: a crash may lose the last transactions, for up to three times wal_writer_delay"},
		Targets: map[string]plan.Role{"database": plan.On(postgres.Name, plan.One)},
		Arms:    []harness.Arm{arm("guarded", "on", harness.Guarded), off},
		Gates: map[string]harness.Gate{
			"committed WAL is not flushed": func(ctx context.Context, e harness.Env, _ plan.State) (bool, string, error) {
				if _, there := e.Schemas["synchronous-commit-off"]; !there {
					return true, "the guarded arm's always is", nil
				}
				db, err := database(e)
				if err != nil {
					return false, "", err
				}
				n, err := db.UnflushedWAL(ctx)
				return n >= unflushed, fmt.Sprintf("%d bytes", n), err
			},
		},
		Steps: []plan.Step{
			{Name: "loaded", Until: []plan.State{{Kind: plan.Handled, N: seen}}},
			{
				Name: "killed", Until: []plan.State{
					{Kind: plan.Ordered, N: seen, Since: "loaded"}, {Kind: plan.Custom, Name: "committed WAL is not flushed"},
				},
				Inject: &fault,
			},
			{Name: "restarted", Heal: "killed"},
			handledMore("restarted"),
		},
		Evidence: ledger.Evidence{Bites: []string{"killed"}, HandledBefore: seen, HandledAfter: seen},
	})
}
