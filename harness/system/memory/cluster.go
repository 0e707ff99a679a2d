package memory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"conform/harness/internal/clock"
	"conform/harness/ledger"
	"conform/harness/system"
)

// System is the broker in memory. It implements system.System.
type System struct{}

// Name returns "memory".
func (System) Name() string { return "memory" }

// Versions returns the one version there is.
func (System) Versions() []string { return []string{"1"} }

// MemoryMiB is a token: everything lives in this process.
func (System) MemoryMiB(n int) int { return 16 * max(1, n) }

// Start brings up Spec.Nodes nodes (3 by default) on loopback ports.
func (System) Start(_ context.Context, spec system.Spec) (system.Cluster, error) {
	begun := time.Now()
	if spec.Settings["fail"] == "start" {
		return nil, fmt.Errorf("start memory: told to fail: %w", system.ErrEnvironment)
	}
	n := spec.Nodes
	if n == 0 {
		n = 3
	}
	c := &cluster{spec: spec, destinations: map[string]*destination{}}
	for i := range n {
		m, err := newNode(c, i)
		if err != nil {
			return nil, errors.Join(err, c.Close(context.Background()))
		}
		c.nodes = append(c.nodes, m)
	}
	c.startup = time.Since(begun)
	return c, nil
}

type cluster struct {
	spec    system.Spec
	startup time.Duration
	nodes   []*node
	once    sync.Once

	mu           sync.Mutex // may be held before a node's, never after
	destinations map[string]*destination
}

var errNoDestination = errors.New("no such destination")

func (c *cluster) System() string { return "memory" }

func (c *cluster) Version() string { return "1" }

func (c *cluster) Nodes() []system.Node {
	ns := make([]system.Node, len(c.nodes))
	for i, n := range c.nodes {
		ns[i] = n
	}
	return ns
}

func (c *cluster) Endpoints() []string {
	es := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		es[i] = n.address
	}
	return es
}

func (c *cluster) DirectEndpoints() []string { return c.Endpoints() }

func (c *cluster) Settings() map[string]string { return maps.Clone(c.spec.Settings) }

func (c *cluster) Timing() map[string]string { return nil }

func (c *cluster) Startup() time.Duration { return c.startup }

func (c *cluster) MemoryMiB(context.Context) (map[string]int, error) {
	use := map[string]int{}
	for _, n := range c.nodes {
		use[n.name] = 1
	}
	return use, nil
}

func (c *cluster) own(n system.Node) (*node, error) {
	m, ok := n.(*node)
	if !ok || m.c != c {
		return nil, fmt.Errorf("find node: it is of another cluster: %w", system.ErrUsage)
	}
	return m, nil
}

// anyUp returns a node that is up, or nil.
func (c *cluster) anyUp() *node {
	for _, n := range c.nodes {
		if n.serves() {
			return n
		}
	}
	return nil
}

func (n *node) serves() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.down && !n.closed
}

func (c *cluster) Create(_ context.Context, s system.DestinationSpec) error {
	for name := range s.Settings {
		if name != "bug" {
			return fmt.Errorf("create destination %s: no setting is named %q: %w", s.Name, name, system.ErrUsage)
		}
	}
	bug := s.Settings["bug"]
	if bug == "" {
		bug = c.spec.Settings["bug"]
	}
	if bug != "" && !slices.Contains(Bugs(), bug) {
		return fmt.Errorf("create destination %s: no bug is named %q: %w", s.Name, bug, system.ErrUsage)
	}
	d := &destination{name: s.Name, bug: bug, groups: map[string][]int64{}}
	for range max(1, s.Partitions) {
		d.parts = append(d.parts, &partition{held: map[string]record{}, clients: map[string]*progress{}})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	d.leader = c.anyUp()
	if s.Leader != nil {
		m, err := c.own(s.Leader)
		if err != nil {
			return err
		}
		d.leader = m
	}
	c.destinations[s.Name] = d
	return nil
}

func (c *cluster) Delete(_ context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.destinations, name)
	return nil
}

func (c *cluster) Baseline(context.Context) error {
	if c.spec.Settings["fail"] == "baseline" {
		return errors.New("check baseline: told to fail")
	}
	for _, n := range c.nodes {
		n.mu.Lock()
		bad := n.down || n.paused || n.cut != nil || len(n.rules) > 0
		n.mu.Unlock()
		if bad {
			return fmt.Errorf("check baseline: %s is down, paused, cut or has a rule", n.name)
		}
	}
	return nil
}

func (c *cluster) Close(context.Context) error {
	c.once.Do(func() {
		for _, n := range c.nodes {
			n.close()
		}
	})
	return nil
}

