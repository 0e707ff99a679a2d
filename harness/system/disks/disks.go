package disks

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

// Setting is the Spec setting, of every adapter, that gives each node disks of its own: the size of a data disk in MiB.
// Where the machine cannot, the cluster has ordinary volumes, and DiskBacked says why.
const Setting = "disk.mib"

const leastMiB = 64

// ParseMiB reads the value of Setting. Errors wrap system.ErrUsage.
func ParseMiB(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < leastMiB {
		return 0, fmt.Errorf("setting %s=%q: want a number of MiB, %d or more: %w", Setting, value, leastMiB, system.ErrUsage)
	}
	return n, nil
}

// Node is a node of the adapter's.
type Node struct {
	Name      string
	Container *container.Container
	Data      string            // its data disk, the one that fills up and gets slow
	Others    []string          // the disks that lose power with it
	Volume    *container.Volume // where its data are, on a disk or not
	// Start starts it and waits until it serves; a running one is no error.
	Start func(context.Context) error
}

// Rack is the disks of one cluster. A nil Rack is one of a cluster that was started without them.
type Rack struct {
	*disk.Rack
	missing error // why there are none although they were asked for
}

// Open makes the disks. If the machine cannot have them there is no error: Volume returns nil and DiskBacked says why.
func Open(ctx context.Context, e *container.Engine, owner container.Owner, name string, specs ...disk.Spec) (*Rack, error) {
	r, err := disk.Open(ctx, e, owner, name, specs...)
	if errors.Is(err, disk.ErrUnavailable) {
		return &Rack{missing: fmt.Errorf("%w: %w", system.ErrNotApplicable, err)}, nil
	}
	if err != nil {
		return nil, err
	}
	return &Rack{Rack: r}, nil
}

// DiskBacked returns nil, or why the nodes have no disks of their own, wrapping system.ErrNotApplicable.
func (r *Rack) DiskBacked() error {
	switch {
	case r == nil:
		return fmt.Errorf("the cluster was started without %s: %w", Setting, system.ErrNotApplicable)
	case r.Rack == nil:
		return r.missing
	default:
		return nil
	}
}

// Volume returns the volume of a disk, nil if there are no disks.
func (r *Rack) Volume(name string) *container.Volume {
	if r.DiskBacked() != nil {
		return nil
	}
	if d := r.Disk(name); d != nil {
		return d.Volume
	}
	return nil
}

// Sync makes all that is on the disks durable. Without disks it does nothing.
func (r *Rack) Sync(ctx context.Context) error {
	if r.DiskBacked() != nil {
		return nil
	}
	return r.Rack.Sync(ctx)
}

// Remove removes the disks once the nodes' containers are gone. It may run twice.
func (r *Rack) Remove(ctx context.Context) error {
	if r.DiskBacked() != nil {
		return nil
	}
	return r.Rack.Remove(ctx)
}

// CutPower cuts the power of running nodes at once: all disks of each. The heal starts them together.
func (r *Rack) CutPower(ctx context.Context, nodes ...Node) (system.Injection, error) {
	if err := r.DiskBacked(); err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("cut power: no node is named: %w", system.ErrUsage)
	}
	cut := &powerCut{rack: r, nodes: nodes}
	for _, n := range nodes {
		if s, err := n.Container.State(ctx); err != nil || !s.Running {
			return nil, errors.Join(err, fmt.Errorf("cut power: %s is down", n.Name))
		}
		cut.disks = append(append(cut.disks, n.Data), n.Others...)
	}
	outage, err := r.Cut(ctx, cut.disks, disk.Power{
		Freeze: func(ctx context.Context) error {
			return cut.each(func(n Node) error { return n.Container.Pause(ctx) })
		},
		Kill: func(ctx context.Context) error {
			// The engine thaws a frozen container to let the signal in; asking for it once more does no harm.
			return cut.each(func(n Node) error {
				return errors.Join(n.Container.Signal(ctx, "KILL"), n.Container.Unpause(ctx))
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
	rack   *Rack
	nodes  []Node
	disks  []string
	outage disk.Outage
}

func (p *powerCut) each(do func(Node) error) error {
	var g errgroup.Group // all are tried, whatever the others say
	for _, n := range p.nodes {
		g.Go(func() error { return do(n) })
	}
	return g.Wait()
}

func (p *powerCut) Evidence(context.Context) (system.Evidence, error) {
	bit, detail := p.outage.Evidence()
	return system.Evidence{Bit: bit, Count: int64(len(p.nodes)), Detail: detail, AtRisk: p.outage.AtRisk()}, nil
}

// Heal starts the nodes together. If one does not come up, the error tells whether its disks work.
func (p *powerCut) Heal(ctx context.Context) error {
	err := p.each(func(n Node) error { return n.Start(ctx) })
	if err == nil {
		return nil
	}
	if probed := p.rack.Probe(ctx, p.disks...); probed != nil {
		return errors.Join(err, probed)
	}
	return fmt.Errorf("%w (its disks take writes and give them back: it is not the disk)", err)
}

// Fill fills the node's data disk but for leave bytes. The heal frees it and starts the node if it has ended.
func (r *Rack) Fill(ctx context.Context, n Node, leave int64) (system.Injection, error) {
	if err := r.DiskBacked(); err != nil {
		return nil, err
	}
	full, err := r.Rack.Fill(ctx, n.Data, leave)
	if err != nil {
		return nil, err
	}
	return &fullDisk{node: n, full: full}, nil
}

// fullDisk is a node with a full disk.
type fullDisk struct {
	node Node
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
	return system.Evidence{
		Bit: ballast > 0, Count: ballast,
		Detail: fmt.Sprintf("%d bytes free on the data disk of %s beside a ballast of %d%s", free, f.node.Name, ballast, f.ended(ctx)),
	}, nil
}

// ended says how the node ended, also once it has been started again.
func (f *fullDisk) ended(ctx context.Context) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end == "" {
		if s, err := f.node.Container.State(ctx); err == nil && !s.Running {
			f.end = fmt.Sprintf("; the node has ended, exit code %d", s.ExitCode)
		}
	}
	return f.end
}

func (f *fullDisk) Heal(ctx context.Context) error {
	_ = f.ended(ctx) // for the evidence: after the start it cannot be told any more
	if err := f.full.Free(ctx); err != nil {
		return err
	}
	return f.node.Start(ctx)
}

// Throttle limits what the node can write to its data disk, in bytes per second. Where the machine has cgroups of version 1,
// only writes that are direct or fsynced are held up, not what the kernel writes back by itself. The error wraps
// system.ErrNotApplicable where the kernel throttles nothing.
func (r *Rack) Throttle(ctx context.Context, n Node, bytesPerSecond int64) (system.Injection, error) {
	if err := r.DiskBacked(); err != nil {
		return nil, err
	}
	slow, err := r.Slow(ctx, n.Data, n.Container, bytesPerSecond)
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

// Rot damages a file on the data volume of a node that is down. It needs no Rack: an ordinary volume will do.
func Rot(ctx context.Context, n Node, data *container.Volume, rot system.Rot) (string, error) {
	if s, err := n.Container.State(ctx); err != nil || s.Running {
		return "", errors.Join(err, fmt.Errorf("damage disk of %s: it still runs: %w", n.Name, system.ErrUsage))
	}
	return disk.Rot(ctx, data, disk.Decay{Pattern: rot.Pattern, Offset: rot.Offset, Cut: rot.Cut})
}
