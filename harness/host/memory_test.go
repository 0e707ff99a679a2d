package host

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestFits(t *testing.T) {
	now := time.Unix(1000, 0)
	fresh := func(mib int64) reservation { return reservation{mib, now.Add(-time.Second)} }
	settled := func(mib int64) reservation { return reservation{mib, now.Add(-time.Hour)} }
	tests := []struct {
		name   string
		mib    int64
		memory memory
		others []reservation
		ok     bool
	}{
		{"alone", 2000, memory{8000, 6000}, nil, true},
		{"more than is free", 2000, memory{8000, 1999}, nil, false},
		{"all of the machine", 7500, memory{8000, 8000}, nil, false},
		{"beside one that has not taken its memory yet", 2000, memory{8000, 5000}, []reservation{fresh(3001)}, false},
		{"beside one that has", 2000, memory{8000, 5000}, []reservation{settled(3001)}, true},
		{"beside one that has, but may use more", 4000, memory{8000, 5000}, []reservation{settled(3300)}, false},
		{"nothing", 0, memory{8000, 0}, nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := fits(tt.mib, tt.memory, tt.others, now)
			if tt.ok != (err == nil) || err != nil && !errors.Is(err, ErrNoMemory) {
				t.Errorf("got %v, want ok = %t", err, tt.ok)
			}
		})
	}
}

// ownCache gives the test a cache folder of its own.
func ownCache(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	t.Setenv("HOME", dir) // where the cache folder is derived from it
}

func TestReservationsCountTheLivingOnly(t *testing.T) {
	ownCache(t)
	ctx := t.Context()
	dir, err := cachePath("memory")
	if err != nil {
		t.Fatal(err)
	}
	m, now := memory{total: 1000, available: 1000}, time.Now()
	release, others, err := tryReserve(ctx, dir, 600, m, now)
	if err != nil || others != 0 {
		t.Fatalf("first: %d others, %v", others, err)
	}
	if _, others, err := tryReserve(ctx, dir, 600, m, now); !errors.Is(err, ErrNoMemory) || others != 1 {
		t.Errorf("second beside the first: %d others, %v", others, err)
	}
	release()
	release()
	if names, _ := filepath.Glob(filepath.Join(dir, "run-*")); len(names) != 0 {
		t.Errorf("left after the release: %v", names)
	}
	// What a killed run leaves: a file that nobody locks.
	dead := filepath.Join(dir, "run-dead")
	if err := os.WriteFile(dead, []byte("900 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	release, others, err = tryReserve(ctx, dir, 600, m, now)
	if err != nil || others != 0 {
		t.Errorf("beside a dead one: %d others, %v", others, err)
	} else {
		release()
	}
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead reservation is still there: %v", err)
	}
}

func TestReserveWaitsForOthersOnly(t *testing.T) {
	ownCache(t)
	log := slog.New(slog.DiscardHandler)
	if _, err := Reserve(t.Context(), 1<<40, log); !errors.Is(err, ErrNoMemory) {
		t.Fatalf("more than the machine has: got %v, want ErrNoMemory at once", err)
	}
	m, err := memoryNow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	half := m.available * 6 / 10
	first, err := Reserve(t.Context(), half, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Reserve(ctx, half, log); !errors.Is(err, ErrNoMemory) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for the first: got %v", err)
	}
	time.AfterFunc(50*time.Millisecond, first)
	second, err := Reserve(t.Context(), half, log)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	second()
}
