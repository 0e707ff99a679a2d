// Package worker holds the client processes of a run and the line protocol that drives them
// (PROTOCOL.md). A producer or consumer is a process of its own, so that a crash is a crash:
// SIGKILL by the worker itself at a named point.
//
// It knows sessions, journals, pacing and endings. It drives clients through the contracts of
// harness/system and must not import an adapter, a suite or the engine. Roles are registered by
// whoever binds an adapter:
//
//	worker.Register("kafka-producer", worker.ProducerRole(kafka.Clients{}))
//
// In the child, `conform worker ROLE` calls Main; in the engine, Start runs one:
//
//	p, err := worker.Start(ctx, []string{"/path/conform", "worker"}, worker.Config{Role: "kafka-producer", ...})
//	err = p.Ready(ctx)
package worker
