// Package postgres is the adapter of PostgreSQL: one server in a container behind a fault-injecting link, and what an
// error of pgx says about a transaction.
//
// It knows PostgreSQL's settings, protocol and error codes. It must not import suites, faults, audits or reports;
// containers and relays come from harness/internal.
//
//	c, err := postgres.System{}.Start(ctx, system.Spec{Run: "r1", Version: "18", Image: image})
//	defer c.Close(context.WithoutCancel(ctx))
//	db := c.(*postgres.Cluster)
//	err = db.CreateSchema(ctx, "guarded")
//	conn, err := pgx.Connect(ctx, db.DSN("guarded-orders", false)) // through the link, as application_name "guarded-orders"
//	...
//	outcome := postgres.CommitOutcome(tx.Commit(ctx))
//	err = db.Snapshot(ctx, func(tx pgx.Tx) error { ... }) // the final read, not through the link
//
// There are two roles. Clients come as "app", which owns the schemas; the engine as "conform", a superuser. So the
// engine still gets in (superuser_reserved_connections) when clients have used up all connections. Their password is
// random, and is found nowhere but in the container and in what DSN returns.
//
// A client is known on the link by its application_name at the start of the connection. Its requests are named by their
// first SQL keyword: "begin", "commit" (COMMIT and END), "rollback" or "query", alike in the simple and the extended
// protocol; a later statement of a simple multi-statement query does not count. Connections are never encrypted: the
// server refuses TLS and the link would not see through it.
package postgres
