package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"conform/harness/internal/clock"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
)

const (
	pollEvery = 50 * time.Millisecond
	// healCap bounds one heal: a restarted node has to be ready again.
	healCap = 2 * time.Minute
	// askCap bounds one question about remote state, so that a node that hangs cannot hold a gate.
	askCap = 5 * time.Second
)

// errUnwell says that a worker or a node did not end as planned: inconclusive too.
var errUnwell = errors.New("something ended that the plan did not end")

// errCapped says that a step's state was not reached in time: inconclusive, and no error of ours.
var errCapped = errors.New("not reached in time")

// injection is a fault that struck.
type injection struct {
	step, what string // its plan step; the fault and where it struck
	arms       []*armRun
	running    system.Injection
	done       func()                // its system is left alone
	left       func(context.Context) // so are the nodes that it struck
	bite       system.Evidence
	bitten     bool // the bite is recorded
	healed     bool
}

// mark is the state of the counts when a step acted. Of sends it is the state once an injection was
// in place: what was sent while a fault was being put in place has not met it. Of what processes do
// it is the state before the act, which may be over before it returns.
type mark struct {
	at    time.Time
	crews map[string]map[string]tally             // arm -> crew
	wire  map[string]map[string]system.WireCounts // arm -> node
}

// nemesis runs the plan of one wave.
type nemesis struct {
	w          *wave
	plan       plan.Plan
	drive      context.Context // of the workers that steps start: it outlives the step
	targets    map[string][]system.Node
	marks      map[string]mark
	injections []*injection
	healed     bool // the plan has healed something itself
}

// run carries out the steps in order. It returns an error that wraps errCapped where a state was
// not reached, the cause of ctx's end, or what the machine did. What is still active then is healed
// by healAll.
func (n *nemesis) run(ctx context.Context) error {
	n.marks[""] = n.mark()
	for i, s := range n.plan.Steps {
		r := StepResult{Name: s.Name, Words: n.plan.Words()[i], At: n.w.sinceLoad()}
		n.w.live.step(s.Name)
		err := n.step(ctx, s, &r)
		r.Took = n.w.sinceLoad() - r.At
		n.w.steps = append(n.w.steps, r)
		e := ledger.Event{Kind: ledger.Step, Text: s.Name, Detail: r.Seen}
		if r.Reached {
			e.Outcome = ledger.OK
		}
		if err = errors.Join(err, n.w.recordAll(n.w.arms, e)); err != nil {
			return fmt.Errorf("step %q: %w", s.Name, err)
		}
	}
	return nil
}

func (n *nemesis) step(ctx context.Context, s plan.Step, r *StepResult) error {
	if len(s.Arms) > 0 && len(n.w.chosen(s.Arms)) == 0 {
		n.marks[s.Name] = n.mark()
		r.Seen, r.Reached = "its arms do not run on this cluster", true
		return nil
	}
	entered := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, s.Cap, errCapped)
	defer cancel()
	if err := n.await(ctx, s, entered, r); err != nil {
		return err
	}
	n.marks[s.Name] = n.mark()
	var err error
	switch {
	case s.Inject != nil:
		if err = n.inject(ctx, s, r); err == nil {
			n.marks[s.Name] = n.marks[s.Name].struck(n.mark())
		}
	case s.Heal != "":
		n.healed = true
		err = n.heal(ctx, n.injection(s.Heal))
	case s.Do != "":
		var done string
		done, err = n.act(ctx, s, r)
		r.Seen = joinSeen(r.Seen, done)
	}
	if err == nil {
		r.Reached = true
	}
	return err
}

