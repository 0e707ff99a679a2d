package suites

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/system/kafka"
	"conform/harness/worker"
	"conform/suites/chain"
)

// roleKafkaConsume is the worker role of a consumer that runs the reference code of suites/chain on Kafka.
const roleKafkaConsume = "kafka-consume"

func init() { worker.Register(roleKafkaConsume, consumeRole(kafka.Clients{})) }

// The parameters of a consuming role. Its named points are those of suites/chain between after-fetch and after-settle, and
// pointNoPosition.
const (
	paramLoop     = "loop"     // chain.Loop by name; default Consume
	paramHandler  = "handler"  // chain.Handler by name; default ApplyOnce
	paramConsumer = "consumer" // the consumer's name in the inbox; default "consumer"
	// paramCommit says when what the loop settles is committed: "each" (default), "batch" (before the next fetch), or
	// "never" (the client's auto-commit does that).
	paramCommit = "commit"
	// paramRevoke says what happens when partitions are revoked: "commit" (default) what is settled, or "nothing".
	paramRevoke = "revoke"
	// paramPoll "ahead" polls again while the worker still processes; default "after".
	paramPoll = "poll"
	// paramWork is how long the business work on one delivery takes, beside its transaction; default 0.
	paramWork = "work"
	// paramFail makes the handler fail the first time that it gets its n-th delivery; default 0 = never.
	paramFail = "fail"
	// paramRetry is a chain.Retrier by name: it handles what the handler fails on; default none. paramLetter is the
	// chain.Recorder that it keeps dead letters by.
	paramRetry  = "retry"
	paramLetter = "letter"
	// paramFailEvent is the number of that event of the load's first stream on which the work fails, paramFailAs how:
	// "temporary", "permanent", "secret" (permanent, and its error tells a secret), or a named point at which it ends with an
	// unknown outcome. It fails paramFailTimes times; default 1, negative = each time.
	paramFailEvent = "fail-event"
	paramFailAs    = "fail-as"
	paramFailTimes = "fail-times"
	// paramKeep is KeepKey of chain.Service.
	paramKeep = "keep"
	// paramTell names what is a strike of this consumer: tellStopped, that it is stopped with deliveries in hand; tellJoined, that it
	// joins its group; tellFirst, that it starts where records are older than its group, which has no position.
	paramTell = "tell"
	// paramDestination is the number of the destination that is read, of the arm's own (0, the default) and those beside it.
	paramDestination = "destination"
	// paramAhead "true" says that records say they are of the future; the first that does is the strike.
	paramAhead = "ahead"
)

const (
	tellStopped = "stopped"
	tellJoined  = "joined"
	tellFirst   = "first-start"
)

// defaultConsumer is a consumer's name in the inbox.
const defaultConsumer = "consumer"

// pointNoPosition is reached by a consumer that has no position to go on from, has left its group and stops.
const pointNoPosition = "no-position"

// pollWait bounds one poll, so that a stop is noticed.
const pollWait = 100 * time.Millisecond

// stopGrace is how long the work in hand may go on once the worker is to stop.
const stopGrace = 2 * time.Second

// errNotOurs is returned for deliveries of partitions that went to another member.
var errNotOurs = fmt.Errorf("%w: the partition was revoked", chain.ErrTemporary)

// consumeRole runs a loop and a handler of suites/chain on a broker's client, with effects in PostgreSQL.
func consumeRole(clients system.Clients) worker.Role {
	return func(ctx context.Context, s *worker.Session) error {
		c, err := newConsuming(ctx, s)
		if err != nil {
			return err
		}
		defer c.pool.Close()
		if c.keys != nil {
			defer func() { _ = c.keys.Close() }()
		}
		if c.client, err = clients.OpenConsumer(ctx, s.Config.Client); err != nil {
			return fmt.Errorf("open consumer: %w", err)
		}
		if s.Config.Params[paramTell] == tellFirst {
			if err := tellFirstStart(ctx, s, clients); err != nil {
				return errors.Join(err, c.client.Close(context.WithoutCancel(ctx)))
			}
		}
		c.member, _ = c.client.(system.Member)
		if c.member != nil {
			c.member.Watch(c.changed)
		}
		err = s.Ready(ctx)
		if err == nil {
			err = c.run(ctx)
		}
		closed := c.client.Close(context.WithoutCancel(ctx))
		if errors.Is(err, kafka.ErrNoPosition) {
			// It has left its group, so that somebody can set the position.
			return errors.Join(s.Point(pointNoPosition), closed)
		}
		return errors.Join(err, closed)
	}
}

