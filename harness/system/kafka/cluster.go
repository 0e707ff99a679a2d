package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"conform/harness/internal/container"
	"conform/harness/system"
	"conform/harness/system/disks"
)

var _ system.Cluster = (*Cluster)(nil)

// SettingReplicas is the destination setting that makes a topic with fewer replicas than there are nodes; it is no setting
// of a topic in Kafka, but an argument of its creation.
const SettingReplicas = "replication.factor"

// Cluster is a running Kafka cluster.
type Cluster struct {
	disks.Faults

	version string
	config  config
	log     *slog.Logger
	engine  *container.Engine
	prefix  string // of the names of its objects
	network *container.Network
	nodes   []*Node
	startup time.Duration
	rack    *disks.Rack // nil = ordinary volumes

	wg       sync.WaitGroup // requests that are still under way
	operator operator

	mu        sync.Mutex
	cuts      map[*isolation]struct{}
	compacted map[string]bool // topics whose records may be replaced: their offsets have holes
}

// System returns "kafka".
func (c *Cluster) System() string { return Name }

// Version returns the version asked for.
func (c *Cluster) Version() string { return c.version }

// Nodes returns the nodes in the order of their ids.
func (c *Cluster) Nodes() []system.Node {
	nodes := make([]system.Node, len(c.nodes))
	for i, n := range c.nodes {
		nodes[i] = n
	}
	return nodes
}

