package rabbitmq

import (
	"context"
	"fmt"

	"golang.org/x/mod/semver"

	"conform/harness/internal/container"
	"conform/harness/internal/disk"
	"conform/harness/system"
	"conform/harness/system/disks"
)

var (
	_ system.Powered       = (*Cluster)(nil)
	_ system.DiskFiller    = (*Cluster)(nil)
	_ system.DiskThrottler = (*Cluster)(nil)
	_ system.BitRotter     = (*Cluster)(nil)
)

// openDisks makes the nodes' disks if they are wanted. All that a node keeps, messages and metadata, is on its one disk.
func (c *Cluster) openDisks(ctx context.Context, owner container.Owner, prefix string) (err error) {
	if c.config.diskMiB > 0 {
		var specs []disk.Spec
		for _, n := range c.nodes {
			specs = append(specs, disk.Spec{Name: n.disks().Data, MiB: c.config.diskMiB})
		}
		c.rack, err = disks.Open(ctx, c.engine, owner, prefix+"disks", specs...)
	}
	c.Faults = disks.FaultsOf(c.rack, c.diskNode)
	return err
}

// sync makes durable what the nodes have written. Before 4.2 the metadata are Mnesia's, which keeps what is new in memory for some
// seconds and never asks for an fsync: a queue that was declared shortly before a power loss is gone, whatever it holds.
func (c *Cluster) sync(ctx context.Context) error {
	if c.config.diskMiB > 0 && semver.Compare("v"+c.version, "v4.2") < 0 {
		for _, n := range c.nodes {
			if _, err := n.ctl(ctx, "rabbitmqctl", "-q", "eval", "mnesia:sync_log()."); err != nil {
				return fmt.Errorf("make the metadata of %s durable: %w", n.name, err)
			}
		}
	}
	return c.rack.Sync(ctx)
}

func (n *Node) disks() disks.Node {
	return disks.Node{
		Name: n.name, Container: n.broker, Data: n.name + "-data", Volume: n.data,
		Start: func(ctx context.Context) error { return n.cluster.Start(ctx, n) },
	}
}

// diskNode finds a node as package disks wants it.
func (c *Cluster) diskNode(node system.Node) (disks.Node, error) {
	n, err := c.own(node)
	if err != nil {
		return disks.Node{}, err
	}
	return n.disks(), nil
}
