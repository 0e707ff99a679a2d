package valkey

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"conform/harness/internal/container"
	"conform/harness/system"
)

var (
	_ system.Watched      = (*Cluster)(nil)
	_ system.LogCollector = (*Cluster)(nil)
)

// Cluster is a running server.
type Cluster struct {
	version  string
	settings map[string]string
	password string // never logged, never an argument
	network  *container.Network
	data     *container.Volume
	pod      *container.Pod
	server   *container.Container
	startup  time.Duration
}

type node struct{}

// Name returns "valkey-1".
func (node) Name() string { return nodeName }

// System returns "valkey".
func (c *Cluster) System() string { return Name }

// Version returns the version asked for.
func (c *Cluster) Version() string { return c.version }

// Nodes returns the one server.
func (c *Cluster) Nodes() []system.Node { return []system.Node{node{}} }

// Endpoints returns the server's address. DSN has the rest of what a client needs.
func (c *Cluster) Endpoints() []string { return []string{c.pod.HostPort(port)} }

// DirectEndpoints returns the same.
func (c *Cluster) DirectEndpoints() []string { return c.Endpoints() }

// Settings returns the settings that differ from Valkey's defaults.
func (c *Cluster) Settings() map[string]string {
	all := map[string]string{"save": "", "appendonly": "no"}
	maps.Copy(all, c.settings)
	return all
}

// Timing returns the settings that were lowered to keep runs short: there are none.
func (c *Cluster) Timing() map[string]string { return map[string]string{} }

// Startup returns how long Start took.
func (c *Cluster) Startup() time.Duration { return c.startup }

// MemoryMiB returns what the server uses.
func (c *Cluster) MemoryMiB(ctx context.Context) (map[string]int, error) {
	used, err := c.server.MemoryMiB(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]int{nodeName: int(used)}, nil
}

// Create is refused: keys need no room of their own, each arm's consumers name theirs.
func (c *Cluster) Create(_ context.Context, d system.DestinationSpec) error {
	return fmt.Errorf("create %s: valkey has no destinations: %w", d.Name, system.ErrUsage)
}

// Delete does nothing: there are no destinations.
func (c *Cluster) Delete(context.Context, string) error { return nil }

// Baseline checks that the server answers.
func (c *Cluster) Baseline(ctx context.Context) error {
	if err := c.ping(ctx); err != nil {
		return fmt.Errorf("check baseline: %w", err)
	}
	return nil
}

// Incarnation tells by pid and time of its start which process of the server runs, if one does.
func (c *Cluster) Incarnation(ctx context.Context, _ system.Node) (string, error) {
	s, err := c.server.State(ctx)
	return s.Incarnation(), err
}

// Died returns nil, or that the server is down, with the end of its log.
func (c *Cluster) Died(ctx context.Context) error {
	s, err := c.server.State(ctx)
	if err != nil || s.Running {
		return err
	}
	return fmt.Errorf("%s is down (exit code %d); log ends:\n%s", nodeName, s.ExitCode, c.server.Tail(ctx, tailLines))
}

// CollectLog copies the server's log.
func (c *Cluster) CollectLog(ctx context.Context, _ system.Node, w io.Writer) error {
	return c.server.Logs(ctx, w, container.LogRange{})
}

// Close removes the server's container, volume and network. It goes on after an error and may run twice.
func (c *Cluster) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeCeiling)
	defer cancel()
	var errs []error
	if c.server != nil {
		errs = append(errs, c.server.Remove(ctx))
	}
	if c.pod != nil {
		errs = append(errs, c.pod.Remove(ctx))
	}
	if c.data != nil {
		errs = append(errs, c.data.Remove(ctx))
	}
	if c.network != nil {
		errs = append(errs, c.network.Remove(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close valkey: %w", err)
	}
	return nil
}