// consuming is a chain.Subscriber that records what it does.
type consuming struct {
	s       *worker.Session
	client  system.Consumer
	member  system.Member // nil = the system has no groups
	pool    *pgxpool.Pool
	keys    *redis.Client // nil = none
	service *chain.Service
	loop    chain.Loop
	handler chain.Handler
	work    time.Duration
	failNth int
	future  bool // a record of the future is still to be seen
	planned plannedFailure
	names   renamer

	commit, revoke string
	ahead          chan fetched // of paramPoll "ahead"; else nil
	stop           context.CancelFunc
	abandon        context.CancelFunc // the batch that is processed

	handsOver bool         // the loop does not wait for its work
	hands     sync.Mutex   // of the work, then
	inHand    atomic.Int64 // deliveries of which the work has not ended

	fetches sync.WaitGroup // of the poller, and of who ends it all

	positions sync.Mutex
	position  map[int32]int64 // committed, or where the partition was first read

	mu       sync.Mutex // guards the rest, and holds a revocation up while a delivery is handled
	owned    map[int32]bool
	released []system.Delivery
	settled  map[int32]system.Delivery    // to be committed, the last one of each partition
	acks     []system.Delivery            // to be settled, where each delivery is for itself
	batch    map[uint64][]system.Delivery // by event id, in the order they came
	current  system.Delivery              // the one that is handled
	renaming chain.Event                  // what it stands for, for ids that are called new
	handled  int
	joined   bool  // that it did is told
	missing  error // why polling cannot go on
}

type fetched struct {
	ds  []system.Delivery
	err error
}

func newConsuming(ctx context.Context, s *worker.Session) (*consuming, error) {
	p := s.Config.Params
	c := &consuming{
		s: s, commit: or(p[paramCommit], "each"), revoke: or(p[paramRevoke], "commit"), handsOver: p[paramLoop] == "ConsumeHandingOver",
		owned: map[int32]bool{}, settled: map[int32]system.Delivery{}, batch: map[uint64][]system.Delivery{}, position: map[int32]int64{},
	}
	var ok [2]bool
	c.loop, ok[0] = chain.Function[chain.Loop](or(p[paramLoop], "Consume"))
	c.handler, ok[1] = handlerOf(or(p[paramHandler], "ApplyOnce"))
	var errs []error
	for i, name := range []string{p[paramLoop], p[paramHandler]} {
		if !ok[i] {
			errs = append(errs, fmt.Errorf("chain has no loop or handler %q", name))
		}
	}
	var err error
	if v := p[paramWork]; v != "" {
		c.work, err = time.ParseDuration(v)
		errs = append(errs, err)
	}
	if v := p[paramFail]; v != "" {
		c.failNth, err = strconv.Atoi(v)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("read parameters of %s: %w: %w", s.Config.Role, err, system.ErrUsage)
	}
	if p[paramPoll] == "ahead" {
		c.ahead = make(chan fetched, 1)
	}
	if c.pool, err = openDatabase(ctx, s.Config); err != nil {
		return nil, err
	}
	settings := &settingsOf{params: p}
	c.service = newService(s, settings, c.pool)
	c.service.Point = c.at
	c.service.KeepKey = settings.duration(paramKeep)
	c.future = p[paramAhead] == "true"
	c.service.NewID = func() uint64 { return c.names.rename(c.renaming) }
	c.names.s = s
	if p[paramLetter] != "" {
		c.service.Letter = function[chain.Recorder](settings, paramLetter, "")
	}
	if address := s.Config.Peers[processPayment]; address != "" {
		c.service.Payments = &chain.PaymentClient{URL: "http://" + address, Timeout: paymentTimeout}
	}
	if c.keys, err = openKeys(s.Config); err != nil {
		return nil, err
	}
	if c.keys != nil {
		c.service.Keys = roomOfKeys{chain.Redis{Client: c.keys}, s.Config.Schema + ":"}
	}
	if n := settings.number(paramDestination); n > 0 {
		s.Config.Destination = uint16(n)
	}
	c.planFailure(settings)
	if settings.err != nil {
		return nil, settings.err
	}
	return c, nil
}

