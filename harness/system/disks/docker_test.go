package disks_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"conform/harness/internal/container"
	"conform/harness/internal/disk"
	"conform/harness/system"
	"conform/harness/system/disks"
)

func TestMain(m *testing.M) {
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	os.Exit(m.Run())
}

// bench makes a node, a container that only sleeps, with a disk; or skips where the machine cannot.
func bench(t *testing.T) (*disks.Rack, disks.Node) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Docker: not with -short")
	}
	miss := t.Skipf
	if os.Getenv("CI") == "true" {
		miss = t.Fatalf
	}
	e, err := container.Connect(t.Context())
	if err != nil {
		miss("needs Docker: %v", err)
	}
	if _, ok, err := e.Image(t.Context(), e.Tools); err != nil || !ok {
		miss("needs the tools image: conform prepare (%v)", err)
	}
	owner, err := container.NewOwner("disks-" + strings.ToLower(rand.Text()[:8]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := e.RemoveRun(ctx, owner.Run); err != nil {
			t.Error(err)
		}
	})
	r, err := disks.Open(t.Context(), e, owner, "rack", disk.Spec{Name: "data", MiB: 64})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.DiskBacked(); err != nil {
		_, loop := os.Stat("/dev/loop-control")
		if os.Getenv("CI") == "true" && os.Getuid() == 0 && loop == nil {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	c, err := e.NewContainer(t.Context(), owner, container.Spec{
		Name: "node", Image: e.Tools, Entrypoint: []string{"sleep", "1000"}, Mounts: map[string]*container.Volume{"/data": r.Volume("data")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r, disks.Node{Name: "node", Container: c, Data: "data", Start: c.Start}
}

// TestWhoIsToBlame starts a node that does not come up after a power cut, once on a disk that works and once on one that does
// not.
func TestWhoIsToBlame(t *testing.T) {
	r, n := bench(t)
	broken := errors.New("does not boot")
	start := n.Start
	n.Start = func(context.Context) error { return broken }
	cut, err := r.CutPower(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := cut.Evidence(t.Context()); err != nil || !e.Bit || e.Count != 1 {
		t.Errorf("evidence %+v, %v", e, err)
	}
	if err := cut.Heal(t.Context()); !errors.Is(err, broken) || errors.Is(err, disk.ErrDisk) || !strings.Contains(err.Error(), "not the disk") {
		t.Errorf("the disk works: %v", err)
	}
	if err := start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Container.Exec(t.Context(), "perl", "-e", `open(my $d, "<", "/data") or die $!; ioctl($d, 0x8004587d, my $m = pack("L", 2)) or exit 1`); err == nil {
		t.Fatal("a node has the rights of the helper")
	}
	full, err := r.Fill(t.Context(), n, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := cut.Heal(t.Context()); !errors.Is(err, broken) || !errors.Is(err, disk.ErrDisk) {
		t.Errorf("the disk takes nothing: %v", err)
	}
	n.Start = start
	if err := full.Heal(t.Context()); !errors.Is(err, broken) {
		t.Errorf("a node that does not start: %v", err)
	}
}

func TestStrikesOnWhatIsDown(t *testing.T) {
	r, n := bench(t)
	rot := system.Rot{Pattern: "*"}
	if _, err := disks.Rot(t.Context(), n, r.Volume("data"), rot); !errors.Is(err, system.ErrUsage) {
		t.Errorf("damaged a running node: %v", err)
	}
	if _, err := n.Container.Exec(t.Context(), "sh", "-c", "echo precious > /data/file"); err != nil {
		t.Fatal(err)
	}
	if err := n.Container.Signal(t.Context(), "KILL"); err != nil {
		t.Fatal(err)
	}
	if proof, err := disks.Rot(t.Context(), n, r.Volume("data"), rot); err != nil || !strings.Contains(proof, "file") {
		t.Errorf("proof %q, %v", proof, err)
	}
	if _, err := r.CutPower(t.Context(), n); err == nil {
		t.Error("the power of a node that is down was cut")
	}
	if _, err := r.CutPower(t.Context()); !errors.Is(err, system.ErrUsage) {
		t.Errorf("the power of nobody: %v", err)
	}
}
