package disk

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"conform/harness/internal/container"
)

var (
	// ErrUnavailable says that this machine cannot have such disks, and why: no loop devices, no rights, no ext4.
	ErrUnavailable = errors.New("disks that can fail are not available")
	// ErrNoSpace says that the engine's disk has no room for the images.
	ErrNoSpace = errors.New("no space for disk images")
	// ErrDisk says that a disk does not do what a disk must: it is ours, not the broker.
	ErrDisk = errors.New("disk does not work")
)

//go:embed helper.pl
var helperScript []byte

const (
	helperFile = "/conform/helper.pl"
	imagesDir  = "/images" // of the helper: where the images' volume is mounted
	disksDir   = "/disks"  // of the helper: where disks are mounted
	// mountOptions keep the journal from being committed behind the writers' backs every 5 s.
	mountOptions = "commit=600"
)

// Spec is one disk.
type Spec struct {
	Name string // unique in the rack: letters, digits, '-'
	MiB  int    // size; the image is sparse, so most of it is never used
}

// Disk is one disk of a rack.
type Disk struct {
	Name   string
	Volume *container.Volume // to be mounted by the broker's container; its root folder is empty at first

	image      string // file name of the image that is mounted
	generation int
}

func (d *Disk) dir() string { return path.Join(disksDir, d.Name) }

// Rack is the disks of one cluster. Its methods may be used from several goroutines; those on one disk must not overlap.
type Rack struct {
	engine *container.Engine
	owner  container.Owner
	helper *container.Container
	images *container.Volume
	disks  []*Disk

	mu     sync.Mutex
	synced time.Time
}

// Open makes the disks and mounts them. name is unique within the run. The error wraps ErrUnavailable where the machine
// cannot, ErrNoSpace where the images do not fit; nothing is left then.
func Open(ctx context.Context, e *container.Engine, owner container.Owner, name string, specs ...Spec) (_ *Rack, err error) {
	r := &Rack{engine: e, owner: owner}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make disks: %w", err), r.Remove(context.WithoutCancel(ctx)))
		}
	}()
	if r.images, err = e.NewVolume(ctx, owner, name); err != nil {
		return nil, err
	}
	images, err := r.images.Path(ctx)
	if err != nil {
		return nil, err
	}
	r.helper, err = e.NewContainer(ctx, owner, container.Spec{
		Name: name + "-helper", Image: e.Tools, Entrypoint: []string{"sleep", "infinity"}, LoopDevices: true,
		Mounts: map[string]*container.Volume{imagesDir: r.images},
		Files:  []container.File{{Path: helperFile, Content: helperScript}},
	})
	if err != nil {
		return nil, err
	}
	if err := r.helper.Start(ctx); err != nil {
		return nil, unavailable(ctx, err) // the engine's machine has no loop devices to hand in
	}
	if err := r.room(ctx, specs); err != nil {
		return nil, err
	}
	for _, s := range specs {
		d := &Disk{Name: s.Name, image: s.Name + ".0"}
		if _, err := r.sh(ctx, `cd "$1"; truncate -s "$3M" "$2"; mkfs.ext4 -q -b 4096 -m 0 -E nodiscard "$2"; `+attach+`rmdir "$5/lost+found"`,
			imagesDir, d.image, fmt.Sprint(s.MiB), s.Name, d.dir(), mountOptions); err != nil {
			return nil, unavailable(ctx, err)
		}
		if d.Volume, err = e.NewDeviceVolume(ctx, owner, name+"-"+s.Name, path.Join(images, s.Name), "ext4", mountOptions); err != nil {
			return nil, err
		}
		r.disks = append(r.disks, d)
	}
	return r, r.tryEngine(ctx)
}

// unavailable says that the machine cannot, unless the caller has given up.
func unavailable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return errors.Join(ErrUnavailable, err)
}

// attach mounts the image $2 at $5 and makes the link $4 to its device, by which the engine finds it. The loop device goes
// by itself with the last mount.
const attach = `mkdir -p "$5"; mount -o "loop,$6" "$2" "$5"; ln -sfn "$(losetup -n -O NAME -j "$2")" "$4"; `

