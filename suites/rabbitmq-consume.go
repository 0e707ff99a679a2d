package suites

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/system/rabbitmq"
	"conform/harness/worker"
	"conform/suites/chain"
)

// roleQueue is the worker role of a consumer of a queue, where each delivery is settled for itself. Its parameters are those
// of roleConsume, as far as they make sense, and those below. With paramPoll "ahead" it takes what comes while it works.
const roleQueue = "rabbitmq-queue"

// roleQueueWriter is a second producer beside the load, which is a strike: it publishes what the scenario is about.
const roleQueueWriter = "rabbitmq-other"

// strikeOther names that strike.
const strikeOther = "other-messages"

func init() {
	worker.Register(roleQueue, queueRole)
	worker.Register(roleQueueWriter, func(ctx context.Context, s *worker.Session) error {
		if err := strike(s, strikeOther, "another producer publishes", "its messages are "+s.Config.Params[paramMessages], 1); err != nil {
			return err
		}
		return writerRole(rabbitmq.Clients{})(ctx, s)
	})
}

// The parameters of a consumer of a queue.
const (
	// paramReturn says how what is released goes back: "nack-requeue" (default), "reject-requeue", "reject", or "abandon": the
	// connection is ended.
	paramReturn = "return"
	// paramGather is how many deliveries a batch has, unless no more come for a while; default 0 = those that there are.
	paramGather = "gather"
	// paramSettler is a chain.Settler by name: how the work's end reaches the broker; default SettleHere.
	paramSettler = "settler"
	// paramMove "true" gives the loop a publisher to the destination's dead-letter exchange.
	paramMove = "move"
	// paramCancel says what becomes of a subscription that the node has cancelled: "subscribe" (default) again, or "ignore".
	paramCancel = "cancel"
)

// gatherWait is how long a batch that is not full waits for more.
const gatherWait = time.Second

const settingAck = "ack" // of the adapter

// pointStale is reached by a settle of a delivery whose channel is gone.
const pointStale = "after-stale-settle"

// strikeCancelled names the cancellation of a subscription by the node.
const strikeCancelled = "cancelled"

// queueing is a chain.Subscriber of a queue that records what it does.
type queueing struct {
	*consuming
	queue   rabbitmq.Queue
	auto    bool // the node takes for settled what it sends
	how     string
	cancel  string
	gather  int
	settler chain.Settler

	goesAhead bool
	arrived   chan struct{} // capacity 1

	box  sync.Mutex // guards the rest
	come []system.Delivery
	// held are the deliveries of the channel that is open now which are not settled.
	held     []system.Delivery
	failures map[uint64]system.Delivery // by event: the last ones that failed
	failed   error                      // that of the journal
	ended    bool                       // nobody polls any more
}

func queueRole(ctx context.Context, s *worker.Session) error {
	c, err := newConsuming(ctx, s)
	if err != nil {
		return err
	}
	defer c.pool.Close()
	p := &settingsOf{params: s.Config.Params}
	q := &queueing{
		consuming: c, auto: s.Config.Client.Settings[settingAck] == "auto", how: or(s.Config.Params[paramReturn], string(rabbitmq.NackRequeue)),
		cancel: or(s.Config.Params[paramCancel], "subscribe"), gather: p.number(paramGather),
		settler:   function[chain.Settler](p, paramSettler, "SettleHere"),
		goesAhead: s.Config.Params[paramPoll] == "ahead", failures: map[uint64]system.Delivery{}, arrived: make(chan struct{}, 1),
	}
	if p.err != nil {
		return p.err
	}
	c.service.Point = q.at
	config := s.Config.Client
	config.Settings = maps.Clone(config.Settings)
	for name := range rabbitmq.ProducerSettings() { // the arm's, for its load
		if _, ours := rabbitmq.ConsumerSettings()[name]; !ours {
			delete(config.Settings, name)
		}
	}
	client, err := rabbitmq.Clients{}.OpenConsumer(ctx, config)
	if err != nil {
		return fmt.Errorf("open consumer: %w", err)
	}
	c.client, q.queue = client, client.(rabbitmq.Queue)
	if s.Config.Params[paramMove] == "true" {
		own := s.Config.Client.Destination
		s.Config.Client.Destination = rabbitmq.DeadLetterExchange(own)
		out, err := onRabbitMQ.openPublisher(ctx, s, s.Config.Stream)
		s.Config.Client.Destination = own
		if err != nil {
			return err
		}
		defer func() { _ = out.close(ctx) }()
		c.service.Publisher = out
	}
	if err = s.Ready(ctx); err == nil {
		err = q.run(ctx)
	}
	return errors.Join(err, client.Close(context.WithoutCancel(ctx)))
}

