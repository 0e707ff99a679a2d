package container

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// Volume is a disk of one node, kept when its container is removed.
type Volume struct {
	engine *Engine
	owner  Owner
	Name   string // engine-wide name
}

// NewVolume makes an empty volume. name is unique within the run.
func (e *Engine) NewVolume(ctx context.Context, owner Owner, name string) (*Volume, error) {
	return e.newVolume(ctx, owner, name, client.VolumeCreateOptions{})
}

func (e *Engine) newVolume(ctx context.Context, owner Owner, name string, o client.VolumeCreateOptions) (*Volume, error) {
	o.Name, o.Labels = owner.name(name), owner.Labels()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("create volume %s: %w", o.Name, err)
	}
	whole, cancel := making(ctx)
	defer cancel()
	if _, err := e.api.VolumeCreate(whole, o); err != nil {
		return nil, fmt.Errorf("create volume %s: %w", o.Name, err)
	}
	return &Volume{engine: e, owner: owner, Name: o.Name}, nil
}

// NewDeviceVolume makes a volume that is a file system of its own. The engine mounts the device, a path on its machine that
// is looked up at each mount, while a container that uses the volume runs, and unmounts it after the last of them.
func (e *Engine) NewDeviceVolume(ctx context.Context, owner Owner, name, device, fs, options string) (*Volume, error) {
	return e.newVolume(ctx, owner, name, client.VolumeCreateOptions{
		Driver: "local", DriverOpts: map[string]string{"type": fs, "device": device, "o": options},
	})
}

// Path is where the volume's files lie on the engine's machine.
func (v *Volume) Path(ctx context.Context) (string, error) {
	r, err := v.engine.api.VolumeInspect(ctx, v.Name, client.VolumeInspectOptions{})
	if err != nil {
		return "", fmt.Errorf("inspect volume %s: %w", v.Name, err)
	}
	return r.Volume.Mountpoint, nil
}

// Remove removes the volume once no container uses it. Removing it twice is no error.
func (v *Volume) Remove(ctx context.Context) error { return v.engine.removeVolume(ctx, v.Name) }

func (e *Engine) removeVolume(ctx context.Context, name string) error {
	err := retryBusy(ctx, func() error {
		_, err := e.api.VolumeRemove(ctx, name, client.VolumeRemoveOptions{Force: true})
		return err
	})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove volume %s: %w", name, err)
	}
	return nil
}

// Run runs a command in a container of its own with the volume at /volume, and returns its standard output. A command that
// ends with another code than 0 is an *ExitError. Meant for while the node is down: the engine does not check that.
func (v *Volume) Run(ctx context.Context, argv ...string) (string, error) {
	out, err := v.engine.RunTools(ctx, v.owner, ToolsSpec{Argv: argv, Mounts: map[string]*Volume{"/volume": v}})
	if err != nil {
		return out, fmt.Errorf("work on volume %s: %w", v.Name, err)
	}
	return out, nil
}

// Empty wipes everything in the volume, hidden files too, as a replaced disk would. Use it while the node is down. It
// returns how many files and folders were removed; emptying twice is no error.
func (v *Volume) Empty(ctx context.Context) (removed int, err error) {
	out, err := v.Run(ctx, "sh", "-c", "find /volume -mindepth 1 | wc -l && find /volume -mindepth 1 -delete && sync -f /volume")
	if err != nil {
		return 0, err
	}
	removed, err = strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		return 0, fmt.Errorf("empty volume %s: count %q: %w", v.Name, out, err)
	}
	return removed, nil
}