// handlerOf returns the handler of that name, or a handler that carries out the command of that name.
func handlerOf(name string) (chain.Handler, bool) {
	if h, ok := chain.Function[chain.Handler](name); ok {
		return h, true
	}
	command, ok := chain.Function[chain.Command](name)
	return func(ctx context.Context, s *chain.Service, ev chain.Event) (chain.Result, error) {
		if err := command(ctx, s, ev); err != nil {
			return "", err
		}
		return chain.Applied, nil
	}, ok
}

// plannedFailure is the work on one event that fails.
type plannedFailure struct {
	event uint64
	as    string
	left  int // how often still; negative = always
	told  bool
}

// planFailure lets the handler fail as planned, and puts the retrying around that.
func (c *consuming) planFailure(p *settingsOf) {
	if p.params[paramFailEvent] != "" {
		c.planned = plannedFailure{event: ledger.EventID(firstStream, uint64(p.number(paramFailEvent))), as: p.params[paramFailAs], left: 1}
		if p.params[paramFailTimes] != "" {
			c.planned.left = p.number(paramFailTimes)
		}
	}
	handler := c.handler
	c.handler = func(ctx context.Context, s *chain.Service, ev chain.Event) (chain.Result, error) {
		c.renaming = ev
		if err := c.failAt("", ev); err != nil {
			return "", err
		}
		return handler(ctx, s, ev)
	}
	if p.params[paramRetry] != "" {
		retry, inner := function[chain.Retrier](p, paramRetry, ""), c.handler
		c.handler = func(ctx context.Context, s *chain.Service, ev chain.Event) (chain.Result, error) {
			return retry(ctx, s, inner, ev)
		}
	}
}

// failAt returns the planned failure if this is its event and its point; "" is before the work.
func (c *consuming) failAt(point string, ev chain.Event) error {
	f := &c.planned
	if f.event == 0 || f.event != ev.ID || f.left == 0 {
		return nil
	}
	var err error
	switch f.as {
	case "temporary":
		err = fmt.Errorf("%w: planned failure", chain.ErrTemporary)
	case "permanent":
		err = fmt.Errorf("%w: planned failure", chain.ErrPermanent)
	case "secret":
		err = fmt.Errorf("%w: planned failure of GET https://shop:not-a-real-one@prices.example/list", chain.ErrPermanent)
	default:
		if f.as != point {
			return nil
		}
		err = errors.New("planned failure")
	}
	if point != "" && f.as != point {
		return nil
	}
	f.left--
	if !f.told {
		f.told = true
		err = errors.Join(err, strike(c.s, strikeFailure, "the work on one event fails: "+f.as, fmt.Sprintf("event %d failed", ev.ID), 1))
	}
	return err
}

func or(v, def string) string {
	if v == "" {
		return def
	}
	return v
}

// openDatabase opens the arm's schema. The pool connects at its first use.
func openDatabase(ctx context.Context, c worker.Config) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(c.With["postgres"].DSN)
	if err != nil {
		// The text of the error may hold the connection string.
		return nil, fmt.Errorf("open database: the connection string cannot be read: %w", system.ErrUsage)
	}
	config.MaxConns = 8
	config.ConnConfig.RuntimeParams["search_path"] = c.Schema
	config.ConnConfig.Tracer = waits{}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return pool, nil
}

