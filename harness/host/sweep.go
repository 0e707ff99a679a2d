package host

import (
	"context"
	"fmt"
	"os"
	"time"

	"conform/harness/internal/container"
)

// Stray is something a run made and whose owner does not run any more, or cannot be seen from here.
type Stray struct {
	Kind string // "container", "network", "volume"
	Name string
	Run  string // run id
	// Dead is true when the owner is known to have ended. It is false when the owner was a process of another machine, or
	// of a container, that uses the same engine: nobody here can tell whether it still runs, so it is never removed.
	Dead bool
	// Kept is true when the run was asked to leave its cluster up (--keep).
	Kept bool
}

// Strays lists what is left of runs whose owner does not run any more, or cannot be seen from here.
func Strays(ctx context.Context) ([]Stray, error) {
	e, err := container.Connect(ctx)
	if err != nil {
		return nil, connectError(err)
	}
	objects, err := strays(ctx, e)
	if err != nil {
		return nil, err
	}
	list := make([]Stray, len(objects))
	for i, o := range objects {
		list[i] = o.stray()
	}
	return list, nil
}

// Sweep removes the strays of dead owners, but not what a run was asked to keep. A run calls it before it starts.
// It returns what it removed.
func Sweep(ctx context.Context) ([]Stray, error) { return sweep(ctx, false) }

// Clean removes the strays of dead owners, those kept on purpose too: doctor --clean. It returns what it removed.
func Clean(ctx context.Context) ([]Stray, error) { return sweep(ctx, true) }

func sweep(ctx context.Context, kept bool) ([]Stray, error) {
	e, err := container.Connect(ctx)
	if err != nil {
		return nil, connectError(err)
	}
	objects, err := strays(ctx, e)
	if err != nil {
		return nil, err
	}
	var remove []container.Object
	var removed []Stray
	for _, o := range objects {
		if removable(o.life, o.Owner.Keep, kept) {
			remove = append(remove, o.Object)
			removed = append(removed, o.stray())
		}
	}
	if err := e.Remove(ctx, remove); err != nil {
		return nil, &Error{Op: "remove strays", Err: err, Fix: "docker ps -a --filter label=" + container.LabelRun}
	}
	return removed, dropRootfs(ctx)
}

// removable decides over a stray: kept says whether those left on purpose go as well.
func removable(life container.Life, keep, kept bool) bool {
	return life == container.Dead && (kept || !keep)
}

// ownedObject is an object whose owner is not known to run.
type ownedObject struct {
	container.Object
	life container.Life
}

func (o ownedObject) stray() Stray {
	return Stray{Kind: string(o.Kind), Name: o.Name, Run: o.Owner.Run, Dead: o.life == container.Dead, Kept: o.Owner.Keep}
}

// strays lists the objects whose owner is not alive.
func strays(ctx context.Context, e *container.Engine) ([]ownedObject, error) {
	objects, err := e.List(ctx)
	if err != nil {
		return nil, &Error{Op: "look for strays", Err: err}
	}
	var list []ownedObject
	for _, o := range objects {
		life, err := o.Owner.Life()
		if err != nil {
			return nil, &Error{Op: "look for strays", Err: err}
		}
		if life != container.Alive {
			list = append(list, ownedObject{Object: o, life: life})
		}
	}
	return list, nil
}

// dropRootfs removes the base system a killed build left, unless a build is under way.
func dropRootfs(ctx context.Context) error {
	dir, err := cachePath("rootfs")
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // held means: a build is under way, and it cleans up itself
	defer cancel()
	unlock, err := lockFile(ctx, "build.lock", nil)
	if err != nil {
		return nil
	}
	defer unlock()
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove half-made base system: %w", err)
	}
	return nil
}
