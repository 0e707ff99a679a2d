// Package system holds the contracts between the engine, the faults and the adapters of the
// brokers: System, Cluster, Node, Producer, Consumer, and capability interfaces of one or two
// methods.
//
// It must not import an adapter, a fault or a suite. A capability that a cluster lacks makes a
// scenario NotApplicable before the run: callers ask with a type assertion.
//
//	if p, ok := cluster.(system.Pauser); ok { err = p.Pause(ctx, node) }
package system
