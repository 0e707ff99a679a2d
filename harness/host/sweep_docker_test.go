package host_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"conform/harness/host"
	"conform/harness/internal/container"
)

// TestSweepRemovesOnlyWhatDeadOwnersLeft makes three runs: one of this process, and two of a process that has ended, of
// which one was asked to keep its cluster.
func TestSweepRemovesOnlyWhatDeadOwnersLeft(t *testing.T) {
	e, _, live := prepared(t)
	ctx := t.Context()
	child := exec.Command(os.Args[0], "-test.run=^$")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	dead, kept := live, live
	dead.Run, dead.PID, dead.Start = live.Run+"-dead", child.Process.Pid, "1"
	kept.Run, kept.PID, kept.Start, kept.Keep = live.Run+"-kept", child.Process.Pid, "1", true
	for _, o := range []container.Owner{live, dead, kept} {
		t.Cleanup(func() { _ = e.RemoveRun(cleanup(t), o.Run) })
		network, err := e.NewNetwork(ctx, o, "net")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.NewVolume(ctx, o, "data"); err != nil {
			t.Fatal(err)
		}
		if _, err := e.NewPod(ctx, o, container.PodSpec{Name: "pod", Network: network}); err != nil {
			t.Fatal(err)
		}
	}
	left := func() []string {
		objects, err := e.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var runs []string
		for _, o := range objects {
			if strings.HasPrefix(o.Owner.Run, live.Run) && !slices.Contains(runs, o.Owner.Run) {
				runs = append(runs, o.Owner.Run)
			}
		}
		slices.Sort(runs)
		return runs
	}
	if got := left(); !slices.Equal(got, []string{live.Run, dead.Run, kept.Run}) {
		t.Fatalf("made: %v", got)
	}
	finding := findStrays(t, host.Doctor(ctx, host.DoctorOptions{}))
	if finding.OK || finding.Fix != "conform doctor --clean" || !strings.Contains(finding.Detail, dead.Run) || !strings.Contains(finding.Detail, "--keep") {
		t.Errorf("doctor's finding: %+v", finding)
	}

	removed, err := host.Sweep(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got := left(); !slices.Equal(got, []string{live.Run, kept.Run}) {
		t.Errorf("after the sweep: %v", got)
	}
	if n := len(slices.DeleteFunc(removed, func(s host.Stray) bool { return s.Run != dead.Run })); n != 3 {
		t.Errorf("the sweep says it removed %d things of the dead run, want 3", n)
	}
	if _, err := host.Clean(ctx); err != nil {
		t.Fatal(err)
	}
	if got := left(); !slices.Equal(got, []string{live.Run}) {
		t.Errorf("after the clean: %v", got)
	}
}

func findStrays(t *testing.T, findings []host.Finding) host.Finding {
	t.Helper()
	for _, f := range findings {
		if f.Name == "strays" {
			return f
		}
	}
	t.Fatalf("no finding about strays in %+v", findings)
	return host.Finding{}
}

func TestDoctorOnAPreparedMachine(t *testing.T) {
	prepared(t)
	for _, f := range host.Doctor(t.Context(), host.DoctorOptions{Dir: t.TempDir()}) {
		t.Logf("%+v", f)
		if f.OK != (f.Fix == "") {
			t.Errorf("%s: OK is %t but the fix is %q", f.Name, f.OK, f.Fix)
		}
		switch f.Name {
		case "engine", "API version", "image tools:1", "packet filter":
			if !f.OK {
				t.Errorf("not OK: %+v", f)
			}
		}
	}
}

func TestPrepareWithoutImages(t *testing.T) {
	prepared(t)
	if _, err := host.Prepare(t.Context(), host.Options{Source: host.Local, Images: map[string]string{"tools": "localhost/conform-none:1"}}); err == nil {
		t.Error("an image that cannot be had is no error")
	} else if !strings.Contains(err.Error(), "fix: ") {
		t.Errorf("no fix in: %v", err)
	}
}
