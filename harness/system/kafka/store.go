package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"conform/harness/internal/clock"
	"conform/harness/ledger"
	"conform/harness/system"
)

var (
	_ system.StoreReader = (*Cluster)(nil)
	_ system.Positions   = (*Cluster)(nil)
)

// leaderMoves is how often one question follows a leader that has moved.
const leaderMoves = 3

// stallTimeout is how long a final read may go without getting on before it is an error.
const stallTimeout = 30 * time.Second

// offset which of ListOffsets.
const (
	logEnd   = -1
	logStart = -2
)

// DenseLogs says that offsets are dense: only the ends of transactions and compaction leave holes.
func (c *Cluster) DenseLogs() {}

// EndPositions returns the end of each partition: the high watermark, below which every in-sync replica has everything.
func (c *Cluster) EndPositions(ctx context.Context, destination string) ([]int64, error) {
	leaders, err := c.leaders(ctx, destination)
	if err != nil {
		return nil, fmt.Errorf("find end of %s: %w", destination, err)
	}
	ends := make([]int64, len(leaders))
	for p, leader := range leaders {
		if ends[p], err = leader.admin.offset(ctx, destination, int32(p), logEnd, false); err != nil {
			return nil, fmt.Errorf("find end of %s-%d: %w", destination, p, err)
		}
	}
	return ends, nil
}

// leaders returns the leader of each partition.
func (c *Cluster) leaders(ctx context.Context, topic string) ([]*Node, error) {
	controller, err := c.controller(ctx)
	if err != nil {
		return nil, err
	}
	m, err := controller.admin.metadata(ctx, []string{topic})
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", controller.name, err)
	}
	if len(m.Topics) != 1 {
		return nil, fmt.Errorf("%d topics in the answer", len(m.Topics))
	}
	if err := kerr.ErrorForCode(m.Topics[0].ErrorCode); err != nil {
		return nil, err
	}
	leaders := make([]*Node, len(m.Topics[0].Partitions))
	for _, p := range m.Topics[0].Partitions {
		n := c.node(p.Leader)
		if n == nil {
			return nil, fmt.Errorf("partition %d has no leader", p.Partition)
		}
		leaders[p.Partition] = n
	}
	return leaders, nil
}

// ReadStore reads every partition from its log start to its end, first raw (read_uncommitted) and then committed
// (read_committed), over the DIRECT listeners. Control records are no records; in the raw view they are taken off the
// count that the offsets promise, so that Count is what a complete read has. The committed view has no such count: how
// many records were aborted is not known beforehand. Nor has a topic that was made to be compacted.
func (c *Cluster) ReadStore(ctx context.Context, destination string, d uint16, tag uint32, sink func(ledger.Event)) error {
	leaders, err := c.leaders(ctx, destination)
	if err != nil {
		return fmt.Errorf("read store of %s: %w", destination, err)
	}
	c.mu.Lock()
	compacted := c.compacted[destination]
	c.mu.Unlock()
	for p, leader := range leaders {
		for _, view := range []ledger.View{ledger.ViewRaw, ledger.ViewCommitted} {
			r := partitionRead{
				cluster: c, leader: leader, topic: destination, partition: int32(p), d: d, tag: tag, view: view, sink: sink, compacted: compacted,
			}
			if err := r.run(ctx, c.DirectEndpoints()); err != nil {
				return fmt.Errorf("read store of %s-%d: %w", destination, p, err)
			}
		}
	}
	return nil
}

type partitionRead struct {
	cluster   *Cluster
	leader    *Node
	topic     string
	partition int32
	d         uint16
	tag       uint32
	view      ledger.View
	sink      func(ledger.Event)
	compacted bool
}

// offset asks the leader, and whoever leads after it: leadership may move while a partition is read, and a read that goes on
// with the next leader sees what it has.
func (r *partitionRead) offset(ctx context.Context, which int64) (at int64, err error) {
	for range leaderMoves {
		at, err = r.leader.admin.offset(ctx, r.topic, r.partition, which, r.view == ledger.ViewCommitted)
		if !errors.Is(err, kerr.NotLeaderForPartition) {
			break
		}
		leaders, moved := r.cluster.leaders(ctx, r.topic)
		if moved != nil {
			return 0, errors.Join(err, moved)
		}
		r.leader = leaders[r.partition]
	}
	return at, err
}

func (r *partitionRead) run(ctx context.Context, seeds []string) error {
	low, err := r.offset(ctx, logStart)
	if err != nil {
		return fmt.Errorf("find log start: %w", err)
	}
	end, err := r.offset(ctx, logEnd)
	if err != nil {
		return fmt.Errorf("find log end: %w", err)
	}
	controls, err := r.read(ctx, seeds, low, end)
	if err != nil {
		return err
	}
	after, err := r.offset(ctx, logEnd)
	if err != nil {
		return fmt.Errorf("find log end again: %w", err)
	}
	lowAfter, err := r.offset(ctx, logStart)
	if err != nil {
		return fmt.Errorf("find log start again: %w", err)
	}
	count := int64(-1)
	if r.view == ledger.ViewRaw && lowAfter == low && !r.compacted {
		count = end - low - controls
	}
	r.sink(ledger.Event{
		Kind: ledger.StoreEnd, View: r.view, At: clock.Now(),
		Pos: ledger.Position{Destination: r.d, Partition: r.partition, Offset: end}, N: after, Low: lowAfter, Count: count,
	})
	return nil
}

// read hands the records of [low, end) to the sink and returns how many control records there were.
func (r *partitionRead) read(ctx context.Context, seeds []string, low, end int64) (controls int64, err error) {
	if low >= end {
		return 0, nil
	}
	isolation := kgo.ReadUncommitted()
	if r.view == ledger.ViewCommitted {
		isolation = kgo.ReadCommitted()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(seeds...), kgo.ClientID("conform-reader"), kgo.DisableClientMetrics(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.topic: {r.partition: kgo.NewOffset().At(low)}}),
		// A read below the log start must fail, not silently begin somewhere else.
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(isolation), kgo.KeepControlRecords(), kgo.FetchMaxPartitionBytes(8<<20),
	)
	if err != nil {
		return 0, fmt.Errorf("make reader: %w", err)
	}
	defer client.Close()
	// Control records are kept because the last offset before the end may be one, and then nothing else says that the
	// end was reached.
	for next := low; next < end; {
		pollCtx, cancel := context.WithTimeoutCause(ctx, stallTimeout, errors.New("no progress for "+stallTimeout.String()))
		fetches := client.PollFetches(pollCtx)
		cause := context.Cause(pollCtx)
		cancel()
		for _, e := range fetches.Errors() {
			if errors.Is(e.Err, context.DeadlineExceeded) || errors.Is(e.Err, context.Canceled) {
				return 0, fmt.Errorf("at offset %d of %d: %w", next, end, errors.Join(cause, e.Err))
			}
			return 0, fmt.Errorf("at offset %d of %d: %w", next, end, e.Err)
		}
		at := clock.Now()
		fetches.EachRecord(func(record *kgo.Record) {
			if record.Offset >= end {
				return // written after the end was asked for: StoreEnd tells that there is more
			}
			next = record.Offset + 1
			if record.Attrs.IsControl() {
				controls++
				return
			}
			pos := ledger.Position{Destination: r.d, Partition: r.partition, Offset: record.Offset}
			r.sink(ledger.StoredRecord(r.tag, r.view, pos, record.Key, record.Value, at))
		})
	}
	return controls, nil
}
