package disks

import (
	"context"

	"conform/harness/system"
)

// Faults are the disk faults of a cluster's nodes. The cluster embeds them, and so has the capabilities.
type Faults struct {
	rack *Rack
	own  func(system.Node) (Node, error)
}

var (
	_ system.Powered       = Faults{}
	_ system.DiskFiller    = Faults{}
	_ system.DiskThrottler = Faults{}
	_ system.BitRotter     = Faults{}
)

// FaultsOf returns the disk faults of nodes whose disks are in a rack, which may be nil. own knows the cluster's nodes; its error
// is that of the capability.
func FaultsOf(rack *Rack, own func(system.Node) (Node, error)) Faults { return Faults{rack, own} }

// DiskBacked returns nil if the nodes have disks of their own, as Setting asks for, or why not.
func (f Faults) DiskBacked() error { return f.rack.DiskBacked() }

// CutPower cuts the power of the nodes at once: all disks of each.
func (f Faults) CutPower(ctx context.Context, nodes []system.Node) (system.Injection, error) {
	cut := make([]Node, len(nodes))
	for i, node := range nodes {
		n, err := f.own(node)
		if err != nil {
			return nil, err
		}
		cut[i] = n
	}
	return f.rack.CutPower(ctx, cut...)
}

// FillDisk fills the data disk of a node but for leave bytes.
func (f Faults) FillDisk(ctx context.Context, node system.Node, leave int64) (system.Injection, error) {
	n, err := f.own(node)
	if err != nil {
		return nil, err
	}
	return f.rack.Fill(ctx, n, leave)
}

// ThrottleDisk limits what the node can write to its data disk.
func (f Faults) ThrottleDisk(ctx context.Context, node system.Node, bytesPerSecond int64) (system.Injection, error) {
	n, err := f.own(node)
	if err != nil {
		return nil, err
	}
	return f.rack.Throttle(ctx, n, bytesPerSecond)
}

// RotFile damages a file on the data volume of a node that is down.
func (f Faults) RotFile(ctx context.Context, node system.Node, r system.Rot) (string, error) {
	n, err := f.own(node)
	if err != nil {
		return "", err
	}
	return Rot(ctx, n, n.Volume, r)
}
