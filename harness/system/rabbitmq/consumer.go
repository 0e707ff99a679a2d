package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"conform/harness/system"
)

// ErrCanceled says that the node has ended a subscription: its queue is gone or has moved, or a delivery was not settled
// within x-consumer-timeout. The next Poll subscribes again.
var ErrCanceled = errors.New("the node has cancelled the consumer")

// ErrDisconnected says that the connection or the channel was closed: deliveries of before can no longer be settled, and
// come again. The next Poll connects again.
var ErrDisconnected = errors.New("connection or channel closed")

// Return says how a delivery is given back.
type Return string

// The ways to give a delivery back (https://www.rabbitmq.com/docs/nack).
const (
	NackRequeue   Return = "nack-requeue"
	RejectRequeue Return = "reject-requeue"
	Reject        Return = "reject" // to the dead-letter exchange, if there is one
)

// OpenConsumer opens a consumer of c.Destination's queue, or of the queue of its Group. Unknown settings are ErrUsage. It does not
// wait for a connection.
func (Clients) OpenConsumer(_ context.Context, c system.ClientConfig) (system.Consumer, error) {
	plain := map[string]string{}
	arguments := amqp.Table{}
	for name, value := range c.Settings {
		if a, ok := strings.CutPrefix(name, "argument."); ok && strings.HasPrefix(a, argumentPrefix) {
			arguments[a] = argument(value)
		} else {
			plain[name] = value
		}
	}
	documented := ConsumerSettings()
	s := newSettings("client setting", plain, documented)
	if s.choice("queue", "own", "own", "group") == "group" {
		c.Destination = c.Group
	}
	k := &consumer{
		queue: c.Destination, arguments: arguments,
		auto:     s.choice("ack", "manual", "manual", "auto") == "auto",
		multiple: s.flag("ack.multiple", false),
		prefetch: s.number("prefetch", 100, 0),
		most:     s.number("max.poll", 500, 1),
	}
	leader := s.choice("connect", "leader", "leader", "any") == "leader"
	heartbeat := time.Duration(s.number("heartbeat.s", 10, 1)) * time.Second
	if s.err != nil {
		return nil, fmt.Errorf("open consumer %s: %w", c.ClientID, s.err)
	}
	var err error
	if k.target, err = newTarget(c, leader, heartbeat); err != nil {
		return nil, fmt.Errorf("open consumer %s: %w", c.ClientID, err)
	}
	return k, nil
}

type consumer struct {
	target    *target
	queue     string
	arguments amqp.Table
	auto      bool
	multiple  bool
	prefetch  int
	most      int

	wg sync.WaitGroup // pumps

	mu      sync.Mutex
	sub     *subscription   // nil = none
	old     []*subscription // cancelled: their deliveries can still be settled
	attempt *attempt        // to subscribe, under way; nil = none
	closed  bool
}

// attempt is one to subscribe. It goes on while polls come and go: one that began anew with each poll would never succeed if
// polls are short, and would take deliveries along with it each time.
type attempt struct {
	done   chan struct{}
	cancel context.CancelFunc
	err    error // once done
}

// subscription is one channel with one consumer on it. Deliveries can be settled on it and nowhere else.
type subscription struct {
	conn     *connection
	ch       *amqp.Channel
	tag      string // of the consumer, on its channel
	canceled chan string
	closed   chan *amqp.Error

	arrived chan struct{} // capacity 1: there is something new to take
	mu      sync.Mutex
	waiting []amqp.Delivery
	ended   bool // nothing more will come
}

// pump keeps what the library hands over one by one, so that a poll gets all that has come.
func (s *subscription) pump(deliveries <-chan amqp.Delivery) {
	note := func() {
		select {
		case s.arrived <- struct{}{}:
		default:
		}
	}
	for m := range deliveries {
		s.mu.Lock()
		s.waiting = append(s.waiting, m)
		s.mu.Unlock()
		note()
	}
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	note()
}

// take removes the first deliveries, n at most, and says whether nothing more will come.
func (s *subscription) take(n int) ([]amqp.Delivery, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, len(s.waiting))
	ms := s.waiting[:n]
	s.waiting = s.waiting[n:]
	if len(s.waiting) > 0 { // the next poll must not wait
		select {
		case s.arrived <- struct{}{}:
		default:
		}
	}
	return ms, s.ended
}

