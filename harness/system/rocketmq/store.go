package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"

	"conform/harness/internal/clock"
	"conform/harness/ledger"
	"conform/harness/system"
)

var (
	_ system.StoreReader    = (*Cluster)(nil)
	_ system.Positions      = (*Cluster)(nil)
	_ system.StartPositions = (*Cluster)(nil)
)

const (
	// readTimeout bounds one pull of the final read.
	readTimeout = 10 * time.Second
	// stallTimeout is how long a final read may go without getting on before it is an error.
	stallTimeout = 30 * time.Second
	readBatch    = 32
	// readerGroup is a group of RocketMQ's own tools: brokers know it without its having been made.
	readerGroup = "TOOLS_CONSUMER"
	// flagSubscription says that a pull brings its subscription along. Without the flag of long polling beside it, a pull at
	// the end of a queue is answered at once.
	flagSubscription = 4
)

// offset asks a broker for an end of a queue.
func (n *Node) offset(ctx context.Context, code int, topic string, queue int) (int64, error) {
	at, err := offsetAt(ctx, n.direct(), code, topic, queue)
	if err != nil {
		return 0, fmt.Errorf("ask %s for an end of %s: %w", n.name, topic, err)
	}
	return at, nil
}

// offsetAt asks the broker at an address for an end of a queue.
func offsetAt(ctx context.Context, addr string, code int, topic string, queue int) (int64, error) {
	fields, _, err := ask(ctx, addr, code, map[string]string{"topic": topic, "queueId": strconv.Itoa(queue)}, nil)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(fields["offset"], 10, 64)
}

func (n *Node) maxOffset(ctx context.Context, topic string, queue int) (int64, error) {
	return n.offset(ctx, codeMaxOffset, topic, queue)
}

// leader returns the broker to ask for what a topic holds: the master, or in a pair without one the replica.
func (c *Cluster) leader(ctx context.Context, topic string) (*Node, error) {
	l, err := c.group(ctx, topic)
	if err != nil {
		return nil, err
	}
	if n, ok := l.Leader.(*Node); ok {
		return n, nil
	}
	return nil, errors.New("there is no master")
}

// EndPositions returns the end of each queue at the master.
func (c *Cluster) EndPositions(ctx context.Context, destination string) ([]int64, error) {
	return c.ends(ctx, destination, codeMaxOffset)
}

// StartPositions returns the start of each queue at the master.
func (c *Cluster) StartPositions(ctx context.Context, destination string) ([]int64, error) {
	return c.ends(ctx, destination, codeMinOffset)
}

func (c *Cluster) ends(ctx context.Context, destination string, code int) ([]int64, error) {
	topic := c.topic(destination)
	queues, err := c.queues(topic)
	if err != nil {
		return nil, fmt.Errorf("find ends of %s: %w", destination, err)
	}
	n, err := c.leader(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("find ends of %s: %w", destination, err)
	}
	ends := make([]int64, queues)
	for q := range queues {
		if ends[q], err = n.offset(ctx, code, topic, q); err != nil {
			return nil, fmt.Errorf("find ends of %s-%d: %w", destination, q, err)
		}
	}
	return ends, nil
}

// ReadStore reads every queue from its start to its end at the master, past the links. Positions are queue offsets; there is
// one view, since half messages of transactions stand in a topic of their own.
func (c *Cluster) ReadStore(ctx context.Context, destination string, d uint16, tag uint32, sink func(ledger.Event)) error {
	topic := c.topic(destination)
	queues, err := c.queues(topic)
	if err != nil {
		return fmt.Errorf("read store of %s: %w", destination, err)
	}
	n, err := c.leader(ctx, topic)
	if err != nil {
		return fmt.Errorf("read store of %s: %w", destination, err)
	}
	conn, err := dial(ctx, n.direct())
	if err != nil {
		return fmt.Errorf("read store of %s: %w", destination, err)
	}
	defer conn.close()
	for q := range queues {
		r := queueRead{node: n, conn: conn, topic: topic, queue: q, d: d, tag: tag, sink: sink}
		if err := r.run(ctx); err != nil {
			return fmt.Errorf("read store of %s-%d at %s: %w", destination, q, n.name, err)
		}
	}
	return nil
}

type queueRead struct {
	node  *Node
	conn  *connection
	topic string
	queue int
	d     uint16
	tag   uint32
	sink  func(ledger.Event)
}

func (r *queueRead) run(ctx context.Context) error {
	low, err := r.node.offset(ctx, codeMinOffset, r.topic, r.queue)
	if err != nil {
		return fmt.Errorf("find start: %w", err)
	}
	end, err := r.node.maxOffset(ctx, r.topic, r.queue)
	if err != nil {
		return fmt.Errorf("find end: %w", err)
	}
	if err := r.read(ctx, low, end); err != nil {
		return err
	}
	after, err := r.node.maxOffset(ctx, r.topic, r.queue)
	if err != nil {
		return fmt.Errorf("find end again: %w", err)
	}
	lowAfter, err := r.node.offset(ctx, codeMinOffset, r.topic, r.queue)
	if err != nil {
		return fmt.Errorf("find start again: %w", err)
	}
	count := int64(-1)
	if lowAfter == low {
		count = end - low
	}
	r.sink(ledger.Event{
		Kind: ledger.StoreEnd, View: ledger.ViewRaw, At: clock.Now(),
		Pos: ledger.Position{Destination: r.d, Partition: int32(r.queue), Offset: end}, N: after, Low: lowAfter, Count: count,
	})
	return nil
}

// read hands the messages of [low, end) to the sink.
func (r *queueRead) read(ctx context.Context, low, end int64) error {
	moved := time.Now()
	for next := low; next < end; {
		if time.Since(moved) > stallTimeout {
			return fmt.Errorf("at offset %d of %d: no progress for %s", next, end, stallTimeout)
		}
		_, body, err := r.conn.ask(ctx, readTimeout, codePull, map[string]string{
			"consumerGroup": readerGroup, "topic": r.topic, "queueId": strconv.Itoa(r.queue),
			"queueOffset": strconv.FormatInt(next, 10), "maxMsgNums": strconv.Itoa(readBatch), "sysFlag": strconv.Itoa(flagSubscription),
			"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
		}, nil)
		switch {
		case answered(err, answerPullNotFound), answered(err, answerPullRetry), answered(err, answerSystemBusy):
			// Not yet, though the queue says that there is more: e.g. a replica that is asked to read from a disk it looks after.
			select {
			case <-time.After(pollEvery):
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		case err != nil:
			return fmt.Errorf("at offset %d of %d: %w", next, end, err)
		}
		at := clock.Now()
		before := next
		for _, m := range primitive.DecodeMessage(body) {
			if m.QueueOffset < next {
				continue
			}
			if m.QueueOffset > next {
				return fmt.Errorf("at offset %d of %d: the broker gave offset %d", next, end, m.QueueOffset)
			}
			if m.QueueOffset >= end {
				break // written after the end was asked for: StoreEnd tells that there is more
			}
			next++
			pos := ledger.Position{Destination: r.d, Partition: int32(r.queue), Offset: m.QueueOffset}
			r.sink(ledger.StoredRecord(r.tag, ledger.ViewRaw, pos, []byte(m.GetKeys()), m.Body, at))
		}
		if next > before {
			moved = time.Now()
		}
	}
	return nil
}