// await polls until every state of the step is reached at once.
func (n *nemesis) await(ctx context.Context, s plan.Step, entered time.Time, r *StepResult) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		all := true
		var seen []string
		for _, u := range s.Until {
			if len(u.Arms) == 0 {
				u.Arms = s.Arms
			}
			ok, what, err := n.reached(ctx, u, entered)
			if err != nil && ctx.Err() == nil {
				what = err.Error() // remote state cannot always be asked while a fault is on
			}
			all = all && ok && err == nil
			seen = append(seen, fmt.Sprintf("%s: %s", u, what))
		}
		if all {
			r.Seen = strings.Join(seen, "; ")
			return nil
		}
		if ctx.Err() == nil {
			r.Seen = strings.Join(seen, "; ")
		}
		if err := n.w.machineFault(); err != nil {
			return err
		}
		for _, a := range n.w.arms { // there is nothing to be learned any more
			if ails := a.ails(); len(ails) > 0 {
				return fmt.Errorf("%w: %s", errUnwell, strings.Join(ails, "; "))
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, errCapped) {
				return err
			}
			return fmt.Errorf("%w (%s): %s", errCapped, s.Cap, r.Seen)
		}
	}
}

func (n *nemesis) mark() mark {
	m := mark{at: time.Now(), crews: map[string]map[string]tally{}, wire: map[string]map[string]system.WireCounts{}}
	for _, a := range n.w.arms {
		m.crews[a.arm.Name], m.wire[a.arm.Name] = map[string]tally{}, map[string]system.WireCounts{}
		for _, c := range a.crews() {
			m.crews[a.arm.Name][c.name] = c.state()
		}
		for _, cluster := range n.w.clusters() {
			if wire, ok := cluster.(system.WireCounter); ok {
				for _, node := range cluster.Nodes() {
					m.wire[a.arm.Name][node.Name()] = wire.WireCounts(node, a.client)
				}
			}
		}
	}
	return m
}

// struck is the mark of an injection: then is the mark taken once it was in place.
func (m mark) struck(then mark) mark {
	for arm, crews := range then.crews {
		for name, t := range crews {
			was := m.crews[arm][name]
			c := was.counts
			c.Sent, c.Confirmed, c.Refused = t.counts.Sent, t.counts.Confirmed, t.counts.Refused
			c.InDoubt, c.Claimed = t.counts.InDoubt, t.counts.Claimed
			crews[name] = tally{counts: c, ended: was.ended, at: was.at}
		}
	}
	return then
}

// clusterOf returns the cluster that a target's nodes are of.
func (n *nemesis) clusterOf(target string) system.Cluster {
	if _, name := n.plan.Targets[target].Split(); name != "" {
		return n.w.with[name]
	}
	return n.w.cluster.Cluster
}

// clusters lists the broker and the systems beside it.
func (w *wave) clusters() []system.Cluster {
	return append([]system.Cluster{w.cluster.Cluster}, slices.Collect(maps.Values(w.with))...)
}

// target resolves a target at its first use and records which nodes it is.
func (n *nemesis) target(ctx context.Context, name string) ([]system.Node, error) {
	if nodes, ok := n.targets[name]; ok {
		return nodes, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 3*askCap)
	defer cancel()
	var nodes []system.Node
	var err error
	for { // metadata may be on the move
		if nodes, err = n.resolve(ctx, n.plan.Targets[name]); err == nil {
			break
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return nil, fmt.Errorf("resolve target %q: %w: %w", name, errCapped, err)
		}
	}
	n.targets[name] = nodes
	n.w.noteTarget(name, nodes)
	return nodes, nil
}

