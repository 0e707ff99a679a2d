package postgres

import (
	"context"

	"conform/harness/system"
	"conform/harness/system/disks"
)

var (
	_ system.Powered       = (*Cluster)(nil)
	_ system.DiskFiller    = (*Cluster)(nil)
	_ system.DiskThrottler = (*Cluster)(nil)
	_ system.BitRotter     = (*Cluster)(nil)
)

const dataDisk = nodeName + "-data"

func (n *Node) disks() disks.Node {
	return disks.Node{
		Name: nodeName, Container: n.server, Data: dataDisk,
		Start: func(ctx context.Context) error { return n.cluster.Start(ctx, n) },
	}
}

// DiskBacked returns nil if the server has a disk of its own, as disks.Setting asks for.
func (c *Cluster) DiskBacked() error { return c.rack.DiskBacked() }

// CutPower cuts the server's power: WAL that was not flushed is gone, and so is what was written to tables without it.
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

// FillDisk fills the server's disk. PostgreSQL refuses what does not fit; it ends if it cannot write its WAL.
func (c *Cluster) FillDisk(ctx context.Context, node system.Node, leave int64) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	return c.rack.Fill(ctx, n.disks(), leave)
}

// ThrottleDisk limits what the server can write to its disk.
func (c *Cluster) ThrottleDisk(ctx context.Context, node system.Node, bytesPerSecond int64) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	return c.rack.Throttle(ctx, n.disks(), bytesPerSecond)
}

// RotFile damages a file on the volume of a server that is down; the cluster's folder there is "conform".
func (c *Cluster) RotFile(ctx context.Context, node system.Node, r system.Rot) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return disks.Rot(ctx, n.disks(), n.data, r)
}
