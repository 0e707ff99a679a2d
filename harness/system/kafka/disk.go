package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"

	"conform/harness/internal/container"
	"conform/harness/internal/disk"
	"conform/harness/system"
)

var (
	_ system.Powered       = (*Cluster)(nil)
	_ system.DiskFiller    = (*Cluster)(nil)
	_ system.DiskThrottler = (*Cluster)(nil)
	_ system.BitRotter     = (*Cluster)(nil)
)

// SettingDisk is the Spec setting that gives each node disks of its own that can lose power or fill up: the size of the data
// disk in MiB. Where the machine cannot, the cluster has ordinary volumes and DiskBacked says why.
const SettingDisk = "disk.mib"

const (
	leastDiskMiB = 64
	metaDiskMiB  = 128
)

// diskMiB reads the value of SettingDisk.
func diskMiB(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < leastDiskMiB {
		return 0, fmt.Errorf("setting %s=%q: want a number of MiB, %d or more: %w", SettingDisk, value, leastDiskMiB, system.ErrUsage)
	}
	return n, nil
}

func (n *Node) dataDisk() string { return n.name + "-data" }
func (n *Node) metaDisk() string { return n.name + "-meta" }

// openDisks makes the nodes' disks, if they are wanted and the machine can have them.
func (c *Cluster) openDisks(ctx context.Context, owner container.Owner, prefix string) error {
	if c.config.diskMiB == 0 {
		return nil
	}
	var specs []disk.Spec
	for _, n := range c.nodes {
		specs = append(specs, disk.Spec{Name: n.dataDisk(), MiB: c.config.diskMiB}, disk.Spec{Name: n.metaDisk(), MiB: metaDiskMiB})
	}
	rack, err := disk.Open(ctx, c.engine, owner, prefix+"disks", specs...)
	if errors.Is(err, disk.ErrUnavailable) {
		c.diskless = fmt.Errorf("%w: %w", system.ErrNotApplicable, err)
		return nil
	}
	c.rack = rack
	return err
}

// DiskBacked returns nil if the nodes have disks of their own, see SettingDisk.
func (c *Cluster) DiskBacked() error {
	switch {
	case c.rack != nil:
		return nil
	case c.diskless != nil:
		return c.diskless
	default:
		return fmt.Errorf("the cluster was started without %s: %w", SettingDisk, system.ErrNotApplicable)
	}
}

// syncDisks makes all that is on the nodes' disks durable.
func (c *Cluster) syncDisks(ctx context.Context) error {
	if c.rack == nil {
		return nil
	}
	return c.rack.Sync(ctx)
}

// CutPower cuts the power of the nodes at once: both disks of each, data and metadata.
func (c *Cluster) CutPower(ctx context.Context, nodes []system.Node) (system.Injection, error) {
	if err := c.DiskBacked(); err != nil {
		return nil, err
	}
	cut := &powerCut{cluster: c}
	for _, node := range nodes {
		n, err := c.own(node)
		if err != nil {
			return nil, err
		}
		if _, err := n.running(ctx); err != nil {
			return nil, fmt.Errorf("cut power: %w", err)
		}
		cut.nodes = append(cut.nodes, n)
		cut.disks = append(cut.disks, n.dataDisk(), n.metaDisk())
	}
	if len(cut.nodes) == 0 {
		return nil, fmt.Errorf("cut power: no node is named: %w", system.ErrUsage)
	}
	outage, err := c.rack.Cut(ctx, cut.disks, disk.Power{
		Freeze: func(ctx context.Context) error {
			return cut.each(ctx, func(ctx context.Context, n *Node) error { return n.broker.Pause(ctx) })
		},
		Kill: func(ctx context.Context) error {
			return cut.each(ctx, func(ctx context.Context, n *Node) error {
				// An engine on cgroup v1 delivers the signal to a frozen process only once it is thawed.
				return errors.Join(n.broker.Signal(ctx, "KILL"), n.broker.Unpause(ctx))
			})
		},
	})
	if err != nil {
		return nil, err
	}
	cut.outage = outage
	return cut, nil
}

// powerCut is nodes without power.
type powerCut struct {
	cluster *Cluster
	nodes   []*Node
	disks   []string
	outage  disk.Outage
}