func (n *nemesis) resolve(ctx context.Context, role plan.Role) ([]system.Node, error) {
	full := role
	role, other := role.Split()
	all := n.w.cluster.Nodes()
	if other != "" {
		all = n.w.with[other].Nodes()
	}
	switch role {
	case plan.All:
		return all, nil
	case plan.One:
		i := n.plan.Pick(string(full), len(all))
		return all[i : i+1], nil
	case plan.Majority:
		most := slices.Clone(all)
		out := n.plan.Pick(string(full), len(all))
		most = slices.Delete(most, out, out+1)
		return most[:len(all)/2+1], nil
	}
	if role == plan.DeadLetters {
		return n.deadLetters(ctx)
	}
	finder, ok := n.w.cluster.Cluster.(system.LeaderFinder)
	if !ok {
		return nil, fmt.Errorf("cluster tells no leader: %w", system.ErrNotApplicable)
	}
	if role == plan.Controller {
		c, err := finder.Controller(ctx)
		if err != nil {
			return nil, err
		}
		return []system.Node{c}, nil
	}
	var first system.Leadership
	for i, a := range n.w.arms {
		l, err := finder.Leadership(ctx, a.destination, 0)
		switch {
		case err != nil:
			return nil, err
		case l.Leader == nil:
			return nil, fmt.Errorf("nobody leads %s", a.destination)
		case i == 0:
			first = l
		case l.Leader.Name() != first.Leader.Name():
			return nil, fmt.Errorf("arms %s and %s are led by different nodes, %s and %s", n.w.arms[0].arm.Name, a.arm.Name, first.Leader.Name(), l.Leader.Name())
		}
	}
	var followers []system.Node
	for _, r := range first.Replicas {
		if r.Name() != first.Leader.Name() {
			followers = append(followers, r)
		}
	}
	slices.SortFunc(followers, func(a, b system.Node) int { return strings.Compare(a.Name(), b.Name()) })
	switch role {
	case plan.Leader:
		return []system.Node{first.Leader}, nil
	case plan.Others:
		return slices.DeleteFunc(slices.Clone(all), func(node system.Node) bool { return node.Name() == first.Leader.Name() }), nil
	}
	if len(followers) == 0 {
		return nil, fmt.Errorf("%s has no follower", n.w.arms[0].destination)
	}
	drawn := n.plan.Pick(string(plan.Follower), len(followers))
	others := slices.Delete(slices.Clone(followers), drawn, drawn+1)
	switch role {
	case plan.Follower:
		return followers[drawn : drawn+1], nil
	case plan.OtherFollower:
		if len(others) == 0 {
			return nil, fmt.Errorf("%s has one follower only", n.w.arms[0].destination)
		}
		return others[:1], nil
	case plan.Followers:
		return followers, nil
	case plan.LeaderAndOther:
		return append([]system.Node{first.Leader}, others...), nil
	default:
		return nil, fmt.Errorf("role %q: %w", role, plan.ErrInvalid)
	}
}

// deadLetters returns the one node that holds all arms' dead letters.
func (n *nemesis) deadLetters(ctx context.Context) ([]system.Node, error) {
	finder, ok := n.w.cluster.Cluster.(system.DeadLetterFinder)
	if !ok {
		return nil, fmt.Errorf("cluster tells no node of dead letters: %w", system.ErrNotApplicable)
	}
	var one system.Node
	for _, a := range n.w.arms {
		node, err := finder.DeadLetterNode(ctx, a.destination)
		if err != nil {
			return nil, err
		}
		if one != nil && one.Name() != node.Name() {
			return nil, fmt.Errorf("the dead letters of %s are on another node than the others', %s and %s", a.destination, node.Name(), one.Name())
		}
		one = node
	}
	return []system.Node{one}, nil
}

func nodeNames(nodes []system.Node) []string {
	names := make([]string, len(nodes))
	for i, node := range nodes {
		names[i] = node.Name()
	}
	return names
}