// run consumes until the engine wants it to stop or there is no position to go on from.
func (c *consuming) run(ctx context.Context) error {
	ctx, c.stop = context.WithCancel(ctx)
	defer c.stop()
	c.fetches.Add(1)
	go c.endInTime(ctx)
	if c.ahead != nil {
		c.fetches.Add(1)
		go c.pollAhead(ctx)
	}
	err := chain.RunConsumer(ctx, c.service, c, c.handle, c.oneBatch)
	c.stop()
	c.fetches.Wait()
	ctx = context.WithoutCancel(ctx)
	c.commitSettled(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(err, c.missing)
}

// oneBatch runs the loop on one batch, which is abandoned as a whole if a delivery turns out to be somebody else's: to park
// that one, say, would be wrong.
func (c *consuming) oneBatch(ctx context.Context, s *chain.Service, sub chain.Subscriber, handle chain.Handler) error {
	ctx, c.abandon = context.WithCancel(ctx)
	defer c.abandon()
	return c.loop(ctx, s, sub, handle)
}

// endInTime ends work that goes on long after the worker was to stop, as endless retrying does.
func (c *consuming) endInTime(ctx context.Context) {
	defer c.fetches.Done()
	select {
	case <-c.s.Stopping():
	case <-ctx.Done(): // perhaps because the loop has seen it first
	}
	if n := c.inHand.Load(); n > 0 && c.s.Config.Params[paramTell] == tellStopped {
		if err := strike(c.s, tellStopped, "a consumer is stopped", fmt.Sprintf("with %d deliveries in hand", n), int(n)); err != nil {
			c.s.Log.Error("journal cannot be written", "error", err)
		}
	}
	select {
	case <-time.After(stopGrace):
		c.stop()
	case <-ctx.Done():
	}
}

// pollAhead fetches the next batch while the one before is processed.
func (c *consuming) pollAhead(ctx context.Context) {
	defer c.fetches.Done()
	for ctx.Err() == nil {
		ds, err := c.poll(ctx, pollWait)
		if len(ds) == 0 && err == nil {
			continue
		}
		select {
		case c.ahead <- fetched{ds, err}:
		case <-ctx.Done():
		}
	}
}

// poll waits a little for deliveries, and records them.
func (c *consuming) poll(ctx context.Context, wait time.Duration) ([]system.Delivery, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	ds, err := c.client.Poll(ctx)
	cancel()
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = nil
	}
	now := worker.Now()
	for i, d := range ds {
		e := c.event(ledger.Received, d)
		e.At = now
		if i < len(ds)-1 {
			c.s.Record(e)
		} else if failed := c.s.RecordNow(e); failed != nil { // a commit by the client itself may follow at any time
			return nil, failed
		}
	}
	c.s.Count(worker.Counts{Received: int64(len(ds))})
	if c.future && len(ds) > 0 {
		if at, ok := kafka.CreateTime(ds[0]); ok && time.Until(at) > 0 {
			c.future = false
			proof := fmt.Sprintf("the record at %d/%d, which is here, says that it is of %s from now", ds[0].Partition, ds[0].Offset, time.Until(at).Round(time.Millisecond))
			if failed := strike(c.s, strikeAhead, "records say that they are of the time when they are due", proof, 1); failed != nil {
				return nil, failed
			}
		}
	}
	c.positions.Lock()
	defer c.positions.Unlock()
	for _, d := range ds {
		if _, ok := c.position[d.Partition]; !ok {
			c.position[d.Partition] = d.Offset
		}
	}
	return ds, err
}

// event returns an event about a delivery.
func (c *consuming) event(kind ledger.Kind, d system.Delivery) ledger.Event {
	e := ledger.Event{
		Kind: kind, Consumer: c.s.Config.Consumer, At: worker.Now(), Key: ledger.NoKey, Attempt: uint32(d.Attempt),
		Pos: ledger.Position{Destination: c.s.Config.Destination, Partition: d.Partition, Offset: d.Offset},
	}
	if kind == ledger.Received {
		e.Digest = ledger.Digest(d.Payload)
	}
	if k, ok := ledger.ParseKey(string(d.Key)); ok {
		e.Key = k
	}
	if h, ok := ledger.ParsePayload(d.Payload); ok {
		e.Stream, e.Seq = h.ID.Stream, h.ID.Seq
		if !c.forged(d.Payload) { // else it is an event of its own, whatever id it bears
			e.EventID = h.EventID
		}
	}
	return e
}

