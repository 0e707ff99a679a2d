package suites

import (
	"context"
	"maps"
	"strconv"
	"time"

	"conform/harness"
	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/suites/chain"
)

func init() { register(delayTask(onKafka)) }

// delayTask is the suite of a table of tasks that are due later. The broker is there for those who leave it to a broker.
func delayTask(b broker) harness.Suite {
	return harness.Suite{
		Name:   "delay-task",
		System: b.system,
		With:   []system.System{postgresSystem.System},
		Title:  "what is due later is done once, when it is due, whoever dies meanwhile, and not if it was called off",
		Promise: ledger.Promise{
			Text:   "the task of each committed order is executed exactly once, never before it is due and late by at most the pause between two scans and the lease; one that is called off is not executed",
			Start:  "the transaction of the order, which begins the delay",
			End:    "the effects, read in one snapshot once nothing is due any more",
			Places: []string{"effect"},
			Rules:  map[string]ledger.Rule{audit.Early: {}, audit.Late: {}, audit.ExpiredDelivered: {}},
		},
		Scenarios: []harness.Scenario{
			b.taskRestart(), b.paidMeanwhile(), b.cancelledOrMoved(), b.twoScanners(), b.scannerKilled(), b.scanInterval(), b.outOfDate(),
			b.clockSkew(), b.kafkaTimestamp(),
		},
	}
}

const (
	// taskDelay is when tasks are due, taskScan the pause between two scans, taskLease that of a claim.
	taskDelay = 2 * time.Second
	taskScan  = 200 * time.Millisecond
	taskLease = 2 * time.Second
	// taskSlack is what the work itself may take: that of all tasks which are due at once, one by one.
	taskSlack = 2 * time.Second
	// taskUse is how long tasks are of use.
	taskUse = 2 * time.Second
	scanner = "scanner-1"
)

var taskSources = []string{
	"Martin Kleppmann, How to do distributed locking: fencing tokens",
	"PostgreSQL documentation, explicit locking and date/time functions: clock_timestamp",
}

// ofTasks fills in what all scenarios of tasks have.
func ofTasks(s harness.Scenario) harness.Scenario {
	s.Load.Rate, s.Load.Keys, s.Load.Partitions, s.Load.Tail = 30, chainLoad.Keys, chainLoad.Partitions, chainLoad.Tail
	s.Setup, s.Drained = makeTables, chainDrained
	s.Tables = []string{tableOrders, tableNotifications}
	s.Snapshot = snapshotTables(s.Tables...)
	s.Chain = ledger.Chain{Ordered: true, Tasks: true, Orders: tableOrders, Effects: []ledger.EffectTable{{Name: tableNotifications, Versions: true}}}
	s.Delay.Due = taskDelay
	s.Redelivery = session
	s.Sources = append(s.Sources, taskSources...)
	s.Evidence.Ordered = seen
	if s.Cost == 0 {
		s.Cost = 25 * time.Second
	}
	return s
}

// inTime bounds how late a task may be.
func inTime(s harness.Scenario) harness.Scenario {
	s.Delay.Allowance = taskScan + taskLease + taskSlack
	return s
}

// tasks is a load of orders with a task each.
func (b broker) tasks(params map[string]string, incarnations ...harness.Incarnation) harness.Producer {
	own := map[string]string{paramCommand: "PlaceTimedOrder", paramDelay: taskDelay.String()}
	maps.Copy(own, params)
	return b.orders(own, incarnations...)
}

// scans is a process that looks for tasks.
func scans(name string, params map[string]string) harness.Process {
	own := map[string]string{paramEvery: taskScan.String(), paramLease: taskLease.String()}
	maps.Copy(own, params)
	return harness.Process{Name: name, Role: roleScanner, Params: own}
}

