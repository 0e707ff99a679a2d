package disk

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"conform/harness/internal/container"
)

// Slowed is a disk whose writes are throttled, until it is healed.
type Slowed struct {
	rack *Rack
	disk *Disk
	id   string // of the container
	rate int64

	mu     sync.Mutex
	healed bool
	took   time.Duration // of the measured write
	wrote  int64
}

// blkio finds the controller's folder of the container $1 and the device number of the disk $2. Both versions of cgroups
// are tried. Throttling of version 1 only holds up those who write directly or fsync, as databases and brokers do.
const blkio = `
	g=/conform/blkio; mkdir -p $g
	if ! mountpoint -q $g; then mount -t cgroup -o blkio none $g 2>/dev/null || mount -t cgroup2 none $g; fi
	dir=$(find $g -type d -name "*$1*" | head -n 1)
	[ -n "$dir" ] || { echo "no cgroup of container $1" >&2; exit 1; }
	dev=$(mountpoint -d "$2")
	limit() {
		if [ -e "$dir/blkio.throttle.write_bps_device" ]; then echo "$dev $1" > "$dir/blkio.throttle.write_bps_device"
		elif [ -e "$dir/io.max" ]; then
			if [ "$1" = 0 ]; then echo "$dev wbps=max" > "$dir/io.max"; else echo "$dev wbps=$1" > "$dir/io.max"; fi
		else echo "this kernel throttles no block devices" >&2; exit 1; fi
	}
`

// Slow limits what the container may write to a disk, in bytes per second (>= 64 KiB), and proves it by a timed write of
// one second's worth from within the container's own group. The error wraps ErrUnavailable where the kernel cannot.
func (r *Rack) Slow(ctx context.Context, name string, c *container.Container, rate int64) (*Slowed, error) {
	d := r.Disk(name)
	if d == nil {
		return nil, fmt.Errorf("slow disk: no disk is named %q", name)
	}
	const least = 64 << 10
	if rate < least {
		return nil, fmt.Errorf("slow disk %s: %d bytes per second are fewer than %d", name, rate, least)
	}
	s := &Slowed{rack: r, disk: d, id: c.ID, rate: rate}
	if _, err := r.sh(ctx, blkio+`limit "$3"`, c.ID, d.dir(), strconv.FormatInt(rate, 10)); err != nil {
		return nil, fmt.Errorf("slow disk %s: %w", name, unavailable(ctx, err))
	}
	if err := s.measure(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("slow disk %s: %w", name, err), s.Heal(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// measure times a direct write of a second's worth: a shell of the helper joins the group for it.
func (s *Slowed) measure(ctx context.Context) error {
	blocks := s.rate / 4096
	out, err := s.rack.sh(ctx, blkio+`
		echo $$ > "$dir/cgroup.procs"
		a=$(date +%s%N)
		dd if=/dev/zero of="$2/.conform-probe" bs=4096 count="$3" oflag=direct 2>/dev/null
		b=$(date +%s%N)
		rm -f "$2/.conform-probe"; echo $((b - a))`,
		s.id, s.disk.dir(), strconv.FormatInt(blocks, 10))
	if err != nil {
		return err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if err != nil {
		return fmt.Errorf("read time of a write %q: %w", out, err)
	}
	s.took, s.wrote = time.Duration(ns), blocks*4096
	return nil
}

// Evidence tells whether the throttle holds: a write took at least half as long as the limit makes it take.
func (s *Slowed) Evidence() (bit bool, detail string) {
	want := time.Duration(float64(s.wrote) / float64(s.rate) * float64(time.Second))
	return s.took >= want/2, fmt.Sprintf("%s: writing %d bytes took %s at a limit of %d bytes per second", s.disk.Name, s.wrote, s.took.Round(time.Millisecond), s.rate)
}

// Heal takes the limit away. A container that is gone took it with it. It may run twice.
func (s *Slowed) Heal(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.healed {
		return nil
	}
	if _, err := s.rack.sh(ctx, blkio+`limit 0`, s.id, s.disk.dir()); err != nil {
		if exit := new(container.ExitError); !errors.As(err, &exit) || !strings.Contains(exit.Stderr, "no cgroup") {
			return fmt.Errorf("heal slow disk %s: %w", s.disk.Name, err)
		}
	}
	s.healed = true
	return nil
}