func (q *queueing) run(ctx context.Context) error {
	ctx, q.stop = context.WithCancel(ctx)
	defer q.stop()
	q.fetches.Add(1)
	go q.endInTime(ctx)
	if q.goesAhead {
		q.fetches.Go(func() {
			for ctx.Err() == nil && q.more(ctx, pollWait) {
			}
		})
	}
	err := chain.RunConsumer(ctx, q.service, q, q.handle, q.loop)
	q.stop()
	q.fetches.Wait()
	q.box.Lock()
	defer q.box.Unlock()
	return errors.Join(err, q.failed)
}

// more takes what comes within a time, and says whether there can be more.
func (q *queueing) more(ctx context.Context, wait time.Duration) bool {
	ds, err := q.poll(ctx, wait)
	if len(ds) > 0 && q.auto {
		err = errors.Join(err, q.record(ds, ledger.OK, "ack", "the node takes for settled what it has sent"))
	}
	q.box.Lock()
	q.come = append(q.come, ds...)
	q.held = append(q.held, ds...)
	q.box.Unlock()
	switch {
	case err == nil:
	case errors.Is(err, rabbitmq.ErrCanceled):
		if err := strike(q.s, strikeCancelled, "the node ends the subscription", err.Error(), 1); err != nil {
			q.fail(err)
			return false
		}
		q.forget()
		q.ended = q.cancel == "ignore"
	case errors.Is(err, rabbitmq.ErrDisconnected):
		q.s.Log.Info("connection lost", "error", err)
		q.forget()
	default:
		q.fail(err)
		return false
	}
	if len(ds) > 0 {
		select {
		case q.arrived <- struct{}{}:
		default:
		}
	}
	return !q.ended
}

func (q *queueing) fail(err error) {
	q.box.Lock()
	q.failed = err
	q.box.Unlock()
	q.stop()
}

// forget drops what cannot be settled any more and is not in work: it comes again.
func (q *queueing) forget() {
	q.box.Lock()
	defer q.box.Unlock()
	q.held = nil
	if !q.auto { // what was settled comes from nowhere but here
		q.come = nil
	}
}

// record records that deliveries are settled, or given back.
func (q *queueing) record(ds []system.Delivery, o ledger.Outcome, how, why string) error {
	for i, d := range ds {
		e := q.event(ledger.Settled, d)
		e.Outcome, e.Text, e.Detail, e.Sent = o, how, why, e.At
		if i < len(ds)-1 {
			q.s.Record(e)
		} else if err := q.s.RecordNow(e); err != nil {
			return err
		}
	}
	return nil
}