// handle is what a delivery is settled by.
type handle struct {
	sub *subscription
	tag uint64
}

// Poll waits for deliveries. Attempt is 1 of a first delivery and counts on by x-delivery-count in quorum queues; of a
// redelivery from a classic queue it is 0, unknown. Offset is -1: a queue has no positions. Errors wrap ErrCanceled or
// ErrDisconnected where that is what happened; deliveries that came before are returned with them.
func (k *consumer) Poll(ctx context.Context) ([]system.Delivery, error) {
	sub, err := k.subscription(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil //nolint:nilerr // nothing came in time
		}
		return nil, err
	}
	for {
		ms, ended := sub.take(k.most)
		if len(ms) > 0 || ended {
			ds := make([]system.Delivery, len(ms))
			for i, m := range ms {
				ds[i] = delivery(sub, m)
			}
			if ended && len(ms) < k.most {
				return ds, k.lost(sub)
			}
			return ds, nil
		}
		select {
		case <-sub.arrived:
		case <-ctx.Done():
			return nil, nil
		}
	}
}

func delivery(sub *subscription, m amqp.Delivery) system.Delivery {
	d := system.Delivery{
		Key: headerBytes(m.Headers, headerKey), Payload: m.Body, Offset: -1, Handle: handle{sub, m.DeliveryTag},
	}
	switch n := m.Headers["x-delivery-count"].(type) {
	case int64:
		d.Attempt = int(n) + 1
	case int32:
		d.Attempt = int(n) + 1
	default:
		if !m.Redelivered {
			d.Attempt = 1
		}
	}
	return d
}

// subscription returns the one there is, or subscribes.
func (k *consumer) subscription(ctx context.Context) (*subscription, error) {
	k.mu.Lock()
	sub, a := k.sub, k.attempt
	switch {
	case sub != nil:
		k.mu.Unlock()
		return sub, nil
	case k.closed:
		k.mu.Unlock()
		return nil, fmt.Errorf("subscribe to %s: %w", k.queue, net.ErrClosed)
	case a == nil:
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), subscribeTimeout)
		a = &attempt{done: make(chan struct{}), cancel: cancel}
		k.attempt = a
		k.wg.Go(func() { k.try(own, a) })
	}
	k.mu.Unlock()
	select {
	case <-a.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if a.err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w: %w", k.queue, ErrDisconnected, a.err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sub == nil {
		return nil, fmt.Errorf("subscribe to %s: %w", k.queue, ErrDisconnected)
	}
	return k.sub, nil
}