// forged says whether a message has another content than the event of its id.
func (c *consuming) forged(payload []byte) bool {
	return len(payload) != max(c.s.Config.Workload.PayloadSize, ledger.MinPayload)
}

// content is the business event that a message stands for.
func (c *consuming) content(e ledger.Event, payload []byte) chain.Event {
	id := ledger.EventOf(e.ID(), e.EventID)
	ev := chain.Event{ID: id, Key: e.Key, Version: ledger.VersionOf(id), Amount: int64(len(payload)), Body: []byte{}}
	if h, ok := ledger.ParsePayload(payload); ok && c.forged(payload) {
		ev.ID, ev.Body = h.EventID, []byte(h.ID.String())
	}
	return ev
}

// Fetch returns what was released, or the next deliveries.
func (c *consuming) Fetch(ctx context.Context) ([]chain.Delivery, error) {
	select {
	case <-c.s.Stopping():
		c.stop()
		return nil, context.Canceled
	default:
	}
	c.commitSettled(ctx)
	c.mu.Lock()
	wait := pollWait
	if len(c.released) > 0 {
		wait = time.Millisecond
	}
	c.mu.Unlock()
	// Whatever was released, the client is polled: only then a rebalance can go on that it holds up.
	var ds []system.Delivery
	var err error
	if c.ahead == nil {
		ds, err = c.poll(ctx, wait)
	} else {
		select {
		case f := <-c.ahead:
			ds, err = f.ds, f.err
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ds = append(c.ours(c.released), ds...)
	c.released = nil
	if errors.Is(err, kafka.ErrNoPosition) {
		c.missing = err
		c.stop()
		return nil, err
	}
	if !c.handsOver { // else the work on what was fetched before may not have begun
		clear(c.batch)
		c.inHand.Store(0)
	}
	c.inHand.Add(int64(len(ds)))
	events := make([]chain.Delivery, 0, len(ds))
	for _, d := range ds {
		ev := c.content(c.event(ledger.Received, d), d.Payload)
		c.batch[ev.ID] = append(c.batch[ev.ID], d)
		events = append(events, chain.Delivery{Event: ev, Attempt: d.Attempt, Position: d})
	}
	return events, err
}

// ours returns the deliveries of partitions that are still owned, or of channels that are still open: others come again.
func (c *consuming) ours(ds []system.Delivery) []system.Delivery {
	channel, _ := c.client.(interface{ Holds(d system.Delivery) bool })
	return slices.DeleteFunc(slices.Clone(ds), func(d system.Delivery) bool {
		return c.member != nil && !c.owned[d.Partition] || channel != nil && !channel.Holds(d)
	})
}

// handle does the work on one delivery and records how that ended. A revocation waits for it.
func (c *consuming) handle(ctx context.Context, s *chain.Service, ev chain.Event) (chain.Result, error) {
	if c.handsOver { // nobody waits for the work, least of all the end of the process
		c.hands.Lock()
		defer c.hands.Unlock()
	}
	c.mu.Lock()
	unlock := sync.OnceFunc(c.mu.Unlock)
	defer unlock()
	defer c.inHand.Add(-1)
	d := c.batch[ev.ID][0]
	c.current, c.batch[ev.ID] = d, c.batch[ev.ID][1:]
	if c.member != nil && !c.owned[d.Partition] {
		c.abandon()
		return "", errNotOurs
	}
	if c.handsOver {
		unlock()
	}
	c.handled++
	ctx, _ = timed(ctx)
	var result chain.Result
	var err error
	if c.handled == c.failNth {
		if failed := strike(c.s, strikeFailure, "the handler fails once", fmt.Sprintf("event %d failed", ev.ID), 1); failed != nil {
			return "", failed
		}
		err = fmt.Errorf("%w: planned failure", chain.ErrPermanent)
	} else {
		if c.work > 0 {
			select {
			case <-time.After(c.work):
			case <-ctx.Done():
			}
		}
		result, err = c.handler(ctx, s, ev)
	}
	if result == chain.Applied { // recorded at its point already
		return result, err
	}
	e := c.event(ledger.Handled, d)
	e.Text, e.Outcome, e.N = string(result), ledger.OK, waited(ctx)
	if err != nil {
		e.Text, e.Outcome, e.Detail = "retried", ledger.Failed, chain.Redact(err)
		if errors.Is(err, chain.ErrInDoubt) {
			e.Outcome = ledger.InDoubt
		}
	} else {
		c.s.Count(worker.Counts{Handled: 1})
	}
	return result, errors.Join(err, c.s.RecordNow(e))
}

// strikeFailure names the strike of a planned failure.
const strikeFailure = "failed-record"

// endsWork are the points at which the work on a delivery has ended well, and how.
var endsWork = map[string]chain.Result{chain.AfterBusinessCommit: chain.Applied, chain.AfterPark: chain.Quarantined}

// at records the end of the business transaction, and is where the worker crashes or waits.
func (c *consuming) at(ctx context.Context, point string, ev chain.Event) error {
	if result, ok := endsWork[point]; ok {
		e := c.event(ledger.Handled, c.current)
		e.Text, e.Outcome, e.N = string(result), ledger.OK, waited(ctx)
		if err := c.s.RecordNow(e); err != nil {
			return err
		}
		c.s.Count(worker.Counts{Handled: 1})
	}
	if err := c.failAt(point, ev); err != nil {
		return err
	}
	return c.s.PointOf(ctx, point, ev.ID, ev.Key)
}

// Settle commits d, or leaves that for later.
func (c *consuming) Settle(ctx context.Context, d chain.Delivery) error {
	delivery := d.Position.(system.Delivery)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.commit == "never":
		return nil
	case c.member != nil && !c.owned[delivery.Partition]:
		return errNotOurs
	}
	c.settleLater(delivery)
	if c.commit != "each" {
		return nil
	}
	return c.commitLocked(ctx, nil)
}

// settleLater notes a delivery for the next commit. The caller holds mu.
func (c *consuming) settleLater(d system.Delivery) {
	if c.member == nil {
		c.acks = append(c.acks, d)
	} else {
		c.settled[d.Partition] = d
	}
}

// Release keeps deliveries, to return them from the next Fetch.
func (c *consuming) Release(_ context.Context, ds []chain.Delivery) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range ds {
		c.released = append(c.released, d.Position.(system.Delivery))
	}
	return nil
}

