// Package disks gives the nodes of any adapter disks that can lose power, fill up, get slow or decay, as the capabilities of
// package system ask for them.
//
// It knows what is common to all adapters: a node is a container with one or more disks, a way to start it, and a name. It
// must not import an adapter. An adapter keeps a Rack, mounts its volumes, calls Sync when a destination has been made, and
// embeds the capabilities:
//
//	type Cluster struct {
//		disks.Faults
//		rack *disks.Rack
//	}
//	...
//	c.rack, err = disks.Open(ctx, engine, owner, prefix, disk.Spec{Name: "n1-data", MiB: mib})
//	c.Faults = disks.FaultsOf(c.rack, c.diskNode)
package disks
