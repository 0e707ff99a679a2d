package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"conform/harness/internal/clock"
	"conform/harness/ledger"
	"conform/harness/system"
)

// The values of the settings auto.commit and auto.offset.reset.
const (
	commitManual = "false"
	commitAuto   = "true"
	commitGreedy = "greedy"

	resetEarliest = "earliest"
	resetLatest   = "latest"
	resetNone     = "none"
)

// ErrNoPosition marks a Poll of a consumer with auto.offset.reset=none that has nowhere to go on from: nothing is
// committed, or what is committed is not in the log.
var ErrNoPosition = errors.New("no position to go on from")

// OpenConsumer opens a consumer of c.Destination: a member of c.Group, or of all partitions if that is empty. Unknown
// settings are ErrUsage. It does not wait for a connection or an assignment. In a group it is a [system.Member].
func (Clients) OpenConsumer(_ context.Context, cfg system.ClientConfig) (system.Consumer, error) {
	s := newSettings(cfg.Settings, ConsumerSettings())
	var (
		isolation  = s.choice("isolation", "read_uncommitted", "read_uncommitted", "read_committed")
		protocol   = s.choice("group.protocol", "classic", "classic", "consumer")
		assignor   = s.choice("assignor", "range", "range", "sticky", "cooperative-sticky")
		instance   = s.text("group.instance.id")
		autoCommit = s.choice("auto.commit", commitManual, commitManual, commitAuto, commitGreedy)
		interval   = s.millis("auto.commit.interval.ms", 5*time.Second, 100)
		reset      = s.choice("auto.offset.reset", resetEarliest, resetEarliest, resetLatest, resetNone)
		session    = s.millis("session.timeout.ms", 45*time.Second, 100)
		heartbeat  = s.millis("heartbeat.ms", 3*time.Second, 10)
		rebalance  = s.millis("rebalance.timeout.ms", 60*time.Second, 100)
		block      = s.choice("block.rebalance.on.poll", "false", "false", "true") == "true"
		records    = s.number("max.poll.records", 500, 1)
		wait       = s.millis("fetch.max.wait.ms", 500*time.Millisecond, 1)
		least      = s.number("fetch.min.bytes", 1, 1)
		metadata   = s.millis("metadata.max.age.ms", 5*time.Minute, 500)
	)
	if cfg.Group == "" && (autoCommit != commitManual || block) {
		s.fail("client settings: auto.commit=%s and block.rebalance.on.poll=%t need a group", autoCommit, block)
	}
	if protocol == "consumer" && assignor == "cooperative-sticky" {
		s.fail("client settings: group.protocol=consumer has the assignors range and sticky only")
	}
	if s.err != nil {
		return nil, fmt.Errorf("open consumer %s: %w", cfg.ClientID, s.err)
	}
	c := &consumer{
		topic: cfg.Destination, group: cfg.Group != "", max: records, autoCommit: autoCommit, block: block,
		polled: map[int32]kgo.EpochOffset{}, returned: map[int32]kgo.EpochOffset{},
	}
	opts := append(common(cfg), kgo.ConsumeTopics(cfg.Destination), kgo.FetchMaxWait(wait), kgo.FetchMinBytes(int32(least)), kgo.MetadataMaxAge(metadata))
	if isolation == "read_committed" {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	switch reset {
	case resetEarliest:
		opts = append(opts, kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	case resetLatest:
		opts = append(opts, kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
	default:
		// NoResetOffset would silently start at the end where nothing is committed: this one reports it.
		opts = append(opts, kgo.ConsumeResetOffset(kgo.NewOffset().AtCommitted()))
	}
	if c.group {
		opts = append(opts, kgo.ConsumerGroup(cfg.Group), kgo.Balancers(balancer(assignor)),
			kgo.SessionTimeout(session), kgo.HeartbeatInterval(heartbeat), kgo.RebalanceTimeout(rebalance),
			kgo.OnPartitionsAssigned(c.onAssigned), kgo.OnPartitionsRevoked(c.onRevoked), kgo.OnPartitionsLost(c.onLost))
		if protocol == "consumer" {
			opts = append(opts, kgo.ServerSideBalancer())
		}
		if instance != "" {
			opts = append(opts, kgo.InstanceID(instance))
		}
		if block {
			opts = append(opts, kgo.BlockRebalanceOnPoll())
		}
		switch autoCommit {
		case commitManual:
			opts = append(opts, kgo.DisableAutoCommit())
		case commitGreedy:
			opts = append(opts, kgo.GreedyAutoCommit())
		}
		if autoCommit != commitManual {
			opts = append(opts, kgo.AutoCommitInterval(interval), kgo.AutoCommitCallback(c.onAutoCommit))
		}
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("open consumer %s: %w: %w", cfg.ClientID, err, system.ErrUsage)
	}
	c.client = client
	return c, nil
}

func balancer(name string) kgo.GroupBalancer {
	switch name {
	case "sticky":
		return kgo.StickyBalancer()
	case "cooperative-sticky":
		return kgo.CooperativeStickyBalancer()
	default:
		return kgo.RangeBalancer()
	}
}

var _ system.Member = (*consumer)(nil)

type consumer struct {
	client     *kgo.Client
	topic      string
	group      bool
	max        int
	autoCommit string
	block      bool

	mu      sync.Mutex
	watch   func(system.Change)
	pending []system.Change // before Watch
	// What auto-commit may commit when partitions are revoked: the ends of what was polled, and of what was polled before the
	// last poll.
	polled, returned map[int32]kgo.EpochOffset
}

// Poll waits for records. Deliveries carry no attempt: Kafka does not count them. With block.rebalance.on.poll, a Poll that
// returned records holds rebalances up until the next one.
func (c *consumer) Poll(ctx context.Context) ([]system.Delivery, error) {
	if c.block {
		c.client.AllowRebalance()
	}
	c.mu.Lock()
	maps.Copy(c.returned, c.polled)
	c.mu.Unlock()
	fetches := c.client.PollRecords(ctx, c.max)
	ds := make([]system.Delivery, 0, fetches.NumRecords())
	c.mu.Lock()
	fetches.EachRecord(func(r *kgo.Record) {
		ds = append(ds, system.Delivery{Key: r.Key, Payload: r.Value, Partition: r.Partition, Offset: r.Offset, Handle: r})
		c.polled[r.Partition] = after(r)
	})
	c.mu.Unlock()
	var errs []error
	for _, e := range fetches.Errors() {
		if ctx.Err() != nil && errors.Is(e.Err, ctx.Err()) {
			continue
		}
		err := e.Err
		if lacksPosition(err) {
			err = fmt.Errorf("%w: %w", ErrNoPosition, err)
		}
		errs = append(errs, fmt.Errorf("partition %d: %w", e.Partition, err))
	}
	if len(errs) > 0 {
		return ds, fmt.Errorf("poll: %w", errors.Join(errs...))
	}
	return ds, nil
}

// lacksPosition says whether a partition is given up for want of a position. franz-go has no error value for a partition
// without a commit.
func lacksPosition(err error) bool {
	return errors.Is(err, kerr.OffsetOutOfRange) || err.Error() == "partition has no prior committed offset"
}

func after(r *kgo.Record) kgo.EpochOffset {
	return kgo.EpochOffset{Epoch: r.LeaderEpoch, Offset: r.Offset + 1}
}

// Settle commits, for each partition, the offset behind the last of ds, and waits for the broker's answer.
func (c *consumer) Settle(ctx context.Context, ds []system.Delivery) error {
	if !c.group {
		return fmt.Errorf("settle: a consumer without a group has no offsets: %w", system.ErrUsage)
	}
	var errs []error
	for _, s := range c.Commit(ctx, ds) {
		if s.Outcome != ledger.OK {
			errs = append(errs, fmt.Errorf("settle partition %d: %s", s.Partition, s.Err))
		}
	}
	return errors.Join(errs...)
}

// Commit commits like Settle. The settlements are in the order of their partitions.
func (c *consumer) Commit(ctx context.Context, ds []system.Delivery) []system.Settlement {
	next := map[int32]kgo.EpochOffset{}
	for _, d := range ds {
		if r, ok := d.Handle.(*kgo.Record); ok && next[r.Partition].Offset < r.Offset+1 {
			next[r.Partition] = after(r)
		}
	}
	return c.commit(ctx, next)
}

func (c *consumer) commit(ctx context.Context, next map[int32]kgo.EpochOffset) []system.Settlement {
	if len(next) == 0 {
		return nil
	}
	var result []system.Settlement
	c.client.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{c.topic: next},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
			asked := make(map[int32]int64, len(next))
			for p, o := range next {
				asked[p] = o.Offset
			}
			result = settlements(asked, resp, err)
		})
	return result
}

// settlements tells how the commit of each asked partition ended. Whatever has no answer of its own is in doubt.
func settlements(asked map[int32]int64, resp *kmsg.OffsetCommitResponse, err error) []system.Settlement {
	answered := map[int32]int16{}
	if resp != nil {
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				answered[p.Partition] = p.ErrorCode
			}
		}
	}
	all := make([]system.Settlement, 0, len(asked))
	for _, p := range slices.Sorted(maps.Keys(asked)) {
		s := system.Settlement{Partition: p, Next: asked[p], Err: "no answer"}
		code, ok := answered[p]
		switch refusal := kerr.ErrorForCode(code); {
		case err != nil:
			s.Err = errorClass(err)
		case ok && refusal == nil:
			s.Outcome, s.Err = ledger.OK, ""
		case ok:
			s.Outcome, s.Err = commitOutcome(refusal), errorClass(refusal)
		}
		all = append(all, s)
	}
	return all
}