// commitSettled commits what is settled. A commit that failed is no error of the loop: what it did not cover comes again.
func (c *consuming) commitSettled(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.commitLocked(ctx, nil); err != nil {
		c.s.Log.Warn("commit failed", "error", err)
	}
}

// commitLocked commits what is settled of the partitions; nil = of all.
func (c *consuming) commitLocked(ctx context.Context, partitions []int32) error {
	ds := c.acks
	c.acks = nil
	for p, d := range c.settled {
		if partitions == nil || slices.Contains(partitions, p) {
			ds = append(ds, d)
			delete(c.settled, p)
		}
	}
	if len(ds) == 0 {
		return nil
	}
	sent := worker.Now()
	if c.member == nil {
		return c.settleEach(ctx, ds, sent)
	}
	return c.record(c.member.Commit(ctx, ds), sent)
}

// settleEach settles deliveries of a system without groups. Where no settle is confirmed, each stays in doubt.
func (c *consuming) settleEach(ctx context.Context, ds []system.Delivery, sent int64) error {
	u, ok := c.client.(system.Unconfirmed)
	unconfirmed := ok && u.SettlesUnconfirmed()
	err := c.client.Settle(ctx, ds)
	for _, d := range ds {
		e := c.event(ledger.Settled, d)
		e.Text, e.Sent = "ack", sent
		switch {
		case err != nil:
			e.Detail = err.Error()
		case !unconfirmed:
			e.Outcome = ledger.OK
			fallthrough
		default:
			c.s.Count(worker.Counts{Settled: 1})
		}
		c.s.Record(e)
	}
	return err
}