func (n *nemesis) inject(ctx context.Context, s plan.Step, r *StepResult) error {
	x := s.Inject
	arms := n.w.chosen(x.Arms)
	if len(arms) == 0 {
		r.Seen = joinSeen(r.Seen, "its arms do not run on this cluster")
		return nil
	}
	targets, err := n.target(ctx, x.Target)
	if err != nil {
		return err
	}
	strike := system.Strike{Cluster: n.clusterOf(x.Target), Targets: targets, Nodes: n.targets, Params: x.Params}
	for _, a := range arms {
		strike.Clients = append(strike.Clients, a.client)
	}
	what := fmt.Sprintf("%s on %s", x.Fault, strings.Join(nodeNames(targets), ", "))
	// Recorded before the fault has any effect, so that whatever follows from it comes after it.
	if err := n.w.recordAll(arms, ledger.Event{Kind: ledger.Inject, Text: s.Name, Detail: what}); err != nil {
		return err
	}
	done := func() {}
	if _, other := n.plan.Targets[x.Target].Split(); other != "" {
		done = n.w.touch(other)
	}
	if err := n.w.muster(ctx); err != nil {
		return err
	}
	fault := n.w.e.cfg.Faults[x.Fault]
	left := func(context.Context) {}
	if !fault.Spares {
		left = n.w.census.touch(targets)
	}
	running, err := fault.Inject(ctx, strike)
	if err != nil {
		done()
		left(ctx)
		healed := n.w.recordAll(arms, ledger.Event{Kind: ledger.Heal, Text: s.Name, Outcome: ledger.OK, Detail: "it could not be injected"})
		if ctx.Err() != nil {
			return errors.Join(fmt.Errorf("inject %s: %w: %w", what, context.Cause(ctx), err), healed)
		}
		return errors.Join(environment(fmt.Errorf("inject %s: %w", what, err)), healed)
	}
	i := &injection{step: s.Name, what: what, arms: arms, running: running, done: done, left: left}
	n.injections = append(n.injections, i)
	n.w.live.fault(n.active())
	r.Seen = joinSeen(r.Seen, what)
	return nil
}

func (n *nemesis) injection(step string) *injection {
	for _, i := range n.injections {
		if i.step == step {
			return i
		}
	}
	return nil
}

// look asks an injection for its evidence and records it once it has bitten.
func (n *nemesis) look(ctx context.Context, i *injection) error {
	if i.bitten {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askCap)
	defer cancel()
	e, err := i.running.Evidence(ctx)
	if err != nil {
		return fmt.Errorf("ask %q for its evidence: %w", i.step, err)
	}
	i.bite = e
	if !e.Bit {
		return nil
	}
	i.bitten = true
	return n.w.recordAll(i.arms, ledger.Event{Kind: ledger.Bite, Text: i.step, Outcome: ledger.OK, Detail: strings.TrimSuffix(e.Detail+"; "+e.AtRisk, "; "), N: e.Count})
}

// noteBites puts the evidence of every injection into the result of its step.
func (n *nemesis) noteBites() {
	for k := range n.w.steps {
		if i := n.injection(n.w.steps[k].Name); i != nil {
			n.w.steps[k].Evidence, n.w.steps[k].Bit, n.w.steps[k].AtRisk = i.bite.Detail, i.bite.Bit, i.bite.AtRisk
		}
	}
}

// heal ends an injection, whatever becomes of ctx, and records that. It may run twice.
func (n *nemesis) heal(ctx context.Context, i *injection) error {
	if i == nil || i.healed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healCap)
	defer cancel()
	// Before, because some evidence goes with the fault; after, because some comes with its end.
	before := errors.Join(n.look(ctx, i), n.w.muster(ctx))
	if err := i.running.Heal(ctx); err != nil {
		return environment(fmt.Errorf("heal %q: %w", i.step, err))
	}
	i.healed = true
	i.done()
	i.left(ctx)
	after := n.look(ctx, i)
	if !i.bitten {
		missing := i.bite.Detail
		for _, err := range []error{before, after} {
			if err != nil {
				missing = err.Error()
			}
		}
		if err := n.w.recordAll(i.arms, ledger.Event{Kind: ledger.Bite, Text: i.step, Detail: missing}); err != nil {
			return err
		}
	}
	n.w.live.fault(n.active())
	return n.w.recordAll(i.arms, ledger.Event{Kind: ledger.Heal, Text: i.step, Outcome: ledger.OK})
}

// active names the faults that are on.
func (n *nemesis) active() string {
	var on []string
	for _, i := range n.injections {
		if !i.healed {
			on = append(on, i.what)
		}
	}
	return strings.Join(on, "; ")
}

