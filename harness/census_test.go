package harness

import (
	"context"
	"slices"
	"strings"
	"testing"

	"conform/harness/audit"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/system/memory"
)

func TestNodeThatDiesOutsideThePlan(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		restart bool
	}{{"stays-down", false}, {"runs-again", true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			bad := guarded()
			bad.Destination = map[string]string{"bug": memory.LoseConfirmed}
			sc := killed(tc.name, bad, control(memory.LoseConfirmed, "lost", "broker"))
			sc.Gates = map[string]Gate{"behind": func(ctx context.Context, e Env, _ plan.State) (bool, string, error) {
				i := slices.IndexFunc(e.Cluster.Nodes(), func(n system.Node) bool { return n.Name() != e.Targets["leader"][0].Name() })
				k, n := e.Cluster.(system.Killer), e.Cluster.Nodes()[i]
				_, err := k.Kill(ctx, n)
				if err == nil && tc.restart {
					err = k.Start(ctx, n)
				}
				return true, "", err
			}}
			sc.Steps = append(sc.Steps, plan.Step{Name: "behind", Until: []plan.State{{Kind: plan.Custom, Name: "behind"}}}, plan.Step{Name: "restarted", Heal: "killed"})
			res := run(t, testConfig(t, testSuite(sc)))
			got := res.Suites[0].Scenarios[0]
			if got.Status != audit.Inconclusive {
				t.Errorf("status %v", got.Status)
			}
			if why := strings.Join(got.Reasons, "\n"); !strings.Contains(why, "a node died outside the plan: memory-") {
				t.Errorf("reasons %q", why)
			}
		})
	}
}

// What the plan ends and starts is no death outside of it.
func TestNodesThatThePlanEnds(t *testing.T) {
	t.Parallel()
	sc := killed("restarted", guarded(), control(memory.LoseConfirmed, "lost", "broker"))
	sc.Actions = map[string]Action{"rolled": func(ctx context.Context, e Env, _ plan.Step) (string, error) {
		k, n := e.Cluster.(system.Killer), e.Cluster.Nodes()[1]
		if _, err := k.Kill(ctx, n); err != nil {
			return "", err
		}
		return "", k.Start(ctx, n)
	}}
	sc.Steps = append(sc.Steps,
		plan.Step{Name: "started", Do: DoStart, Target: "leader"},
		plan.Step{Name: "rolled", Do: "rolled"},
		plan.Step{Name: "healed", Heal: "killed"},
		plan.Step{Name: "whole", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: 50, Since: "healed"}}},
	)
	res := run(t, testConfig(t, testSuite(sc)))
	if got := res.Suites[0].Scenarios[0]; got.Status != audit.Pass {
		t.Errorf("status %v: %q", got.Status, got.Reasons)
	}
}
