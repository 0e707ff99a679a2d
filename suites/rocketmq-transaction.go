package suites

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"conform/harness"
	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/system/rocketmq"
	"conform/harness/worker"
	"conform/suites/chain"
)

func init() {
	worker.Register(roleBetween, ordersBetween)
	worker.Register(roleChecker, answerOnly)
	register(harness.Suite{
		Name:   "rocketmq-transaction",
		System: rocketSystem,
		With:   []system.System{postgresSystem.System},
		Title:  "an order that is committed is published, one that is rolled back is not, whoever dies between the two halves of its message",
		Promise: ledger.Promise{
			Text:   "an order whose local transaction is committed becomes visible to consumers and has its effect exactly once; of one that is rolled back nobody hears",
			Start:  "the commit of the order's transaction",
			End:    "the effects, read in one snapshot once the broker has nothing left to ask",
			Places: []string{"store", "outbox", "effect"},
			Rules:  rocketRules,
		},
		Scenarios: []harness.Scenario{rocketCrashBeforeEnd(), rocketRolledBack(), rocketSlowTransaction(), rocketTransactionKilled(), rocketCheckExhausted()},
	})
}

const (
	// roleBetween is a load of orders that are placed between the two halves of their message; roleChecker is another process of
	// its producer group, which the broker asks, too.
	roleBetween = "rocketmq-between"
	roleChecker = "rocketmq-checker"
)

const (
	// paramChecker is a chain.Checker by name; default CheckInTable.
	paramChecker = "checker"
	// paramRefuse makes each so-many-th order of the load one that is out of stock; default 0 = none.
	paramRefuse = "refuse"
	// paramBlind makes checkers answer "unknown", whatever they find, as if the table could not be read; that it was answered so
	// that many times about one order is the strike. Default 0 = they tell.
	paramBlind = "blind"
)

// strikeBlind and strikeAsked are the strikes of checkers: that they did not know, often enough, and that they were asked.
const (
	strikeBlind = "checks-exhausted"
	strikeAsked = "asked"
)

// ordersBetween is the load of roleBetween.
func ordersBetween(ctx context.Context, s *worker.Session) error {
	p := &settingsOf{params: s.Config.Params}
	o := &ordering{s: s, names: renamer{s: s}, at: map[uint64]*order{}, command: chain.PlaceOrderBetween}
	return inGroup(ctx, s, p, func(h *between) error {
		o.service = h.service
		o.service.Point = o.point
		if each := p.number(paramRefuse); each > 0 {
			o.service.OutOfStock = func(ev chain.Event) bool {
				_, seq := ledger.SplitEventID(ev.ID)
				return seq%uint64(each) == uint64(each-1)
			}
		}
		return p.err
	}, o.run)
}

// answerOnly is the work of roleChecker.
func answerOnly(ctx context.Context, s *worker.Session) error {
	p := &settingsOf{params: s.Config.Params}
	return inGroup(ctx, s, p, func(*between) error { return p.err }, func(ctx context.Context) error {
		select {
		case <-s.Stopping():
		case <-ctx.Done():
		}
		return nil
	})
}

// inGroup opens a producer of the arm's group, and closes it after the work.
func inGroup(ctx context.Context, s *worker.Session, p *settingsOf, prepare func(*between) error, work func(context.Context) error) (err error) {
	pool, err := openDatabase(ctx, s.Config)
	if err != nil {
		return err
	}
	defer pool.Close()
	h := &between{
		publisher: publisher{s: s, stream: s.Config.Stream + streamOfMessages, size: s.Config.Workload.PayloadSize, sent: map[uint64]bool{}},
		service:   newService(s, p, pool), checker: function[chain.Checker](p, paramChecker, "CheckInTable"), blind: p.number(paramBlind),
		asked: map[uint64]int{},
	}
	h.service.Halves, h.service.Memory = h, &chain.Memory{}
	if _, err := fmt.Sscan(s.Config.Params[worker.ParamTag], &h.tag); err != nil {
		return fmt.Errorf("read parameter %s: %w: %w", worker.ParamTag, err, system.ErrUsage)
	}
	if err := prepare(h); err != nil {
		return err
	}
	config := s.Config.Client
	config.Group, config.Settings = config.Destination+".orders", nil
	if h.client, err = (rocketmq.Clients{}).OpenTransactions(ctx, config, h.check); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.client.Close()) }()
	if err := s.Ready(ctx); err != nil {
		return err
	}
	return work(ctx)
}

// between is a chain.HalfPublisher that records what it does.
type between struct {
	publisher
	client  *rocketmq.Transactions
	service *chain.Service
	checker chain.Checker
	blind   int

	asking sync.Mutex
	asked  map[uint64]int // how often, by event
}

