// Package disks gives the nodes of any adapter disks that can lose power, fill up, get slow or decay, as the capabilities of
// package system ask for them.
//
// It knows what is common to all adapters: a node is a container with one or more disks, a way to start it, and a name. It
// must not import an adapter. An adapter keeps a Rack, mounts its volumes, calls Sync when a destination has been made, and
// hands the capabilities on:
//
//	rack, err := disks.Open(ctx, engine, owner, prefix, disk.Spec{Name: "n1-data", MiB: mib})
//	...
//	func (c *Cluster) DiskBacked() error { return c.rack.DiskBacked() }
//	func (c *Cluster) CutPower(ctx context.Context, nodes []system.Node) (system.Injection, error) {
//		return c.rack.CutPower(ctx, c.members(nodes)...)
//	}
package disks
