package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"conform/harness/system"
)

var registry = map[string]system.Fault{}

// register adds a fault; called from init only. A second fault of one name is a bug of ours.
func register(f system.Fault) {
	if _, dup := registry[f.Name]; dup {
		panic("fault registered twice: " + f.Name)
	}
	registry[f.Name] = f
}

// All returns every fault by name.
func All() map[string]system.Fault { return maps.Clone(registry) }

// needs returns a Supports function that asks for the capability C.
func needs[C any](what string) func(system.Cluster) error {
	return func(c system.Cluster) error {
		if _, ok := c.(C); !ok {
			return fmt.Errorf("%s clusters cannot %s: %w", c.System(), what, system.ErrNotApplicable)
		}
		return nil
	}
}

// capability returns c as a C, which Supports has promised.
func capability[C any](c system.Cluster) (C, error) {
	got, ok := c.(C)
	if !ok {
		return got, fmt.Errorf("cluster %s lacks %T: %w", c.System(), (*C)(nil), system.ErrNotApplicable)
	}
	return got, nil
}

// instant is an injection whose evidence was complete when it struck.
type instant struct {
	proof string
	count int64
	heal  func(context.Context) error // nil = nothing to heal
}

func (i instant) Evidence(context.Context) (system.Evidence, error) {
	return system.Evidence{Bit: i.count > 0, Count: i.count, Detail: i.proof}, nil
}

func (i instant) Heal(ctx context.Context) error {
	if i.heal == nil {
		return nil
	}
	return i.heal(ctx)
}

// onEach strikes all targets at once, so that "all killed" means at once. do returns the proof
// and undo heals one target, also after a strike that failed half-way.
func onEach(ctx context.Context, targets []system.Node,
	do func(context.Context, system.Node) (string, error),
	undo func(context.Context, system.Node) error,
) (system.Injection, error) {
	heal := func(ctx context.Context) error {
		if undo == nil {
			return nil
		}
		var g errgroup.Group // all are tried, whatever the others say
		for _, n := range targets {
			g.Go(func() error { return undo(ctx, n) })
		}
		return g.Wait()
	}
	proofs := make([]string, len(targets))
	g, gctx := errgroup.WithContext(ctx)
	for i, n := range targets {
		g.Go(func() error {
			proof, err := do(gctx, n)
			proofs[i] = n.Name() + ": " + proof
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, errors.Join(err, heal(context.WithoutCancel(ctx)))
	}
	return instant{proof: strings.Join(proofs, "; "), count: int64(len(targets)), heal: heal}, nil
}

// several is one injection made of many: it has bitten when all have, but for those that nobody was there to feel.
type several []system.Injection

func (s several) Evidence(ctx context.Context) (system.Evidence, error) {
	var all system.Evidence
	inForce := true
	details := make([]string, 0, len(s))
	for _, i := range s {
		e, err := i.Evidence(ctx)
		if err != nil {
			return system.Evidence{}, err
		}
		all.Bit = all.Bit || e.Bit
		inForce = inForce && (e.Bit || e.Idle)
		all.Count += e.Count
		details = append(details, e.Detail)
	}
	all.Bit = all.Bit && inForce
	all.Detail = strings.Join(details, "; ")
	return all, nil
}

func (s several) Heal(ctx context.Context) error {
	var errs []error
	for _, i := range s {
		errs = append(errs, i.Heal(ctx))
	}
	return errors.Join(errs...)
}

// onEachLasting starts one lasting injection per target; if one fails the others are healed.
func onEachLasting(ctx context.Context, targets []system.Node, inject func(system.Node) (system.Injection, error)) (system.Injection, error) {
	var all several
	for _, n := range targets {
		i, err := inject(n)
		if err != nil {
			return nil, errors.Join(err, all.Heal(context.WithoutCancel(ctx)))
		}
		all = append(all, i)
	}
	return all, nil
}

// param returns a parameter or its default.
func param(s system.Strike, name, def string) string {
	if v, ok := s.Params[name]; ok && v != "" {
		return v
	}
	return def
}

// count returns a whole-number parameter or its default.
func count(s system.Strike, name string, def int) (int, error) {
	v := param(s, name, strconv.Itoa(def))
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("fault parameter %s=%q: want a whole number >= 0: %w", name, v, system.ErrUsage)
	}
	return n, nil
}

// direction returns the direction parameter.
func direction(s system.Strike) (system.Direction, error) {
	d := system.Direction(param(s, "direction", string(system.Both)))
	switch d {
	case system.Both, system.Inbound, system.Outbound:
		return d, nil
	}
	return "", fmt.Errorf("fault parameter direction=%q: want both, in or out: %w", d, system.ErrUsage)
}
