package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"conform/harness/internal/container"
	"conform/harness/system"
	"conform/harness/system/disks"
)

var _ system.Cluster = (*Cluster)(nil)

// Cluster is a running server.
type Cluster struct {
	disks.Faults

	version  string
	settings map[string]string
	password string // of both roles; never logged, never an argument
	network  *container.Network
	node     *Node
	startup  time.Duration
	rack     *disks.Rack // nil = an ordinary volume

	mu      sync.Mutex
	schemas map[string]bool // those that were made here
}

// System returns "postgres".
func (c *Cluster) System() string { return Name }

// Version returns the version asked for.
func (c *Cluster) Version() string { return c.version }

// Nodes returns the one server.
func (c *Cluster) Nodes() []system.Node { return []system.Node{c.node} }

// Endpoints returns the address of the link. DSN has the rest of what a client needs.
func (c *Cluster) Endpoints() []string { return []string{c.node.link.Addr()} }

// DirectEndpoints returns the server's own address on this machine.
func (c *Cluster) DirectEndpoints() []string { return []string{c.node.direct()} }

// Settings returns the settings that differ from PostgreSQL's defaults; where it listens and logs is left out.
func (c *Cluster) Settings() map[string]string { return maps.Clone(c.settings) }

// Timing returns the settings that were lowered to keep runs short: there are none.
func (c *Cluster) Timing() map[string]string { return map[string]string{} }

// Startup returns how long Start took.
func (c *Cluster) Startup() time.Duration { return c.startup }

// MemoryMiB returns what the server uses.
func (c *Cluster) MemoryMiB(ctx context.Context) (map[string]int, error) {
	used, err := c.node.server.MemoryMiB(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]int{nodeName: int(used)}, nil
}

// Create makes a schema, see CreateSchema. It has no partitions, leader or settings.
func (c *Cluster) Create(ctx context.Context, d system.DestinationSpec) error {
	if d.Partitions > 1 || len(d.Settings) > 0 {
		return fmt.Errorf("create schema %s: it has no partitions and no settings: %w", d.Name, system.ErrUsage)
	}
	if d.Leader != nil {
		if _, err := c.own(d.Leader); err != nil {
			return fmt.Errorf("create schema %s: %w", d.Name, err)
		}
	}
	return c.CreateSchema(ctx, d.Name)
}

// Delete drops a schema, see DropSchema.
func (c *Cluster) Delete(ctx context.Context, name string) error { return c.DropSchema(ctx, name) }

// Baseline checks that the server runs and has recovered, that no rule or cut is left on its link, and that no
// transaction, prepared or open for a client, is left in it. It waits a little for the last of it.
func (c *Cluster) Baseline(ctx context.Context) error {
	if armed := c.node.link.Armed(); armed > 0 {
		return fmt.Errorf("check baseline: %d rules or cuts are left on the link of %s: %w", armed, nodeName, system.ErrUsage)
	}
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := poll(ctx, func(ctx context.Context) (bool, error) { return false, c.baseline(ctx) }); err != nil {
		return fmt.Errorf("check baseline: %w", err)
	}
	return nil
}

func (c *Cluster) baseline(ctx context.Context) error {
	s, err := c.node.process().Running(ctx)
	if err != nil {
		return err
	}
	if s.Paused {
		return fmt.Errorf("%s is paused", nodeName)
	}
	return c.withEngine(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var recovering bool
		var prepared, open int
		err := conn.QueryRow(ctx, `SELECT pg_is_in_recovery(), (SELECT count(*) FROM pg_prepared_xacts),
			(SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND xact_start IS NOT NULL)`, roleClient).
			Scan(&recovering, &prepared, &open)
		if err == nil && (recovering || prepared > 0 || open > 0) {
			err = fmt.Errorf("in recovery: %t, prepared transactions: %d, open transactions of clients: %d", recovering, prepared, open)
		}
		return err
	})
}

// Close removes the server's container, volume, network and link. It goes on after an error and may run twice.
func (c *Cluster) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeCeiling)
	defer cancel()
	var errs []error
	n := c.node
	if n.link != nil {
		errs = append(errs, n.link.Close())
	}
	if n.server != nil {
		errs = append(errs, n.server.Remove(ctx))
	}
	if n.pod != nil {
		errs = append(errs, n.pod.Remove(ctx))
	}
	if n.data != nil {
		errs = append(errs, n.data.Remove(ctx))
	}
	errs = append(errs, c.rack.Remove(ctx))
	if c.network != nil {
		errs = append(errs, c.network.Remove(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close postgres: %w", err)
	}
	return nil
}
