package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"conform/harness/system"
)

var (
	_ system.GroupPositions = (*Cluster)(nil)
	_ system.GroupMembers   = (*Cluster)(nil)
	_ system.GroupSetter    = (*Cluster)(nil)
	_ system.PartitionAdder = (*Cluster)(nil)
	_ system.RecordDeleter  = (*Cluster)(nil)
	_ system.StartPositions = (*Cluster)(nil)
	_ system.Configurer     = (*Cluster)(nil)
)

// operator is the client of admin calls that go to whichever node is in charge: a group's coordinator, a partition's leader.
// It is made at its first use.
type operator struct {
	mu     sync.Mutex
	client *kgo.Client
}

func (o *operator) admin(seeds []string) (*kadm.Client, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.client == nil {
		client, err := kgo.NewClient(
			kgo.SeedBrokers(seeds...), kgo.ClientID("conform-operator"), kgo.DisableClientMetrics(),
			kgo.RequestTimeoutOverhead(askTimeout), kgo.DialTimeout(askTimeout), kgo.MetadataMinAge(metadataMinAge),
		)
		if err != nil {
			return nil, fmt.Errorf("make operator client: %w", err)
		}
		o.client = client
	}
	return kadm.NewClient(o.client), nil
}

func (o *operator) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.client != nil {
		o.client.Close()
		o.client = nil
	}
}

// operate runs f with the operator's client, for at most changeTimeout.
func (c *Cluster) operate(ctx context.Context, what string, f func(context.Context, *kadm.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	admin, err := c.operator.admin(c.DirectEndpoints())
	if err == nil {
		err = f(ctx, admin)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// GroupPositions asks the group's coordinator for what is committed, and the partitions' leaders for their start and end.
func (c *Cluster) GroupPositions(ctx context.Context, destination, group string) ([]system.GroupPosition, error) {
	var positions []system.GroupPosition
	err := c.operate(ctx, "find positions of group "+group, func(ctx context.Context, admin *kadm.Client) (err error) {
		positions, err = groupPositions(ctx, admin, destination, group)
		return err
	})
	return positions, err
}

func groupPositions(ctx context.Context, admin *kadm.Client, destination, group string) ([]system.GroupPosition, error) {
	// The ends last: a lag may be taken for greater than it is, never for less.
	committed, err := admin.FetchOffsetsForTopics(ctx, group, destination)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return nil, err
	}
	starts, err := offsets(admin.ListStartOffsets(ctx, destination))
	if err != nil {
		return nil, fmt.Errorf("find starts: %w", err)
	}
	ends, err := offsets(admin.ListEndOffsets(ctx, destination))
	if err != nil {
		return nil, fmt.Errorf("find ends: %w", err)
	}
	var positions []system.GroupPosition
	for p := range int32(min(len(starts), len(ends))) {
		at := system.GroupPosition{Partition: p, Committed: -1, Start: starts[p], End: ends[p]}
		if o, ok := committed.Lookup(destination, p); ok {
			if o.Err != nil {
				return nil, fmt.Errorf("partition %d: %w", p, o.Err)
			}
			at.Committed = o.At
		}
		positions = append(positions, at)
	}
	return positions, nil
}

var _ system.PositionClients = Clients{}

// OpenPositions opens a client that asks where groups stand, as any application can. Of c it reads endpoints and client id.
func (Clients) OpenPositions(_ context.Context, c system.ClientConfig) (system.GroupAsker, error) {
	client, err := kgo.NewClient(common(c)...)
	if err != nil {
		return nil, fmt.Errorf("make client of positions: %w", err)
	}
	return positions{client}, nil
}

type positions struct{ client *kgo.Client }

func (p positions) GroupPositions(ctx context.Context, destination, group string) ([]system.GroupPosition, error) {
	found, err := groupPositions(ctx, kadm.NewClient(p.client), destination, group)
	if err != nil {
		return nil, fmt.Errorf("find positions of group %s: %w", group, err)
	}
	return found, nil
}

func (p positions) Close(context.Context) error {
	p.client.Close()
	return nil
}

// offsets returns listed offsets by partition. One that is missing or failed is an error.
func offsets(listed kadm.ListedOffsets, err error) ([]int64, error) {
	if err != nil {
		return nil, err
	}
	if err := listed.Error(); err != nil {
		return nil, err
	}
	var all []int64
	for _, partitions := range listed {
		all = make([]int64, len(partitions))
		for p := range all {
			o, ok := partitions[int32(p)]
			if !ok {
				return nil, fmt.Errorf("partition %d is missing in the answer", p)
			}
			all[p] = o.Offset
		}
	}
	return all, nil
}

// StartPositions returns the log start of each partition.
func (c *Cluster) StartPositions(ctx context.Context, destination string) (starts []int64, err error) {
	err = c.operate(ctx, "find start of "+destination, func(ctx context.Context, admin *kadm.Client) error {
		starts, err = offsets(admin.ListStartOffsets(ctx, destination))
		return err
	})
	return starts, err
}

// GroupMembers asks the group's coordinator, first for a group of KIP-848 and then for a classic one.
func (c *Cluster) GroupMembers(ctx context.Context, group string) (state system.GroupState, err error) {
	err = c.operate(ctx, "describe group "+group, func(ctx context.Context, admin *kadm.Client) error {
		consumer, err := admin.DescribeConsumerGroups(ctx, group)
		if err == nil {
			err = consumer[group].Err
		}
		if err == nil {
			g := consumer[group]
			state = system.GroupState{Protocol: "consumer", State: g.State, Stable: g.State == "Stable", Members: len(g.Members)}
			return nil
		}
		if !errors.Is(err, kerr.GroupIDNotFound) && !errors.Is(err, kerr.UnsupportedVersion) {
			return err
		}
		classic, err := admin.DescribeGroups(ctx, group)
		if err == nil {
			err = classic[group].Err
		}
		if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			return err
		}
		g := classic[group]
		state = system.GroupState{Protocol: "classic", State: g.State, Stable: g.State == "Stable", Members: len(g.Members)}
		return nil
	})
	return state, err
}

// SetGroupPositions commits for a group that must have no members. The commits carry no leader epoch.
func (c *Cluster) SetGroupPositions(ctx context.Context, destination, group string, next []int64) error {
	return c.operate(ctx, "set positions of group "+group, func(ctx context.Context, admin *kadm.Client) error {
		return admin.CommitAllOffsets(ctx, group, perPartition(destination, next))
	})
}

func perPartition(topic string, at []int64) kadm.Offsets {
	var o kadm.Offsets
	for p, next := range at {
		if next >= 0 {
			o.Add(kadm.Offset{Topic: topic, Partition: int32(p), At: next, LeaderEpoch: -1})
		}
	}
	return o
}

// DeleteGroupPositions deletes what the group has committed for the topic. No member may be subscribed to it.
func (c *Cluster) DeleteGroupPositions(ctx context.Context, destination, group string) error {
	return c.operate(ctx, "delete positions of group "+group, func(ctx context.Context, admin *kadm.Client) error {
		ends, err := offsets(admin.ListEndOffsets(ctx, destination))
		if err != nil {
			return err
		}
		var s kadm.TopicsSet
		for p := range ends {
			s.Add(destination, int32(p))
		}
		deleted, err := admin.DeleteOffsets(ctx, group, s)
		if err != nil {
			return err
		}
		return deleted.Error()
	})
}

// DeleteGroup deletes a group without members.
func (c *Cluster) DeleteGroup(ctx context.Context, group string) error {
	return c.operate(ctx, "delete group "+group, func(ctx context.Context, admin *kadm.Client) error {
		if _, err := admin.DeleteGroup(ctx, group); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			return err
		}
		return nil
	})
}

