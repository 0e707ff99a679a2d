package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v4/mem"

	"conform/harness/internal/container"
)

// ErrNoMemory says that a run does not fit into the machine's memory and waiting would not help, or has not helped in time.
var ErrNoMemory = errors.New("not enough memory")

// allocation is how long a run takes, at most, to really use what it reserved: until then the memory that looks available
// is promised to it, later its use shows in the machine's own figures.
const allocation = 2 * time.Minute

// Reserve waits until mib MiB of memory can be used without overcommitting, and reserves them until release is called or
// this process ends. Runs of the same user count each other's reservations. When no other run holds memory, a lack of it
// is an error at once. The error wraps ErrNoMemory, also when ctx ends while waiting.
func Reserve(ctx context.Context, mib int64, log *slog.Logger) (release func(), err error) {
	dir, err := cachePath("memory")
	if err != nil {
		return nil, &Error{Op: "reserve memory", Err: err}
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	said := false
	for {
		memory, err := memoryNow(ctx)
		if err != nil {
			return nil, &Error{Op: "reserve memory", Err: err}
		}
		release, others, err := tryReserve(ctx, dir, mib, memory, time.Now())
		if err == nil {
			return release, nil
		}
		if !errors.Is(err, ErrNoMemory) || others == 0 {
			return nil, &Error{Op: "reserve memory", Err: err, Fix: "free some memory, or run fewer suites at once"}
		}
		if !said {
			log.Info("waiting for the memory of other runs", "need_mib", mib, "reason", err)
			said = true
		}
		select {
		case <-ctx.Done():
			return nil, &Error{Op: "reserve memory", Err: fmt.Errorf("%w (%w while waiting for other runs)", err, ctx.Err()), Fix: "wait for the other runs to end"}
		case <-tick.C:
		}
	}
}

// memory is what the machine, or the smaller engine's machine, has, in MiB.
type memory struct{ total, available int64 }

func memoryNow(ctx context.Context) (memory, error) {
	v, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return memory{}, fmt.Errorf("read memory: %w", err)
	}
	m := memory{total: int64(v.Total >> 20), available: int64(v.Available >> 20)}
	// Docker Desktop's engine lives in a virtual machine with less memory than this one.
	if e, err := container.Connect(ctx); err == nil {
		if info, err := e.Info(ctx); err == nil && info.MemoryMiB > 0 && info.MemoryMiB < m.total-512 {
			m.available = min(m.available, info.MemoryMiB)
			m.total = info.MemoryMiB
		}
	}
	return m, nil
}

// reservation is one run's claim. Its file is locked as long as that run lives.
type reservation struct {
	mib  int64
	made time.Time
}

// fits decides whether mib more MiB fit beside the reservations of others.
func fits(mib int64, m memory, others []reservation, now time.Time) error {
	const headroom = 10 // percent of the machine left to everything else
	promised, pending := mib, int64(0)
	for _, r := range others {
		promised += r.mib
		if now.Sub(r.made) < allocation {
			pending += r.mib
		}
	}
	if limit := m.total * (100 - headroom) / 100; promised > limit {
		return fmt.Errorf("%w: %d MiB wanted by all runs together, %d MiB usable", ErrNoMemory, promised, limit)
	}
	if free := m.available - pending; mib > free {
		return fmt.Errorf("%w: %d MiB wanted, %d MiB free (%d MiB available, %d MiB of it promised to other runs)", ErrNoMemory, mib, free, m.available, pending)
	}
	return nil
}

// tryReserve makes a reservation when it fits, and returns how many other runs hold one.
func tryReserve(ctx context.Context, dir string, mib int64, m memory, now time.Time) (release func(), others int, err error) {
	unlock, err := lockFile(ctx, filepath.Join("memory", "lock"), nil)
	if err != nil {
		return nil, 0, err
	}
	defer unlock()
	held, err := reservations(dir)
	if err != nil {
		return nil, 0, err
	}
	if err := fits(mib, m, held, now); err != nil {
		return nil, len(held), err
	}
	f, err := os.CreateTemp(dir, "run-*")
	if err != nil {
		return nil, len(held), fmt.Errorf("write reservation: %w", err)
	}
	release = sync.OnceFunc(func() { // the file goes first: once its lock is free another run may remove it
		_ = os.Remove(f.Name())
		_ = f.Close()
	})
	if err := errors.Join(tryLock(f), write(f, fmt.Sprintf("%d %d\n", mib, now.UnixNano()))); err != nil {
		release()
		return nil, len(held), fmt.Errorf("write reservation: %w", err)
	}
	return release, len(held), nil
}

func write(f *os.File, s string) error {
	_, err := f.WriteString(s)
	return err
}

// reservations reads the reservations of runs that live, and removes those of runs that do not. The caller holds the lock.
func reservations(dir string) ([]reservation, error) {
	names, err := filepath.Glob(filepath.Join(dir, "run-*"))
	if err != nil {
		return nil, fmt.Errorf("list reservations: %w", err)
	}
	var list []reservation
	for _, name := range names {
		r, live, err := readReservation(name)
		if err != nil {
			return nil, err
		}
		if live {
			list = append(list, r)
		}
	}
	return list, nil
}

func readReservation(name string) (r reservation, live bool, err error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return reservation{}, false, nil // released just now
	}
	if err != nil {
		return reservation{}, false, fmt.Errorf("read reservation: %w", err)
	}
	defer f.Close()
	switch err := tryLock(f); {
	case err == nil: // nobody holds it: its run is dead
		return reservation{}, false, os.Remove(name)
	case !errors.Is(err, errLocked):
		return reservation{}, false, err
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return reservation{}, false, fmt.Errorf("read reservation: %w", err)
	}
	size, made, _ := strings.Cut(strings.TrimSpace(string(content)), " ")
	if r.mib, err = strconv.ParseInt(size, 10, 64); err != nil {
		return reservation{}, false, fmt.Errorf("read reservation %s: %w", name, err)
	}
	nanos, err := strconv.ParseInt(made, 10, 64)
	if err != nil {
		return reservation{}, false, fmt.Errorf("read reservation %s: %w", name, err)
	}
	r.made = time.Unix(0, nanos)
	return r, true, nil
}
