package disk_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conform/harness/internal/container"
	"conform/harness/internal/disk"
)

const childRun = "CONFORM_TEST_CHILD_RUN"

func TestMain(m *testing.M) {
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	if run := os.Getenv(childRun); run != "" {
		child(run)
	}
	os.Exit(m.Run())
}

// child makes disks, says so, and waits to be killed.
func child(run string) {
	ctx := context.Background()
	e, err := container.Connect(ctx)
	if err == nil {
		var owner container.Owner
		if owner, err = container.NewOwner(run); err == nil {
			_, err = disk.Open(ctx, e, owner, "rack", disk.Spec{Name: "a", MiB: 64}, disk.Spec{Name: "b", MiB: 64})
		}
	}
	fmt.Println("made", err)
	select {}
}

// engine returns the engine, or skips. In CI it is an error not to have one.
func engine(t *testing.T) (*container.Engine, container.Owner) {
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
	if _, ok, err := e.Image(t.Context(), e.Tools); err != nil {
		t.Fatal(err)
	} else if !ok {
		miss("needs the tools image: conform prepare")
	}
	owner, err := container.NewOwner("disk-" + strings.ToLower(rand.Text()[:8]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.RemoveRun(cleanup(t), owner.Run); err != nil {
			t.Error(err)
		}
	})
	return e, owner
}

func cleanup(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// unavailable skips: this machine cannot. In CI, as root and with loop devices, it has to.
func unavailable(t *testing.T, err error) {
	t.Helper()
	_, loop := os.Stat("/dev/loop-control")
	if os.Getenv("CI") == "true" && os.Getuid() == 0 && loop == nil {
		t.Fatal(err)
	}
	t.Skip(err)
}

// open makes disks, or skips where the machine cannot.
func open(t *testing.T, e *container.Engine, owner container.Owner, specs ...disk.Spec) *disk.Rack {
	t.Helper()
	r, err := disk.Open(t.Context(), e, owner, "rack", specs...)
	if errors.Is(err, disk.ErrUnavailable) {
		unavailable(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := r.Remove(cleanup(t)); err != nil {
				t.Error(err)
			}
		}
		nothingLeft(t, e, owner.Run)
	})
	return r
}