// PublishAround sends a half, and what it was told of it. That nobody confirms: the send stays in doubt.
func (h *between) PublishAround(ctx context.Context, ev chain.Event, transact func(context.Context) chain.Fate) error {
	c, id := h.s.Config, h.identify([]chain.Event{ev})[0]
	if err := h.s.RecordNow(ledger.Event{Kind: ledger.Invoke, Stream: id.Stream, Seq: id.Seq, To: id.Seq + 1, EventID: ev.ID, At: worker.Now()}); err != nil {
		return err
	}
	m := system.Message{
		ID: id, EventID: ev.ID, Key: []byte(ledger.KeyName(ev.Key)),
		Payload:   ledger.AppendPayload(nil, c.Seed, h.tag, id, ev.ID, h.size),
		Partition: ledger.PartitionOf(ev.Key, c.Client.Partitions),
	}
	e := ledger.Event{Kind: ledger.Complete, Stream: id.Stream, Seq: id.Seq, EventID: ev.ID, Sent: worker.Now()}
	h.s.Count(worker.Counts{Sent: 1})
	fate := chain.FateUnknown
	r := h.client.Send(ctx, m, func() rocketmq.Fate {
		fate = transact(ctx)
		return fates[fate]
	})
	e.At, e.Outcome, e.Text = worker.Now(), r.Outcome, r.Err
	if r.Outcome == ledger.OK {
		e.Outcome, e.Text = ledger.InDoubt, "half, "+string(fate)
	}
	h.s.Record(e)
	switch r.Outcome {
	case ledger.OK:
		return nil
	case ledger.Failed:
		h.s.Count(worker.Counts{Refused: 1})
		return fmt.Errorf("send half: %w: %s", chain.ErrRefused, r.Err)
	default:
		return fmt.Errorf("send half: not confirmed: %s", r.Err)
	}
}

var fates = map[chain.Fate]rocketmq.Fate{
	chain.FateUnknown: rocketmq.Unknown, chain.FateCommitted: rocketmq.Commit, chain.FateRolledBack: rocketmq.Rollback,
}

// check answers the broker. A message that is not ours is nobody's.
func (h *between) check(payload []byte) rocketmq.Fate {
	header, ok := ledger.ParsePayload(payload)
	if !ok || header.EventID == 0 {
		return rocketmq.Unknown
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	ev := eventOf(h.s.Config, header.EventID)
	fate, err := h.checker(ctx, h.service, ev)
	if err != nil {
		h.s.Log.Info("check failed", "event", ev.ID, "error", chain.Redact(err))
		fate = chain.FateUnknown
	}
	h.asking.Lock()
	defer h.asking.Unlock()
	h.asked[ev.ID]++
	n := h.asked[ev.ID]
	if h.blind > 0 {
		fate = chain.FateUnknown
	}
	switch {
	case h.blind > 0 && n == h.blind:
		err = strike(h.s, strikeBlind, "a checker does not know, as often as the broker asks", fmt.Sprintf("asked %d times about event %d", n, ev.ID), n)
	case h.blind == 0 && len(h.asked) == 1 && n == 1:
		err = strike(h.s, strikeAsked, "the broker asks for the fate of a transaction", fmt.Sprintf("about event %d, and is told: %s", ev.ID, fate), 1)
	}
	if err != nil {
		h.s.Log.Error("journal cannot be written", "error", err)
	}
	if h.blind == 0 || n == h.blind {
		h.s.Count(worker.Counts{Published: 1}) // what a step can wait for
	}
	return fates[fate]
}

// checkedSoon lets brokers ask after a second, and each second. Their defaults are 6 and 30 s.
func checkedSoon(most int, more ...string) map[string]string {
	return rocketNode(rocketmq.Single, append([]string{
		settingTimeout, "1000", "transactionCheckInterval", "1000", "transactionCheckMax", strconv.Itoa(most), settingOpInterval, "100",
	}, more...)...)
}

const (
	// settingOpInterval is how long a broker gathers the ends of transactions before it notes them.
	settingOpInterval = "transactionOpBatchInterval"
	// settingTimeout is after how long it begins to ask.
	settingTimeout = "transactionTimeOut"
)

// checkMax is RocketMQ's default of how often it asks, fewChecks what it takes to see that it gives up, and manyChecks what lasts for
// longer than clients take to tell a broker of themselves again: 30 s, and by default it asks for 15 times as long.
const (
	checkMax   = 15
	fewChecks  = 3
	manyChecks = 100
)

var transactionSources = []string{
	"RocketMQ documentation, Transaction Message: half messages, check-back",
	"RocketMQ 5.5.0 source, TransactionalMessageServiceImpl.check (transactionTimeOut, transactionCheckMax, TRANS_CHECK_MAX_TIME_TOPIC)",
}

// transacting fills in what all scenarios of transactions have.
func transacting(s harness.Scenario) harness.Scenario {
	s.Load.Rate, s.Load.Keys, s.Load.Partitions, s.Load.Tail = 40, chainLoad.Keys, chainLoad.Partitions, chainLoad.Tail
	s.Setup = makeTables
	s.Tables = []string{tableOrders, tableNotifications}
	s.Snapshot = snapshotTables(s.Tables...)
	s.Chain = ledger.Chain{Ordered: true, Orders: tableOrders, Effects: []ledger.EffectTable{{Name: tableNotifications, Versions: true}}}
	s.Redelivery = max(s.Redelivery, session)
	s.Sources = append(s.Sources, transactionSources...)
	s.Evidence.Ordered = seen
	s.Drained = allEffects
	if s.Cost == 0 {
		s.Cost = 40 * time.Second
	}
	return s
}

// noQuestion is how long an arm waits for what may still be asked and answered: some checks.
const noQuestion = 6 * time.Second

// allEffects is the drain of transactional messages, of which no position tells while they are halves: nothing is left once each
// order has its effect, or nothing has come for so long that the broker has asked several times.
var allEffects = quiet(noQuestion, false, func(ctx context.Context, e harness.ArmEnv) (int64, error) {
	return countRows(ctx, e.Env, e.Schema, "SELECT (SELECT count(*) FROM orders) - (SELECT count(DISTINCT event_id) FROM notifications)")
})

// betweens is an arm whose orders are placed between the halves of their message, with a consumer and another process to ask.
func betweens(a *harness.Arm, params map[string]string, incarnations ...harness.Incarnation) {
	a.Producer = harness.Producer{Role: roleBetween, Params: params, Incarnations: incarnations}
	a.Processes = []harness.Process{
		onRocketMQ.reader("consumer-1", map[string]string{paramCommit: "batch"}), {Name: "checker", Role: roleChecker, Params: params},
	}
}

// askedAfter waits until somebody was asked after a producer has crashed.
func askedAfter() []plan.Step {
	return []plan.Step{
		{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "producer"}}},
		{Name: "asked", Until: []plan.State{{Kind: plan.Published, N: 1, Since: "crashed"}}},
		handledMore("asked"),
	}
}