// Fetch returns what has come, at least as much as is to be gathered.
func (q *queueing) Fetch(ctx context.Context) ([]chain.Delivery, error) {
	wait := pollWait
	if q.gather > 0 {
		wait = gatherWait
	}
	over := time.After(wait)
	for enough := max(1, q.gather); ; {
		if !q.goesAhead && !q.ended && q.ready() < enough {
			q.more(ctx, pollWait)
		}
		if q.ready() >= enough {
			return q.open(q.take(q.gather)), nil
		}
		select {
		case <-q.arrived:
		case <-over:
			return q.open(q.take(q.gather)), nil
		case <-q.s.Stopping():
			q.stop()
			return nil, context.Canceled
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (q *queueing) ready() int {
	q.box.Lock()
	defer q.box.Unlock()
	return len(q.come)
}

// take returns the first n deliveries that have come, or fewer; 0 = all.
func (q *queueing) take(n int) []system.Delivery {
	q.box.Lock()
	defer q.box.Unlock()
	if n == 0 || n > len(q.come) {
		n = len(q.come)
	}
	ds := q.come[:n]
	q.come = q.come[n:]
	return ds
}

func (q *queueing) open(ds []system.Delivery) []chain.Delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.batch)
	events := make([]chain.Delivery, len(ds))
	for i, d := range ds {
		ev := q.content(q.event(ledger.Received, d), d.Payload)
		q.batch[ev.ID] = append(q.batch[ev.ID], d)
		events[i] = chain.Delivery{Event: ev, Attempt: d.Attempt, Position: d}
	}
	return events
}

type currentKey struct{}

// handle does the work on one delivery and records how that ended. Several deliveries may be handled at once.
func (q *queueing) handle(ctx context.Context, s *chain.Service, ev chain.Event) (chain.Result, error) {
	q.mu.Lock()
	d := q.batch[ev.ID][0]
	q.batch[ev.ID] = q.batch[ev.ID][1:]
	q.mu.Unlock()
	if q.work > 0 {
		select {
		case <-time.After(q.work):
		case <-ctx.Done():
		}
	}
	q.box.Lock()
	delete(q.failures, ev.ID)
	q.box.Unlock()
	result, err := q.handler(context.WithValue(ctx, currentKey{}, d), s, ev)
	if result == chain.Applied { // recorded at its point already
		return result, err
	}
	if err != nil {
		q.box.Lock()
		q.failures[ev.ID] = d
		q.box.Unlock()
	}
	return result, errors.Join(err, q.end(d, result, err))
}

// at records the end of the business transaction, and is where the worker crashes or waits.
func (q *queueing) at(ctx context.Context, point string, ev chain.Event) error {
	if d, ok := ctx.Value(currentKey{}).(system.Delivery); ok && point == chain.AfterBusinessCommit {
		if err := q.end(d, chain.Applied, nil); err != nil {
			return err
		}
	}
	if point == chain.AfterConfirm { // what failed is elsewhere now
		q.box.Lock()
		d := q.failures[ev.ID]
		q.box.Unlock()
		if err := q.end(d, chain.DeadLettered, nil); err != nil {
			return err
		}
	}
	if err := q.failAt(point, ev); err != nil {
		return err
	}
	return q.s.PointOf(ctx, point, ev.ID, ev.Key)
}

// end records the end of the work on a delivery. The error is that of the journal.
func (q *queueing) end(d system.Delivery, result chain.Result, err error) error {
	e := q.event(ledger.Handled, d)
	e.Text, e.Outcome = string(result), ledger.OK
	if err != nil {
		e.Text, e.Outcome, e.Detail = "retried", ledger.Failed, chain.Redact(err)
		if errors.Is(err, chain.ErrInDoubt) {
			e.Outcome = ledger.InDoubt
		}
	} else {
		q.s.Count(worker.Counts{Handled: 1})
	}
	return q.s.RecordNow(e)
}

// Settle acks d, as the settler has it.
func (q *queueing) Settle(ctx context.Context, d chain.Delivery) error {
	delivery := d.Position.(system.Delivery)
	if q.auto {
		return nil
	}
	stale := !q.queue.Holds(delivery)
	err := q.settler(ctx, channel{q}, d)
	if stale {
		if at := q.s.PointOf(ctx, pointStale, d.Event.ID, d.Event.Key); at != nil {
			return at
		}
	}
	return err
}

// channel is a chain.Channel that records what its acks settle.
type channel struct{ *queueing }

func (c channel) Holds(d chain.Delivery) bool { return c.queue.Holds(d.Position.(system.Delivery)) }

func (c channel) Ack(ctx context.Context, d chain.Delivery) error {
	delivery := d.Position.(system.Delivery)
	return c.ack(func(x system.Delivery) bool { return rabbitmq.Tag(x) == rabbitmq.Tag(delivery) }, func() error {
		return c.queue.AckByTag(ctx, delivery)
	})
}

// SettleUpTo acks d and all before it on its channel, unless an ack of a later one has done that.
func (q *queueing) SettleUpTo(ctx context.Context, d chain.Delivery) error {
	delivery := d.Position.(system.Delivery)
	if !q.isHeld(delivery) {
		return nil
	}
	return q.ack(func(x system.Delivery) bool { return rabbitmq.Tag(x) <= rabbitmq.Tag(delivery) }, func() error {
		return q.queue.Settle(ctx, []system.Delivery{delivery})
	})
}

// isHeld says whether a delivery is neither settled nor given back.
func (q *queueing) isHeld(d system.Delivery) bool {
	q.box.Lock()
	defer q.box.Unlock()
	return slices.ContainsFunc(q.held, func(x system.Delivery) bool { return x.Handle == d.Handle })
}

// ack records what an ack settles of the deliveries of the channel that is open now, and asks for it.
func (q *queueing) ack(settles func(system.Delivery) bool, ask func() error) error {
	gone := q.letGo(settles)
	// AMQP confirms no ack: that it is asked for is all that is ever known of it.
	if err := q.record(gone, ledger.InDoubt, "ack", ""); err != nil {
		return err
	}
	err := ask()
	if err == nil {
		q.s.Count(worker.Counts{Settled: int64(len(gone))})
	}
	return err
}

// letGo removes deliveries from those that are held.
func (q *queueing) letGo(which func(system.Delivery) bool) (gone []system.Delivery) {
	q.box.Lock()
	defer q.box.Unlock()
	q.held = slices.DeleteFunc(q.held, func(x system.Delivery) bool {
		if !which(x) {
			return false
		}
		gone = append(gone, x)
		return true
	})
	return gone
}

// Release gives deliveries back to the queue.
func (q *queueing) Release(ctx context.Context, ds []chain.Delivery) error {
	if q.how == "abandon" {
		q.queue.Abandon()
		return nil
	}
	var given []system.Delivery
	for _, d := range ds {
		if delivery := d.Position.(system.Delivery); q.queue.Holds(delivery) {
			given = append(given, delivery)
		}
	}
	if len(given) == 0 || q.auto {
		return nil
	}
	q.letGo(func(x system.Delivery) bool {
		return slices.ContainsFunc(given, func(g system.Delivery) bool { return rabbitmq.Tag(g) == rabbitmq.Tag(x) })
	})
	if err := q.record(given, ledger.InDoubt, q.how, ""); err != nil {
		return err
	}
	return q.queue.Return(ctx, given, rabbitmq.Return(q.how))
}

// queueReader is a consumer of the arm's queue.
func queueReader(name string, params, client map[string]string) harness.Process {
	return harness.Process{Name: name, Role: roleQueue, Params: params, Client: client}
}

// deadLettersDrained says whether all messages of an arm's queue have expired, and none waits for its target.
func deadLettersDrained(ctx context.Context, e harness.ArmEnv) (done bool, seen string, progress int64, err error) {
	keeper, ok := e.Cluster.(system.DeadLetterKeeper)
	if !ok {
		return false, "", 0, fmt.Errorf("cluster tells of no dead letters: %w", system.ErrNotApplicable)
	}
	done, seen, progress, err = queueDrained(ctx, e)
	if err != nil {
		return false, "", 0, err
	}
	kept, err := keeper.DeadLettersKept(ctx, e.Destination)
	return done && kept == 0, fmt.Sprintf("%s, %d dead letters kept", seen, kept), progress - kept, err
}

// queueDrained says whether an arm's queue is empty, and what is delivered settled.
func queueDrained(ctx context.Context, e harness.ArmEnv) (done bool, seen string, progress int64, err error) {
	if b := e.Arm.Break; b != nil && b.Anomaly == "stall" {
		return true, "it is the control's anomaly that it never ends", 0, nil
	}
	positions, ok := e.Cluster.(system.Positions)
	if !ok {
		return false, "", 0, fmt.Errorf("cluster tells no positions: %w", system.ErrNotApplicable)
	}
	ends, err := positions.EndPositions(ctx, e.Destination)
	if err != nil {
		return false, "", 0, err
	}
	left, beside := ends[0], int64(0)
	if len(ends) > 1 {
		beside = ends[1]
	}
	return left == 0, fmt.Sprintf("%d messages left", left), beside - left, nil
}