// commitOutcome says what the broker's answer to a commit means. An answer that was given after the append to the offsets
// topic had begun proves nothing.
func commitOutcome(err error) ledger.Outcome {
	for _, refusal := range []error{
		kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.FencedInstanceID, kerr.FencedMemberEpoch, kerr.StaleMemberEpoch,
		kerr.RebalanceInProgress, kerr.GroupIDNotFound, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID,
		kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.InvalidCommitOffsetSize, kerr.OffsetMetadataTooLarge,
	} {
		if errors.Is(err, refusal) {
			return ledger.Failed
		}
	}
	return ledger.InDoubt
}

// Watch hands every change to f, also those that came before.
func (c *consumer) Watch(f func(system.Change)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range c.pending {
		f(change)
	}
	c.pending, c.watch = nil, f
}

func (c *consumer) tell(change system.Change) {
	change.At = clock.Now()
	c.mu.Lock()
	f := c.watch
	if f == nil {
		c.pending = append(c.pending, change)
	}
	c.mu.Unlock()
	if f != nil {
		f(change)
	}
}

func (c *consumer) onAssigned(_ context.Context, _ *kgo.Client, m map[string][]int32) {
	c.tell(system.Change{Kind: system.Assigned, Partitions: sorted(m[c.topic])})
}

