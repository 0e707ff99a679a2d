package process

import (
	"context"
	"errors"
	"fmt"
	"time"

	"conform/harness/internal/container"
	"conform/harness/system"
)

// pollEvery is the pause between two looks at a process that ends.
const pollEvery = 100 * time.Millisecond

// sigkill is the exit code of what was ended by SIGKILL.
const sigkill = 137

// Process is the main process of a node's container.
type Process struct {
	Name      string // of the node
	Container *container.Container
}

// Running says that the process is there, frozen or not. An error that wraps container.ErrNotRunning says that it is not.
func (p Process) Running(ctx context.Context) (container.State, error) {
	s, err := p.Container.State(ctx)
	if err != nil {
		return s, err
	}
	if !s.Running {
		return s, fmt.Errorf("%s is down (exit code %d): %w", p.Name, s.ExitCode, container.ErrNotRunning)
	}
	return s, nil
}

// Incarnation tells by pid and time of its start which process it is, if there is one.
func (p Process) Incarnation(ctx context.Context) (string, error) {
	s, err := p.Container.State(ctx)
	return s.Incarnation(), err
}

// Kill ends it by SIGKILL, also if it is paused, and returns once it is gone. It must run.
func (p Process) Kill(ctx context.Context) (string, error) {
	before, err := p.Running(ctx)
	if err != nil {
		return "", fmt.Errorf("kill: %w", err)
	}
	if err := p.Container.Signal(ctx, "KILL"); err != nil {
		return "", err
	}
	// An engine on cgroup v1 delivers the signal to a frozen process only once it is thawed.
	if before.Paused {
		if err := p.Container.Unpause(ctx); err != nil {
			return "", err
		}
	}
	return p.gone(ctx, before.PID)
}

// Stop asks it to end, and it must end in time: a stop that turns into a kill is an error. signals are sent first, where the
// image's own stop signal is not the right one.
func (p Process) Stop(ctx context.Context, grace time.Duration, signals ...string) (string, error) {
	before, err := p.Running(ctx)
	if err != nil {
		return "", fmt.Errorf("stop: %w", err)
	}
	for _, s := range signals {
		if err := p.Container.Signal(ctx, s); err != nil {
			return "", err
		}
	}
	if err := p.Container.Stop(ctx, grace); err != nil {
		return "", err
	}
	proof, err := p.gone(ctx, before.PID)
	if err != nil {
		return "", err
	}
	if s, err := p.Container.State(ctx); err != nil || s.ExitCode == sigkill {
		return proof, errors.Join(err, fmt.Errorf("stop %s: not ended after %s and killed", p.Name, grace))
	}
	return proof, nil
}

// gone waits until the process is gone and tells its exit code.
func (p Process) gone(ctx context.Context, pid int) (string, error) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		s, err := p.Container.State(ctx)
		if err == nil && !s.Running {
			return fmt.Sprintf("process %d of %s gone, exit code %d", pid, p.Name, s.ExitCode), nil
		}
		if err == nil {
			err = fmt.Errorf("process %d still runs", s.PID)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", fmt.Errorf("wait until %s is gone: %w (last: %w)", p.Name, context.Cause(ctx), err)
		}
	}
}

// Pause freezes it and its children (the cgroup freezer): its kernel goes on accepting connections and taking bytes until the
// sockets' buffers are full.
func (p Process) Pause(ctx context.Context) (string, error) {
	if err := p.Container.Pause(ctx); err != nil {
		return "", err
	}
	s, err := p.Running(ctx)
	if err != nil {
		return "", fmt.Errorf("pause: %w", err)
	}
	if !s.Paused {
		return "", fmt.Errorf("pause %s: process %d still runs", p.Name, s.PID)
	}
	return fmt.Sprintf("process %d of %s frozen", s.PID, p.Name), nil
}

// LoseDisk empties a volume of a node that is down. One that still runs is ErrUsage; one that had nothing to lose is an error.
func (p Process) LoseDisk(ctx context.Context, disk *container.Volume) (string, error) {
	if s, err := p.Container.State(ctx); err != nil || s.Running {
		return "", errors.Join(err, fmt.Errorf("lose disk of %s: it still runs: %w", p.Name, system.ErrUsage))
	}
	removed, err := disk.Empty(ctx)
	if err != nil {
		return "", fmt.Errorf("lose disk of %s: %w", p.Name, err)
	}
	if removed == 0 {
		return "", fmt.Errorf("lose disk of %s: it was empty already", p.Name)
	}
	return fmt.Sprintf("%d files and folders on the data disk of %s, now 0", removed, p.Name), nil
}