func rocketCrashBeforeEnd() harness.Scenario {
	const pair = "rocketmq-transaction/crash-before-end"
	return transacting(harness.Scenario{
		Name: "crash-before-end", Window: "W1",
		Summary: "the producer is killed when its local transaction is committed and the broker not yet told; another process of the group is asked",
		Guarded: "the check-back reads what the local transaction has written",
		LookFor: lookFor(pair),
		Arms: onNode(checkedSoon(checkMax), alsoMissing(onRocketMQ.pairArms(pair, "outbox", paramChecker, func(a *harness.Arm, function string) {
			betweens(a, map[string]string{paramChecker: function}, harness.Incarnation{CrashAt: chain.AfterOrderCommit, CrashNth: seen}, harness.Incarnation{})
		}))...),
		Steps:    askedAfter(),
		Evidence: ledger.Evidence{Bites: []string{"crash-producer", strikeAsked}, HandledBefore: 1, HandledAfter: seen},
	})
}

// alsoMissing lets controls that do not publish an event miss its effect, too.
func alsoMissing(arms []harness.Arm) []harness.Arm {
	for i := range arms {
		if b := arms[i].Break; b != nil {
			b.Also = append(b.Also, audit.MissingEffect)
		}
	}
	return arms
}

func rocketRolledBack() harness.Scenario {
	const pair = "rocketmq-transaction/rolled-back"
	arms := onRocketMQ.pairArms(pair, "outbox", paramChecker, func(a *harness.Arm, function string) {
		betweens(a, map[string]string{paramChecker: function, paramRefuse: "4"}, harness.Incarnation{CrashAt: chain.AfterOrderRollback, CrashNth: seen / 4}, harness.Incarnation{})
		if b := a.Break; b != nil {
			b.Also = append(b.Also, audit.PhantomEffect)
		}
	})
	return transacting(harness.Scenario{
		Name: "rolled-back", Window: "W1",
		Summary: "each fourth order is rolled back; the producer is killed when one is, and the broker not yet told",
		Guarded: "the check-back finds no word of a commit in the table, and writes there that there will be none",
		LookFor: lookFor(pair),
		Arms:    onNode(checkedSoon(checkMax), arms...),
		Steps:   askedAfter(),
		Evidence: ledger.Evidence{
			Bites: []string{"crash-producer", strikeAsked}, HandledBefore: 1, HandledAfter: seen,
		},
	})
}

