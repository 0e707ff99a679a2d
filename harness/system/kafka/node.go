package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"conform/harness/internal/container"
	"conform/harness/internal/netproxy"
	"conform/harness/system"
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

// running says that the node's process is there, frozen or not.
func (n *Node) running(ctx context.Context) (container.State, error) {
	s, err := n.broker.State(ctx)
	if err != nil {
		return s, err
	}
	if !s.Running {
		return s, fmt.Errorf("%s is down (exit code %d)", n.name, s.ExitCode)
	}
	return s, nil
}

// Incarnation tells by pid and time of its start which process of the broker runs, if one does.
func (c *Cluster) Incarnation(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	s, err := n.broker.State(ctx)
	return s.Incarnation(), err
}

// Kill ends the node by SIGKILL, also a paused one, and returns once its process is gone.
func (c *Cluster) Kill(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	before, err := n.running(ctx)
	if err != nil {
		return "", fmt.Errorf("kill: %w", err)
	}
	if err := n.broker.Signal(ctx, "KILL"); err != nil {
		return "", err
	}
	// An engine on cgroup v1 delivers the signal to a frozen process only once it is thawed.
	if before.Paused {
		if err := n.broker.Unpause(ctx); err != nil {
			return "", err
		}
	}
	return n.gone(ctx, before.PID)
}

// gone waits until the node's process is gone and tells its exit code.
func (n *Node) gone(ctx context.Context, pid int) (string, error) {
	var s container.State
	err := n.cluster.await(ctx, n.name+" is gone", func(ctx context.Context) (err error) {
		if s, err = n.broker.State(ctx); err == nil && s.Running {
			err = fmt.Errorf("process %d still runs", s.PID)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("process %d of %s gone, exit code %d", pid, n.name, s.ExitCode), nil
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
	before, err := n.running(ctx)
	if err != nil {
		return "", fmt.Errorf("stop: %w", err)
	}
	if err := n.broker.Stop(ctx, stopGrace); err != nil {
		return "", err
	}
	proof, err := n.gone(ctx, before.PID)
	if err != nil {
		return "", err
	}
	const sigkill = 137
	if s, err := n.broker.State(ctx); err != nil || s.ExitCode == sigkill {
		return proof, errors.Join(err, fmt.Errorf("stop %s: not ended after %s and killed", n.name, stopGrace))
	}
	return proof, nil
}

// Pause freezes the node's processes (the cgroup freezer): its kernel goes on accepting connections and taking bytes until
// the sockets' buffers are full.
func (c *Cluster) Pause(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	if err := n.broker.Pause(ctx); err != nil {
		return "", err
	}
	s, err := n.running(ctx)
	if err != nil {
		return "", fmt.Errorf("pause: %w", err)
	}
	if !s.Paused {
		return "", fmt.Errorf("pause %s: process %d still runs", n.name, s.PID)
	}
	return fmt.Sprintf("process %d of %s frozen", s.PID, n.name), nil
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
	if s, err := n.broker.State(ctx); err != nil || s.Running {
		return "", errors.Join(err, fmt.Errorf("lose disk of %s: it still runs: %w", n.name, system.ErrUsage))
	}
	removed, err := n.data.Empty(ctx)
	if err != nil {
		return "", fmt.Errorf("lose disk of %s: %w", n.name, err)
	}
	if removed == 0 {
		return "", fmt.Errorf("lose disk of %s: it was empty already", n.name)
	}
	return fmt.Sprintf("%d files and folders on the data disk of %s, now 0", removed, n.name), nil
}

// CollectLog copies the node's log since the cluster's start, restarts included.
func (c *Cluster) CollectLog(ctx context.Context, node system.Node, w io.Writer) error {
	n, err := c.own(node)
	if err != nil {
		return err
	}
	return n.broker.Logs(ctx, w, container.LogRange{})
}
