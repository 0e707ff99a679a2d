package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"conform/harness/internal/clock"
	"conform/harness/ledger"
	"conform/harness/system"
)

var (
	_ system.StoreReader = (*Cluster)(nil)
	_ system.Positions   = (*Cluster)(nil)
)

const (
	// stallTimeout is how long a drain may go without getting on before it is an error.
	stallTimeout = 30 * time.Second
	// drainIdle is how long nothing must come before the node is asked whether that was all.
	drainIdle     = 200 * time.Millisecond
	drainPrefetch = 2000
	// sidePartition is the partition under which dead-letter and alternate queues are told: positions of one destination
	// must not fall together.
	sidePartition = 1
)

// EndPositions returns how many messages the destination's queue holds, delivered or not, and, if it has dead-letter or
// alternate queues, how many these hold together, with the dead letters that the queue keeps for them: what moves if anything
// moves. A queue that is gone holds none. What is
// delivered and not settled is as of the last 5 s (1 s in short timing), since nodes tell it no faster.
func (c *Cluster) EndPositions(ctx context.Context, destination string) ([]int64, error) {
	own, err := c.messages(ctx, c.ownOf(destination)...)
	if err != nil {
		return nil, err
	}
	kept, err := c.pending(ctx, destination)
	if err != nil {
		return nil, err
	}
	side := c.of(destination).side()
	if len(side) == 0 {
		return []int64{own + kept}, nil
	}
	beside, err := c.messages(ctx, side...)
	if err != nil {
		return nil, err
	}
	return []int64{own, beside + kept}, nil
}

// messages sums the messages of queues.
func (c *Cluster) messages(ctx context.Context, queues ...string) (sum int64, err error) {
	for _, name := range queues {
		ready, unsettled, err := c.count(ctx, name)
		if err != nil && !errors.Is(err, errNotFound) {
			return 0, fmt.Errorf("count messages of %s: %w", name, err)
		}
		sum += ready + unsettled
	}
	return sum, nil
}

// ownOf lists the queues whose messages are the destination's.
func (c *Cluster) ownOf(name string) []string {
	if d := c.of(name); d.name != "" {
		return d.own()
	}
	return []string{name}
}

func (c *Cluster) of(name string) destination {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made[name]
}

// count asks the queue's own node how many messages are ready, which is exact, and how many are delivered and not settled,
// which may be 5 s old. A queue that is gone is errNotFound.
func (c *Cluster) count(ctx context.Context, queue string) (ready, unsettled int64, err error) {
	n, q, err := c.home(ctx, queue)
	if err != nil {
		return 0, 0, err
	}
	ready, err = n.ready(ctx, queue)
	return ready, q.Unacked, err
}

// home returns the node that a queue is on, or is led from, by its own word. Unlike leadership it costs a request or two: it
// is asked for many times while queues drain.
func (c *Cluster) home(ctx context.Context, queue string) (*Node, queueInfo, error) {
	c.mu.Lock()
	order := append([]*Node(nil), c.nodes...)
	if last := c.homes[queue]; last != nil {
		order = append([]*Node{last}, order...)
	}
	c.mu.Unlock()
	var errs []error
	for _, n := range order {
		for range len(c.nodes) { // from who knows to who has it
			var q queueInfo
			err := n.ask(ctx, queuePath(queue), &q)
			if errors.Is(err, errNotFound) {
				return nil, q, errNotFound
			}
			if err != nil {
				errs = append(errs, err)
				break
			}
			home := c.node(q.Node)
			if home == nil {
				errs = append(errs, fmt.Errorf("%s knows nobody who has %s", n.name, queue))
				break
			}
			if home == n {
				c.mu.Lock()
				c.homes[queue] = n
				c.mu.Unlock()
				return n, q, nil
			}
			n = home
		}
	}
	return nil, queueInfo{}, errors.Join(errs...)
}

// leader returns the node that leads a queue. A queue that is gone is errNotFound.
func (c *Cluster) leader(ctx context.Context, queue string) (*Node, error) {
	l, err := c.leadership(ctx, queue)
	switch {
	case err != nil:
		return nil, err
	case l.Gone:
		return nil, errNotFound
	case l.Leader == nil:
		return nil, errors.New("nobody leads it")
	}
	return l.Leader.(*Node), nil
}

// ready says how many messages of a queue are ready.
func (n *Node) ready(ctx context.Context, queue string) (int64, error) {
	var q amqp.Queue
	err := n.inspect(ctx, queue, &q)
	return int64(q.Messages), err
}

// inspect asks by a passive declare, which the queue itself answers.
func (n *Node) inspect(ctx context.Context, queue string, q *amqp.Queue) error {
	conn, err := n.dial(ctx, "conform-probe")
	if err != nil {
		return err
	}
	defer conn.abort()
	defer conn.within(ctx, askTimeout)()
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	*q, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if e := (*amqp.Error)(nil); errors.As(err, &e) && e.Code == amqp.NotFound {
		return errNotFound
	}
	if err != nil {
		return fmt.Errorf("ask for the length of %s: %w", queue, err)
	}
	return conn.Close()
}

// ReadStore drains the destination: it receives and settles every message of the queue, and then of its dead-letter and
// alternate queues in the dead-letter view, past the links, and compares with the count the node told before. Positions
// number the messages in the order of delivery. Then it tells what the nodes say that they have dropped (ledger.Dropped).
// Reading twice finds nothing the second time.
func (c *Cluster) ReadStore(ctx context.Context, destination string, d uint16, tag uint32, sink func(ledger.Event)) error {
	read := &drain{cluster: c, destination: destination, d: d, tag: tag, sink: sink}
	if err := read.queues(ctx, ledger.ViewRaw, 0, c.ownOf(destination)...); err != nil {
		return fmt.Errorf("read store of %s: %w", destination, err)
	}
	if side := c.of(destination).side(); len(side) > 0 {
		if err := read.queues(ctx, ledger.ViewDeadLetter, sidePartition, side...); err != nil {
			return fmt.Errorf("read store of %s: %w", destination, err)
		}
	}
	for _, e := range c.dropped(ctx, destination) {
		e.Pos.Destination = d
		sink(e)
	}
	return nil
}

