package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"conform/harness/internal/container"
	"conform/harness/internal/netproxy"
	"conform/harness/system"
	"conform/harness/system/process"
)

var (
	_ system.Killer       = (*Cluster)(nil)
	_ system.Stopper      = (*Cluster)(nil)
	_ system.Pauser       = (*Cluster)(nil)
	_ system.Diskful      = (*Cluster)(nil)
	_ system.LogCollector = (*Cluster)(nil)
	_ system.Watched      = (*Cluster)(nil)
	_ system.Connector    = (*Cluster)(nil)
	_ system.Schemas      = (*Cluster)(nil)
)

const (
	// stopGrace is what a fast shutdown, which writes a checkpoint, may take before it is no graceful stop any more.
	stopGrace = 30 * time.Second
	// pollEvery is the pause between two looks at a state that is waited for.
	pollEvery = 50 * time.Millisecond
	// tailLines are how many lines of the log an error shows.
	tailLines = 20
)

// Node is the server.
type Node struct {
	cluster *Cluster
	pod     *container.Pod
	server  *container.Container
	data    *container.Volume
	link    *netproxy.Link
	taken   atomic.Bool // down by Kill or Stop
}

// Name returns "postgres-1".
func (n *Node) Name() string { return nodeName }

func (n *Node) direct() string { return n.pod.HostPort(port) }

// own returns the node as ours.
func (c *Cluster) own(node system.Node) (*Node, error) {
	n, ok := node.(*Node)
	if !ok || n == nil || n != c.node {
		return nil, fmt.Errorf("node %v is not of this cluster: %w", node, system.ErrUsage)
	}
	return n, nil
}

// process is the node's main process.
func (n *Node) process() process.Process { return process.Process{Name: nodeName, Container: n.server} }

// Incarnation tells by pid and time of its start which process of the server runs, if one does.
func (c *Cluster) Incarnation(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return n.process().Incarnation(ctx)
}

// Died returns nil, or that the server is down although neither Kill nor Stop took it down, with the end of its log.
func (c *Cluster) Died(ctx context.Context) error {
	if c.node.taken.Load() {
		return nil
	}
	_, err := c.node.process().Running(ctx)
	if !errors.Is(err, container.ErrNotRunning) || c.node.taken.Load() {
		return nil
	}
	const lines = 5 // its last words; the whole log is collected
	return fmt.Errorf("%w; log ends:\n%s", err, c.node.server.Tail(ctx, lines))
}

// poll calls f until it returns nil, or an error that it calls final.
func poll(ctx context.Context, f func(context.Context) (final bool, err error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		final, err := f(ctx)
		if err == nil || final {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// up starts the server's process and waits until a connection can be used. On an error the log's tail is in it.
func (n *Node) up(ctx context.Context) error {
	if err := n.server.Start(ctx); err != nil {
		return err
	}
	err := poll(ctx, func(ctx context.Context) (bool, error) {
		if _, err := n.process().Running(ctx); err != nil {
			return errors.Is(err, container.ErrNotRunning), err
		}
		return false, n.cluster.withEngine(ctx, ensureClientRole)
	})
	if err == nil {
		n.taken.Store(false)
		return nil
	}
	tail := n.server.Tail(context.WithoutCancel(ctx), tailLines)
	for _, sign := range []string{"unrecognized configuration parameter", "invalid value for parameter", "is outside the valid range"} {
		if strings.Contains(tail, sign) {
			err = errors.Join(err, system.ErrUsage)
			break
		}
	}
	return fmt.Errorf("%w; log ends:\n%s", err, tail)
}

// ensureClientRole makes the clients' role where it is missing: in a new server, or one that lost its disk.
func ensureClientRole(ctx context.Context, conn *pgx.Conn) error {
	var there bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", roleClient).Scan(&there); err != nil {
		return err
	}
	if there {
		return nil
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "CREATE ROLE "+roleClient+" LOGIN"); err != nil {
			return err
		}
		// The verifier of the same password is copied, so that no password stands in a statement, which could be logged.
		_, err := tx.Exec(ctx, `UPDATE pg_authid SET rolpassword = (SELECT rolpassword FROM pg_authid WHERE rolname = $1) WHERE rolname = $2`,
			roleEngine, roleClient)
		return err
	})
}

// Kill ends the server by SIGKILL, all its processes at once, also a paused one, and returns when they are gone. What was
// written to files stays (page cache); what was in shared memory, such as WAL not yet written, is lost.
func (c *Cluster) Kill(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	if _, err := n.process().Running(ctx); err != nil { // one that died by itself was not taken down
		return "", fmt.Errorf("kill: %w", err)
	}
	n.taken.Store(true)
	return n.process().Kill(ctx)
}

// Start starts a server that is down and waits until it has recovered and a connection can be used. A running one is no
// error.
func (c *Cluster) Start(ctx context.Context, node system.Node) error {
	n, err := c.own(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startCeiling, fmt.Errorf("not ready after %s", startCeiling))
	defer cancel()
	if err := n.up(ctx); err != nil {
		return fmt.Errorf("start %s: %w: %w", nodeName, system.ErrEnvironment, err)
	}
	return nil
}

// Stop ends the server by a fast shutdown: running transactions are rolled back, their connections ended, a checkpoint
// written. It must end in time: a stop that turns into a kill is an error.
func (c *Cluster) Stop(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	if _, err := n.process().Running(ctx); err != nil { // one that died by itself was not taken down
		return "", fmt.Errorf("stop: %w", err)
	}
	n.taken.Store(true)
	// INT asks for the fast shutdown whatever the image's own stop signal is; a weaker one after it changes nothing.
	return n.process().Stop(ctx, stopGrace, "INT")
}

// Pause freezes the server's processes (the cgroup freezer): its kernel goes on accepting connections and taking bytes
// until the sockets' buffers are full.
func (c *Cluster) Pause(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return n.process().Pause(ctx)
}

// Resume lets a paused server go on; one that is not paused or not running is no error.
func (c *Cluster) Resume(ctx context.Context, node system.Node) error {
	n, err := c.own(node)
	if err != nil {
		return err
	}
	return n.server.Unpause(ctx)
}

// LoseDisk empties the data volume of a server that is down: it comes back as a new, empty one at the same address with
// the same password and settings.
func (c *Cluster) LoseDisk(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	proof, err := n.process().LoseDisk(ctx, n.data)
	if err == nil {
		c.forgetSchemas()
	}
	return proof, err
}

// CollectLog copies the server's log since the cluster's start, restarts included.
func (c *Cluster) CollectLog(ctx context.Context, node system.Node, w io.Writer) error {
	n, err := c.own(node)
	if err != nil {
		return err
	}
	return n.server.Logs(ctx, w, container.LogRange{})
}
