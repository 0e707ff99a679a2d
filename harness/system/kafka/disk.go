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
	if c.config.diskMiB == 0 {
		return nil
	}
	var specs []disk.Spec
	for _, n := range c.nodes {
		specs = append(specs, disk.Spec{Name: n.disks().Data, MiB: c.config.diskMiB}, disk.Spec{Name: n.disks().Others[0], MiB: metaMiB})
	}
	c.rack, err = disks.Open(ctx, c.engine, owner, prefix+"disks", specs...)
	return err
}

func (n *Node) disks() disks.Node {
	return disks.Node{
		Name: n.name, Container: n.broker, Data: n.name + "-data", Others: []string{n.name + "-meta"},
		Start: func(ctx context.Context) error { return n.cluster.Start(ctx, n) },
	}
}

// DiskBacked returns nil if the nodes have disks of their own, as disks.Setting asks for.
func (c *Cluster) DiskBacked() error { return c.rack.DiskBacked() }

// CutPower cuts the power of the nodes at once: both disks of each, data and metadata.
func (c *Cluster) CutPower(ctx context.Context, nodes []system.Node) (system.Injection, error) {
	cut := make([]disks.Node, len(nodes))
	for i, node := range nodes {
		n, err := c.own(node)
		if err != nil {
			return nil, err
		}
		cut[i] = n.disks()
	}
	return c.rack.CutPower(ctx, cut...)
}

// FillDisk fills the data disk of a node. Kafka ends when its only log directory fails.
func (c *Cluster) FillDisk(ctx context.Context, node system.Node, leave int64) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	return c.rack.Fill(ctx, n.disks(), leave)
}

// ThrottleDisk limits what the node can write to its data disk.
func (c *Cluster) ThrottleDisk(ctx context.Context, node system.Node, bytesPerSecond int64) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	return c.rack.Throttle(ctx, n.disks(), bytesPerSecond)
}

// RotFile damages a file on the data volume of a node that is down.
func (c *Cluster) RotFile(ctx context.Context, node system.Node, r system.Rot) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return disks.Rot(ctx, n.disks(), n.data, r)
}
