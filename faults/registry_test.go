package faults

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"conform/harness/system"
)

type node string

func (n node) Name() string { return string(n) }

// cluster has exactly the capabilities that these tests strike with and writes down what was asked.
type cluster struct {
	system.Cluster
	mu     sync.Mutex
	log    []string
	refuse string // the node whose strike fails
}

func (c *cluster) note(s string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, s)
}

func (c *cluster) System() string { return "stub" }

func (c *cluster) Kill(_ context.Context, n system.Node) (string, error) {
	if n.Name() == c.refuse {
		return "", errors.New("no such process")
	}
	c.note("kill " + n.Name())
	return "exit 137", nil
}

func (c *cluster) Start(_ context.Context, n system.Node) error {
	c.note("start " + n.Name())
	return nil
}

type running struct {
	c    *cluster
	name string
	bit  bool
}

func (r running) Evidence(context.Context) (system.Evidence, error) {
	return system.Evidence{Bit: r.bit, Count: 3, Detail: r.name}, nil
}

func (r running) Heal(context.Context) error {
	r.c.note("heal " + r.name)
	return nil
}

func (c *cluster) DropResponse(_ context.Context, n system.Node, r system.WireRule) (system.Injection, error) {
	name := n.Name() + "/" + r.Client
	if name == c.refuse {
		return nil, errors.New("link closed")
	}
	return running{c, name, r.Client != "idle"}, nil
}

func TestStrikeThatFailsHalfWayHealsWhatItHit(t *testing.T) {
	c := &cluster{refuse: "b"}
	_, err := All()["node-killed"].Inject(t.Context(), system.Strike{Cluster: c, Targets: []system.Node{node("a"), node("b")}})
	if err == nil {
		t.Fatal("a strike that failed on one node reported success")
	}
	if log := strings.Join(c.log, ","); !strings.Contains(log, "start a") {
		t.Errorf("node a was not started again: %s", log)
	}

	c = &cluster{refuse: "a/second"}
	_, err = All()["response-dropped"].Inject(t.Context(), system.Strike{
		Cluster: c, Targets: []system.Node{node("a")}, Clients: []string{"first", "second"},
	})
	if err == nil || strings.Join(c.log, ",") != "heal a/first" {
		t.Errorf("err %v, log %v: the rule of the first client was left armed", err, c.log)
	}
}

func TestEveryArmMustBeBitten(t *testing.T) {
	for _, tc := range []struct {
		clients []string
		want    bool
	}{{[]string{"guarded", "control"}, true}, {[]string{"guarded", "idle"}, false}} {
		i, err := All()["response-dropped"].Inject(t.Context(), system.Strike{
			Cluster: &cluster{}, Targets: []system.Node{node("a")}, Clients: tc.clients,
		})
		if err != nil {
			t.Fatal(err)
		}
		e, err := i.Evidence(t.Context())
		if err != nil || e.Bit != tc.want {
			t.Errorf("clients %v: bit %v, err %v; want %v", tc.clients, e.Bit, err, tc.want)
		}
	}
}

func TestOneOfSeveralMustBite(t *testing.T) {
	bit, idle, none := system.Evidence{Bit: true}, system.Evidence{Idle: true}, system.Evidence{}
	for _, tc := range []struct {
		of   []system.Evidence
		want bool
	}{
		{[]system.Evidence{bit, bit}, true},
		{[]system.Evidence{bit, idle}, true},
		{[]system.Evidence{bit, none}, false},
		{[]system.Evidence{idle, idle}, false},
		{nil, false},
	} {
		var s several
		for _, e := range tc.of {
			s = append(s, shown{e})
		}
		if e, err := s.Evidence(t.Context()); err != nil || e.Bit != tc.want {
			t.Errorf("%+v: %+v, %v; want %v", tc.of, e, err, tc.want)
		}
	}
}

// shown is an injection with that evidence.
type shown struct{ e system.Evidence }

func (s shown) Evidence(context.Context) (system.Evidence, error) { return s.e, nil }
func (shown) Heal(context.Context) error                          { return nil }

func TestKilledNodesProveAndHeal(t *testing.T) {
	c := &cluster{}
	i, err := All()["node-killed"].Inject(t.Context(), system.Strike{Cluster: c, Targets: []system.Node{node("a"), node("b")}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := i.Evidence(t.Context())
	if err != nil || !e.Bit || e.Count != 2 || !strings.Contains(e.Detail, "a: exit 137") {
		t.Errorf("evidence %+v, err %v", e, err)
	}
	if err := i.Heal(t.Context()); err != nil {
		t.Error(err)
	}
	if log := strings.Join(c.log, ","); !strings.Contains(log, "start a") || !strings.Contains(log, "start b") {
		t.Errorf("not all started again: %s", log)
	}
}

func TestMissingCapabilityIsNotApplicable(t *testing.T) {
	for _, name := range []string{"node-paused", "node-isolated", "link-cut", "disk-lost", "node-stopped", "request-refused"} {
		if err := All()[name].Supports(&cluster{}); !errors.Is(err, system.ErrNotApplicable) {
			t.Errorf("%s: %v, want not applicable", name, err)
		}
	}
	if err := All()["node-killed"].Supports(&cluster{}); err != nil {
		t.Error(err)
	}
}

func TestBadParametersAreUsageErrors(t *testing.T) {
	for _, params := range []map[string]string{{"nth": "many"}, {"count": "-1"}, {"behind": "x"}} {
		_, err := All()["response-dropped"].Inject(t.Context(), system.Strike{
			Cluster: &cluster{}, Targets: []system.Node{node("a")}, Params: params,
		})
		if !errors.Is(err, system.ErrUsage) {
			t.Errorf("%v: %v, want a usage error", params, err)
		}
	}
	if err := All()["link-cut"].CheckParams(map[string]string{"mod": "reset"}); !errors.Is(err, system.ErrUsage) {
		t.Errorf("unknown parameter: %v", err)
	}
}

func TestFileNamesAreFaultNames(t *testing.T) {
	for name, f := range All() {
		if _, err := os.Stat(name + ".go"); err != nil {
			t.Errorf("fault %s has no file of its name: %v", name, err)
		}
		if f.Summary == "" || f.Proof == "" || f.Supports == nil || f.Inject == nil {
			t.Errorf("fault %s is incomplete: %+v", name, f)
		}
	}
}
