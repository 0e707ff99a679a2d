package container

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"testing"
)

func TestOwnerLabelsRoundTrip(t *testing.T) {
	for _, keep := range []bool{false, true} {
		o, err := NewOwner("run-1.a_b")
		if err != nil {
			t.Fatal(err)
		}
		o.Keep = keep
		got, err := ParseOwner(o.Labels())
		if err != nil || got != o {
			t.Errorf("got %+v, %v, want %+v", got, err, o)
		}
	}
}

func TestParseOwnerRefuses(t *testing.T) {
	if _, err := ParseOwner(map[string]string{"maintainer": "x"}); !errors.Is(err, ErrNotOwned) {
		t.Errorf("foreign labels: %v", err)
	}
	o, err := NewOwner("r")
	if err != nil {
		t.Fatal(err)
	}
	labels := maps.Clone(o.Labels())
	labels[LabelPID] = "many"
	if got, err := ParseOwner(labels); err == nil || errors.Is(err, ErrNotOwned) || got.Run != "r" {
		t.Errorf("damaged pid: %+v, %v", got, err)
	}
}

func TestNewOwnerRefusesBadRunIDs(t *testing.T) {
	for _, run := range []string{"", "a b", "../x", "-x", "ä"} {
		if _, err := NewOwner(run); err == nil {
			t.Errorf("accepted run id %q", run)
		}
	}
}

func TestOwnerLife(t *testing.T) {
	here := machine{host: "h", boot: "b2"}
	processes := map[int]string{10: "500"}
	startOf := func(pid int) (string, bool) { s, ok := processes[pid]; return s, ok }
	tests := []struct {
		name  string
		owner Owner
		want  Life
	}{
		{"runs", Owner{Host: "h", Boot: "b2", PID: 10, Start: "500"}, Alive},
		{"runs, keeps", Owner{Host: "h", Boot: "b2", PID: 10, Start: "500", Keep: true}, Alive},
		{"process gone", Owner{Host: "h", Boot: "b2", PID: 11, Start: "500"}, Dead},
		{"process id used again", Owner{Host: "h", Boot: "b2", PID: 10, Start: "400"}, Dead},
		{"before a reboot", Owner{Host: "h", Boot: "b1", PID: 10, Start: "500"}, Dead},
		{"another machine", Owner{Host: "i", Boot: "b1", PID: 11, Start: "500"}, Unknown},
		{"damaged labels", Owner{}, Unknown},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.owner.life(here, startOf); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestLifeOfRealProcesses(t *testing.T) {
	o, err := NewOwner("r")
	if err != nil {
		t.Fatal(err)
	}
	if life, err := o.Life(); err != nil || life != Alive {
		t.Errorf("this process: %v, %v", life, err)
	}
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatalf("needs sleep: %v", err)
	}
	start, ok := startOf(child.Process.Pid)
	if !ok {
		t.Fatal("no start time of a running child")
	}
	o.PID, o.Start = child.Process.Pid, start
	if life, err := o.Life(); err != nil || life != Alive {
		t.Errorf("running child: %v, %v", life, err)
	}
	if err := child.Process.Signal(os.Kill); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	if life, err := o.Life(); err != nil || life != Dead {
		t.Errorf("killed child: %v, %v", life, err)
	}
}
