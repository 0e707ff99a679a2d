package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"conform/harness/system"
)

const (
	// askTimeout bounds one request to one node, so that a cut-off or frozen node costs little.
	askTimeout = 2 * time.Second
	// changeTimeout bounds a request that changes something.
	changeTimeout = 15 * time.Second
	pollEvery     = 100 * time.Millisecond
	quorumTopic   = "__cluster_metadata"
)

// admin asks one node, and only that one, over its DIRECT listener.
type admin struct{ client *kgo.Client }

func newAdmin(addr string) (*admin, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(addr), kgo.ClientID("conform-admin"),
		// A broker answers the requests of a connection one after the other: one that waits for a controller would
		// hold up all later ones, so its connection is given up.
		kgo.RequestTimeoutOverhead(askTimeout), kgo.DialTimeout(askTimeout), kgo.DisableClientMetrics(),
	)
	if err != nil {
		return nil, fmt.Errorf("make admin client for %s: %w", addr, err)
	}
	return &admin{client: client}, nil
}

func (a *admin) close() { a.client.Close() }

func (a *admin) ask(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	return a.client.SeedBrokers()[0].Request(ctx, req)
}

// metadata returns the node's view of the brokers and of the given topics; none = brokers only, nil = all topics.
func (a *admin) metadata(ctx context.Context, topics []string) (*kmsg.MetadataResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	if topics != nil {
		req.Topics = []kmsg.MetadataRequestTopic{}
	}
	for _, name := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := a.ask(ctx, req)
	if err != nil {
		return nil, err
	}
	return resp.(*kmsg.MetadataResponse), nil
}

// quorum returns who the active controller is and its epoch, as the node finds out by asking it.
func (a *admin) quorum(ctx context.Context) (leader, epoch int32, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req := kmsg.NewPtrDescribeQuorumRequest()
	t := kmsg.NewDescribeQuorumRequestTopic()
	t.Topic = quorumTopic
	t.Partitions = []kmsg.DescribeQuorumRequestTopicPartition{kmsg.NewDescribeQuorumRequestTopicPartition()}
	req.Topics = append(req.Topics, t)
	resp, err := a.ask(ctx, req)
	if err != nil {
		return -1, -1, err
	}
	r := resp.(*kmsg.DescribeQuorumResponse)
	if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
		return -1, -1, err
	}
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		return -1, -1, errors.New("answer about the quorum is empty")
	}
	p := r.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		return -1, -1, err
	}
	return p.LeaderID, p.LeaderEpoch, nil
}

// offset asks for an offset of a partition that the node leads: -1 = the end, -2 = the start.
func (a *admin) offset(ctx context.Context, topic string, partition int32, which int64, committed bool) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	if committed {
		req.IsolationLevel = 1
	}
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.Timestamp, p.CurrentLeaderEpoch = partition, which, -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := a.ask(ctx, req)
	if err != nil {
		return -1, err
	}
	r := resp.(*kmsg.ListOffsetsResponse)
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		return -1, errors.New("answer about offsets is empty")
	}
	if err := kerr.ErrorForCode(r.Topics[0].Partitions[0].ErrorCode); err != nil {
		return -1, err
	}
	return r.Topics[0].Partitions[0].Offset, nil
}

// await repeats check until it returns nil or ctx ends; the error then says what was missing last.
func (c *Cluster) await(ctx context.Context, what string, check func(context.Context) error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if errors.Is(err, system.ErrUsage) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w (last: %w)", what, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}
