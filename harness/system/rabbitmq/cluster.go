package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"conform/harness/internal/container"
	"conform/harness/system"
	"conform/harness/system/disks"
)

var _ system.Cluster = (*Cluster)(nil)

// Cluster is a running RabbitMQ cluster.
type Cluster struct {
	disks.Faults

	version  string
	config   config
	log      *slog.Logger
	engine   *container.Engine
	http     *http.Client
	prefix   string // of the names of its objects
	password string
	network  *container.Network
	nodes    []*Node
	startup  time.Duration
	rack     *disks.Rack // nil = ordinary volumes

	wg   sync.WaitGroup // requests that are still under way
	turn atomic.Int64   // destinations made, for the node that leads the next one

	mu         sync.Mutex
	made       map[string]destination
	held       map[string]io.Closer       // connections of attending consumers
	dropsAt    map[string]map[*Node]drops // what the nodes had dropped when a destination was made
	absences   map[string][]absence
	limits     map[string]map[string]string // that a policy has set, ever
	kept       map[string]counted           // dead letters that queues keep
	deadEnds   map[string]string            // why dead letters of a destination had nowhere to go for a time
	down       map[*Node]bool               // nodes that were killed or stopped, and not started again
	homes      map[string]*Node             // where queues were found last
	emptySince map[string]time.Time         // queues of groups that look empty
	active     map[any]string               // isolations, alarms and limits that are in force, in words
}

// System returns "rabbitmq".
func (c *Cluster) System() string { return Name }

// Version returns the version asked for.
func (c *Cluster) Version() string { return c.version }

// Nodes returns the nodes in the order of their names.
func (c *Cluster) Nodes() []system.Node {
	nodes := make([]system.Node, len(c.nodes))
	for i, n := range c.nodes {
		nodes[i] = n
	}
	return nodes
}

// node finds one by its Erlang name, or returns nil.
func (c *Cluster) node(erlang string) *Node {
	for _, n := range c.nodes {
		if n.erlang() == erlang {
			return n
		}
	}
	return nil
}

// own returns the node as ours.
func (c *Cluster) own(node system.Node) (*Node, error) {
	n, ok := node.(*Node)
	if !ok || n == nil || n.cluster != c {
		return nil, fmt.Errorf("node %v is not of this cluster: %w", node, system.ErrUsage)
	}
	return n, nil
}

// Endpoints returns the addresses of the links. DSN has the rest of what a client needs.
func (c *Cluster) Endpoints() []string {
	addrs := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		addrs[i] = n.link.Addr()
	}
	return addrs
}

// DirectEndpoints returns the published ports of AMQP.
func (c *Cluster) DirectEndpoints() []string {
	addrs := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		addrs[i] = n.direct()
	}
	return addrs
}

// DSN returns an AMQP URI with user and password, for ClientConfig.DSN: its host is the first node, through the link or, if
// direct, past it, and its parameter "management" lists the management interfaces in the order of Endpoints. The password is
// random for each cluster and found nowhere but here and in the containers. client is not used: a connection's name is not
// part of the URI.
func (c *Cluster) DSN(_ string, direct bool) string {
	hosts := c.Endpoints()
	if direct {
		hosts = c.DirectEndpoints()
	}
	management := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		management[i] = n.management()
	}
	u := url.URL{
		Scheme: "amqp", User: url.UserPassword(userName, c.password), Host: hosts[0], Path: "/",
		RawQuery: url.Values{dsnManagement: {strings.Join(management, ",")}}.Encode(),
	}
	return u.String()
}

// Settings returns the node settings that differ from RabbitMQ's defaults (topology excluded).
func (c *Cluster) Settings() map[string]string { return c.config.all() }

// Timing returns the settings that were lowered to keep runs short.
func (c *Cluster) Timing() map[string]string { return maps.Clone(c.config.timing) }

// Startup returns how long Start took.
func (c *Cluster) Startup() time.Duration { return c.startup }

// MemoryMiB returns what each running node uses.
func (c *Cluster) MemoryMiB(ctx context.Context) (map[string]int, error) {
	used := make([]int64, len(c.nodes))
	g, gctx := errgroup.WithContext(ctx)
	for i, n := range c.nodes {
		g.Go(func() (err error) {
			used[i], err = n.broker.MemoryMiB(gctx)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	m := make(map[string]int, len(c.nodes))
	for i, n := range c.nodes {
		m[n.name] = int(used[i])
	}
	return m, nil
}

// Baseline checks that all nodes run and know each other, that every queue has a leader and all its members in step, that no
// alarm is raised, and that no rule, cut, limit or packet filter is left. It waits a little for the last of it.
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
	g, gctx := errgroup.WithContext(ctx)
	for _, n := range c.nodes {
		if armed := n.link.Armed(); armed > 0 {
			return fmt.Errorf("%d rules or cuts are left on the link of %s: %w", armed, n.name, system.ErrUsage)
		}
		g.Go(func() error {
			s, err := n.process().Running(gctx)
			if err != nil {
				return err
			}
			if s.Paused {
				return fmt.Errorf("%s is paused", n.name)
			}
			if err := n.serves(gctx, len(c.nodes)); err != nil {
				return err
			}
			return n.ask(gctx, "health/checks/local-alarms", nil)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	var queues []queueInfo
	if err := c.nodes[0].ask(ctx, "queues?disable_stats=true", &queues); err != nil {
		return err
	}
	for _, q := range queues {
		l, err := c.leadership(ctx, q.Name)
		if err != nil {
			return err
		}
		if l.Leader == nil || len(l.InSync) < len(l.Replicas) || q.Type == Quorum && len(l.Replicas) < len(c.nodes) {
			return fmt.Errorf("%s: leader %v, %d of %d members in step", q.Name, l.Leader, len(l.InSync), len(l.Replicas))
		}
	}
	return nil
}

// Close removes the cluster's containers, volumes, network and links. It goes on after an error and may run twice.
func (c *Cluster) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeCeiling)
	defer cancel()
	var brokers, pods, rest []func() error
	for _, n := range c.nodes {
		if n.broker != nil {
			brokers = append(brokers, func() error { return n.broker.Remove(ctx) })
		}
		if n.link != nil {
			brokers = append(brokers, n.link.Close)
		}
		if n.pod != nil {
			pods = append(pods, func() error { return n.pod.Remove(ctx) })
		}
		if n.data != nil {
			rest = append(rest, func() error { return n.data.Remove(ctx) })
		}
	}
	if c.network != nil {
		rest = append(rest, func() error { return c.network.Remove(ctx) })
	}
	err := errors.Join(container.AtOnce(brokers...), container.AtOnce(pods...), container.AtOnce(rest...), c.rack.Remove(ctx))
	c.letGo() // their servers are gone: nothing can hang
	c.wg.Wait()
	if err != nil {
		return fmt.Errorf("close rabbitmq: %w", err)
	}
	return nil
}

// letGo closes the connections of attending consumers.
func (c *Cluster) letGo() {
	c.mu.Lock()
	held := c.held
	c.held = map[string]io.Closer{}
	c.mu.Unlock()
	for _, conn := range held {
		_ = conn.Close() // it may be closed by the server's end already
	}
}
