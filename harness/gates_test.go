package harness

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"conform/harness/audit"
	"conform/harness/plan"
	"conform/harness/system"
)

func stepsOf(t *testing.T, res Result, arm string) []StepResult {
	t.Helper()
	for _, r := range res.Suites[0].Scenarios[0].Repeats {
		for _, a := range r.Arms {
			if a.Name == arm {
				return r.Steps
			}
		}
	}
	t.Fatalf("no repeat ran arm %s", arm)
	return nil
}

// A step that is limited to arms of another wave is none of this wave's business: waiting for it
// would hold a fault far longer than the plan says.
func TestAStepOfOtherArmsDoesNotHoldThisWave(t *testing.T) {
	res, err := Run(t.Context(), testConfig(t, testSuite(Scenario{
		Name: "steps", Load: quickLoad, Targets: map[string]plan.Role{"rest": plan.Followers},
		Arms: []Arm{{Name: "a", Role: Observation, Reason: "the only arm of this wave"}, {
			Name: "b", Role: Observation, Reason: "runs on another cluster", Node: map[string]string{"x": "1"},
		}},
		Steps: []plan.Step{
			{Name: "begin"},
			{Name: "never", Until: []plan.State{{Kind: plan.LeaderIs, Target: "rest"}}, Arms: []string{"b"}, Cap: 50 * time.Millisecond},
		},
	})))
	if err != nil {
		t.Fatal(err)
	}
	sc := res.Suites[0].Scenarios[0]
	var a audit.ArmResult
	for _, r := range sc.Repeats[0].Arms {
		if r.Name == "a" {
			a = r.Verdict.Arm
		}
	}
	if a != audit.Held {
		t.Errorf("arm a: %v, held up by a step of arm b: %v", a, sc.Reasons)
	}
}

func TestElapsedCountsFromTheStepItNames(t *testing.T) {
	const hold = 600 * time.Millisecond
	res, err := Run(t.Context(), testConfig(t, testSuite(Scenario{
		Name: "elapsed", Load: quickLoad, Arms: []Arm{{Name: "a", Role: Observation, Reason: "the gates are what is tested"}},
		Steps: []plan.Step{
			{Name: "begin"},
			{Name: "mid", Until: []plan.State{{Kind: plan.Elapsed, Hold: hold, Since: "begin"}}},
			{Name: "over", Until: []plan.State{{Kind: plan.Elapsed, Hold: hold, Since: "begin"}}},
		},
	})))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stepsOf(t, res, "a") {
		if s.Name == "over" && s.Took >= hold {
			t.Errorf("waited %s more for a time that had passed since %q", s.Took, "begin")
		}
	}
}

type struck struct{}

func (struck) Evidence(context.Context) (system.Evidence, error) {
	return system.Evidence{Bit: true, Count: 1, Detail: "it is in place"}, nil
}
func (struck) Heal(context.Context) error { return nil }

// What was sent while a fault was being put in place has not met it.
func TestCountsSinceAnInjectionBeginOnceItIsInPlace(t *testing.T) {
	const meanwhile = 300
	sc := Scenario{
		Name: "since", Load: quickLoad, Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []Arm{{Name: "a", Role: Observation, Reason: "the gates are what is tested"}},
		Steps: []plan.Step{
			{Name: "slow", Until: []plan.State{{Kind: plan.Confirmed, N: 10}}, Inject: &plan.Exposure{Fault: "slow", Target: "leader"}},
			{Name: "after", Until: []plan.State{{Kind: plan.Sent, N: 1, Since: "slow"}}},
			{Name: "healed", Heal: "slow"},
		},
	}
	cfg := testConfig(t, testSuite(sc))
	sent := make(chan func() int, 1)
	sc.Gates = map[string]Gate{"counts": func(_ context.Context, e Env, _ plan.State) (bool, string, error) {
		select {
		case sent <- func() int { return e.Counts("a").Sent }:
		default:
		}
		return true, "known", nil
	}}
	sc.Steps[0].Until = append(sc.Steps[0].Until, plan.State{Kind: plan.Custom, Name: "counts"})
	cfg.Suites = []Suite{testSuite(sc)}
	cfg.Faults["slow"] = system.Fault{
		Name: "slow", Supports: func(system.Cluster) error { return nil },
		Inject: func(ctx context.Context, _ system.Strike) (system.Injection, error) {
			count := <-sent
			from := count()
			for tick := time.NewTicker(5 * time.Millisecond); count() < from+meanwhile; {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return struck{}, nil
		},
	}
	res, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stepsOf(t, res, "a") {
		if s.Name != "after" {
			continue
		}
		got := -1
		if _, err := fmt.Sscanf(s.Seen[strings.LastIndex(s.Seen, " "):], "%d", &got); err != nil || got < 1 || got >= meanwhile {
			t.Errorf("sends of the %d made while the fault was put in place counted as made under it: %q (%v)", meanwhile, s.Seen, err)
		}
	}
}