// nothingLeft checks that neither objects nor mounts nor loop devices of the run are there. Loop devices are looked for by
// the images' folder, which names the run.
func nothingLeft(t *testing.T, e *container.Engine, run string) {
	t.Helper()
	objects, err := e.List(cleanup(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.Owner.Run == run {
			t.Errorf("%s %s is left", o.Kind, o.Name)
		}
	}
	if mounts, err := os.ReadFile("/proc/mounts"); err == nil && strings.Contains(string(mounts), "conform-"+run+"-") {
		t.Errorf("mounts are left:\n%s", mounts)
	}
	// Only those of deleted files can be of this run: other tests and runs have their images.
	deadline := time.Now().Add(5 * time.Second)
	for {
		var left []string
		backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
		for _, f := range backing {
			if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), "deleted") {
				left = append(left, f+": "+strings.TrimSpace(string(b)))
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("loop devices are left: %v", left)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// writer runs a shell script with the disk at /data.
func writer(t *testing.T, e *container.Engine, owner container.Owner, r *disk.Rack, name, script string) *container.Container {
	t.Helper()
	c, err := e.NewContainer(t.Context(), owner, container.Spec{
		Name: "writer-" + name, Image: e.Tools, Entrypoint: []string{"sh", "-c", script},
		Mounts: map[string]*container.Volume{"/data": r.Disk(name).Volume},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Remove(cleanup(t)) })
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func power(cs ...*container.Container) disk.Power {
	each := func(f func(context.Context, *container.Container) error) func(context.Context) error {
		return func(ctx context.Context) error {
			var errs []error
			for _, c := range cs {
				errs = append(errs, f(ctx, c))
			}
			return errors.Join(errs...)
		}
	}
	return disk.Power{
		Freeze: each(func(ctx context.Context, c *container.Container) error { return c.Pause(ctx) }),
		Kill: each(func(ctx context.Context, c *container.Container) error {
			// A frozen process takes the signal once it is thawed (cgroup v1).
			return errors.Join(c.Signal(ctx, "KILL"), c.Unpause(ctx))
		}),
	}
}

// waitFor repeats a command in a container until it works.
func waitFor(t *testing.T, c *container.Container, argv ...string) string {
	t.Helper()
	for {
		out, err := c.Exec(t.Context(), argv...)
		if err == nil {
			return out
		}
		if state, stateErr := c.State(t.Context()); stateErr != nil || !state.Running {
			t.Fatal(err, c.Tail(t.Context(), 10))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestCut checks on three disks at once what a power cut keeps: what was synced before, what was fsynced since; and what
// it drops: what was only written, or appended to a synced file. Each disk is cut twice.
func TestCut(t *testing.T) {
	e, owner := engine(t)
	names := []string{"a", "b", "c"}
	var specs []disk.Spec
	for _, n := range names {
		specs = append(specs, disk.Spec{Name: n, MiB: 64})
	}
	r := open(t, e, owner, specs...)
	const script = `
		cat /data/dir/* 2>/dev/null; ls /data/dir 2>/dev/null
		mkdir -p /data/dir; echo before >> /data/dir/synced; touch /data/ready
		while [ ! -e /data/go ]; do sleep 0.05; done
		echo fsynced > /data/dir/fsynced; sync /data/dir/fsynced
		echo appended >> /data/dir/synced; echo written > /data/dir/written; touch /data/done
		while :; do sleep 1; done`
	var cs []*container.Container
	for _, n := range names {
		c := writer(t, e, owner, r, n, script)
		cs = append(cs, c)
		waitFor(t, c, "test", "-e", "/data/ready")
	}
	for round := range 2 {
		if err := r.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, c := range cs {
			waitFor(t, c, "touch", "/data/go")
			waitFor(t, c, "test", "-e", "/data/done")
		}
		began := time.Now()
		o, err := r.Cut(t.Context(), names, power(cs...))
		if err != nil {
			t.Fatal(err)
		}
		bit, detail := o.Evidence()
		t.Logf("cut and remounted in %s: %s", time.Since(began), detail)
		if !bit {
			t.Errorf("no evidence: %s", detail)
		}
		if o.Took > 2*time.Second {
			t.Errorf("the cut took %s", o.Took)
		}
		if d := o.Dirty(); d >= 0 && d < int64(len(names))*4096 {
			t.Errorf("%d bytes were not on disk", d)
		}
		for i, n := range names {
			out, err := r.Disk(n).Volume.Run(t.Context(), "sh", "-c", "cat /volume/dir/synced; cat /volume/dir/fsynced; ls -A /volume /volume/dir; wc -c < /volume/dir/written || true")
			if err != nil {
				t.Fatal(err)
			}
			// The journal may have the new length of a file whose last block was there before: the bytes are zeros then.
			out = strings.ReplaceAll(out, "\x00", "")
			if !strings.HasPrefix(out, strings.Repeat("before\n", round+1)+"fsynced\n") || strings.Contains(out, "appended") || strings.Contains(out, ".conform") {
				t.Errorf("disk %s holds:\n%s", n, out)
			}
			// The next round starts from here.
			if _, err := r.Disk(n).Volume.Run(t.Context(), "sh", "-c", "rm -f /volume/go /volume/done /volume/ready /volume/dir/written"); err != nil {
				t.Fatal(err)
			}
			if err := cs[i].Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			waitFor(t, cs[i], "test", "-e", "/data/ready")
		}
	}
	if err := r.Probe(t.Context(), names...); err != nil {
		t.Error(err)
	}
	for _, c := range cs {
		if err := c.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestCutWhileSomebodyHoldsTheMount leaves a process on the dead file system: the next start must not get that one.
func TestCutWhileSomebodyHoldsTheMount(t *testing.T) {
	e, owner := engine(t)
	r := open(t, e, owner, disk.Spec{Name: "a", MiB: 64})
	c := writer(t, e, owner, r, "a", `echo kept > /data/kept; sync /data/kept; sleep 1000`)
	holder, err := e.NewContainer(t.Context(), owner, container.Spec{
		Name: "holder", Image: e.Tools, Entrypoint: []string{"sh", "-c", "exec 3> /data/held; sleep 1000"},
		Mounts: map[string]*container.Volume{"/data": r.Disk("a").Volume},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Remove(cleanup(t)) })
	if err := holder.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, c, "test", "-s", "/data/kept")
	o, err := r.Cut(t.Context(), []string{"a"}, power(c))
	if err != nil {
		t.Fatal(err)
	}
	if bit, detail := o.Evidence(); !bit {
		t.Error(detail)
	}
	if err := r.Probe(t.Context(), "a"); err != nil {
		t.Errorf("the fresh copy: %v", err)
	}
	if _, err := holder.Exec(t.Context(), "sh", "-c", "echo x > /data/x"); err == nil {
		t.Error("the holder still writes: it was not on the dead file system")
	}
}

func TestProbeTellsADeadDisk(t *testing.T) {
	e, owner := engine(t)
	r := open(t, e, owner, disk.Spec{Name: "a", MiB: 64})
	if err := r.Kill(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := r.Probe(t.Context(), "a"); !errors.Is(err, disk.ErrDisk) {
		t.Errorf("got %v", err)
	}
}

func TestNoSpaceIsSaid(t *testing.T) {
	e, owner := engine(t)
	_, err := disk.Open(t.Context(), e, owner, "rack", disk.Spec{Name: "a", MiB: 1 << 30})
	if errors.Is(err, disk.ErrUnavailable) {
		unavailable(t, err)
	}
	if !errors.Is(err, disk.ErrNoSpace) {
		t.Errorf("got %v", err)
	}
	nothingLeft(t, e, owner.Run)
}

func TestMachineThatCannotIsTold(t *testing.T) {
	e, owner := engine(t)
	// A file system of no size stands for a kernel without loop devices or ext4: the helper's command fails.
	_, err := disk.Open(t.Context(), e, owner, "rack", disk.Spec{Name: "a"})
	if !errors.Is(err, disk.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	nothingLeft(t, e, owner.Run)
}

func TestFill(t *testing.T) {
	e, owner := engine(t)
	r := open(t, e, owner, disk.Spec{Name: "a", MiB: 64})
	c := writer(t, e, owner, r, "a", `sleep 1000`)
	for _, leave := range []int64{0, 1 << 20} {
		f, err := r.Fill(t.Context(), "a", leave)
		if err != nil {
			t.Fatal(err)
		}
		free, ballast, err := f.Left(t.Context())
		if err != nil || free > leave+64<<10 || free < leave-64<<10 || ballast < 30<<20 {
			t.Errorf("free %d, ballast %d, %v", free, ballast, err)
		}
		if _, err := c.Exec(t.Context(), "dd", "if=/dev/zero", "of=/data/y", "bs=1M", "count=2"); err == nil || !strings.Contains(err.Error(), "No space left") {
			t.Errorf("a write to the full disk: %v", err)
		}
		for range 2 {
			if err := f.Free(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Exec(t.Context(), "dd", "if=/dev/zero", "of=/data/x", "bs=1M", "count=2"); err != nil {
			t.Error(err)
		}
	}
}

func TestSlow(t *testing.T) {
	e, owner := engine(t)
	r := open(t, e, owner, disk.Spec{Name: "a", MiB: 64})
	c := writer(t, e, owner, r, "a", `sleep 1000`)
	timed := func() time.Duration {
		began := time.Now()
		if _, err := c.Exec(t.Context(), "dd", "if=/dev/zero", "of=/data/x", "bs=64k", "count=16", "conv=fsync"); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	before := timed()
	s, err := r.Slow(t.Context(), "a", c, 512<<10)
	if errors.Is(err, disk.ErrUnavailable) {
		unavailable(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	bit, detail := s.Evidence()
	t.Log(detail)
	if !bit {
		t.Error("it did not bite")
	}
	during := timed()
	for range 2 {
		if err := s.Heal(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	after := timed()
	t.Logf("1 MiB with fsync: %s before, %s during, %s after", before, during, after)
	if during < time.Second || after > during/2 {
		t.Error("the throttle did not hold, or was not lifted")
	}
}

func TestRot(t *testing.T) {
	e, owner := engine(t)
	v, err := e.NewVolume(t.Context(), owner, "data") // any volume will do
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Run(t.Context(), "sh", "-c", "mkdir /volume/t-0; printf abcdef > /volume/t-0/1.log; touch /volume/t-0/2.log"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		decay disk.Decay
		said  string
		holds string
	}{
		{disk.Decay{Pattern: "t-*/*.log", Offset: 8}, "byte 2 of t-0/1.log (6 bytes) changed from 99 to 98", "abbdef"},
		{disk.Decay{Pattern: "t-0/1.log", Cut: 2}, "t-0/1.log cut from 6 to 4 bytes", "abbd"},
	} {
		said, err := disk.Rot(t.Context(), v, tt.decay)
		if err != nil || said != tt.said {
			t.Errorf("said %q, %v; want %q", said, err, tt.said)
		}
		if holds, err := v.Run(t.Context(), "cat", "/volume/t-0/1.log"); err != nil || holds != tt.holds {
			t.Errorf("holds %q, %v; want %q", holds, err, tt.holds)
		}
	}
	for _, d := range []disk.Decay{{Pattern: "none"}, {Pattern: "t-0/1.log", Cut: 5}} {
		if said, err := disk.Rot(t.Context(), v, d); err == nil {
			t.Errorf("%+v: said %q", d, said)
		}
	}
}

// TestNothingIsLeftAfterCancel gives up at different moments of making disks, and in the middle of a power cut.
func TestNothingIsLeftAfterCancel(t *testing.T) {
	e, owner := engine(t)
	if err := open(t, e, owner).Remove(t.Context()); err != nil { // skips where there are no disks
		t.Fatal(err)
	}
	for _, after := range []time.Duration{100 * time.Millisecond, 400 * time.Millisecond, 700 * time.Millisecond, time.Second} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		r, err := disk.Open(ctx, e, owner, "rack", disk.Spec{Name: "a", MiB: 64}, disk.Spec{Name: "b", MiB: 64})
		cancel()
		if err == nil {
			err = r.Remove(cleanup(t))
		} else if errors.Is(err, disk.ErrUnavailable) {
			t.Errorf("given up after %s, and taken for a machine that cannot: %v", after, err)
		} else {
			err = nil
		}
		if err != nil {
			t.Errorf("after %s: %v", after, err)
		}
		nothingLeft(t, e, owner.Run)
	}
	r := open(t, e, owner, disk.Spec{Name: "a", MiB: 64})
	c := writer(t, e, owner, r, "a", `sleep 1000`)
	ctx, cancel := context.WithCancel(t.Context())
	p := power(c)
	freeze := p.Freeze
	p.Freeze = func(ctx context.Context) error {
		defer cancel()
		return freeze(ctx)
	}
	if o, err := r.Cut(ctx, []string{"a"}, p); err != nil {
		t.Errorf("a cut that has begun did not run to its end: %v", err)
	} else if bit, detail := o.Evidence(); !bit {
		t.Error(detail)
	}
	if s, err := c.State(t.Context()); err != nil || s.Running {
		t.Errorf("frozen and left so: %+v, %v", s, err)
	}
	if err := c.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNothingIsLeftAfterSIGKILL kills a process that has disks mounted, and removes what its owner left, as a sweep does.
func TestNothingIsLeftAfterSIGKILL(t *testing.T) {
	e, owner := engine(t)
	run := owner.Run + "-child"
	open(t, e, owner, disk.Spec{Name: "a", MiB: 64}) // skips where there are no disks; must be left alone
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRun+"="+run)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.RemoveRun(cleanup(t), run) })
	line, _ := bufio.NewReader(out).ReadString('\n')
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if line != "made <nil>\n" {
		t.Fatalf("the child said %q", line)
	}
	objects, err := e.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var strays []container.Object
	for _, o := range objects {
		if life, err := o.Owner.Life(); err == nil && life == container.Dead && o.Owner.Run == run {
			strays = append(strays, o)
		}
	}
	if len(strays) != 4 { // helper, images, two disks
		t.Errorf("the child left %v", strays)
	}
	if err := e.Remove(t.Context(), strays); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, e, run)
}