// try makes the attempt. One that fails takes a while: whoever polls in a loop must not turn without a pause.
func (k *consumer) try(ctx context.Context, a *attempt) {
	defer a.cancel()
	sub, err := k.subscribe(ctx)
	if err != nil {
		select {
		case <-ctx.Done():
		case <-time.After(reconnectEvery):
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err != nil:
		a.err = err
	case k.closed:
		a.err = net.ErrClosed
		sub.conn.abort()
	default:
		k.sub = sub
	}
	k.attempt = nil
	close(a.done)
}

func (k *consumer) subscribe(ctx context.Context) (*subscription, error) {
	conn, err := k.target.connect(ctx)
	if err != nil {
		return nil, err
	}
	sub := &subscription{conn: conn, tag: "conform", arrived: make(chan struct{}, 1)}
	var deliveries <-chan amqp.Delivery
	defer conn.within(ctx, clientDial)()
	err = func() (err error) {
		if sub.ch, err = conn.Channel(); err != nil {
			return err
		}
		sub.canceled = sub.ch.NotifyCancel(make(chan string, 1))
		sub.closed = sub.ch.NotifyClose(make(chan *amqp.Error, 1))
		if err = sub.ch.Qos(k.prefetch, 0, false); err != nil {
			return err
		}
		deliveries, err = sub.ch.Consume(k.queue, sub.tag, k.auto, false, false, false, k.arguments)
		return err
	}()
	if err != nil {
		conn.abort()
		return nil, err
	}
	k.wg.Go(func() { sub.pump(deliveries) })
	return sub, nil
}

// lost says why the deliveries have ended. A cancelled consumer's channel is still good for settling, until the
// client is closed.
func (k *consumer) lost(sub *subscription) error {
	k.mu.Lock()
	if k.sub == sub {
		k.sub = nil
	}
	k.mu.Unlock()
	select {
	case tag, ok := <-sub.canceled:
		if ok {
			k.mu.Lock()
			k.old = append(k.old, sub)
			k.mu.Unlock()
			return fmt.Errorf("poll %s: consumer %s: %w", k.queue, tag, ErrCanceled)
		}
	default:
	}
	reason := "without a reason"
	select {
	case e, ok := <-sub.closed:
		if ok && e != nil {
			reason = e.Error()
		}
	default:
	}
	sub.conn.abort()
	return fmt.Errorf("poll %s: %w: %s", k.queue, ErrDisconnected, reason)
}

// Settle acks the deliveries on the channel that they came on: one by one, or with ack.multiple all up to the highest tag.
// A delivery of a channel that is closed cannot be settled: ErrDisconnected. AMQP confirms no ack: nil says that it was
// written, and with ack=auto that the node took them for settled when it sent them.
func (k *consumer) Settle(_ context.Context, ds []system.Delivery) error {
	if k.auto {
		return nil
	}
	if k.multiple && len(ds) > 0 {
		ds = []system.Delivery{slices.MaxFunc(ds, func(a, b system.Delivery) int { return int(tagOf(a)) - int(tagOf(b)) })}
	}
	return k.each(ds, func(h handle) error { return h.sub.ch.Ack(h.tag, k.multiple) })
}

func tagOf(d system.Delivery) uint64 {
	h, _ := d.Handle.(handle)
	return h.tag
}

// Return gives deliveries back on the channel that they came on.
func (k *consumer) Return(_ context.Context, ds []system.Delivery, how Return) error {
	return k.each(ds, func(h handle) error {
		switch how {
		case NackRequeue:
			return h.sub.ch.Nack(h.tag, false, true)
		case RejectRequeue:
			return h.sub.ch.Reject(h.tag, true)
		case Reject:
			return h.sub.ch.Reject(h.tag, false)
		default:
			return fmt.Errorf("return %q: %w", how, system.ErrUsage)
		}
	})
}

func (k *consumer) each(ds []system.Delivery, do func(handle) error) error {
	for _, d := range ds {
		h, ok := d.Handle.(handle)
		if !ok {
			return fmt.Errorf("settle: delivery is not of this consumer: %w", system.ErrUsage)
		}
		if err := do(h); err != nil {
			if errors.Is(err, system.ErrUsage) {
				return err
			}
			return fmt.Errorf("settle: %w: %w", ErrDisconnected, err)
		}
	}
	return nil
}

// SettlesUnconfirmed is true: basic.ack has no answer.
func (k *consumer) SettlesUnconfirmed() bool { return true }

// Close ends the subscription in order: it cancels the consumer and waits for the node's word, and closes the connection
// then. What was not settled comes again. What was, does not if Close returns nil: a channel keeps acks back that a quorum
// queue has no room for (32 commands under way) and forgets them when it is closed, but hands them over before it asks the
// queue to cancel, whose answer the queue gives when it has applied all that came before.
func (k *consumer) Close(ctx context.Context) error {
	k.mu.Lock()
	sub, old := k.sub, k.old
	k.sub, k.old, k.closed = nil, nil, true
	if k.attempt != nil {
		k.attempt.cancel()
	}
	k.mu.Unlock()
	defer k.wg.Wait()
	for _, s := range old {
		stop := s.conn.within(ctx, clientDial)
		_ = s.conn.Close() // the node has ended the subscription: nothing of it is promised
		stop()
	}
	if sub == nil {
		return nil
	}
	err := sub.end(ctx)
	sub.conn.abort()
	if err != nil && !errors.Is(err, amqp.ErrClosed) {
		return fmt.Errorf("close consumer: %w", err)
	}
	return nil
}

// end cancels the consumer and closes the connection.
func (s *subscription) end(ctx context.Context) error {
	defer s.conn.within(ctx, clientDial)()
	if err := s.ch.Cancel(s.tag, false); err != nil {
		return err
	}
	return s.conn.Close()
}