func rocketSlowTransaction() harness.Scenario {
	const (
		pair     = "kafka-consume/crash-after-business-commit" // the code is the same for any broker
		interval = "3000"                                      // that of the default
		longer   = 9 * time.Second                             // than either timeout, by some checks
	)
	node := func(timeout string) map[string]string {
		return with(checkedSoon(checkMax), settingOpInterval, interval, settingTimeout, timeout)
	}
	slow := func(a *harness.Arm, handler string) {
		betweens(a, nil, harness.Incarnation{HoldAt: chain.BeforeOrderCommit, HoldNth: seen})
		a.Processes[0].Params[paramHandler] = handler
	}
	arms := onNode(node("1000"), onRocketMQ.pairArms(pair, "effect", paramHandler, slow)...)
	patient := harness.Arm{
		Name: "longer-timeout", Role: harness.Observation, Destination: onRocketMQ.destination, Node: node("6000"), Code: &harness.Code{Guarded: "CheckInTable"},
		Reason:  "with " + settingTimeout + " above " + settingOpInterval + ", as by default, a message stands twice only if answers to questions and the end of its transaction cross",
		Promise: onceStored,
	}
	slow(&patient, "ApplyOnce")
	return transacting(harness.Scenario{
		Name: "slow-transaction", Cost: 75 * time.Second,
		Summary: "a local transaction lasts longer than " + settingTimeout + ": the broker asks, while others end; with a timeout below " + settingOpInterval + " it asks about those, too, and publishes what it has published",
		Guarded: "the consumer's inbox knows the event by its id",
		LookFor: "committed messages that come twice, with one transaction id and two offsets; a " + settingTimeout + " (6 s by default) below " + settingOpInterval + " (3 s)",
		Sources: []string{"RocketMQ 5.5.0 source, TransactionalMessageServiceImpl.deletePrepareMessage (the ends of transactions are written in batches), EndTransactionProcessor (a half that has ended can be committed again)"},
		Arms:    append(arms, patient),
		Steps: []plan.Step{
			{Name: "held", Until: []plan.State{{Kind: plan.ProcessAt, Process: "producer", Point: chain.BeforeOrderCommit}}},
			// Time itself is part of the fault: the broker asks when its timeout is over.
			{Name: "longer", Until: []plan.State{{Kind: plan.Elapsed, Hold: longer, Since: "held"}, {Kind: plan.Handled, N: seen, Since: "held"}}},
			{Name: "released", Do: harness.DoReleaseProcess, Process: "producer"},
			handledMore("released"),
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-producer"}, HandledBefore: 1, HandledAfter: seen},
	})
}

// crossed is how many answers may cross with the end of a transaction that is slow: of the questions that are asked once a second from
// the timeout on until it ends, and one that is on its way.
const crossed = 5

// onceStored is the promise of transactional messages of which one was slow: the answer to a question about that one may cross with
// its end.
var onceStored = ledger.Promise{
	Text:   "an order whose local transaction is committed becomes visible to consumers once, but for one whose check-backs and end crossed, and has its effect once",
	Start:  "the commit of the order's transaction",
	End:    "the queue and the effects, read once the broker has nothing left to ask",
	Places: []string{"store", "outbox", "effect"},
	Rules:  map[string]ledger.Rule{audit.ReorderedStore: {Allowed: true}, audit.DuplicateStore: {Bound: crossed}},
}

func rocketTransactionKilled() harness.Scenario {
	a := harness.Arm{
		Name: "killed", Role: harness.Observation, Destination: onRocketMQ.destination, Node: checkedSoon(manyChecks, settingTimeout, "6000"), Code: &harness.Code{Guarded: "CheckInTable"},
		Reason: "RocketMQ promises that a half survives its broker; what it shows is whether each order still becomes one effect, and how long that takes",
	}
	betweens(&a, nil, harness.Incarnation{CrashAt: chain.AfterOrderCommit, CrashNth: seen}, harness.Incarnation{})
	return transacting(harness.Scenario{
		Name: "broker-killed", Cost: 60 * time.Second,
		Summary: "the broker is killed by SIGKILL while it holds halves whose producer has died, and restarted",
		Guarded: "halves are stored as other messages are, and the check-back reads the table",
		LookFor: "orders without an effect after a broker's crash; halves that nobody is asked about (RMQ_SYS_TRANS_HALF_TOPIC grows)",
		Targets: map[string]plan.Role{"broker": plan.All},
		Arms:    []harness.Arm{a},
		Steps: []plan.Step{
			{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "producer"}}},
			{
				Name: "killed", Until: []plan.State{{Kind: plan.Ordered, N: 1, Since: "crashed"}},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "broker"},
			},
			{Name: "restarted", Until: []plan.State{{Kind: plan.Bit, Since: "killed"}}, Heal: "killed"},
			handledMore("restarted"),
		},
		Evidence:    ledger.Evidence{Bites: []string{"crash-producer", "killed"}, HandledBefore: 1, HandledAfter: seen},
		Redelivery:  30 * time.Second, // a broker that was started again asks nobody before its clients have told it of themselves
		Destructive: true,
	})
}

