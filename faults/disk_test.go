package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"conform/harness/system"
)

// diskCluster is a cluster whose nodes have disks, or why not.
type diskCluster struct {
	cluster
	diskless error
	dark     error // why the power cannot be cut
}

func (d *diskCluster) Nodes() []system.Node { return []system.Node{node("a"), node("b")} }

func (d *diskCluster) DiskBacked() error { return d.diskless }

func (d *diskCluster) CutPower(_ context.Context, nodes []system.Node) (system.Injection, error) {
	if d.dark != nil {
		return nil, d.dark
	}
	for _, n := range nodes {
		d.note("cut " + n.Name())
	}
	return running{&d.cluster, "canaries", true}, nil
}

func (d *diskCluster) FillDisk(_ context.Context, n system.Node, leave int64) (system.Injection, error) {
	d.note(fmt.Sprintf("fill %s %d", n.Name(), leave))
	return running{&d.cluster, n.Name(), true}, nil
}

func (d *diskCluster) ThrottleDisk(_ context.Context, n system.Node, rate int64) (system.Injection, error) {
	d.note(fmt.Sprintf("slow %s %d", n.Name(), rate))
	return running{&d.cluster, n.Name(), true}, nil
}

func (d *diskCluster) RotFile(_ context.Context, n system.Node, r system.Rot) (string, error) {
	return fmt.Sprintf("%s %+v", n.Name(), r), nil
}

func (d *diskCluster) WireCounts(n system.Node, client string) system.WireCounts {
	return system.WireCounts{Confirmed: int64(len(n.Name() + client))}
}

func TestPowerIsCutAtOnceAndSaysWhatWasConfirmed(t *testing.T) {
	c := &diskCluster{}
	both := []system.Node{node("a"), node("b")}
	i, err := All()["power-cut"].Inject(t.Context(), system.Strike{Cluster: c, Targets: both, Clients: []string{"guarded."}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := i.Evidence(t.Context())
	if err != nil || !e.Bit || !strings.HasSuffix(e.AtRisk, "messages confirmed since all was made durable: guarded 18") {
		t.Errorf("evidence %+v, %v", e, err)
	}
	if err := i.Heal(t.Context()); err != nil || strings.Join(c.log, ",") != "cut a,cut b,heal canaries" {
		t.Errorf("log %v, %v", c.log, err)
	}
}

func TestPowerCutThatFailsStartsTheNodes(t *testing.T) {
	c := &diskCluster{dark: errors.New("will not unmount")}
	_, err := All()["power-cut"].Inject(t.Context(), system.Strike{Cluster: c, Targets: []system.Node{node("a")}})
	if !errors.Is(err, c.dark) || strings.Join(c.log, ",") != "start a" {
		t.Errorf("log %v, %v", c.log, err)
	}
}

func TestDiskFaultsNeedDisks(t *testing.T) {
	none := &diskCluster{diskless: fmt.Errorf("no loop devices: %w", system.ErrNotApplicable)}
	for _, name := range []string{"power-cut", "disk-full", "slow-disk"} {
		for _, c := range []system.Cluster{&cluster{}, none} {
			if err := All()[name].Supports(c); !errors.Is(err, system.ErrNotApplicable) {
				t.Errorf("%s on %T: %v, want not applicable", name, c, err)
			}
		}
		if err := All()[name].Supports(&diskCluster{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := All()["bit-rot"].Supports(none); err != nil {
		t.Errorf("bit-rot needs no disk of its own: %v", err)
	}
}

func TestDiskFaultParameters(t *testing.T) {
	for _, tc := range []struct {
		fault  string
		params map[string]string
		want   string // in the log or the evidence; empty = a usage error
	}{
		{"disk-full", nil, "fill a 0"},
		{"disk-full", map[string]string{"leave": "4096"}, "fill a 4096"},
		{"disk-full", map[string]string{"leave": "none"}, ""},
		{"slow-disk", nil, "slow a 262144"},
		{"slow-disk", map[string]string{"rate": "-1"}, ""},
		{"bit-rot", map[string]string{"file": "*/1.log", "offset": "7"}, "Pattern:*/1.log Offset:7 Cut:0"},
		{"bit-rot", map[string]string{"file": "1.log", "cut": "9"}, "Pattern:1.log Offset:0 Cut:9"},
		{"bit-rot", nil, ""},
	} {
		c := &diskCluster{}
		i, err := All()[tc.fault].Inject(t.Context(), system.Strike{Cluster: c, Targets: []system.Node{node("a")}, Params: tc.params})
		if tc.want == "" {
			if !errors.Is(err, system.ErrUsage) {
				t.Errorf("%s %v: %v, want a usage error", tc.fault, tc.params, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %v: %v", tc.fault, tc.params, err)
			continue
		}
		e, err := i.Evidence(t.Context())
		if got := strings.Join(c.log, ",") + e.Detail; err != nil || !strings.Contains(got, tc.want) {
			t.Errorf("%s %v: %q, %v", tc.fault, tc.params, got, err)
		}
	}
}
