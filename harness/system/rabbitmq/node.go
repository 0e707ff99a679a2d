package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
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

// Node is one member of the cluster.
type Node struct {
	name    string
	cluster *Cluster
	pod     *container.Pod
	broker  *container.Container
	data    *container.Volume
	link    *netproxy.Link
	wiped   atomic.Bool // its disk was taken: the others know a node of this name that it is not
}

// Name returns "rabbit-1" and so on, which is also the host name.
func (n *Node) Name() string { return n.name }

// erlang is the node's name among the nodes.
func (n *Node) erlang() string { return "rabbit@" + n.name }

func (n *Node) direct() string     { return n.pod.HostPort(portAMQP) }
func (n *Node) management() string { return n.pod.HostPort(portManagement) }

// dial opens a connection past the link. name is seen in the node's list of connections.
func (n *Node) dial(ctx context.Context, name string) (*connection, error) {
	c, err := dial(ctx, n.direct(), userName, n.cluster.password, name, 0)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", n.name, err)
	}
	return c, nil
}

// process is the node's main process.
func (n *Node) process() process.Process { return process.Process{Name: n.name, Container: n.broker} }

// Incarnation tells by pid and time of its start which process of the server runs, if one does.
func (c *Cluster) Incarnation(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	return n.process().Incarnation(ctx)
}

// up starts the node's process and waits until it serves clients and knows at least so many running nodes, itself included.
func (n *Node) up(ctx context.Context, least int) error {
	if err := n.broker.Start(ctx); err != nil {
		return err
	}
	n.cluster.mu.Lock()
	delete(n.cluster.down, n)
	n.cluster.mu.Unlock()
	err := n.cluster.await(ctx, n.name+" serves", func(ctx context.Context) error {
		if err := n.serves(ctx, least); err != nil {
			if _, dead := n.process().Running(ctx); dead != nil && ctx.Err() == nil {
				return fmt.Errorf("%w: %w", dead, errEnded)
			}
			return err
		}
		return nil
	})
	if err != nil {
		return n.died(context.WithoutCancel(ctx), err)
	}
	return nil
}

// died adds what the node's log says to the reason why it does not serve: the first errors of its last start, before the
// reports of all the processes that end then, or else the end of the log. A setting that the server does not know is ErrUsage.
func (n *Node) died(ctx context.Context, err error) error {
	const told = 8
	log := n.broker.Tail(ctx, 400)
	lines := strings.Split(log, "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.Contains(lines[i], "Starting broker") {
			lines = lines[i:]
			break
		}
	}
	var errs []string
	for _, line := range lines {
		if strings.Contains(line, "crasher:") || strings.Contains(line, "supervisor:") || len(errs) == told {
			break
		}
		if _, text, ok := strings.Cut(line, "[error] "); ok && strings.TrimSpace(text[strings.Index(text, ">")+1:]) != "" {
			errs = append(errs, line)
		}
	}
	if len(errs) == 0 {
		errs = lines[max(0, len(lines)-20):]
	}
	if strings.Contains(log, "unknown variable") {
		err = fmt.Errorf("%w: %w", err, system.ErrUsage)
	}
	return fmt.Errorf("%w; log:\n%s", err, strings.Join(errs, "\n"))
}

// errEnded says that waiting for a server makes no sense any more.
var errEnded = errors.New("the server has ended")

// serves says whether clients can work with the node.
func (n *Node) serves(ctx context.Context, least int) error {
	running, err := n.knows(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(running, n.erlang()) || len(running) < least {
		return fmt.Errorf("%s knows %s as running", n.name, strings.Join(running, ", "))
	}
	conn, err := n.dial(ctx, "conform-probe")
	if err != nil {
		return err
	}
	defer conn.within(ctx, askTimeout)()
	return conn.Close()
}

// knows lists the nodes that this one takes for running.
func (n *Node) knows(ctx context.Context) ([]string, error) {
	var nodes []struct {
		Name    string `json:"name"`
		Running bool   `json:"running"`
	}
	if err := n.ask(ctx, "nodes?disable_stats=true", &nodes); err != nil {
		return nil, err
	}
	var running []string
	for _, node := range nodes {
		if node.Running {
			running = append(running, node.Name)
		}
	}
	return running, nil
}

// ctl runs one of RabbitMQ's tools in the node's container.
func (n *Node) ctl(ctx context.Context, argv ...string) (string, error) {
	return n.broker.Exec(ctx, append([]string{"sh", ctlFile}, argv...)...)
}

// Kill ends the node by SIGKILL, also a paused one, and returns once its process is gone.
func (c *Cluster) Kill(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	c.goingDown(n)
	return n.process().Kill(ctx)
}

// Start starts a node that is down and waits until it serves. A running one is no error. It needs a majority of the nodes:
// start nodes together if there is none. One whose disk was lost is forgotten by the others first and joins as a new one,
// and the quorum queues it was a member of are grown onto it, as an operator would do.
func (c *Cluster) Start(ctx context.Context, node system.Node) error {
	n, err := c.own(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startCeiling, fmt.Errorf("not ready after %s", startCeiling))
	defer cancel()
	if n.wiped.Load() {
		if err := c.forget(ctx, n); err != nil {
			return fmt.Errorf("start %s: %w", n.name, err)
		}
	}
	if err := n.up(ctx, len(c.nodes)/2+1); err != nil {
		return fmt.Errorf("start %s: %w", n.name, err)
	}
	if n.wiped.CompareAndSwap(true, false) {
		if _, err := n.ctl(ctx, "rabbitmq-queues", "grow", n.erlang(), "all"); err != nil {
			return fmt.Errorf("start %s: grow queues: %w", n.name, err)
		}
	}
	return nil
}

// forget makes the others forget a node whose disk is gone.
func (c *Cluster) forget(ctx context.Context, gone *Node) error {
	return c.await(ctx, "the others have forgotten "+gone.name, func(ctx context.Context) error {
		var errs []error
		for _, n := range c.nodes {
			if n == gone {
				continue
			}
			if _, err := n.process().Running(ctx); err != nil {
				errs = append(errs, err)
				continue
			}
			_, err := n.ctl(ctx, "rabbitmqctl", "forget_cluster_node", gone.erlang())
			if err == nil || strings.Contains(err.Error(), "not_a_cluster_node") {
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// Stop ends the node gracefully. It must end in time: a stop that turns into a kill is an error.
func (c *Cluster) Stop(ctx context.Context, node system.Node) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	c.goingDown(n)
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

// LoseDisk empties the volume of a node that is down. See Start for how it comes back.
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

// CollectLog copies the node's log since the cluster's start, restarts included.
func (c *Cluster) CollectLog(ctx context.Context, node system.Node, w io.Writer) error {
	n, err := c.own(node)
	if err != nil {
		return err
	}
	return n.broker.Logs(ctx, w, container.LogRange{})
}