func rocketCheckExhausted() harness.Scenario {
	const exhausted = "the broker has given up"
	var before sync.Map // cluster -> what was given up earlier
	arms := onRocketMQ.reconciled(audit.Unpublished, []string{audit.MissingEffect}, func(a *harness.Arm, safe bool) {
		params := map[string]string{}
		if !safe {
			params[paramBlind] = strconv.Itoa(fewChecks)
		}
		betweens(a, params, harness.Incarnation{CrashAt: chain.AfterOrderCommit, CrashNth: seen}, harness.Incarnation{})
		if !safe { // all questions about one order go to one process, which counts them
			a.Processes = slices.DeleteFunc(a.Processes, func(p harness.Process) bool { return p.Role == roleChecker })
		}
		a.Processes = append(a.Processes, onRocketMQ.relay("relay-1", nil))
		if safe {
			a.Evidence = &ledger.Evidence{Ordered: seen, Bites: []string{"crash-producer", strikeAsked}, HandledBefore: 1, HandledAfter: seen}
		}
	})
	s := transacting(harness.Scenario{
		Name: "check-exhausted", Cost: 60 * time.Second,
		Summary: "the producer is killed before the broker is told, and whoever is asked does not know, until the broker gives up",
		Guarded: "what the broker has given up is found by comparing orders and effects, and published again under its own event id",
		LookFor: "messages in TRANS_CHECK_MAX_TIME_TOPIC: alarm on the first (mqadmin topicStatus -t TRANS_CHECK_MAX_TIME_TOPIC); orders without an effect though the consumers have no lag",
		Sources: reconcileSources,
		Arms:    onNode(checkedSoon(fewChecks), arms...),
		Gates: map[string]harness.Gate{
			exhausted: func(ctx context.Context, e harness.Env, _ plan.State) (bool, string, error) {
				c, ok := e.Cluster.(*rocketmq.Cluster)
				if !ok {
					return false, "", system.ErrNotApplicable
				}
				n, err := c.Exhausted(ctx)
				if err != nil {
					return false, "", err
				}
				from, _ := before.LoadOrStore(c, n)
				return n >= from.(int64)+2, fmt.Sprintf("%d halves, %d before", n, from), nil
			},
		},
		Evidence: ledger.Evidence{Bites: []string{"crash-producer", strikeBlind}, HandledBefore: 1, HandledAfter: seen},
	})
	blind := []string{repaired, reportOnly}
	s.Steps = []plan.Step{
		{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "producer"}}},
		{Name: "given-up", Until: []plan.State{
			{Kind: plan.Published, N: 1, Since: "crashed", Arms: blind}, {Kind: plan.Custom, Name: exhausted},
		}},
	}
	snapshot := snapshotWithAlarms(inNothingWrong, append(s.Tables, ledger.TableDeadLetter)...)
	load, drained := s.Load, allEffectsRepaired
	s = reconciling(s, inNothingWrong, plan.Step{})
	s.Load, s.Drained, s.Snapshot = load, drained, snapshot
	s.Tables = []string{tableOrders, tableNotifications, ledger.TableDeadLetter}
	s.Chain = ledger.Chain{Ordered: true, Orders: tableOrders, Effects: []ledger.EffectTable{{Name: tableNotifications, Versions: true}}}
	for i := range s.Arms {
		s.Arms[i].Chain = nil
		for _, p := range s.Arms[i].Processes {
			if p.Name == reconciler {
				p.Params[paramDeadline] = "15s" // an order's publish may be under way for as long as the broker asks
			}
		}
	}
	return s
}

// allEffectsRepaired is allEffects where a job repairs what lacks its effect.
func allEffectsRepaired(ctx context.Context, e harness.ArmEnv) (bool, string, int64, error) {
	if e.Arm.Role == harness.Guarded {
		return repairsDrained("SELECT 0", unreconciled)(ctx, e)
	}
	return allEffects(ctx, e)
}
