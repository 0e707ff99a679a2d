// Package memory is a broker in memory behind loopback TCP, with bugs to be planted: the engine,
// the workers and the audit are tested against it without an engine for containers.
//
// Its nodes share one log, so a node that dies takes nothing along unless a bug says so. It knows
// the contracts of harness/system and must not import the engine, a suite or a fault.
//
//	cluster, err := memory.System{}.Start(ctx, system.Spec{})
//	err = cluster.Create(ctx, system.DestinationSpec{Name: "t", Partitions: 1, Settings: map[string]string{"bug": memory.LoseConfirmed}})
//
// Destination settings: "bug", one of Bugs.
// Node settings: "bug" for every destination; "fail" = "start" or "baseline" to fail there.
// Client settings: "acks" = all (default) or 0; "idempotence" = true (default) or false; "linger.ms"
// (0); "in.flight" batches (5); "delivery.timeout.ms" (120000); "hang.after" messages, after which the
// client neither completes a send nor flushes.
package memory
