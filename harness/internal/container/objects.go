package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"
)

// Kind is a kind of object the engine keeps for conform.
type Kind string

// The kinds of objects, in the order in which they can be removed.
const (
	KindContainer Kind = "container"
	KindNetwork   Kind = "network"
	KindVolume    Kind = "volume"
)

// Object is something with conform's labels.
type Object struct {
	Kind  Kind
	ID    string
	Name  string
	Owner Owner
}

// List returns everything that carries conform's labels, of all runs and owners, sorted by run, kind and name. Objects with
// damaged labels have an owner with only the run set.
func (e *Engine) List(ctx context.Context) ([]Object, error) {
	return e.list(ctx, client.Filters{}.Add("label", LabelRun))
}

func (e *Engine) list(ctx context.Context, filter client.Filters) ([]Object, error) {
	var objects []Object
	add := func(kind Kind, id, name string, labels map[string]string) {
		owner, err := ParseOwner(labels)
		if errors.Is(err, ErrNotOwned) {
			return
		}
		objects = append(objects, Object{Kind: kind, ID: id, Name: name, Owner: owner})
	}
	containers, err := e.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filter})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers.Items {
		name := c.ID
		if len(c.Names) > 0 {
			name = strings.TrimPrefix(c.Names[0], "/")
		}
		add(KindContainer, c.ID, name, c.Labels)
	}
	networks, err := e.api.NetworkList(ctx, client.NetworkListOptions{Filters: filter})
	if err != nil {
		return nil, fmt.Errorf("list networks: %w", err)
	}
	for _, n := range networks.Items {
		add(KindNetwork, n.ID, n.Name, n.Labels)
	}
	volumes, err := e.api.VolumeList(ctx, client.VolumeListOptions{Filters: filter})
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	for _, v := range volumes.Items {
		add(KindVolume, v.Name, v.Name, v.Labels)
	}
	slices.SortFunc(objects, func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.Owner.Run, b.Owner.Run), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return objects, nil
}

// RemoveRun removes everything of a run, whatever its state. It goes on after an error and returns all of them; removing
// twice, or a run that has nothing, is no error.
func (e *Engine) RemoveRun(ctx context.Context, run string) error {
	objects, err := e.list(ctx, client.Filters{}.Add("label", LabelRun+"="+run))
	if err != nil {
		return fmt.Errorf("remove run %s: %w", run, err)
	}
	if err := e.Remove(ctx, objects); err != nil {
		return fmt.Errorf("remove run %s: %w", run, err)
	}
	return nil
}

// Sweep removes what an interrupted start of a cluster has left: objects of the run whose names begin with prefix, which the
// engine made though the call that asked for them had ended. Without a prefix nothing was made.
func (e *Engine) Sweep(ctx context.Context, run, prefix string) error {
	if prefix == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sweepCeiling)
	defer cancel()
	objects, err := e.List(ctx)
	if err != nil {
		return err
	}
	return e.Remove(ctx, slices.DeleteFunc(objects, func(o Object) bool {
		return o.Owner.Run != run || !strings.Contains(o.Name, "-"+prefix)
	}))
}

// sweepCeiling bounds a sweep.
const sweepCeiling = time.Minute

// AtOnce calls the functions at once and joins their errors.
func AtOnce(fs ...func() error) error {
	errs := make([]error, len(fs))
	var all sync.WaitGroup
	for i, f := range fs {
		all.Go(func() { errs[i] = f() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Remove removes the given objects: containers first, since networks and volumes are busy until they are gone.
func (e *Engine) Remove(ctx context.Context, objects []Object) error {
	var errs []error
	for _, kind := range []Kind{KindContainer, KindNetwork, KindVolume} {
		var removals []func() error
		for _, o := range objects {
			if o.Kind == kind {
				removals = append(removals, func() error { return e.remove(ctx, o) })
			}
		}
		errs = append(errs, AtOnce(removals...))
	}
	return errors.Join(errs...)
}

func (e *Engine) remove(ctx context.Context, o Object) error {
	switch o.Kind {
	case KindContainer:
		return e.removeContainer(ctx, o.ID)
	case KindNetwork:
		return e.removeNetwork(ctx, o.ID)
	case KindVolume:
		return e.removeVolume(ctx, o.ID)
	default:
		return fmt.Errorf("remove %s: unknown kind %q", o.Name, o.Kind)
	}
}
