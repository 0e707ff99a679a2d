// Package faults holds the kinds of failure that a scenario can expose a cluster to, one file
// each, named as the fault is.
//
// It knows the contracts of harness/system only, never an adapter: a fault asks the cluster for
// the capability it needs and hands back a running injection with its evidence and its heal.
//
//	inj, err := faults.All()["node-killed"].Inject(ctx, system.Strike{Cluster: c, Targets: nodes})
//	defer inj.Heal(context.WithoutCancel(ctx))
package faults