// onRevoked replaces the client's own callback, so it does what that does: with auto-commit, commit before the partitions go.
func (c *consumer) onRevoked(ctx context.Context, _ *kgo.Client, m map[string][]int32) {
	if c.autoCommit != commitManual {
		if done := c.commit(ctx, c.autoCommittable(m[c.topic])); len(done) > 0 {
			c.tell(system.Change{Kind: system.AutoCommitted, Commits: done})
		}
	}
	c.tell(system.Change{Kind: system.Revoked, Partitions: sorted(m[c.topic])})
	c.forget(m[c.topic])
}

func (c *consumer) onLost(_ context.Context, _ *kgo.Client, m map[string][]int32) {
	c.tell(system.Change{Kind: system.LostPartitions, Partitions: sorted(m[c.topic])})
	c.forget(m[c.topic])
}

func (c *consumer) onAutoCommit(_ *kgo.Client, req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
	asked := map[int32]int64{}
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			asked[p.Partition] = p.Offset
		}
	}
	if len(asked) > 0 {
		c.tell(system.Change{Kind: system.AutoCommitted, Commits: settlements(asked, resp, err)})
	}
}

// autoCommittable returns what auto-commit may commit of the partitions.
func (c *consumer) autoCommittable(partitions []int32) map[int32]kgo.EpochOffset {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := c.returned
	if c.autoCommit == commitGreedy {
		from = c.polled
	}
	next := map[int32]kgo.EpochOffset{}
	for _, p := range partitions {
		if o, ok := from[p]; ok {
			next[p] = o
		}
	}
	return next
}

func (c *consumer) forget(partitions []int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range partitions {
		delete(c.polled, p)
		delete(c.returned, p)
	}
}

func sorted(partitions []int32) []int32 {
	slices.Sort(partitions)
	return partitions
}

// Close leaves the group and ends the client; a static member (group.instance.id) stays in the group until its session ends.
func (c *consumer) Close(context.Context) error {
	if c.block {
		c.client.CloseAllowingRebalance()
		return nil
	}
	c.client.Close()
	return nil
}

// CreateTime returns the time that a record says it is of. It is false where d is no delivery of Kafka's.
func CreateTime(d system.Delivery) (time.Time, bool) {
	r, ok := d.Handle.(*kgo.Record)
	if !ok {
		return time.Time{}, false
	}
	return r.Timestamp, true
}
