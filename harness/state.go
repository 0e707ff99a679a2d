package harness

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"conform/harness/plan"
	"conform/harness/system"
)

// reached says whether a state is reached, and what was seen. An error means that the remote side
// could not be asked just now.
func (n *nemesis) reached(ctx context.Context, s plan.State, entered time.Time) (bool, string, error) {
	arms := n.w.chosen(s.Arms)
	if s.Process != "" {
		arms = slices.DeleteFunc(slices.Clone(arms), func(a *armRun) bool { return a.crewOf(s.Process) == nil })
	}
	switch s.Kind {
	case plan.Confirmed, plan.Claimed, plan.Sent, plan.Refused, plan.InFlight, plan.Ordered, plan.Published, plan.Received, plan.Handled, plan.Settled:
		return each(arms, func(a *armRun) (bool, string, error) {
			var c Counts
			for _, w := range a.crews() {
				if s.Process != "" && w.name != s.Process {
					continue
				}
				c = c.add(w.Counts())
				if s.Kind != plan.InFlight {
					c = c.minus(n.marks[s.Since].crews[a.arm.Name][w.name].counts)
				}
			}
			got := count(c, s.Kind)
			return got >= s.N, fmt.Sprint(got), nil
		})
	case plan.ProcessEnded, plan.ProcessAt:
		return each(arms, func(a *armRun) (bool, string, error) {
			now, then := a.crewOf(s.Process).state(), n.marks[s.Since].crews[a.arm.Name][s.Process]
			got, what := now.ended-then.ended, "ended"
			if s.Kind == plan.ProcessAt {
				got, what = now.at[s.Point]-then.at[s.Point], "there"
			}
			if got >= max(1, s.N) {
				return true, what, nil
			}
			return false, "not " + what, nil
		})
	case plan.ConfirmedBy, plan.SentTo:
		nodes, err := n.target(ctx, s.Target)
		if err != nil {
			return false, "", err
		}
		wire, ok := n.clusterOf(s.Target).(system.WireCounter)
		if !ok {
			return false, "", fmt.Errorf("cluster counts no messages on its links: %w", system.ErrNotApplicable)
		}
		return each(arms, func(a *armRun) (bool, string, error) {
			got := int64(0)
			for _, node := range nodes {
				now, then := wire.WireCounts(node, a.client), n.marks[s.Since].wire[a.arm.Name][node.Name()]
				if s.Kind == plan.SentTo {
					got += now.Sent - then.Sent
				} else {
					got += now.Confirmed - then.Confirmed
				}
			}
			return got >= int64(s.N), fmt.Sprint(got), nil
		})
	case plan.InSync, plan.FullyInSync, plan.LeaderNot, plan.LeaderIs, plan.LeaderNone, plan.LeaderAny:
		var nodes []system.Node
		if s.Target != "" {
			var err error
			if nodes, err = n.target(ctx, s.Target); err != nil {
				return false, "", err
			}
		}
		return each(arms, func(a *armRun) (bool, string, error) { return n.w.replicas(ctx, a, s.Kind, nodes) })
	case plan.Bit:
		i := n.injection(s.Since)
		if i == nil {
			return true, "its arms do not run on this cluster", nil
		}
		if err := n.look(ctx, i); err != nil {
			return false, "", err
		}
		return i.bitten, i.bite.Detail, nil
	case plan.Ended:
		return each(arms, func(a *armRun) (bool, string, error) {
			if a.hasEnded() {
				return true, "ended", nil
			}
			return false, "still running", nil
		})
	case plan.Elapsed:
		from := entered
		if s.Since != "" {
			from = n.marks[s.Since].at
		}
		passed := time.Since(from)
		return passed >= s.Hold, passed.Round(time.Millisecond).String(), nil
	case plan.Custom:
		gate, ok := n.w.scenario.Gates[s.Name]
		if !ok {
			return false, "", fmt.Errorf("no gate is named %q: %w", s.Name, system.ErrUsage)
		}
		ctx, cancel := context.WithTimeout(ctx, askCap)
		defer cancel()
		return gate(ctx, n.w.env(), s)
	default:
		return false, "", fmt.Errorf("no state is of kind %q: %w", s.Kind, system.ErrUsage)
	}
}

// each asks for every arm: all must have reached the state.
func each(arms []*armRun, ask func(*armRun) (bool, string, error)) (bool, string, error) {
	all := true
	var seen []string
	for _, a := range arms {
		ok, what, err := ask(a)
		if err != nil {
			return false, "", err
		}
		all = all && ok
		seen = append(seen, a.arm.Name+" "+what)
	}
	return all, strings.Join(seen, ", "), nil
}

func count(c Counts, kind plan.Kind) int {
	switch kind {
	case plan.Confirmed:
		return c.Confirmed
	case plan.Claimed:
		return c.Claimed
	case plan.Refused:
		return c.Refused
	case plan.InFlight:
		return c.InFlight()
	case plan.Ordered:
		return c.Ordered
	case plan.Published:
		return c.Published
	case plan.Received:
		return c.Received
	case plan.Handled:
		return c.Handled
	case plan.Settled:
		return c.Settled
	default:
		return c.Sent
	}
}

// replicas judges the leadership of all partitions of an arm's destination.
func (w *wave) replicas(ctx context.Context, a *armRun, kind plan.Kind, nodes []system.Node) (bool, string, error) {
	finder, ok := w.cluster.Cluster.(system.LeaderFinder)
	if !ok {
		return false, "", fmt.Errorf("cluster tells no leader: %w", system.ErrNotApplicable)
	}
	ctx, cancel := context.WithTimeout(ctx, askCap)
	defer cancel()
	in := func(set []system.Node, n system.Node) bool {
		return slices.ContainsFunc(set, func(m system.Node) bool { return m.Name() == n.Name() })
	}
	all := true
	var seen []string
	for p := range max(1, a.load.Partitions) {
		l, err := finder.Leadership(ctx, a.destination, int32(p))
		if err != nil {
			return false, "", err
		}
		leader := "none"
		switch {
		case l.Leader != nil:
			leader = l.Leader.Name()
		case l.Gone:
			leader = "none: it is gone"
		}
		what := "led by " + leader
		reached := false
		switch kind {
		case plan.InSync:
			reached = len(l.InSync) == len(nodes) && !slices.ContainsFunc(l.InSync, func(m system.Node) bool { return !in(nodes, m) })
			what = "in sync {" + strings.Join(nodeNames(l.InSync), ", ") + "}"
		case plan.FullyInSync:
			reached = l.Gone || l.Leader != nil && len(l.InSync) == len(l.Replicas)
			what = fmt.Sprintf("%d of %d in sync", len(l.InSync), len(l.Replicas))
		case plan.LeaderNot:
			reached = l.Leader != nil && !in(nodes, l.Leader)
		case plan.LeaderIs:
			reached = l.Leader != nil && in(nodes, l.Leader)
		case plan.LeaderNone:
			reached = l.Leader == nil
		case plan.LeaderAny:
			reached = l.Leader != nil
		}
		all = all && reached
		if !slices.Contains(seen, what) {
			seen = append(seen, what)
		}
	}
	return all, strings.Join(seen, " and "), nil
}