type drain struct {
	cluster     *Cluster
	destination string
	d           uint16
	tag         uint32
	sink        func(ledger.Event)

	partition int32
	keeps     bool // dead letters may come that the destination's queues keep
	// earlier counts, by digest, what earlier subscriptions to the queue were given: a settle that was written just before
	// the connection was closed may be lost, and then the same message comes again, marked redelivered.
	earlier map[uint64]int
}

// queues drains the queues one after the other into one view.
func (r *drain) queues(ctx context.Context, view ledger.View, partition int32, names ...string) error {
	r.partition = partition
	told, next := int64(0), int64(0)
	for i, name := range names {
		r.keeps = i == len(names)-1 && (view == ledger.ViewDeadLetter || len(r.cluster.of(r.destination).side()) == 0)
		if r.keeps {
			kept, err := r.cluster.pending(ctx, r.destination)
			if err != nil {
				return err
			}
			told += kept
		}
		before, err := r.ready(ctx, name)
		if errors.Is(err, errNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("count messages of %s: %w", name, err)
		}
		told += before
		if next, err = r.queue(ctx, view, next, name); err != nil {
			return fmt.Errorf("drain %s after %d messages: %w", name, next, err)
		}
	}
	r.sink(ledger.Event{
		Kind: ledger.StoreEnd, View: view, At: clock.Now(), Pos: ledger.Position{Destination: r.d, Partition: partition, Offset: told},
		N: next, Count: told,
	})
	return nil
}

// ready says how many messages can be received: all there are, once nobody else holds any.
func (r *drain) ready(ctx context.Context, name string) (int64, error) {
	n, err := r.cluster.leader(ctx, name)
	if err != nil {
		return 0, err
	}
	return n.ready(ctx, name)
}

// queue drains one queue, by one subscription after the other, until its node says that nothing is left when there is none.
func (r *drain) queue(ctx context.Context, view ledger.View, next int64, name string) (int64, error) {
	moved := time.Now()
	r.earlier = map[uint64]int{}
	for {
		before := next
		var err error
		if next, err = r.subscription(ctx, view, next, name); err != nil {
			return next, err
		}
		left, err := r.ready(ctx, name)
		if err == nil && left == 0 && r.keeps { // dead letters that are on their way here
			left, err = r.cluster.pending(ctx, r.destination)
		}
		switch {
		case err != nil:
			return next, err
		case left == 0:
			return next, nil
		case next > before:
			moved = time.Now()
		case time.Since(moved) > stallTimeout:
			return next, fmt.Errorf("%d messages are left and none has come for %s", left, stallTimeout)
		}
	}
}

// subscription receives and settles what comes until nothing has come for a while, and ends in order: a message whose settle
// was not taken is ready again then.
func (r *drain) subscription(ctx context.Context, view ledger.View, next int64, name string) (int64, error) {
	n, err := r.cluster.leader(ctx, name)
	if err != nil {
		return next, err
	}
	conn, err := n.dial(ctx, "conform-reader")
	if err != nil {
		return next, err
	}
	defer conn.abort()
	defer context.AfterFunc(ctx, conn.abort)()
	ch, err := conn.Channel()
	if err != nil {
		return next, fmt.Errorf("open channel: %w", err)
	}
	if err := ch.Qos(drainPrefetch, 0, false); err != nil {
		return next, fmt.Errorf("set prefetch: %w", err)
	}
	deliveries, err := ch.Consume(name, "conform-reader", false, false, false, false, nil)
	if err != nil {
		return next, fmt.Errorf("consume: %w", err)
	}
	idle := time.NewTimer(drainIdle)
	defer idle.Stop()
	unsettled := uint64(0)
	given := map[uint64]int{}
	defer func() {
		for digest, n := range given {
			r.earlier[digest] += n
		}
	}()
	for {
		idle.Reset(drainIdle)
		quiet := false
		select {
		case m, ok := <-deliveries:
			if !ok {
				return next, errors.New("the node ended the delivery")
			}
			unsettled = m.DeliveryTag
			if digest := ledger.Digest(m.Body); m.Redelivered && r.earlier[digest] > 0 {
				r.earlier[digest]--
			} else {
				given[digest]++
				pos := ledger.Position{Destination: r.d, Partition: r.partition, Offset: next}
				e := ledger.StoredRecord(r.tag, view, pos, headerBytes(m.Headers, headerKey), m.Body, clock.Now())
				if name == r.cluster.of(r.destination).target() {
					e.Detail = death(m.Headers)
				}
				r.sink(e)
				next++
			}
		case <-idle.C:
			quiet = true
		case <-ctx.Done():
			return next, context.Cause(ctx)
		}
		if unsettled > 0 && (quiet || unsettled%(drainPrefetch/4) == 0) {
			if err := ch.Ack(unsettled, true); err != nil {
				return next, fmt.Errorf("settle: %w", err)
			}
			unsettled = 0
		}
		if quiet {
			// The settles are with the queue when it has cancelled the consumer, see consumer.Close.
			if err := ch.Cancel("conform-reader", false); err != nil {
				return next, fmt.Errorf("cancel: %w", err)
			}
			return next, conn.Close()
		}
	}
}