func (b broker) taskRestart() harness.Scenario {
	return ofTasks(inTime(harness.Scenario{
		Name: "restart", Window: "W1",
		Summary: "the orders service is killed, and started again, while tasks of its orders wait",
		Guarded: "the task is a row of a table, written in the order's transaction, and any scanner executes it",
		LookFor: lookFor("delay-task/restart"),
		Arms: b.pairArms("delay-task/restart", "effect", paramCommand, func(a *harness.Arm, function string) {
			a.Producer = b.tasks(map[string]string{paramCommand: function}, harness.Incarnation{CrashAt: chain.AfterOrderCommit, CrashNth: 2 * seen}, harness.Incarnation{})
			a.Processes = []harness.Process{scans(scanner, nil)}
		}),
		Steps: []plan.Step{
			{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "producer"}}},
			handledMore("crashed"),
		},
		Evidence: ledger.Evidence{Bites: []string{"crash-producer"}, HandledAfter: seen},
	}))
}

func (b broker) paidMeanwhile() harness.Scenario {
	return ofTasks(inTime(harness.Scenario{
		Name:    "paid-meanwhile",
		Summary: "each fourth order is paid before the task is due that cancels orders which are not paid",
		Guarded: "the task's update asks for the order's state itself",
		LookFor: lookFor("delay-task/paid-meanwhile"),
		Arms: b.pairArms("delay-task/paid-meanwhile", "effect", paramExecute, func(a *harness.Arm, function string) {
			a.Producer = b.tasks(map[string]string{paramFollow: "PayInTime"})
			a.Processes = []harness.Process{scans(scanner, map[string]string{paramExecute: function})}
		}),
		Steps: []plan.Step{
			{Name: "paid", Until: []plan.State{{Kind: plan.Ordered, N: seen}}}, // some of which were followed up by then
			handledMore("paid"),
		},
		Evidence: ledger.Evidence{Bites: []string{strikeFollow}, HandledAfter: seen},
	}))
}

