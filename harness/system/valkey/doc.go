// Package valkey is the adapter of Valkey (and of Redis, whose protocol it speaks): one server in a container, all of it in
// memory, for what consumers remember outside of their database.
//
// It knows Valkey's settings and protocol. It must not import suites, faults, audits or reports; containers come from
// harness/internal.
//
//	c, err := valkey.System{}.Start(ctx, system.Spec{Run: "r1", Version: "8.1", Image: image})
//	defer c.Close(context.WithoutCancel(ctx))
//	options, err := redis.ParseURL(c.(*valkey.Cluster).DSN("", false))
//
// There is no link before it and none of its faults is injected: keys that expire and clients that die are faults enough.
package valkey