// AddPartitions lets the cluster place the new partitions, and waits until every node knows their leaders.
func (c *Cluster) AddPartitions(ctx context.Context, destination string, total int) error {
	return c.operate(ctx, "add partitions to "+destination, func(ctx context.Context, admin *kadm.Client) error {
		added, err := admin.UpdatePartitions(ctx, total, destination)
		if err == nil {
			err = added.Error()
		}
		if err != nil {
			return err
		}
		return c.await(ctx, "every node knows the partitions", func(ctx context.Context) error {
			for _, n := range c.nodes {
				m, err := n.admin.metadata(ctx, []string{destination})
				if err != nil {
					return fmt.Errorf("%s: %w", n.name, err)
				}
				known := 0
				for _, t := range m.Topics {
					for _, p := range t.Partitions {
						if p.Leader >= 0 && len(p.ISR) == len(p.Replicas) {
							known++
						}
					}
				}
				if known != total {
					return fmt.Errorf("%s knows %d partitions in sync", n.name, known)
				}
			}
			return nil
		})
	})
}

// DeleteRecords moves log starts, which may not lie behind the high watermark.
func (c *Cluster) DeleteRecords(ctx context.Context, destination string, before []int64) error {
	return c.operate(ctx, "delete records of "+destination, func(ctx context.Context, admin *kadm.Client) error {
		deleted, err := admin.DeleteRecords(ctx, perPartition(destination, before))
		if err != nil {
			return err
		}
		return deleted.Error()
	})
}

// Configure sets topic settings; the others stay as they are. The brokers follow within moments.
func (c *Cluster) Configure(ctx context.Context, destination string, settings map[string]string) error {
	return c.operate(ctx, "configure "+destination, func(ctx context.Context, admin *kadm.Client) error {
		var changes []kadm.AlterConfig
		for _, name := range slices.Sorted(maps.Keys(settings)) {
			changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: kadm.StringPtr(settings[name])})
		}
		altered, err := admin.AlterTopicConfigs(ctx, changes, destination)
		if err != nil {
			return err
		}
		for _, a := range altered {
			if a.Err != nil {
				return fmt.Errorf("%w: %s", a.Err, a.ErrMessage)
			}
		}
		return nil
	})
}
