package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"conform/harness/system"
)

// OpenConsumer opens a consumer of c.Destination: a member of c.Group, or of all partitions if that is empty. Unknown
// settings are ErrUsage. It does not wait for a connection or an assignment.
func (Clients) OpenConsumer(_ context.Context, c system.ClientConfig) (system.Consumer, error) {
	s := newSettings(c.Settings, ConsumerSettings())
	var (
		isolation  = s.choice("isolation", "read_uncommitted", "read_uncommitted", "read_committed")
		protocol   = s.choice("group.protocol", "classic", "classic", "consumer")
		autoCommit = s.choice("auto.commit", "false", "false", "true", "greedy")
		reset      = s.choice("auto.offset.reset", "earliest", "earliest", "latest", "none")
		session    = s.millis("session.timeout.ms", 45*time.Second, 100)
		heartbeat  = s.millis("heartbeat.ms", 3*time.Second, 10)
		records    = s.number("max.poll.records", 500, 1)
		wait       = s.millis("fetch.max.wait.ms", 500*time.Millisecond, 1)
	)
	if c.Group == "" && autoCommit != "false" {
		s.fail("client settings: auto.commit=%s needs a group", autoCommit)
	}
	if s.err != nil {
		return nil, fmt.Errorf("open consumer %s: %w", c.ClientID, s.err)
	}
	opts := append(common(c), kgo.ConsumeTopics(c.Destination), kgo.FetchMaxWait(wait))
	if isolation == "read_committed" {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	switch reset {
	case "earliest":
		opts = append(opts, kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	case "latest":
		opts = append(opts, kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
	default:
		// NoResetOffset would silently start at the end where nothing is committed: this one reports it.
		opts = append(opts, kgo.ConsumeResetOffset(kgo.NewOffset().AtCommitted()))
	}
	if c.Group != "" {
		opts = append(opts, kgo.ConsumerGroup(c.Group), kgo.Balancers(kgo.RangeBalancer()),
			kgo.SessionTimeout(session), kgo.HeartbeatInterval(heartbeat))
		if protocol == "consumer" {
			opts = append(opts, kgo.ServerSideBalancer())
		}
		switch autoCommit {
		case "false":
			opts = append(opts, kgo.DisableAutoCommit())
		case "greedy":
			opts = append(opts, kgo.GreedyAutoCommit())
		}
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("open consumer %s: %w: %w", c.ClientID, err, system.ErrUsage)
	}
	return &consumer{client: client, max: records, group: c.Group != ""}, nil
}

type consumer struct {
	client *kgo.Client
	max    int
	group  bool
}

// Poll waits for records. Deliveries carry no attempt: Kafka does not count them.
func (c *consumer) Poll(ctx context.Context) ([]system.Delivery, error) {
	fetches := c.client.PollRecords(ctx, c.max)
	ds := make([]system.Delivery, 0, fetches.NumRecords())
	fetches.EachRecord(func(r *kgo.Record) {
		ds = append(ds, system.Delivery{Key: r.Key, Payload: r.Value, Partition: r.Partition, Offset: r.Offset, Handle: r})
	})
	var errs []error
	for _, e := range fetches.Errors() {
		if ctx.Err() != nil && errors.Is(e.Err, ctx.Err()) {
			continue
		}
		errs = append(errs, fmt.Errorf("partition %d: %w", e.Partition, e.Err))
	}
	if len(errs) > 0 {
		return ds, fmt.Errorf("poll: %w", errors.Join(errs...))
	}
	return ds, nil
}

// Settle commits, for each partition, the offset behind the last of ds, and waits for the broker's answer.
func (c *consumer) Settle(ctx context.Context, ds []system.Delivery) error {
	if !c.group {
		return fmt.Errorf("settle: a consumer without a group has no offsets: %w", system.ErrUsage)
	}
	records := make([]*kgo.Record, 0, len(ds))
	for _, d := range ds {
		r, ok := d.Handle.(*kgo.Record)
		if !ok {
			return fmt.Errorf("settle: delivery is not of this consumer: %w", system.ErrUsage)
		}
		records = append(records, r)
	}
	if err := c.client.CommitRecords(ctx, records...); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	return nil
}

// Close leaves the group and ends the client.
func (c *consumer) Close(context.Context) error {
	c.client.Close()
	return nil
}
