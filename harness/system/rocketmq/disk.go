package rocketmq

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

// openDisks makes the brokers' disks if they are wanted. All that a broker keeps, messages and metadata, is on its one disk; the
// name server keeps nothing.
func (c *Cluster) openDisks(ctx context.Context, owner container.Owner, prefix string) (err error) {
	if c.config.diskMiB == 0 {
		return nil
	}
	var specs []disk.Spec
	for _, n := range c.nodes {
		specs = append(specs, disk.Spec{Name: n.disks().Data, MiB: c.config.diskMiB})
	}
	c.rack, err = disks.Open(ctx, c.engine, owner, prefix+"disks", specs...)
	return err
}

func (n *Node) disks() disks.Node {
	return disks.Node{
		Name: n.name, Container: n.broker, Data: n.name + "-data",
		Start: func(ctx context.Context) error { return n.cluster.Start(ctx, n) },
	}
}

// DiskBacked returns nil if the nodes have disks of their own, as disks.Setting asks for.
func (c *Cluster) DiskBacked() error { return c.rack.DiskBacked() }

// CutPower cuts the power of the nodes at once.
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

// FillDisk fills the disk of a node.
func (c *Cluster) FillDisk(ctx context.Context, node system.Node, leave int64) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	return c.rack.Fill(ctx, n.disks(), leave)
}

// ThrottleDisk limits what the node can write to its disk.
func (c *Cluster) ThrottleDisk(ctx context.Context, node system.Node, bytesPerSecond int64) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	return c.rack.Throttle(ctx, n.disks(), bytesPerSecond)
}

// RotFile damages a file on the volume of a node that is down.
func (c *Cluster) RotFile(ctx context.Context, node system.Node, r system.Rot) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return disks.Rot(ctx, n.disks(), n.data, r)
}