func (b broker) cancelledOrMoved() harness.Scenario {
	return ofTasks(harness.Scenario{
		Name:    "cancelled-or-moved",
		Summary: "a scanner is held when it has read what is due; some of that is called off, some put off; then it goes on",
		Guarded: "a task is claimed by an update of its row that asks once more whether it is due and open",
		LookFor: lookFor("delay-task/cancelled-or-moved"),
		Arms: b.pairArms("delay-task/cancelled-or-moved", "effect", paramScan, func(a *harness.Arm, function string) {
			p := scans(scanner, map[string]string{paramScan: function})
			p.HoldAt, p.HoldNth = chain.AfterFetch, seen
			a.Producer = b.tasks(nil)
			a.Processes = []harness.Process{p, {Name: "changer", Role: roleChanger, Manual: true, Params: map[string]string{paramDelay: taskDelay.String()}}}
		}),
		Steps: []plan.Step{
			{Name: "held", Until: []plan.State{{Kind: plan.ProcessAt, Process: scanner, Point: chain.AfterFetch}}},
			{Name: "changing", Do: harness.DoStartProcess, Process: "changer", Until: []plan.State{{Kind: plan.Ordered, N: seen, Since: "held"}}},
			{Name: "changed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "changer"}}},
			{Name: "released", Do: harness.DoReleaseProcess, Process: scanner},
			handledMore("released"),
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-" + scanner, strikeChange}, HandledAfter: seen},
	})
}

func (b broker) twoScanners() harness.Scenario {
	// Each is frozen at the point after which it does not ask again whether the task is its own.
	arms := func(pair, knob, point string) []harness.Arm {
		return b.pairArms(pair, "effect", knob, func(a *harness.Arm, function string) {
			frozen := scans(scanner, map[string]string{knob: function})
			frozen.HoldAt, frozen.HoldNth = point, seen
			a.Producer = b.tasks(nil)
			a.Processes = []harness.Process{frozen, scans("scanner-2", map[string]string{knob: function})}
		})
	}
	pairs := append(arms("delay-task/two-scanners/no-fence", paramExecute, chain.AfterClaim), arms("delay-task/two-scanners/no-lease", paramScan, chain.AfterFetch)...)
	pairs[2].Name = "guarded-scan"
	var held []plan.State
	for _, a := range pairs {
		held = append(held, plan.State{Kind: plan.ProcessAt, Process: scanner, Point: a.Processes[0].HoldAt, Arms: []string{a.Name}})
	}
	taken := []plan.State{
		{Kind: plan.Handled, N: seen, Since: "held"},
		{Kind: plan.Custom, Name: "the other has done it", Arms: []string{"guarded", "remind-unfenced"}},
	}
	return ofTasks(harness.Scenario{
		Name:    "two-scanners",
		Summary: "one of two scanners is frozen with a task in hand for longer than its lease; the other goes on; then it thaws",
		Guarded: "a claim is a lease with a fencing token that grows, and who finishes a task must have the newest",
		LookFor: lookFor("delay-task/two-scanners/no-fence") + "; " + lookFor("delay-task/two-scanners/no-lease"),
		Arms:    pairs,
		Gates: map[string]harness.Gate{
			"the other has done it": func(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
				return rowsIn(ctx, e, s.Arms, 1, "SELECT count(*) FROM delay_task WHERE fence > 1 AND status = 'done'")
			},
		},
		Steps: []plan.Step{
			{Name: "held", Until: held},
			{Name: "released", Do: harness.DoReleaseProcess, Process: scanner, Until: taken},
			handledMore("released"),
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-" + scanner}, HandledAfter: seen},
	})
}

func (b broker) scannerKilled() harness.Scenario {
	return ofTasks(inTime(harness.Scenario{
		Name:    "scanner-killed",
		Summary: "a scanner is killed with a task that it has claimed, and started again",
		Guarded: "a claim is a lease: once it is over the task is anybody's",
		LookFor: lookFor("delay-task/scanner-killed"),
		Arms: b.pairArms("delay-task/scanner-killed", "effect", paramScan, func(a *harness.Arm, function string) {
			p := scans(scanner, map[string]string{paramScan: function})
			p.CrashAt, p.CrashNth, p.Restart = chain.AfterClaim, seen, true
			a.Producer = b.tasks(nil)
			a.Processes = []harness.Process{p, scans("scanner-2", map[string]string{paramScan: function})}
		}),
		Steps: []plan.Step{
			{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: scanner}}},
			handledMore("crashed"),
		},
		Evidence: ledger.Evidence{Bites: []string{"crash-" + scanner}, HandledAfter: seen},
	}))
}

func (b broker) scanInterval() harness.Scenario {
	const rarely = 5 * taskDelay // as a delay of 1 min that is looked for every 5 min
	arm := func(name string, role harness.Role, every time.Duration) harness.Arm {
		return harness.Arm{
			Name: name, Role: role, Destination: b.destination, Code: &harness.Code{Guarded: "ScanTasks"}, Producer: b.tasks(nil),
			Processes: []harness.Process{scans(scanner, map[string]string{paramEvery: every.String(), paramTell: tellPauses})},
		}
	}
	control := arm("rarely", harness.Control, rarely)
	control.Break = &harness.Break{Knob: paramEvery + "=" + rarely.String(), Place: "delivery", Anomaly: audit.Late}
	s := ofTasks(inTime(harness.Scenario{
		Name: "scan-interval", Cost: 30 * time.Second,
		Summary: "tasks are looked for every 10 s, and are due after 2 s",
		Guarded: "the pause between two scans is part of the allowance, and shorter than the delay",
		LookFor: "the age of the oldest task that is due: SELECT max(clock_timestamp() - due_at) FROM delay_task WHERE status = 'pending' AND due_at < clock_timestamp(); alarm above the allowance",
		Arms:    []harness.Arm{arm("guarded", harness.Guarded, taskScan), control},
		Steps: []plan.Step{
			{Name: "handled", Until: []plan.State{{Kind: plan.Handled, N: seen}}}, // not by the first scan, which found nothing
		},
		Evidence: ledger.Evidence{Bites: []string{strikePause}, HandledAfter: seen},
	}))
	s.Load.Rate = 10 // a scan takes 64 tasks, and as many as come between two of the rare ones are to be few more
	return s
}

func (b broker) outOfDate() harness.Scenario {
	s := ofTasks(harness.Scenario{
		Name:    "out-of-date",
		Summary: "nobody looks for tasks for longer than reminders are of use",
		Guarded: "the row says until when the task is of use, and one that is not any more is skipped, and recorded as skipped",
		LookFor: lookFor("delay-task/out-of-date"),
		Arms: b.pairArms("delay-task/out-of-date", "delivery", paramExecute, func(a *harness.Arm, function string) {
			p := scans(scanner, map[string]string{paramExecute: function})
			p.HoldAt, p.HoldNth = chain.AfterFetch, seen
			a.Producer = b.tasks(map[string]string{paramUse: taskUse.String()})
			a.Processes = []harness.Process{p}
		}),
		Gates: map[string]harness.Gate{
			"some are out of date": func(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
				return rowsIn(ctx, e, s.Arms, 5, "SELECT count(*) FROM delay_task WHERE status = 'pending' AND useful_until < clock_timestamp() - make_interval(secs => "+
					strconv.Itoa(int((taskSlack+time.Second).Seconds()))+")")
			},
		},
		Steps: []plan.Step{
			{Name: "held", Until: []plan.State{{Kind: plan.ProcessAt, Process: scanner, Point: chain.AfterFetch}}},
			{
				Name: "released", Do: harness.DoReleaseProcess, Process: scanner,
				Until: []plan.State{{Kind: plan.Custom, Name: "some are out of date"}},
			},
			handledMore("released"),
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-" + scanner}, HandledAfter: seen},
	})
	s.Delay.TTL = taskDelay + taskUse + taskSlack
	return s
}

func (b broker) clockSkew() harness.Scenario {
	return ofTasks(harness.Scenario{
		Name:    "clock-skew",
		Summary: "a second scanner is started, whose clock is 2 s ahead",
		Guarded: "one clock says what is due: the database's",
		LookFor: lookFor("delay-task/clock-skew"),
		Arms: b.pairArms("delay-task/clock-skew", "delivery", paramScan, func(a *harness.Arm, function string) {
			ahead := scans("scanner-2", map[string]string{paramScan: function, paramSkew: taskDelay.String()})
			ahead.Manual = true
			a.Producer = b.tasks(nil)
			a.Processes = []harness.Process{scans(scanner, map[string]string{paramScan: function}), ahead}
		}),
		Steps: []plan.Step{
			{Name: "ahead", Until: []plan.State{{Kind: plan.Handled, N: seen}}, Do: harness.DoStartProcess, Process: "scanner-2"},
			{Name: "skewed", Until: []plan.State{{Kind: plan.Handled, N: 1, Since: "ahead", Process: "scanner-2"}}},
			handledMore("skewed"),
		},
		Evidence: ledger.Evidence{Bites: []string{strikeSkew}, HandledBefore: seen, HandledAfter: seen},
	})
}

func (b broker) kafkaTimestamp() harness.Scenario {
	return ofTasks(harness.Scenario{
		Name:    "kafka-timestamp",
		Summary: "records say, as their CreateTime, that they are of a time to come",
		Guarded: "a table of tasks: a record is published once it is due, for Kafka has no delays and a record is there for whoever reads",
		LookFor: lookFor("delay-task/kafka-timestamp"),
		Sources: []string{"Apache Kafka documentation, topic configuration message.timestamp.type: CreateTime is what the producer says"},
		Arms: b.pairArms("delay-task/kafka-timestamp", "delivery", paramCommand, func(a *harness.Arm, function string) {
			a.Producer = b.tasks(map[string]string{paramCommand: function})
			a.Processes = []harness.Process{
				b.relay("relay-1", map[string]string{paramClient: "timestamp.age.ms=-" + strconv.FormatInt(taskDelay.Milliseconds(), 10)}),
				b.reader("consumer-1", map[string]string{paramAhead: "true"}), scans(scanner, map[string]string{paramExecute: "PublishTask"}),
			}
		}),
		Steps:    []plan.Step{{Name: "handled", Until: []plan.State{{Kind: plan.Handled, N: 2 * seen}}}},
		Evidence: ledger.Evidence{Bites: []string{strikeAhead}, HandledAfter: seen},
	})
}
