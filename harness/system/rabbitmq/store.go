package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	// sidePositions is where the positions of dead-letter and alternate queues begin: positions of one destination must
	// not fall together.
	sidePositions = 1 << 40
)

// EndPositions returns how many messages the destination's queue holds, delivered or not, and how many its dead-letter and
// alternate queues: what moves if anything moves. A queue that is gone holds none.
func (c *Cluster) EndPositions(ctx context.Context, destination string) ([]int64, error) {
	var counts []int64
	for _, name := range append([]string{destination}, c.of(destination).side()...) {
		n, err := c.count(ctx, name)
		if err != nil && !errors.Is(err, errNotFound) {
			return nil, fmt.Errorf("count messages of %s: %w", name, err)
		}
		counts = append(counts, n)
	}
	return counts, nil
}

func (c *Cluster) of(name string) destination {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made[name]
}

// count asks the queue's own node how many messages it has.
func (c *Cluster) count(ctx context.Context, queue string) (int64, error) {
	l, err := c.leadership(ctx, queue)
	switch {
	case err != nil:
		return 0, err
	case l.Gone:
		return 0, errNotFound
	case l.Leader == nil:
		return 0, errors.New("nobody leads it")
	}
	var q queueInfo
	if err := l.Leader.(*Node).ask(ctx, queuePath(queue), &q); err != nil {
		return 0, err
	}
	return q.Messages, nil
}

// ReadStore drains the destination: it receives and settles every message of the queue, and then of its dead-letter and
// alternate queues in the dead-letter view, past the links, and compares with the count the node told before. Positions
// number the messages in the order of delivery. Reading twice finds nothing the second time.
func (c *Cluster) ReadStore(ctx context.Context, destination string, d uint16, tag uint32, sink func(ledger.Event)) error {
	read := &drain{cluster: c, d: d, tag: tag, sink: sink}
	if err := read.queues(ctx, ledger.ViewRaw, 0, destination); err != nil {
		return fmt.Errorf("read store of %s: %w", destination, err)
	}
	side := c.of(destination).side()
	if len(side) == 0 {
		return nil
	}
	if err := read.queues(ctx, ledger.ViewDeadLetter, sidePositions, side...); err != nil {
		return fmt.Errorf("read store of %s: %w", destination, err)
	}
	return nil
}

type drain struct {
	cluster *Cluster
	d       uint16
	tag     uint32
	sink    func(ledger.Event)
}

// queues drains the queues one after the other into one view.
func (r *drain) queues(ctx context.Context, view ledger.View, from int64, names ...string) error {
	told, next := int64(0), from
	for _, name := range names {
		before, err := r.cluster.count(ctx, name)
		if errors.Is(err, errNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("count messages of %s: %w", name, err)
		}
		told += before
		if next, err = r.queue(ctx, view, next, name); err != nil {
			return fmt.Errorf("drain %s after %d messages: %w", name, next-from, err)
		}
	}
	r.sink(ledger.Event{
		Kind: ledger.StoreEnd, View: view, At: clock.Now(), Pos: ledger.Position{Destination: r.d, Offset: from + told},
		N: next, Low: from, Count: told,
	})
	return nil
}

// queue drains one queue until its node says that nothing is left, and returns the next position.
func (r *drain) queue(ctx context.Context, view ledger.View, next int64, name string) (int64, error) {
	l, err := r.cluster.leadership(ctx, name)
	if err != nil {
		return next, err
	}
	if l.Leader == nil {
		return next, errors.New("nobody leads it")
	}
	conn, err := l.Leader.(*Node).dial(ctx, "conform-reader")
	if err != nil {
		return next, err
	}
	defer conn.abort() // whatever is unsettled stays
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
	settled, moved := int64(-1), time.Now()
	unsettled := uint64(0)
	for {
		idle.Reset(drainIdle)
		select {
		case m, ok := <-deliveries:
			if !ok {
				return next, errors.New("the node ended the delivery")
			}
			moved = time.Now()
			pos := ledger.Position{Destination: r.d, Offset: next}
			r.sink(ledger.StoredRecord(r.tag, view, pos, headerBytes(m.Headers, headerKey), m.Body, clock.Now()))
			next++
			unsettled = m.DeliveryTag
			if unsettled%(drainPrefetch/4) != 0 {
				continue
			}
		case <-idle.C:
			if unsettled == 0 { // nothing is on its way to be settled: is that all?
				left, err := r.cluster.count(ctx, name)
				if err == nil && left == 0 {
					return next, ch.Close()
				}
				if settled != left {
					settled, moved = left, time.Now()
				}
				if time.Since(moved) > stallTimeout {
					return next, fmt.Errorf("%d messages are left and none has come for %s (%w)", left, stallTimeout, err)
				}
				continue
			}
		case <-ctx.Done():
			return next, context.Cause(ctx)
		}
		if err := ch.Ack(unsettled, true); err != nil {
			return next, fmt.Errorf("settle: %w", err)
		}
		unsettled = 0
	}
}
