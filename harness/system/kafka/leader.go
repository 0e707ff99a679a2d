package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"conform/harness/system"
)

var (
	_ system.LeaderFinder = (*Cluster)(nil)
	_ system.Elector      = (*Cluster)(nil)
)

// settle bounds how long the adapter waits for the controllers to have a leader before it says that there is none.
const settle = 10 * time.Second

// Controller returns the node that a majority of all nodes names as the active controller in the same epoch. One that is
// cut off still believes in its old epoch, but it is alone with that.
func (c *Cluster) Controller(ctx context.Context) (system.Node, error) {
	n, err := c.controller(ctx)
	if err != nil {
		return nil, fmt.Errorf("find active controller: %w", err)
	}
	return n, nil
}

func (c *Cluster) controller(ctx context.Context) (*Node, error) {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	var found *Node
	err := c.await(ctx, "a majority names one controller", func(ctx context.Context) (err error) {
		found, err = c.poll(ctx)
		return err
	})
	return found, err
}

// poll asks all nodes at once and returns as soon as a majority agrees.
func (c *Cluster) poll(ctx context.Context) (*Node, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type vote struct{ leader, epoch int32 }
	type answer struct {
		vote vote
		err  error
	}
	answers := make(chan answer, len(c.nodes))
	for _, n := range c.nodes {
		c.wg.Go(func() {
			leader, epoch, err := n.admin.quorum(ctx)
			if err != nil {
				err = fmt.Errorf("%s: %w", n.name, err)
			}
			answers <- answer{vote{leader, epoch}, err}
		})
	}
	votes := map[vote]int{}
	var errs []error
	for range c.nodes {
		a := <-answers
		if a.err != nil {
			errs = append(errs, a.err)
			continue
		}
		votes[a.vote]++
		if votes[a.vote] <= len(c.nodes)/2 {
			continue
		}
		if n := c.node(a.vote.leader); n != nil {
			return n, nil
		}
	}
	return nil, fmt.Errorf("no majority among %v: %w", votes, errors.Join(errs...))
}

// Leadership returns the state of a partition as the active controller's node has it. Brokers serve metadata from a copy
// that they follow, and one that is cut off goes on serving its old copy (KIP-631): only a node that is with the majority
// of the controllers is asked, and the active controller's own broker follows it without a network between.
func (c *Cluster) Leadership(ctx context.Context, destination string, partition int32) (system.Leadership, error) {
	l, err := c.leadership(ctx, destination, partition)
	if err != nil {
		return system.Leadership{}, fmt.Errorf("find leader of %s-%d: %w", destination, partition, err)
	}
	return l, nil
}

func (c *Cluster) leadership(ctx context.Context, destination string, partition int32) (system.Leadership, error) {
	controller, err := c.controller(ctx)
	if err != nil {
		return system.Leadership{}, err
	}
	m, err := controller.admin.metadata(ctx, []string{destination})
	if err != nil {
		return system.Leadership{}, fmt.Errorf("ask %s: %w", controller.name, err)
	}
	for _, t := range m.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return system.Leadership{}, err
		}
		for i := range t.Partitions {
			if t.Partitions[i].Partition == partition {
				return c.toLeadership(&t.Partitions[i]), nil
			}
		}
	}
	return system.Leadership{}, errors.New("no such partition")
}

func (c *Cluster) toLeadership(p *kmsg.MetadataResponseTopicPartition) system.Leadership {
	l := system.Leadership{Epoch: p.LeaderEpoch}
	if n := c.node(p.Leader); n != nil {
		l.Leader = n
	}
	for _, id := range p.Replicas {
		if n := c.node(id); n != nil {
			l.Replicas = append(l.Replicas, n)
		}
	}
	for _, id := range p.ISR {
		if n := c.node(id); n != nil {
			l.InSync = append(l.InSync, n)
		}
	}
	return l
}

// ElectUnclean elects a live replica for every partition of the destination that has no leader, in sync or not (KIP-460),
// and waits until all partitions have one. Partitions that have a leader are left alone.
func (c *Cluster) ElectUnclean(ctx context.Context, destination string) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if err := c.await(ctx, "every partition has a leader", func(ctx context.Context) error { return c.elect(ctx, destination) }); err != nil {
		return fmt.Errorf("elect leader of %s: %w", destination, err)
	}
	return nil
}

func (c *Cluster) elect(ctx context.Context, destination string) error {
	controller, err := c.controller(ctx)
	if err != nil {
		return err
	}
	m, err := controller.admin.metadata(ctx, []string{destination})
	if err != nil {
		return err
	}
	t := kmsg.NewElectLeadersRequestTopic()
	t.Topic = destination
	for _, topic := range m.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
			return err
		}
		for _, p := range topic.Partitions {
			if p.Leader < 0 {
				t.Partitions = append(t.Partitions, p.Partition)
			}
		}
	}
	if len(t.Partitions) == 0 {
		return nil
	}
	req := kmsg.NewPtrElectLeadersRequest()
	req.ElectionType = 1 // unclean
	req.Topics = append(req.Topics, t)
	resp, err := controller.admin.ask(ctx, req)
	if err != nil {
		return err
	}
	r := resp.(*kmsg.ElectLeadersResponse)
	errs := []error{kerr.ErrorForCode(r.ErrorCode)}
	for _, topic := range r.Topics {
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil && !errors.Is(err, kerr.ElectionNotNeeded) {
				errs = append(errs, fmt.Errorf("partition %d: %w", p.Partition, err))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return errors.New("elected, not seen yet") // the next round sees the leader in the metadata
}