// record records commits, and returns an error if one was not confirmed.
func (c *consuming) record(done []system.Settlement, sent int64) error {
	var errs []error
	for _, s := range done {
		c.s.Record(ledger.Event{
			Kind: ledger.Settled, Consumer: c.s.Config.Consumer, Outcome: s.Outcome, At: worker.Now(), Sent: sent, Text: "commit", Detail: s.Err,
			Pos: ledger.Position{Destination: c.s.Config.Destination, Partition: s.Partition, Offset: s.Next},
		})
		if s.Outcome != ledger.OK {
			errs = append(errs, fmt.Errorf("commit of partition %d: %s", s.Partition, s.Err))
			continue
		}
		c.passed(s.Partition, s.Next)
	}
	return errors.Join(errs...)
}

// passed counts the deliveries that a commit has settled.
func (c *consuming) passed(partition int32, next int64) {
	c.positions.Lock()
	defer c.positions.Unlock()
	if from, ok := c.position[partition]; ok && next > from {
		c.position[partition] = next
		c.s.Count(worker.Counts{Settled: next - from})
	}
}

// changed is called by the client when its membership changes.
func (c *consuming) changed(change system.Change) {
	if change.Kind == system.AutoCommitted { // it may come while a delivery is handled, and must not wait for that
		_ = c.record(change.Commits, 0) // an auto-commit that failed is nobody's error
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := ledger.Event{Kind: ledger.Revoked, Consumer: c.s.Config.Consumer, At: change.At, Text: string(change.Kind)}
	switch change.Kind {
	case system.Assigned:
		e.Kind = ledger.Assigned
		if c.s.Config.Params[paramTell] == tellJoined && !c.joined {
			c.joined = true
			if err := strike(c.s, tellJoined, "a consumer joins its group", fmt.Sprintf("it has %d partitions", len(change.Partitions)), 1); err != nil {
				c.s.Log.Error("journal cannot be written", "error", err)
			}
		}
	case system.Revoked:
		if c.revoke == "commit" {
			if err := c.commitLocked(context.Background(), change.Partitions); err != nil {
				c.s.Log.Warn("commit on revocation failed", "error", err)
			}
		}
		e.At = worker.Now()
	}
	for _, p := range change.Partitions {
		c.owned[p] = change.Kind == system.Assigned
		if change.Kind != system.Assigned {
			delete(c.settled, p)
			c.positions.Lock()
			delete(c.position, p)
			c.positions.Unlock()
		}
		e.Pos = ledger.Position{Destination: c.s.Config.Destination, Partition: p, Offset: -1}
		c.s.Record(e)
	}
}

// tellFirstStart records that there is something older than the group.
func tellFirstStart(ctx context.Context, s *worker.Session, clients system.Clients) error {
	open, ok := clients.(system.PositionClients)
	if !ok {
		return fmt.Errorf("ask where the group stands: %w", system.ErrNotApplicable)
	}
	c := s.Config.Client
	asker, err := open.OpenPositions(ctx, c)
	if err != nil {
		return fmt.Errorf("ask where the group stands: %w", err)
	}
	defer func() { _ = asker.Close(context.WithoutCancel(ctx)) }()
	positions, err := asker.GroupPositions(ctx, c.Destination, c.Group)
	if err != nil {
		return fmt.Errorf("ask where the group stands: %w", err)
	}
	older := int64(0)
	for _, p := range positions {
		if p.Committed < 0 {
			older += p.End - p.Start
		}
	}
	if older == 0 {
		return errors.New("nothing is older than the group, or it has a position")
	}
	return strike(s, tellFirst, "a group starts that has no position", fmt.Sprintf("%d records are older", older), int(older))
}
