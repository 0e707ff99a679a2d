package disks_test

import (
	"errors"
	"fmt"
	"testing"

	"conform/harness/system"
	"conform/harness/system/disks"
)

func TestParseMiB(t *testing.T) {
	for value, want := range map[string]int{"64": 64, "512": 512} {
		if got, err := disks.ParseMiB(value); err != nil || got != want {
			t.Errorf("%s: %d, %v", value, got, err)
		}
	}
	for _, value := range []string{"", "63", "-1", "1G"} {
		if _, err := disks.ParseMiB(value); !errors.Is(err, system.ErrUsage) {
			t.Errorf("%q: %v", value, err)
		}
	}
}

func TestWithoutDisksNothingIsToBeDone(t *testing.T) {
	var none *disks.Rack
	if err := none.DiskBacked(); !errors.Is(err, system.ErrNotApplicable) {
		t.Error(err)
	}
	if v := none.Volume("a"); v != nil {
		t.Errorf("volume %v", v)
	}
	if err := errors.Join(none.Sync(t.Context()), none.Remove(t.Context())); err != nil {
		t.Error(err)
	}
	for name, strike := range map[string]func() (system.Injection, error){
		"power cut": func() (system.Injection, error) { return none.CutPower(t.Context(), disks.Node{}) },
		"full":      func() (system.Injection, error) { return none.Fill(t.Context(), disks.Node{}, 0) },
		"slow":      func() (system.Injection, error) { return none.Throttle(t.Context(), disks.Node{}, 1<<20) },
	} {
		if i, err := strike(); !errors.Is(err, system.ErrNotApplicable) {
			t.Error(fmt.Errorf("%s: %v, %w", name, i, err))
		}
	}
}