// sh runs a shell script in the helper.
func (r *Rack) sh(ctx context.Context, script string, args ...string) (string, error) {
	return r.helper.Exec(ctx, append([]string{"sh", "-ec", script, "sh"}, args...)...)
}

// perl runs a command of the helper's script and returns its lines, split into fields.
func (r *Rack) perl(ctx context.Context, args ...string) ([][]string, error) {
	out, err := r.helper.Exec(ctx, append([]string{"perl", helperFile}, args...)...)
	var lines [][]string
	for line := range strings.Lines(out) {
		lines = append(lines, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	return lines, err
}

// room checks that all images fit, filled to the brim, beside the fresh copy of the largest.
func (r *Rack) room(ctx context.Context, specs []Spec) error {
	out, err := r.sh(ctx, `df --output=avail -BM "$1" | tail -n 1 | tr -dc 0-9`, imagesDir)
	if err != nil {
		return err
	}
	var free, need, largest int
	if _, err := fmt.Sscan(out, &free); err != nil {
		return fmt.Errorf("read free space %q: %w", out, err)
	}
	for _, s := range specs {
		need += s.MiB
		largest = max(largest, s.MiB)
	}
	if need += largest; free < need {
		return fmt.Errorf("%w: %d MiB free where the container engine keeps its volumes, %d MiB needed", ErrNoSpace, free, need)
	}
	return nil
}

// tryEngine checks that the engine mounts the same file system that the helper sees.
func (r *Rack) tryEngine(ctx context.Context) error {
	if len(r.disks) == 0 {
		return nil
	}
	d := r.disks[0]
	const marker = ".conform-disk"
	if _, err := r.sh(ctx, `touch "$1"`, path.Join(d.dir(), marker)); err != nil {
		return unavailable(ctx, err)
	}
	if _, err := d.Volume.Run(ctx, "rm", "/volume/"+marker); err != nil {
		return unavailable(ctx, err)
	}
	return nil
}

// Disk returns a disk by name, nil if there is none.
func (r *Rack) Disk(name string) *Disk {
	if i := slices.IndexFunc(r.disks, func(d *Disk) bool { return d.Name == name }); i >= 0 {
		return r.disks[i]
	}
	return nil
}

// pick returns the named disks and where the helper has them.
func (r *Rack) pick(names []string) (disks []*Disk, dirs []string, err error) {
	for _, name := range names {
		d := r.Disk(name)
		if d == nil {
			return nil, nil, fmt.Errorf("no disk is named %q", name)
		}
		disks, dirs = append(disks, d), append(dirs, d.dir())
	}
	return disks, dirs, nil
}

// Sync makes everything durable that has been written to any of the disks. Call it after the set-up: what brokers write
// there without fsync would be lost too.
func (r *Rack) Sync(ctx context.Context) error {
	script := ""
	args := make([]string, 0, len(r.disks))
	for i, d := range r.disks {
		script += fmt.Sprintf(`sync -f "$%d"; `, i+1)
		args = append(args, d.dir())
	}
	began := time.Now() // what is written while it runs may or may not be in it
	if _, err := r.sh(ctx, script, args...); err != nil {
		return fmt.Errorf("sync disks: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced = began
	return nil
}

func (r *Rack) sinceSync() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.synced.IsZero() {
		return 0
	}
	return time.Since(r.synced)
}

// Probe checks that the disks take a write and give it back. The error wraps ErrDisk: a node that does not start on a disk
// that works has itself to blame.
func (r *Rack) Probe(ctx context.Context, names ...string) error {
	_, dirs, err := r.pick(names)
	if err != nil {
		return err
	}
	if _, err := r.perl(ctx, append([]string{"probe"}, dirs...)...); err != nil {
		return fmt.Errorf("probe disks: %w: %w", ErrDisk, err)
	}
	return nil
}

// Remove removes helper, volumes and images; mounts and loop devices go with them. The containers that use the disks must
// be gone. It goes on after an error and may run twice.
func (r *Rack) Remove(ctx context.Context) error {
	var errs []error
	if r.helper != nil {
		errs = append(errs, r.helper.Remove(ctx))
	}
	for _, d := range r.disks {
		errs = append(errs, d.Volume.Remove(ctx))
	}
	if r.images != nil {
		errs = append(errs, r.images.Remove(ctx))
	}
	return errors.Join(errs...)
}
