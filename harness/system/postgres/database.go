package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"conform/harness/system"
)

// The roles. Clients are no superusers, so that they cannot take the connections that are reserved for the engine.
const (
	roleEngine = "conform"
	roleClient = "app"

	database   = "postgres"
	nameEngine = "conform-engine" // application_name of the engine's connections

	engineTimeout = 5 * time.Second // for the engine to get its connection, and to end it
)

// ErrSchemaExists is returned for a schema that was there before; it is never touched.
var ErrSchemaExists = errors.New("schema exists already")

// DSN returns a connection string (a URL): through the link for a client whose application_name is client, or, if direct,
// past the link for the engine, as superuser. It holds the password: hand it on by a pipe or in memory, never in argv, a
// log or a ledger. Session settings can be added as parameters, e.g. "&synchronous_commit=off".
func (c *Cluster) DSN(client string, direct bool) string {
	role, addr := roleClient, c.node.link.Addr()
	if direct {
		role, addr = roleEngine, c.node.direct()
	}
	return (&url.URL{
		Scheme: "postgres", Host: addr, Path: "/" + database,
		User:     url.UserPassword(role, c.password),
		RawQuery: url.Values{"sslmode": {"disable"}, "application_name": {client}}.Encode(),
	}).String()
}

// Reach tells how a person reaches the server as superuser: the password lies in its container.
func (c *Cluster) Reach() string {
	host, port, _ := net.SplitHostPort(c.node.direct())
	return fmt.Sprintf("PGPASSWORD=$(docker exec %s cat %s/password) psql -h %s -p %s -U %s %s", c.node.server.Name, configDir, host, port, roleEngine, database)
}

// withEngine runs f on a connection of the engine's own.
func (c *Cluster) withEngine(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	config, err := pgx.ParseConfig(c.DSN(nameEngine, true))
	if err != nil {
		return err
	}
	config.ConnectTimeout = engineTimeout // a frozen server accepts and says nothing
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return c.explain(ctx, err)
	}
	err = f(ctx, conn)
	if err != nil && (conn.IsClosed() || IsEnvironment(err)) {
		err = c.explain(ctx, err)
	}
	// Whatever f did is done: how the connection ends changes nothing.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineTimeout)
	defer cancel()
	_ = conn.Close(ctx)
	return err
}

// explain marks an error of the engine's own work as one of the environment, and says so if the server is gone. Errors of
// SQL do not come here.
func (c *Cluster) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	if _, down := c.node.process().Running(ctx); down != nil {
		return fmt.Errorf("%w: %w: %w; log ends:\n%s", system.ErrEnvironment, down, err, c.node.server.Tail(ctx, tailLines))
	}
	return fmt.Errorf("%w: %w", system.ErrEnvironment, err)
}

// Snapshot runs f in one REPEATABLE READ READ ONLY transaction, past the link: all that f reads is of one moment, the first
// statement's. f's error is returned wrapped; an error of the server or the machine wraps system.ErrEnvironment.
func (c *Cluster) Snapshot(ctx context.Context, f func(pgx.Tx) error) error {
	err := c.withEngine(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
	})
	if err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	return nil
}

// UnflushedWAL says how many bytes of write-ahead log the server has not flushed: what a crash would lose of transactions
// with synchronous_commit=off, and of open ones. A plan waits for it to be above zero.
func (c *Cluster) UnflushedWAL(ctx context.Context) (bytes int64, err error) {
	err = c.withEngine(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT (pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn())::bigint").Scan(&bytes)
	})
	if err != nil {
		return 0, fmt.Errorf("read unflushed WAL: %w", err)
	}
	return bytes, nil
}

// CreateSchema makes a schema that the clients' role owns, one for each arm. A schema that exists already is left as it is:
// the error wraps ErrSchemaExists and system.ErrUsage and names it. Names that begin with "pg_" are the server's. On a disk of
// its own, all that the server has written is durable then.
func (c *Cluster) CreateSchema(ctx context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.withEngine(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{name}.Sanitize()+" AUTHORIZATION "+roleClient)
		return err
	})
	switch code := sqlState(err); {
	case err == nil:
		c.schemas[name] = true
		return c.rack.Sync(ctx)
	case code == codeDuplicateSchema:
		err = fmt.Errorf("%w: %w: %w", ErrSchemaExists, system.ErrUsage, err)
	case code == codeReservedName || code == codeZeroLengthName:
		err = fmt.Errorf("%w: %w", system.ErrUsage, err)
	}
	return fmt.Errorf("create schema %q: %w", name, err)
}

// DropSchema drops a schema that CreateSchema made, with all that is in it. One that is gone already is no error; one that
// was made by somebody else is left as it is, and the error wraps system.ErrUsage. It waits for transactions that use it.
func (c *Cluster) DropSchema(ctx context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.withEngine(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if c.schemas[name] {
			_, err := conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE")
			return err
		}
		var there bool
		err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", name).Scan(&there)
		if err == nil && there {
			err = fmt.Errorf("it was not made by this run: %w", system.ErrUsage)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("drop schema %q: %w", name, err)
	}
	delete(c.schemas, name)
	return nil
}

// forgetSchemas is for when the disk is lost: none of them is there any more.
func (c *Cluster) forgetSchemas() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.schemas)
}