// healAll heals what is still active, the last strike first. All are tried whatever the others say.
func (n *nemesis) healAll(ctx context.Context) error {
	var errs []error
	for _, i := range slices.Backward(n.injections) {
		err := n.heal(ctx, i)
		if err != nil && !i.healed {
			err = errors.Join(err, n.w.recordAll(i.arms, ledger.Event{Kind: ledger.Heal, Text: i.step, Outcome: ledger.Failed, Detail: err.Error()}))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// act carries out a step's Do: an action of the scenario, or one that every system has.
func (n *nemesis) act(ctx context.Context, s plan.Step, r *StepResult) (string, error) {
	arms := n.w.chosen(s.Arms)
	if len(arms) == 0 {
		return "its arms do not run on this cluster", nil
	}
	var targets []system.Node
	if s.Target != "" {
		var err error
		if targets, err = n.target(ctx, s.Target); err != nil {
			return "", err
		}
	}
	defer n.w.touch("")()
	if err := n.w.muster(ctx); err != nil {
		return "", err
	}
	if action, ok := n.w.scenario.Actions[s.Do]; ok {
		defer n.w.census.touch(nil)(context.WithoutCancel(ctx))
		done, err := action(ctx, n.w.env(), s)
		if err != nil {
			return "", environment(fmt.Errorf("%s: %w", s.Do, err))
		}
		return done, nil
	}
	cluster := n.clusterOf(s.Target)
	if doesProcess(s.Do) {
		return n.actOnProcess(ctx, s, r)
	}
	switch s.Do {
	case DoStart, DoRestart:
		killer, ok := cluster.(system.Killer)
		if !ok {
			return "", fmt.Errorf("%s: cluster cannot start a node: %w", s.Do, system.ErrNotApplicable)
		}
		defer n.w.census.touch(targets)(context.WithoutCancel(ctx))
		for _, node := range targets {
			if err := killer.Start(ctx, node); err != nil {
				return "", environment(fmt.Errorf("start %s: %w", node.Name(), err))
			}
		}
		return strings.Join(nodeNames(targets), ", ") + " started", nil
	case DoStopLoad:
		for _, a := range arms {
			a.endLoad()
		}
		return "producers told to end", nil
	case DoBaseline:
		return n.retry(ctx, s, func(ctx context.Context) error { return cluster.Baseline(ctx) }, "as good as new")
	case DoElectUnclean:
		elector, ok := cluster.(system.Elector)
		if !ok {
			return "", fmt.Errorf("%s: cluster holds no elections: %w", s.Do, system.ErrNotApplicable)
		}
		// A controller that is still learning who is away says no; it is asked until it agrees.
		return n.retry(ctx, s, func(ctx context.Context) error {
			for _, a := range arms {
				if err := elector.ElectUnclean(ctx, a.destination); err != nil {
					return err
				}
			}
			return nil
		}, "elected")
	default:
		return "", fmt.Errorf("no action is named %q: %w", s.Do, system.ErrUsage)
	}
}

// The actions that a step can name in Do without the scenario providing them.
const (
	DoStart        = "start"   // starts the target's nodes
	DoRestart      = "restart" // the same
	DoStopLoad     = "stop-load"
	DoElectUnclean = "elect-unclean"
	DoBaseline     = "baseline"

	// These act on Step.Process.
	DoStartProcess   = "start-process"   // starts its next worker and waits until that is ready
	DoStopProcess    = "stop-process"    // lets its worker finish and end
	DoKillProcess    = "kill-process"    // SIGKILL: a strike
	DoFreezeProcess  = "freeze-process"  // SIGSTOP: a strike
	DoThawProcess    = "thaw-process"    // heals it
	DoReleaseProcess = "release-process" // lets it go on where it is held
)

func doesProcess(do string) bool {
	return slices.Contains([]string{DoStartProcess, DoStopProcess, DoKillProcess, DoFreezeProcess, DoThawProcess, DoReleaseProcess}, do)
}

// strikes says whether an action is a strike.
func strikes(do string) bool { return do == DoKillProcess || do == DoFreezeProcess }

// actOnProcess carries out an action on a process, in all arms that have it, one after the other.
func (n *nemesis) actOnProcess(ctx context.Context, s plan.Step, r *StepResult) (string, error) {
	var seen []string
	for _, a := range n.w.chosen(s.Arms) {
		c := a.crewOf(s.Process)
		if c == nil {
			continue
		}
		done, err := n.actOnCrew(ctx, s, c)
		if err != nil {
			return strings.Join(seen, ", "), fmt.Errorf("%s %s of arm %s: %w", s.Do, s.Process, a.arm.Name, err)
		}
		seen = append(seen, a.arm.Name+": "+done)
	}
	if len(seen) == 0 {
		return "its arms do not run on this cluster", nil
	}
	all := strings.Join(seen, ", ")
	if strikes(s.Do) {
		r.Bit, r.Evidence = true, all
	}
	return all, nil
}

func (n *nemesis) actOnCrew(ctx context.Context, s plan.Step, c *crew) (string, error) {
	if s.Do == DoStartProcess {
		if !c.claim() {
			return "", fmt.Errorf("it runs already: %w", errCapped)
		}
		p, err := c.start(ctx)
		if err != nil {
			c.rest()
			if !errors.Is(err, system.ErrEnvironment) && ctx.Err() == nil {
				err = fmt.Errorf("%w: %w", errUnwell, err)
			}
			return "", err
		}
		n.w.drive(n.drive, c, p)
		return "ready", nil
	}
	p, err := c.worker()
	if err != nil {
		return "", err
	}
	at := clock.Now()
	switch s.Do {
	case DoStopProcess:
		c.stop()
		return "ended", c.await(ctx)
	case DoKillProcess:
		proof, struck := p.Strike()
		if !struck {
			return "", fmt.Errorf("%w: %s", errUnwell, proof)
		}
		// Its crew has noticed too once it rests, so that the next worker can be started.
		return proof, errors.Join(c.strike(&strike{id: s.Name}, s.Do+" "+c.name, proof, at), c.await(ctx))
	case DoFreezeProcess:
		proof, err := p.Freeze(ctx)
		if err != nil {
			return "", err
		}
		return proof, c.strike(&strike{id: s.Name, heal: p.Thaw}, s.Do+" "+c.name, proof, at)
	default: // thaw, release
		frees := s.Do == DoReleaseProcess
		healed, err := c.heal(ctx, func(k *strike) bool { return k.heal != nil && k.frees == frees })
		if err == nil && healed == 0 {
			err = fmt.Errorf("nothing holds it: %w", errCapped)
		}
		return "it goes on", err
	}
}

func (n *nemesis) retry(ctx context.Context, s plan.Step, do func(context.Context) error, done string) (string, error) {
	tick := time.NewTicker(4 * pollEvery)
	defer tick.Stop()
	for {
		err := do(ctx)
		if err == nil {
			return done, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, errCapped) {
				return "", cause
			}
			return err.Error(), fmt.Errorf("%s %w (%s): %w", s.Do, errCapped, s.Cap, err)
		}
	}
}

func joinSeen(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// environment marks an error as the machine's, unless it says already whose it is.
func environment(err error) error {
	if err == nil || errors.Is(err, system.ErrEnvironment) || errors.Is(err, system.ErrUsage) ||
		errors.Is(err, system.ErrNotApplicable) || errors.Is(err, errCapped) || errors.Is(err, ErrInterrupted) {
		return err
	}
	return fmt.Errorf("%w: %w", err, system.ErrEnvironment)
}

// sinceLoad is how long the load has lasted.
func (w *wave) sinceLoad() time.Duration {
	if w.loadAt == 0 {
		return 0
	}
	return time.Duration(clock.Now() - w.loadAt)
}
