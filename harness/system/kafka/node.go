package kafka

import (
	"context"
	"fmt"
	"io"
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

// stopGrace is what a controlled shutdown may take before it is no graceful stop any more.
const stopGrace = 30 * time.Second

// Node is one combined broker and controller.
type Node struct {
	id      int32
	name    string
	cluster *Cluster
	pod     *container.Pod
	broker  *container.Container
	data    *container.Volume
	meta    *container.Volume
	link    *netproxy.Link
	admin   *admin
}

// Name returns "kafka-1" and so on; the number is the node id.
func (n *Node) Name() string { return n.name }

func (n *Node) direct() string { return n.pod.HostPort(portDirect) }

// process is the node's main process.
func (n *Node) process() process.Process { return process.Process{Name: n.name, Container: n.broker} }

// Incarnation tells by pid and time of its start which process of the broker runs, if one does.
func (c *Cluster) Incarnation(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return n.process().Incarnation(ctx)
}

// Kill ends the node by SIGKILL, also a paused one, and returns once its process is gone.
func (c *Cluster) Kill(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return n.process().Kill(ctx)
}

// Start starts a node that is down and waits until it serves and the controllers have let it in. A running one is no
// error. It needs a majority of controllers: start nodes together if there is none.
func (c *Cluster) Start(ctx context.Context, node system.Node) error {
	n, err := c.own(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startCeiling, fmt.Errorf("not ready after %s", startCeiling))
	defer cancel()
	if err := n.up(ctx); err != nil {
		return fmt.Errorf("start %s: %w", n.name, err)
	}
	return nil
}

// Stop ends the node by a controlled shutdown, which hands its leaderships over. It must end in time: a stop that turns
// into a kill is an error.
func (c *Cluster) Stop(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return n.process().Stop(ctx, stopGrace)
}

// Pause freezes the node's processes (the cgroup freezer): its kernel goes on accepting connections and taking bytes until
// the sockets' buffers are full.
func (c *Cluster) Pause(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return n.process().Pause(ctx)
}

// Resume lets a paused node go on; one that is not paused or not running is no error.
func (c *Cluster) Resume(ctx context.Context, node system.Node) error {
	n, err := c.own(node)
	if err != nil {
		return err
	}
	return n.broker.Unpause(ctx)
}

// LoseDisk empties the data volume of a node that is down: it comes back with a disk that holds nothing and has a new
// directory id. Its metadata log lies on another volume and stays.
func (c *Cluster) LoseDisk(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return n.process().LoseDisk(ctx, n.data)
}

// CollectLog copies the node's log since the cluster's start, restarts included.
func (c *Cluster) CollectLog(ctx context.Context, node system.Node, w io.Writer) error {
	n, err := c.own(node)
	if err != nil {
		return err
	}
	return n.broker.Logs(ctx, w, container.LogRange{})
}
