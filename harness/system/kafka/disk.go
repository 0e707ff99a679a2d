package kafka

import (
	"context"

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

// metaMiB is the size of a metadata disk: some hundred kilobytes are used.
const metaMiB = 128

// openDisks makes the nodes' disks if they are wanted: data and metadata of each.
func (c *Cluster) openDisks(ctx context.Context, owner container.Owner, prefix string) (err error) {
	if c.config.diskMiB > 0 {
		var specs []disk.Spec
		for _, n := range c.nodes {
			specs = append(specs, disk.Spec{Name: n.disks().Data, MiB: c.config.diskMiB}, disk.Spec{Name: n.disks().Others[0], MiB: metaMiB})
		}
		c.rack, err = disks.Open(ctx, c.engine, owner, prefix+"disks", specs...)
	}
	c.Faults = disks.FaultsOf(c.rack, c.diskNode)
	return err
}

// disks is the node with its two disks, of which the data disk fills up and gets slow. Kafka ends when its only log directory
// fails.
func (n *Node) disks() disks.Node {
	return disks.Node{
		Name: n.name, Container: n.broker, Data: n.name + "-data", Volume: n.data, Others: []string{n.name + "-meta"},
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
