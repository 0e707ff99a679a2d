package harness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/system/memory"
)

func TestTargetsFromLiveMetadata(t *testing.T) {
	c, err := memory.System{}.Start(t.Context(), system.Spec{Nodes: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	leader := c.Nodes()[3]
	if err := c.Create(t.Context(), system.DestinationSpec{Name: "d", Leader: leader}); err != nil {
		t.Fatal(err)
	}
	resolve := func(seed uint64) map[plan.Role][]string {
		n := &nemesis{w: &wave{cluster: &running{Cluster: c}, arms: []*armRun{{destination: "d"}}}, plan: plan.Plan{Seed: seed}}
		got := map[plan.Role][]string{}
		for _, role := range []plan.Role{
			plan.Leader, plan.Follower, plan.OtherFollower, plan.Followers, plan.LeaderAndOther, plan.Controller, plan.One, plan.Majority, plan.All,
		} {
			nodes, err := n.resolve(t.Context(), role)
			if err != nil {
				t.Fatalf("%s: %v", role, err)
			}
			got[role] = nodeNames(nodes)
			if len(slices.Compact(slices.Sorted(slices.Values(got[role])))) != len(nodes) {
				t.Errorf("%s names a node twice: %v", role, got[role])
			}
		}
		return got
	}
	drawn := map[string]bool{}
	for seed := range uint64(40) {
		got := resolve(seed)
		if fmt.Sprint(got) != fmt.Sprint(resolve(seed)) {
			t.Fatal("a seed does not replay its targets")
		}
		for role, n := range map[plan.Role]int{
			plan.Leader: 1, plan.Follower: 1, plan.OtherFollower: 1, plan.Followers: 4, plan.LeaderAndOther: 4, plan.Controller: 1, plan.One: 1, plan.Majority: 3, plan.All: 5,
		} {
			if len(got[role]) != n {
				t.Errorf("%s is %v, want %d nodes", role, got[role], n)
			}
		}
		follower := got[plan.Follower][0]
		if got[plan.Leader][0] != "memory-4" || follower == "memory-4" || got[plan.OtherFollower][0] == follower ||
			slices.Contains(got[plan.Followers], "memory-4") || slices.Contains(got[plan.LeaderAndOther], follower) || got[plan.LeaderAndOther][0] != "memory-4" {
			t.Errorf("seed %d: %v", seed, got)
		}
		drawn[follower] = true
	}
	if len(drawn) < 3 {
		t.Errorf("forty seeds drew the followers %v", drawn)
	}
}

func TestTargetsOfArmsThatAreLedApart(t *testing.T) {
	c, err := memory.System{}.Start(t.Context(), system.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	var arms []*armRun
	for i, n := range c.Nodes()[:2] {
		name := fmt.Sprint("d", i)
		if err := c.Create(t.Context(), system.DestinationSpec{Name: name, Leader: n}); err != nil {
			t.Fatal(err)
		}
		arms = append(arms, &armRun{destination: name, arm: Arm{Name: name}})
	}
	n := &nemesis{w: &wave{cluster: &running{Cluster: c}, arms: arms}, plan: plan.Plan{Targets: map[string]plan.Role{"l": plan.Leader}}, targets: map[string][]system.Node{}}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := n.target(ctx, "l"); !errors.Is(err, errCapped) || !strings.Contains(err.Error(), "different nodes") {
		t.Errorf("error %v", err)
	}
}

// All kinds of state and all actions that need no more than the memory system, in one plan.
func TestStatesAndActions(t *testing.T) {
	t.Parallel()
	var seen Env
	sc := Scenario{
		Name: "everything", Load: quickLoad,
		Targets: map[string]plan.Role{"leader": plan.Leader, "rest": plan.Followers, "all": plan.All, "one": plan.One},
		Arms:    []Arm{{Name: "a", Role: Observation, Reason: "no control"}, {Name: "b", Role: Observation, Reason: "no control"}},
		Steps: []plan.Step{
			{Name: "warm", Until: []plan.State{{Kind: plan.Confirmed, N: 50}, {Kind: plan.Claimed, N: 50}, {Kind: plan.Sent, N: 50}, {Kind: plan.LeaderIs, Target: "leader"}, {Kind: plan.LeaderNot, Target: "rest"}, {Kind: plan.InSync, Target: "all"}}},
			{Name: "waited", Until: []plan.State{{Kind: plan.Elapsed, Hold: 100 * time.Millisecond}}},
			{Name: "frozen", Inject: &plan.Exposure{Fault: "paused", Target: "leader"}},
			{Name: "waiting", Until: []plan.State{{Kind: plan.InFlight, N: 50}, {Kind: plan.Bit, Since: "frozen"}}},
			{Name: "killed", Inject: &plan.Exposure{Fault: "killed", Target: "leader"}},
			{Name: "moved", Until: []plan.State{
				{Kind: plan.LeaderNot, Target: "leader"},
				{Kind: plan.LeaderIs, Target: "rest"},
				{Kind: plan.LeaderAny},
				{Kind: plan.InSync, Target: "rest"},
				{Kind: plan.SentTo, N: 20, Since: "killed", Target: "rest", Arms: []string{"a"}},
				{Kind: plan.ConfirmedBy, N: 20, Since: "killed", Target: "rest"},
			}},
			{Name: "started", Do: DoRestart, Target: "leader"},
			{Name: "whole", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Custom, Name: "odd"}}},
			{Name: "danced", Do: "dance", Target: "one"},
			{Name: "good", Do: DoBaseline, Cap: time.Second},
			{Name: "stopped", Do: DoStopLoad, Arms: []string{"a"}},
			{Name: "ended", Until: []plan.State{{Kind: plan.Ended, Arms: []string{"a"}}}},
		},
		Gates: map[string]Gate{"odd": func(_ context.Context, e Env, _ plan.State) (bool, string, error) {
			return e.Counts("a").Confirmed > 0, "odd enough", nil
		}},
		Actions: map[string]Action{"dance": func(_ context.Context, e Env, s plan.Step) (string, error) {
			seen = e
			return s.Target + " danced", nil
		}},
		Evidence: ledger.Evidence{Before: 50, InFlight: 50, InFlightAt: "killed"},
	}
	cfg := testConfig(t, testSuite(sc))
	// The paused node was killed, which ended the pause; its heal must be no error.
	res := run(t, cfg)
	got := res.Suites[0].Scenarios[0]
	if got.Status != audit.Observed {
		t.Errorf("%v: %v", got.Status, got.Reasons)
	}
	for _, s := range got.Repeats[0].Steps {
		if !s.Reached {
			t.Errorf("%s was not reached: %s", s.Name, s.Seen)
		}
	}
	if len(seen.Targets["one"]) != 1 || seen.Destinations["b"] == "" || seen.Clients["b"] == "" || seen.Counts("b").Confirmed == 0 || seen.Counts("nobody").Sent != 0 {
		t.Errorf("what an action sees: %+v", seen)
	}
}

// A fault that is limited to one arm is in the ledger of that arm only, and asked for there only.
func TestFaultOfOneArm(t *testing.T) {
	t.Parallel()
	sc := killed("one-arm", guarded(), control(memory.DuplicateOnReconnect, "duplicate-store", ""))
	name := sc.Arms[1].Name
	sc.Steps = []plan.Step{
		{Name: "moment", Until: []plan.State{{Kind: plan.Confirmed, N: 100}}, Inject: &plan.Exposure{Fault: "moment", Target: "leader"}},
		{Name: "dropped", Inject: &plan.Exposure{Fault: "dropped", Target: "leader", Arms: []string{name}}},
		{Name: "bitten", Until: []plan.State{{Kind: plan.Bit, Since: "dropped"}}},
		{Name: "healed", Heal: "dropped"},
	}
	sc.Evidence.After = 0
	res := run(t, testConfig(t, testSuite(sc)))
	got := res.Suites[0].Scenarios[0]
	arms := got.Repeats[0].Arms
	if got.Status != audit.Pass || !slices.Equal(arms[0].Header.Evidence.Bites, []string{"moment"}) || !slices.Equal(arms[1].Header.Evidence.Bites, []string{"moment", "dropped"}) {
		t.Errorf("%v (%v), bites %v and %v", got.Status, got.Reasons, arms[0].Header.Evidence.Bites, arms[1].Header.Evidence.Bites)
	}
}
