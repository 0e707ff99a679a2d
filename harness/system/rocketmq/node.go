package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

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
	_ system.Incarnated   = (*Cluster)(nil)
)

// stopGrace is what a graceful stop may take before it is none any more.
const stopGrace = 30 * time.Second

// Node is one broker.
type Node struct {
	name    string
	cluster *Cluster
	haPort  int
	broker  *container.Container
	data    *container.Volume
	link    *netproxy.Link
	master  atomic.Bool // the role it is configured with; of no meaning under a controller
	wiped   atomic.Bool // its disk was taken
}

// Name returns "rocketmq-1" and so on.
func (n *Node) Name() string { return n.name }

// port is where it listens inside, and its link outside.
func (n *Node) port() int { return n.link.Port() }

func (n *Node) direct() string { return n.cluster.pod.HostPort(n.port()) }

func (n *Node) isMaster() bool { return n.master.Load() }

// process is the node's main process.
func (n *Node) process() process.Process { return process.Process{Name: n.name, Container: n.broker} }

// up starts the broker's process and waits until it serves and the name server knows it.
func (n *Node) up(ctx context.Context) error {
	if err := n.broker.Start(ctx); err != nil {
		return err
	}
	if _, err := n.broker.WaitLog(ctx, started); err != nil {
		return err
	}
	if err := n.cluster.await(ctx, n.name+" is registered", n.serves); err != nil {
		return fmt.Errorf("%w; log ends:\n%s", err, n.broker.Tail(context.WithoutCancel(ctx), 20))
	}
	return nil
}

// serves says whether the name server tells clients of the broker, and the broker answers.
func (n *Node) serves(ctx context.Context) error {
	route, err := n.cluster.route(ctx, clusterName)
	if err != nil {
		return err
	}
	for _, addr := range route {
		if n.cluster.at(addr) == n {
			_, _, err := ask(ctx, n.direct(), codeHAStatus, nil, nil)
			return err
		}
	}
	return fmt.Errorf("%s is not registered", n.name)
}

// Incarnation tells by pid and time of its start which process of the broker runs, if one does.
func (c *Cluster) Incarnation(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return n.process().Incarnation(ctx)
}

// Kill ends the broker by SIGKILL, also a paused one, and returns once its process is gone.
func (c *Cluster) Kill(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return n.process().Kill(ctx)
}

// Start starts a broker that is down and waits until it serves. A running one is no error. A pair's master whose disk was lost
// must not come back as what it was, with a replica that has more: Promote the other one first, or Start does.
func (c *Cluster) Start(ctx context.Context, node system.Node) error {
	n, err := c.own(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startCeiling, fmt.Errorf("not ready after %s", startCeiling))
	defer cancel()
	if c.config.layout == Pair && n.wiped.Load() && n.isMaster() {
		if _, err := c.promote(ctx, n); err != nil {
			return fmt.Errorf("start %s: %w", n.name, err)
		}
	}
	if err := n.up(ctx); err != nil {
		return fmt.Errorf("start %s: %w", n.name, err)
	}
	n.wiped.Store(false)
	return nil
}

// Promote makes the replica of a pair the master, as an operator does when the master is gone for good: it is stopped, given
// the other role, and started; and the lost one, which must be down, will be its replica.
func (c *Cluster) Promote(ctx context.Context, lost system.Node) (done string, err error) {
	n, err := c.own(lost)
	if err != nil {
		return "", err
	}
	if s, err := n.broker.State(ctx); err != nil || s.Running || c.config.layout != Pair || !n.isMaster() {
		return "", errors.Join(err, fmt.Errorf("promote the replica of %s: it is no pair's master that is down: %w", n.name, system.ErrUsage))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startCeiling, fmt.Errorf("not ready after %s", startCeiling))
	defer cancel()
	return c.promote(ctx, n)
}

func (c *Cluster) promote(ctx context.Context, lost *Node) (string, error) {
	other := c.nodes[0]
	if other == lost {
		other = c.nodes[1]
	}
	err := other.broker.Unpause(ctx)
	if err == nil {
		err = other.broker.Stop(ctx, stopGrace)
	}
	if err != nil {
		return "", fmt.Errorf("make %s the master: %w", other.name, err)
	}
	other.master.Store(true)
	lost.master.Store(false)
	for _, n := range c.nodes {
		if err := n.broker.Put(ctx, container.File{Path: confFile, Content: c.config.broker(n)}); err != nil {
			return "", fmt.Errorf("make %s the master: %w", other.name, err)
		}
	}
	if err := other.up(ctx); err != nil {
		return "", fmt.Errorf("make %s the master: %w", other.name, err)
	}
	return other.name + " is the master", nil
}

// Stop ends the broker gracefully. It must end in time: a stop that turns into a kill is an error.
func (c *Cluster) Stop(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return n.process().Stop(ctx, stopGrace)
}

// Pause freezes the broker's process (the cgroup freezer): its kernel goes on accepting connections and taking bytes until
// the sockets' buffers are full. What a replica's kernel has taken from its master is written after a Resume, even if the
// master is gone by then: to keep a replica from what its master has, cut the replication (Isolate).
func (c *Cluster) Pause(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return n.process().Pause(ctx)
}

// Resume lets a paused broker go on; one that is not paused or not running is no error.
func (c *Cluster) Resume(ctx context.Context, node system.Node) error {
	n, err := c.own(node)
	if err != nil {
		return err
	}
	return n.broker.Unpause(ctx)
}

// LoseDisk empties the volume of a broker that is down. See Start for how it comes back.
func (c *Cluster) LoseDisk(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	proof, err := n.process().LoseDisk(ctx, n.data)
	if err == nil {
		n.wiped.Store(true)
	}
	return proof, err
}

// CollectLog copies the broker's log since the cluster's start, restarts included.
func (c *Cluster) CollectLog(ctx context.Context, node system.Node, w io.Writer) error {
	n, err := c.own(node)
	if err != nil {
		return err
	}
	return n.broker.Logs(ctx, w, container.LogRange{})
}