func (c *cluster) leaderNumber(name string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.destinations[name]; d != nil && d.leader != nil {
		return int64(d.leader.number)
	}
	return -1
}

// Leadership implements system.LeaderFinder. The nodes that are up are the in-sync ones.
func (c *cluster) Leadership(_ context.Context, name string, _ int32) (system.Leadership, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.destinations[name]
	if d == nil {
		return system.Leadership{}, fmt.Errorf("find leader of %s: %w", name, errNoDestination)
	}
	l := system.Leadership{Epoch: d.epoch, Replicas: c.Nodes()}
	if d.leader != nil {
		l.Leader = d.leader
	}
	for _, n := range c.nodes {
		if n.serves() {
			l.InSync = append(l.InSync, n)
		}
	}
	return l, nil
}

// Controller implements system.LeaderFinder.
func (c *cluster) Controller(context.Context) (system.Node, error) {
	if n := c.anyUp(); n != nil {
		return n, nil
	}
	return nil, errors.New("find controller: no node is up")
}

// WireCounts implements system.WireCounter.
func (c *cluster) WireCounts(n system.Node, client string) system.WireCounts {
	if m, err := c.own(n); err == nil {
		return m.countsOf(client)
	}
	return system.WireCounts{}
}

// CollectLog implements system.LogCollector.
func (c *cluster) CollectLog(_ context.Context, n system.Node, w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s keeps no log\n", n.Name())
	return err
}

// EndPositions implements system.Positions.
func (c *cluster) EndPositions(_ context.Context, name string) ([]int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.destinations[name]
	if d == nil {
		return nil, fmt.Errorf("find end of %s: %w", name, errNoDestination)
	}
	d.finish()
	ends := make([]int64, len(d.parts))
	for i, p := range d.parts {
		ends[i] = int64(len(p.records))
	}
	return ends, nil
}

// ReadStore implements system.StoreReader, in both views: there are no transactions.
func (c *cluster) ReadStore(_ context.Context, name string, index uint16, tag uint32, sink func(ledger.Event)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.destinations[name]
	if d == nil {
		return fmt.Errorf("read %s: %w", name, errNoDestination)
	}
	d.finish()
	for _, view := range []ledger.View{ledger.ViewRaw, ledger.ViewCommitted} {
		for i, p := range d.parts {
			pos := ledger.Position{Destination: index, Partition: int32(i)}
			for o, r := range p.records {
				pos.Offset = int64(o)
				sink(ledger.StoredRecord(tag, view, pos, r.key, r.payload, clock.Now()))
			}
			n := int64(len(p.records))
			pos.Offset = n
			sink(ledger.Event{Kind: ledger.StoreEnd, View: view, Pos: pos, N: n, Count: n, At: clock.Now()})
		}
	}
	return nil
}

// GroupPositions implements system.GroupPositions.
func (c *cluster) GroupPositions(_ context.Context, name, group string) ([]system.GroupPosition, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.destinations[name]
	if d == nil {
		return nil, fmt.Errorf("find group %s in %s: %w", group, name, errNoDestination)
	}
	var ps []system.GroupPosition
	for i, part := range d.parts {
		p := system.GroupPosition{Partition: int32(i), Committed: -1, End: int64(len(part.records))}
		if g := d.groups[group]; g != nil {
			p.Committed = g[i]
		}
		ps = append(ps, p)
	}
	return ps, nil
}

func (c *cluster) fetch(name, group string, part int32, offset int64) *frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.destinations[name]
	if d == nil || part < 0 || int(part) >= len(d.parts) {
		return nil
	}
	if offset < 0 {
		offset = 0
		if g := d.groups[group]; g != nil {
			offset = g[part]
		}
	}
	d.settle()
	rs := d.parts[part].records
	rs = rs[min(offset, int64(len(rs))):]
	rs = rs[:min(len(rs), maxFetch)]
	f := newFrame(kindFetch)
	f.int(offset)
	f.uint(uint64(len(rs)))
	for _, r := range rs {
		f.bytes(r.key)
		f.bytes(r.payload)
	}
	return f
}

func (c *cluster) position(name, group string, part int32) *frame {
	positions, err := c.GroupPositions(context.Background(), name, group)
	if err != nil || part < 0 || int(part) >= len(positions) {
		return nil
	}
	f := newFrame(kindPosition)
	f.int(positions[part].Committed)
	f.int(positions[part].End)
	return f
}

func (c *cluster) commit(name, group string, part int32, offset int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.destinations[name]
	if d == nil || part < 0 || int(part) >= len(d.parts) {
		return
	}
	if d.groups[group] == nil {
		d.groups[group] = make([]int64, len(d.parts))
	}
	d.groups[group][part] = offset
}
