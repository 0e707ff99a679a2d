package disk

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
)

// ballast is the file that fills a disk.
const ballast = ".conform-ballast"

// Filled is a disk that was filled up, until it is freed.
type Filled struct {
	rack *Rack
	disk *Disk

	mu    sync.Mutex
	freed bool
	left  int64
	size  int64
}

// Fill takes all free space of a disk but for leave bytes. It costs the machine's own disk next to nothing: the ballast is
// reserved, not written.
func (r *Rack) Fill(ctx context.Context, name string, leave int64) (*Filled, error) {
	d := r.Disk(name)
	if d == nil {
		return nil, fmt.Errorf("fill disk: no disk is named %q", name)
	}
	f := &Filled{rack: r, disk: d}
	// Reserving all at once fails when the file's own extents need a block; what is left then is filled by writing.
	_, err := r.sh(ctx, `
		avail() { stat -f -c '%a %S' "$1" | { read -r a s; echo $((a * s - $3)); }; }
		n=$(avail "$@"); step=$((1 << 20))
		while [ "$n" -gt "$step" ]; do fallocate -l "$n" "$2" 2>/dev/null && break; n=$((n - step)); done
		n=$(avail "$@")
		if [ "$3" -eq 0 ]; then dd if=/dev/zero bs=4096 oflag=append conv=notrunc of="$2" 2>/dev/null || true
		elif [ "$n" -ge 4096 ]; then dd if=/dev/zero bs=4096 count=$((n / 4096)) oflag=append conv=notrunc of="$2" 2>/dev/null || true; fi`,
		d.dir(), path.Join(d.dir(), ballast), strconv.FormatInt(leave, 10))
	if err == nil {
		err = f.look(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("fill disk %s: %w", name, err)
	}
	return f, nil
}

func (f *Filled) look(ctx context.Context) error {
	out, err := f.rack.sh(ctx, `stat -f -c '%a %S' "$1"; stat -c %s "$2" 2>/dev/null || echo 0`, f.disk.dir(), path.Join(f.disk.dir(), ballast))
	if err != nil {
		return err
	}
	var blocks, size, bytes int64
	if _, err := fmt.Sscan(strings.ReplaceAll(out, "\n", " "), &blocks, &size, &bytes); err != nil {
		return fmt.Errorf("read free space %q: %w", out, err)
	}
	f.left, f.size = blocks*size, bytes
	return nil
}

// Left returns how many bytes are free and how large the ballast is, now or, once freed, before it was.
func (f *Filled) Left(ctx context.Context) (free, ballast int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.freed {
		if err := f.look(ctx); err != nil {
			return 0, 0, fmt.Errorf("look at disk %s: %w", f.disk.Name, err)
		}
	}
	return f.left, f.size, nil
}

// Free gives the space back, which takes a sync: ext4 does not use freed blocks again before. It may run twice.
func (f *Filled) Free(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.freed {
		return nil
	}
	if _, err := f.rack.sh(ctx, `rm -f "$1"; sync -f "$2"`, path.Join(f.disk.dir(), ballast), f.disk.dir()); err != nil {
		return fmt.Errorf("free disk %s: %w", f.disk.Name, err)
	}
	f.freed = true
	return nil
}
