package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"conform/harness/internal/container"
	"conform/harness/system"
	"conform/harness/system/disks"
)

var (
	_ system.Cluster   = (*Cluster)(nil)
	_ system.Connector = (*Cluster)(nil)
)

// Cluster is a running RocketMQ cluster. Its nodes are the brokers.
type Cluster struct {
	disks.Faults

	version string
	config  config
	log     *slog.Logger
	engine  *container.Engine
	prefix  string // of the names of its objects
	network *container.Network
	pod     *container.Pod
	namesrv *container.Container
	rack    *disks.Rack // nil = ordinary volumes
	nodes   []*Node
	startup time.Duration

	mu     sync.Mutex
	made   map[string]int    // topics, and how many queues they have
	dead   map[string]string // destinations that are the dead letters of a group -> topic
	active map[any]string    // isolations that are in force, in words
}

// System returns "rocketmq".
func (c *Cluster) System() string { return Name }

// Version returns the version asked for.
func (c *Cluster) Version() string { return c.version }

// Nodes returns the brokers in the order of their names.
func (c *Cluster) Nodes() []system.Node {
	nodes := make([]system.Node, len(c.nodes))
	for i, n := range c.nodes {
		nodes[i] = n
	}
	return nodes
}

// own returns the node as ours.
func (c *Cluster) own(node system.Node) (*Node, error) {
	n, ok := node.(*Node)
	if !ok || n == nil || n.cluster != c {
		return nil, fmt.Errorf("node %v is not of this cluster: %w", node, system.ErrUsage)
	}
	return n, nil
}

// at finds a node by the address that it registers, or returns nil.
func (c *Cluster) at(addr string) *Node {
	for _, n := range c.nodes {
		if n.link.Addr() == addr {
			return n
		}
	}
	return nil
}

// Endpoints returns the addresses of the links. Clients find them by the name server, see DSN.
func (c *Cluster) Endpoints() []string {
	addrs := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		addrs[i] = n.link.Addr()
	}
	return addrs
}

// DirectEndpoints returns the published ports of the brokers.
func (c *Cluster) DirectEndpoints() []string {
	addrs := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		addrs[i] = n.direct()
	}
	return addrs
}

// DSN returns the address of the name server, for ClientConfig.DSN. It holds no password. The name server tells the links'
// addresses, also to those who ask for a direct way.
func (c *Cluster) DSN(string, bool) string { return c.pod.HostPort(portNamesrv) }

// Settings returns the settings that differ from RocketMQ's defaults (topology excluded), those of the name server with
// "namesrv." before the name, and the layout.
func (c *Cluster) Settings() map[string]string { return c.config.all() }

// Timing returns the settings that were lowered to keep runs short.
func (c *Cluster) Timing() map[string]string { return maps.Clone(c.config.timing) }

// Startup returns how long Start took.
func (c *Cluster) Startup() time.Duration { return c.startup }

// MemoryMiB returns what each running broker uses, and the name server by its name.
func (c *Cluster) MemoryMiB(ctx context.Context) (map[string]int, error) {
	parts := map[string]*container.Container{"rocketmq-namesrv": c.namesrv}
	for _, n := range c.nodes {
		parts[n.name] = n.broker
	}
	var mu sync.Mutex
	m := map[string]int{}
	g, gctx := errgroup.WithContext(ctx)
	for name, part := range parts {
		g.Go(func() error {
			used, err := part.MemoryMiB(gctx)
			mu.Lock()
			defer mu.Unlock()
			m[name] = int(used)
			return err
		})
	}
	return m, g.Wait()
}

// checkSettings asks the brokers for the settings that the cluster was started with: RocketMQ ignores names it does not know.
func (c *Cluster) checkSettings(ctx context.Context) error {
	for _, n := range c.nodes {
		_, body, err := ask(ctx, n.direct(), codeBrokerConfig, nil, nil)
		if err != nil {
			return fmt.Errorf("ask %s for its settings: %w", n.name, err)
		}
		known := map[string]string{}
		for line := range strings.Lines(string(body)) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
				known[name] = value
			}
		}
		for name, value := range c.config.brokers() {
			if name == settingRole {
				continue // it changes
			}
			switch now, ok := known[name]; {
			case !ok:
				return fmt.Errorf("rocketmq %s has no broker setting %q: %w", c.version, name, system.ErrUsage)
			case now != value && !strings.ContainsAny(value, `\ `):
				return fmt.Errorf("rocketmq %s has %s=%s, not %s: %w", c.version, name, now, value, system.ErrUsage)
			}
		}
	}
	return nil
}

// Baseline checks that all brokers run and are registered, that a replica is in sync, and that no rule, cut or packet filter
// is left. It waits a little for the last of it.
func (c *Cluster) Baseline(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*changeTimeout)
	defer cancel()
	if err := c.await(ctx, "the cluster is as good as new", c.baseline); err != nil {
		return fmt.Errorf("check baseline: %w", err)
	}
	return nil
}

func (c *Cluster) baseline(ctx context.Context) error {
	c.mu.Lock()
	left := slices.Sorted(maps.Values(c.active))
	c.mu.Unlock()
	if len(left) > 0 {
		return fmt.Errorf("in force: %s: %w", strings.Join(left, "; "), system.ErrUsage)
	}
	for _, n := range c.nodes {
		if armed := n.link.Armed(); armed > 0 {
			return fmt.Errorf("%d rules or cuts are left on the link of %s: %w", armed, n.name, system.ErrUsage)
		}
		s, err := n.process().Running(ctx)
		if err != nil {
			return err
		}
		if s.Paused {
			return fmt.Errorf("%s is paused", n.name)
		}
		if err := n.serves(ctx); err != nil {
			return err
		}
	}
	l, err := c.group(ctx, clusterName) // the cluster's name is a topic of each broker
	switch {
	case err != nil:
		return err
	case l.Leader == nil:
		return errors.New("there is no master")
	case len(l.InSync) < len(c.nodes):
		return fmt.Errorf("%d of %d brokers are in sync", len(l.InSync), len(c.nodes))
	}
	return nil
}

// Close removes the cluster's containers, volumes, network and links. It goes on after an error and may run twice.
func (c *Cluster) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeCeiling)
	defer cancel()
	var brokers, rest []func() error
	if c.namesrv != nil {
		brokers = append(brokers, func() error { return c.namesrv.Remove(ctx) })
	}
	for _, n := range c.nodes {
		if n.broker != nil {
			brokers = append(brokers, func() error { return n.broker.Remove(ctx) })
		}
		brokers = append(brokers, n.link.Close)
		if n.data != nil {
			rest = append(rest, func() error { return n.data.Remove(ctx) })
		}
	}
	err := container.AtOnce(brokers...)
	if c.pod != nil {
		err = errors.Join(err, c.pod.Remove(ctx))
	}
	if c.network != nil {
		rest = append(rest, func() error { return c.network.Remove(ctx) })
	}
	if err = errors.Join(err, container.AtOnce(rest...), c.rack.Remove(ctx)); err != nil {
		return fmt.Errorf("close rocketmq: %w", err)
	}
	return nil
}
