package container

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// Network is a bridge network of one run.
type Network struct {
	engine *Engine
	ID     string
	Name   string // engine-wide name
}

// NewNetwork makes a bridge network. name is unique within the run.
func (e *Engine) NewNetwork(ctx context.Context, owner Owner, name string) (*Network, error) {
	full := owner.name(name)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("create network %s: %w", full, err)
	}
	whole, cancel := making(ctx)
	defer cancel()
	r, err := e.api.NetworkCreate(whole, full, client.NetworkCreateOptions{Driver: "bridge", Labels: owner.Labels()})
	if err != nil {
		if strings.Contains(err.Error(), "non-overlapping") {
			return nil, fmt.Errorf("create network %s: %w: no free address range is left: conform doctor --clean, or docker network prune", full, err)
		}
		return nil, fmt.Errorf("create network %s: %w", full, err)
	}
	return &Network{engine: e, ID: r.ID, Name: full}, nil
}

// Remove removes the network once its containers are gone. Removing it twice is no error.
func (n *Network) Remove(ctx context.Context) error { return n.engine.removeNetwork(ctx, n.ID) }

func (e *Engine) removeNetwork(ctx context.Context, id string) error {
	err := retryBusy(ctx, func() error {
		_, err := e.api.NetworkRemove(ctx, id, client.NetworkRemoveOptions{})
		return err
	})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove network %s: %w", id, err)
	}
	return nil
}

// retryBusy repeats a removal that is refused because its last user is just going away.
func retryBusy(ctx context.Context, remove func() error) error {
	const patience = 10 * time.Second
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := remove()
		if err == nil || !busy(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (last: %w)", ctx.Err(), err)
		case <-deadline.C:
			return err
		case <-tick.C:
		}
	}
}

// busy tells a refusal that passes: still in use, or a removal already under way.
func busy(err error) bool {
	text := err.Error()
	return errdefs.IsConflict(err) ||
		strings.Contains(text, "has active endpoints") || // networks: the engine answers "forbidden"
		strings.Contains(text, "is in use") ||
		strings.Contains(text, "device or resource busy")
}