func (p *powerCut) each(ctx context.Context, do func(context.Context, *Node) error) error {
	var g errgroup.Group // all are tried, whatever the others say
	for _, n := range p.nodes {
		g.Go(func() error { return do(ctx, n) })
	}
	return g.Wait()
}

func (p *powerCut) Evidence(context.Context) (system.Evidence, error) {
	bit, detail := p.outage.Evidence()
	return system.Evidence{Bit: bit, Count: int64(len(p.nodes)), Detail: detail}, nil
}

// Heal starts the nodes together. If one does not come up, the error tells whether its disks work.
func (p *powerCut) Heal(ctx context.Context) error {
	err := p.each(ctx, func(ctx context.Context, n *Node) error { return p.cluster.Start(ctx, n) })
	if err == nil {
		return nil
	}
	if probed := p.cluster.rack.Probe(ctx, p.disks...); probed != nil {
		return errors.Join(err, probed)
	}
	return fmt.Errorf("%w (the disks take writes and give them back: it is the broker)", err)
}

// FillDisk fills the data disk of a node. Kafka ends when its only log directory fails.
func (c *Cluster) FillDisk(ctx context.Context, node system.Node, leave int64) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	if err := c.DiskBacked(); err != nil {
		return nil, err
	}
	full, err := c.rack.Fill(ctx, n.dataDisk(), leave)
	if err != nil {
		return nil, err
	}
	return &fullDisk{node: n, full: full}, nil
}

// fullDisk is a node with a full disk.
type fullDisk struct {
	node *Node
	full *disk.Filled

	mu  sync.Mutex
	end string // how the node ended, if it did
}

// Evidence tells what is left on the disk, and how the node ended. That it ended is an effect and not asked for.
func (f *fullDisk) Evidence(ctx context.Context) (system.Evidence, error) {
	free, ballast, err := f.full.Left(ctx)
	if err != nil {
		return system.Evidence{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end == "" {
		if s, err := f.node.broker.State(ctx); err == nil && !s.Running {
			f.end = fmt.Sprintf("; the node ended by itself, exit code %d", s.ExitCode)
		}
	}
	return system.Evidence{
		Bit: ballast > 0, Count: ballast,
		Detail: fmt.Sprintf("%d bytes free on the data disk of %s beside a ballast of %d%s", free, f.node.name, ballast, f.end),
	}, nil
}

// Heal frees the disk and starts the node if it has ended.
func (f *fullDisk) Heal(ctx context.Context) error {
	if err := f.full.Free(ctx); err != nil {
		return err
	}
	return f.node.cluster.Start(ctx, f.node)
}

// ThrottleDisk limits what the node's processes can write to its data disk by fsync. What the kernel writes back by itself
// is not held up where it has cgroups of version 1.
func (c *Cluster) ThrottleDisk(ctx context.Context, node system.Node, bytesPerSecond int64) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	if err := c.DiskBacked(); err != nil {
		return nil, err
	}
	slow, err := c.rack.Slow(ctx, n.dataDisk(), n.broker, bytesPerSecond)
	if errors.Is(err, disk.ErrUnavailable) {
		return nil, fmt.Errorf("%w: %w", system.ErrNotApplicable, err)
	}
	if err != nil {
		return nil, err
	}
	return slowDisk{slow}, nil
}

type slowDisk struct{ *disk.Slowed }

func (s slowDisk) Evidence(context.Context) (system.Evidence, error) {
	bit, detail := s.Slowed.Evidence()
	return system.Evidence{Bit: bit, Count: 1, Detail: detail}, nil
}

// RotFile damages a file on the data volume of a node that is down.
func (c *Cluster) RotFile(ctx context.Context, node system.Node, r system.Rot) (string, error) {
	n, err := c.own(node)
	if err != nil {
		return "", err
	}
	if s, err := n.broker.State(ctx); err != nil || s.Running {
		return "", errors.Join(err, fmt.Errorf("damage disk of %s: it still runs: %w", n.name, system.ErrUsage))
	}
	return disk.Rot(ctx, n.data, disk.Decay{Pattern: r.Pattern, Offset: r.Offset, Cut: r.Cut})
}
