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

// disks is the server with its one disk. A power cut takes WAL that was not flushed, and what was written to tables without it. When
// the disk is full PostgreSQL refuses what does not fit, and ends if it cannot write its WAL. Its folder there is "conform".
func (n *Node) disks() disks.Node {
	return disks.Node{
		Name: nodeName, Container: n.server, Data: dataDisk, Volume: n.data,
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