func (c *Cluster) node(id int32) *Node {
	for _, n := range c.nodes {
		if n.id == id {
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

// Endpoints returns the addresses of the links.
func (c *Cluster) Endpoints() []string {
	addrs := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		addrs[i] = n.link.Addr()
	}
	return addrs
}

// DirectEndpoints returns the addresses of the DIRECT listeners.
func (c *Cluster) DirectEndpoints() []string {
	addrs := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		addrs[i] = n.direct()
	}
	return addrs
}

// Settings returns the broker settings that differ from Kafka's defaults (topology excluded), features as "feature.NAME".
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

// Create makes a topic that is replicated to all nodes, and waits until its leaders lead with all replicas in sync, by the
// metadata of every node. Without a leader in d, partitions are spread over the nodes. Settings are topic settings, and
// SettingReplicas. On disks of their own, all that the nodes have written is durable then.
func (c *Cluster) Create(ctx context.Context, d system.DestinationSpec) error {
	if err := c.create(ctx, d); err != nil {
		return fmt.Errorf("create topic %s: %w", d.Name, err)
	}
	return nil
}

func (c *Cluster) create(ctx context.Context, d system.DestinationSpec) error {
	first := 0
	if d.Leader != nil {
		n, err := c.own(d.Leader)
		if err != nil {
			return err
		}
		first = slices.Index(c.nodes, n)
	}
	replicas := len(c.nodes)
	if v, ok := d.Settings[SettingReplicas]; ok {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > len(c.nodes) {
			return fmt.Errorf("%s=%q: want 1 to %d: %w", SettingReplicas, v, len(c.nodes), system.ErrUsage)
		}
		replicas = n
	}
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = d.Name, -1, -1 // as an explicit assignment demands
	for p := range max(1, d.Partitions) {
		lead := first
		if d.Leader == nil {
			lead = p
		}
		a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		a.Partition = int32(p)
		for i := range replicas {
			a.Replicas = append(a.Replicas, c.nodes[(lead+i)%len(c.nodes)].id)
		}
		t.ReplicaAssignment = append(t.ReplicaAssignment, a)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Settings)) {
		if name == SettingReplicas {
			continue
		}
		s := kmsg.NewCreateTopicsRequestTopicConfig()
		s.Name, s.Value = name, kmsg.StringPtr(d.Settings[name])
		t.Configs = append(t.Configs, s)
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = int32(changeTimeout.Milliseconds())
	req.Topics = append(req.Topics, t)

	ctx, cancel := context.WithTimeout(ctx, 2*changeTimeout)
	defer cancel()
	controller, err := c.controller(ctx)
	if err != nil {
		return err
	}
	known, err := controller.admin.metadata(ctx, []string{d.Name})
	if err != nil {
		return err
	}
	there := slices.ContainsFunc(known.Topics, func(t kmsg.MetadataResponseTopic) bool { return t.ErrorCode == 0 })
	resp, err := controller.admin.ask(ctx, req)
	if err != nil {
		return err
	}
	for _, r := range resp.(*kmsg.CreateTopicsResponse).Topics {
		err := kerr.ErrorForCode(r.ErrorCode)
		switch {
		case errors.Is(err, kerr.TopicAlreadyExists) && !there:
			// The client has asked again: the first answer came too late, on a busy machine.
		case errors.Is(err, kerr.InvalidConfig), errors.Is(err, kerr.InvalidTopicException), errors.Is(err, kerr.InvalidPartitions):
			return fmt.Errorf("%w: %s: %w", err, deref(r.ErrorMessage), system.ErrUsage)
		case err != nil:
			return fmt.Errorf("%w: %s", err, deref(r.ErrorMessage))
		}
	}
	if strings.Contains(d.Settings["cleanup.policy"], "compact") {
		c.mu.Lock()
		if c.compacted == nil {
			c.compacted = map[string]bool{}
		}
		c.compacted[d.Name] = true
		c.mu.Unlock()
	}
	err = c.await(ctx, "every node knows it in sync", func(ctx context.Context) error {
		return c.inSync(ctx, d.Name, t.ReplicaAssignment)
	})
	if err != nil {
		return err
	}
	return c.rack.Sync(ctx)
}

// inSync checks that every node sees the assigned leaders lead with all replicas in sync.
func (c *Cluster) inSync(ctx context.Context, topic string, want []kmsg.CreateTopicsRequestTopicReplicaAssignment) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, n := range c.nodes {
		g.Go(func() error {
			m, err := n.admin.metadata(gctx, []string{topic})
			if err != nil {
				return fmt.Errorf("%s: %w", n.name, err)
			}
			for _, t := range m.Topics {
				if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
					return fmt.Errorf("%s: %w", n.name, err)
				}
				if len(t.Partitions) != len(want) {
					return fmt.Errorf("%s knows %d partitions", n.name, len(t.Partitions))
				}
				for _, p := range t.Partitions {
					w := want[p.Partition]
					if p.Leader != w.Replicas[0] || len(p.ISR) != len(w.Replicas) {
						return fmt.Errorf("%s: partition %d: leader %d, in sync %v", n.name, p.Partition, p.Leader, p.ISR)
					}
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// Delete removes a topic; one that is gone already is no error.
func (c *Cluster) Delete(ctx context.Context, name string) error {
	if err := c.remove(ctx, name); err != nil {
		return fmt.Errorf("delete topic %s: %w", name, err)
	}
	return nil
}

func (c *Cluster) remove(ctx context.Context, name string) error {
	controller, err := c.controller(ctx)
	if err != nil {
		return err
	}
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis = int32(changeTimeout.Milliseconds())
	req.TopicNames = []string{name} // up to version 5
	t := kmsg.NewDeleteTopicsRequestTopic()
	t.Topic = kmsg.StringPtr(name)
	req.Topics = append(req.Topics, t)
	resp, err := controller.admin.ask(ctx, req)
	if err != nil {
		return err
	}
	for _, r := range resp.(*kmsg.DeleteTopicsResponse).Topics {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
			return err
		}
	}
	return nil
}

// unfenced checks that the controllers have let the node in and that it serves its own copy of the metadata.
func (c *Cluster) unfenced(ctx context.Context, n *Node) error {
	controller, err := c.poll(ctx)
	if err != nil {
		return err
	}
	for _, asked := range []*Node{controller, n} {
		m, err := asked.admin.metadata(ctx, []string{})
		if err != nil {
			return fmt.Errorf("ask %s: %w", asked.name, err)
		}
		if !slices.ContainsFunc(m.Brokers, func(b kmsg.MetadataResponseBroker) bool { return b.NodeID == n.id }) {
			return fmt.Errorf("%s is not among the live brokers of %s", n.name, asked.name)
		}
	}
	return nil
}

// checkSettings asks a node for the settings that the cluster was started with: Kafka ignores names it does not know.
func (c *Cluster) checkSettings(ctx context.Context) error {
	n := c.nodes[0]
	names := slices.Sorted(maps.Keys(c.config.settings))
	res := kmsg.NewDescribeConfigsRequestResource()
	res.ResourceType, res.ResourceName, res.ConfigNames = kmsg.ConfigResourceTypeBroker, fmt.Sprint(n.id), names
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Resources = append(req.Resources, res)
	resp, err := n.admin.ask(ctx, req)
	if err != nil {
		return fmt.Errorf("ask %s for its settings: %w", n.name, err)
	}
	known := map[string]bool{}
	for _, r := range resp.(*kmsg.DescribeConfigsResponse).Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return fmt.Errorf("ask %s for its settings: %w", n.name, err)
		}
		for _, s := range r.Configs {
			// An unknown name comes back without a type.
			known[s.Name] = s.ConfigType != kmsg.ConfigTypeUnknown
		}
	}
	for _, name := range names {
		if !known[name] {
			return fmt.Errorf("kafka %s has no broker setting %q: %w", c.version, name, system.ErrUsage)
		}
	}
	return nil
}

// Baseline checks that all nodes run and are let in, that every partition of every topic has all its replicas in sync, and
// that no rule, cut or packet filter is left. It waits a little for the last of it.
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
	cuts := len(c.cuts)
	c.mu.Unlock()
	if cuts > 0 {
		return fmt.Errorf("%d isolations are in place: %w", cuts, system.ErrUsage)
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
		if err := c.unfenced(ctx, n); err != nil {
			return err
		}
	}
	controller, err := c.controller(ctx)
	if err != nil {
		return err
	}
	m, err := controller.admin.metadata(ctx, nil)
	if err != nil {
		return err
	}
	for _, t := range m.Topics {
		for _, p := range t.Partitions {
			if p.Leader < 0 || len(p.ISR) < len(p.Replicas) {
				return fmt.Errorf("%s-%d: leader %d, in sync %v of %v", deref(t.Topic), p.Partition, p.Leader, p.ISR, p.Replicas)
			}
		}
	}
	return nil
}

// Close removes the cluster's containers, volumes, network and links. It goes on after an error and may run twice.
func (c *Cluster) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeCeiling)
	defer cancel()
	c.operator.close()
	var brokers, pods, rest []func() error
	for _, n := range c.nodes {
		if n.admin != nil {
			n.admin.close()
		}
		if n.broker != nil {
			brokers = append(brokers, func() error { return n.broker.Remove(ctx) })
		}
		if n.link != nil {
			brokers = append(brokers, n.link.Close)
		}
		if n.pod != nil {
			pods = append(pods, func() error { return n.pod.Remove(ctx) })
		}
		for _, v := range []*container.Volume{n.data, n.meta} {
			if v != nil {
				rest = append(rest, func() error { return v.Remove(ctx) })
			}
		}
	}
	if c.network != nil {
		rest = append(rest, func() error { return c.network.Remove(ctx) })
	}
	c.wg.Wait()
	err := errors.Join(container.AtOnce(brokers...), container.AtOnce(pods...), container.AtOnce(rest...), c.rack.Remove(ctx))
	if err != nil {
		return fmt.Errorf("close kafka: %w", err)
	}
	return nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
