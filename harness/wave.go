package harness

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"conform/harness/audit"
	"conform/harness/internal/clock"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/worker"
)

// caps bound what a wave waits for; past them it is inconclusive, except where noted.
type caps struct {
	start  time.Duration // a worker's client is open: else the machine failed
	flush  time.Duration // producers flush once the load ended: else they are killed
	after  time.Duration // evidence after the heal
	inSync time.Duration // all replicas are in sync again
	stuck  time.Duration // without any progress an arm that is not drained is stuck
	drain  time.Duration // arms are drained, however they progress
	still  time.Duration // nothing moves in the store any more
	read   time.Duration // the final read
	quiet  time.Duration // no cap: the span between the two reads that prove quiescence
	watch  time.Duration // no cap: how often the systems beside the broker are looked after
}

var defaultCaps = caps{
	start: 30 * time.Second, flush: 30 * time.Second, after: 30 * time.Second,
	inSync: 90 * time.Second, stuck: 30 * time.Second, drain: 10 * time.Minute, still: 90 * time.Second,
	read: 2 * time.Minute, quiet: 2 * time.Second, watch: time.Second,
}

const (
	removeCap   = 20 * time.Second // destinations are deleted
	defaultTail = 2 * time.Second
)

// wave is one scenario with those of its arms that share a cluster, run once.
type wave struct {
	e        *engine
	suite    *Suite
	scenario *Scenario
	cluster  *running
	with     map[string]system.Cluster
	repeat   *Repeat
	plan     plan.Plan
	load     Load
	arms     []*armRun
	loadAt   int64
	steps    []StepResult
	nemesis  *nemesis
	census   *census
	live     *live

	loads, processes errgroup.Group // those who drive the crews

	mu      sync.Mutex
	lost    string         // a node that died outside the plan
	dead    error          // a system beside the broker that died by itself
	touched map[string]int // systems that the plan is doing something to, and how often
}

// open opens the ledgers of the arms.
func (w *wave) open(arms []Arm) error {
	for _, arm := range arms {
		name := fmt.Sprintf("%s.%s.r%d.%s", w.e.cfg.RunID, w.scenario.Name, w.repeat.Index, arm.Name)
		a := &armRun{
			arm: arm, destination: name, client: name + ".", load: w.load, argv: w.e.cfg.Worker,
			folder: filepath.Join(w.e.dir.dir, armFolder(w.suite.Name, w.scenario.Name, w.repeat.Index, arm.Name)),
			system: w.suite.System, endpoints: w.cluster.Endpoints(), home: w.cluster.Cluster, with: w.with, caps: w.e.cfg.caps,
		}
		a.header = w.header(a)
		a.schema = fmt.Sprintf("conform_%08x", a.header.Tag())
		if len(a.header.Tables) > 0 {
			a.header.Space = a.schema
		}
		if err := a.enlist(); err != nil {
			return err
		}
		if err := a.open(); err != nil {
			return err
		}
		w.arms = append(w.arms, a)
	}
	return nil
}

// provide makes what the arms need on the clusters.
func (w *wave) provide(ctx context.Context) error {
	nodes := w.cluster.Nodes()
	leader := nodes[w.plan.Pick("placement", len(nodes))]
	g, gctx := errgroup.WithContext(ctx)
	for _, a := range w.arms {
		g.Go(func() error {
			own := Destination{Partitions: w.load.Partitions, Settings: a.arm.Destination}
			for _, d := range append([]Destination{own}, w.scenario.Destinations...) {
				err := w.cluster.Create(gctx, system.DestinationSpec{
					Name: a.destinationName(d.Name), Partitions: max(1, d.Partitions), Leader: leader, Settings: d.Settings,
				})
				if err != nil {
					return environment(fmt.Errorf("create destination of arm %s: %w", a.arm.Name, err))
				}
			}
			for name, c := range w.with {
				if schemas, ok := c.(system.Schemas); ok {
					if err := schemas.CreateSchema(gctx, a.schema); err != nil {
						// Whosever it is: it is the machine's state that keeps us from working, not a wrong request.
						return fmt.Errorf("make schema of arm %s in %s: %s: %w", a.arm.Name, name, system.Plain(err.Error()), system.ErrEnvironment)
					}
				}
			}
			if w.scenario.Setup != nil {
				if err := w.scenario.Setup(gctx, w.armEnv(a)); err != nil {
					return environment(fmt.Errorf("set up arm %s: %w", a.arm.Name, err))
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// destinationName returns the name on the cluster of a destination of the scenario; "" = the arm's own.
func (a *armRun) destinationName(name string) string {
	if name == "" {
		return a.destination
	}
	return a.destination + "." + name
}

func (w *wave) header(a *armRun) ledger.Header {
	evidence := w.scenario.Evidence
	if a.arm.Evidence != nil {
		evidence = *a.arm.Evidence
	}
	evidence.During = a.arm.During
	if evidence.Bites == nil { // a fault nobody asked about must have bitten too
		for _, s := range w.plan.Steps {
			if s.Inject != nil || strikes(s.Do) {
				evidence.Bites = append(evidence.Bites, s.Name)
			}
		}
		for _, arm := range w.scenario.Arms {
			evidence.Bites = append(evidence.Bites, arm.strikes()...)
		}
	}
	// What is asked of another arm only is not asked of this one.
	own := a.arm.strikes()
	evidence.Bites = slices.DeleteFunc(unique(evidence.Bites), func(name string) bool {
		if slices.Contains(own, name) {
			return false
		}
		for _, s := range w.plan.Steps {
			if s.Name == name {
				arms := s.Arms
				if s.Inject != nil {
					arms = s.Inject.Arms
				}
				return len(arms) > 0 && !slices.Contains(arms, a.arm.Name) || s.Process != "" && !a.arm.has(s.Process)
			}
		}
		return slices.ContainsFunc(w.scenario.Arms, func(arm Arm) bool { return slices.Contains(arm.strikes(), name) })
	})
	evidence.Ends = slices.DeleteFunc(slices.Clone(evidence.Ends), func(worker string) bool {
		of := func(arm Arm) bool {
			return slices.ContainsFunc(arm.Processes, func(p Process) bool { return worker == p.Name || strings.HasPrefix(worker, p.Name+"-r") })
		}
		return !of(a.arm) && slices.ContainsFunc(w.scenario.Arms, of)
	})
	evidence.Times, evidence.EndsAt = a.arm.planned(evidence)
	destinations := []ledger.Destination{{
		Name: a.destination, Partitions: w.load.Partitions, Compacted: strings.Contains(a.arm.Destination["cleanup.policy"], "compact"),
	}}
	if w.load.GrowTo > 0 {
		destinations[0].Partitions, destinations[0].Grown = w.load.GrowTo, []int{w.load.Partitions}
	}
	for _, d := range w.scenario.Destinations {
		destinations = append(destinations, ledger.Destination{Name: a.destinationName(d.Name), Partitions: max(1, d.Partitions), DeadLetter: d.DeadLetter})
	}
	chain := w.scenario.Chain
	if a.arm.Chain != nil {
		chain = *a.arm.Chain
	}
	if slices.Contains(w.scenario.Tables, ledger.TableDeadLetter) {
		letters := a.arm.Letters
		chain.Letters = &letters
	}
	settings := a.arm.settings()
	if _, dense := w.cluster.Cluster.(system.DenseLogs); dense && !transactional(settings) {
		for i := range destinations {
			destinations[i].Dense = !destinations[i].Compacted
		}
	}
	for name, c := range w.with {
		settings["with "+name] = c.Version()
	}
	return ledger.Header{
		Schema: ledger.SchemaVersion, Run: w.e.cfg.RunID, Suite: w.suite.Name, System: w.suite.System.Name(), Version: w.cluster.Version(),
		Scenario: w.scenario.Name, Arm: a.arm.Name, Role: string(a.arm.Role), Window: w.scenario.Window,
		Seed: w.repeat.Seed, Repeat: w.repeat.Index,
		Destinations: destinations, Tables: w.scenario.Tables, Groups: a.groups(), Background: a.arm.background(), Chain: chain, Delay: w.scenario.Delay,
		Workload: ledger.Workload{Keys: w.load.Keys, PayloadSize: w.load.PayloadSize},
		Promise:  w.suite.promiseOf(a.arm), Expect: a.arm.expect(), Evidence: evidence,
		Deadlines: map[string]time.Duration{
			"flush": w.e.cfg.caps.flush, "in sync": w.e.cfg.caps.inSync, "stuck": w.stuckAfter(), "drain": w.e.cfg.caps.drain,
			"quiescence": w.e.cfg.caps.still, "read": w.e.cfg.caps.read,
		},
		Settings: settings, Timing: w.cluster.Timing(), Plan: w.plan.Words(), Checks: audit.Checks(),
		Reproduce: strings.Join(append([]string{
			"conform run --suite", w.suite.Name, "--scenario", w.scenario.Name, "--seed", strconv.FormatUint(w.repeat.Seed, 10),
		}, w.e.cfg.Again...), " "),
	}
}

// transactional says whether clients of an arm may use the broker's transactions.
func transactional(settings map[string]string) bool {
	for name := range settings {
		if strings.Contains(name, "transactional") {
			return true
		}
	}
	return false
}

// chosen returns the arms of this wave that are named, or all if none is.
func (w *wave) chosen(names []string) []*armRun {
	if len(names) == 0 {
		return w.arms
	}
	var arms []*armRun
	for _, a := range w.arms {
		if slices.Contains(names, a.arm.Name) {
			arms = append(arms, a)
		}
	}
	return arms
}

func (w *wave) recordAll(arms []*armRun, e ledger.Event) error {
	e.At = clock.Now()
	var errs []error
	for _, a := range arms {
		errs = append(errs, a.record(e))
	}
	return errors.Join(errs...)
}

func (w *wave) phase(name string) error {
	w.live.phase(name)
	w.e.say("%s: %s", w.title(), name)
	return w.recordAll(w.arms, ledger.Event{Kind: ledger.Phase, Text: name})
}

func (w *wave) title() string {
	t := w.suite.Name + "/" + w.scenario.Name
	if w.e.cfg.Runs > 1 {
		t += fmt.Sprintf(" %d/%d", w.repeat.Index+1, w.e.cfg.Runs)
	}
	return t
}

func (w *wave) env() Env {
	e := Env{
		Cluster: w.cluster.Cluster, With: w.with, Destinations: map[string]string{}, Clients: map[string]string{}, Schemas: map[string]string{},
		Counts: func(arm string) Counts {
			for _, a := range w.arms {
				if a.arm.Name == arm {
					return a.Counts()
				}
			}
			return Counts{}
		},
	}
	if w.nemesis != nil {
		e.Targets = w.nemesis.targets
	}
	for _, a := range w.arms {
		e.Destinations[a.arm.Name], e.Clients[a.arm.Name], e.Schemas[a.arm.Name] = a.destination, a.client, a.schema
	}
	return e
}

func (w *wave) armEnv(a *armRun) ArmEnv {
	return ArmEnv{
		Env: w.env(), Arm: a.arm, Destination: a.destination, Client: a.client, Schema: a.schema,
		Seed: a.header.Seed, Tag: a.header.Tag(), Workload: a.header.Workload,
	}
}

func (w *wave) noteTarget(name string, nodes []system.Node) {
	if w.repeat.Targets == nil {
		w.repeat.Targets = map[string][]string{}
	}
	w.repeat.Targets[name] = nodeNames(nodes)
}

// machineFault is what ended or will end the wave and is nobody's verdict.
func (w *wave) machineFault() error {
	w.mu.Lock()
	dead := w.dead
	w.mu.Unlock()
	if dead != nil {
		return dead
	}
	for _, a := range w.arms {
		if err := a.machineFault(); err != nil {
			return err
		}
	}
	return nil
}

// touch keeps a system, or with "" all of them, from being called dead until the returned function was
// called: the plan does something to it.
func (w *wave) touch(name string) (done func()) {
	add := func(n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.touched == nil {
			w.touched = map[string]int{}
		}
		w.touched[name] += n
	}
	add(1)
	return sync.OnceFunc(func() { add(-1) })
}

func (w *wave) isTouched(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.touched[name] > 0 || w.touched[""] > 0
}

// died says which system beside the broker died although nobody took it down. ctx bounds the question.
func (w *wave) died(ctx context.Context) error {
	for name, c := range w.with {
		watched, ok := c.(system.Watched)
		if !ok || w.isTouched(name) {
			continue
		}
		// Asked again after the answer: the plan may have struck meanwhile.
		if err := watched.Died(ctx); err != nil && ctx.Err() == nil && !w.isTouched(name) {
			return environment(fmt.Errorf("%s died, and not by the plan: %w", name, err))
		}
	}
	return nil
}

// watch looks after the nodes, and the systems beside the broker, until the returned function is called.
func (w *wave) watch(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var g sync.WaitGroup
	g.Go(func() {
		tick := time.NewTicker(w.e.cfg.caps.watch)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			actx, done := context.WithTimeout(ctx, askCap)
			err := w.died(actx)
			done()
			if err == nil && ctx.Err() == nil {
				err = w.muster(context.WithoutCancel(ctx))
			}
			if err != nil {
				w.mu.Lock()
				w.dead = err
				w.mu.Unlock()
				return
			}
		}
	})
	return func() { cancel(); g.Wait() }
}

func (w *wave) counts() Counts {
	var sum Counts
	for _, a := range w.arms {
		sum = sum.add(a.Counts())
	}
	return sum
}

// run takes the wave through its phases. The ledger is closed and on the disk when it returns,
// whatever happened; the error is the machine's, or the cause of ctx's end. What makes a verdict
// inconclusive is in the ledger, and in the reasons too where it is about the whole wave.
func (w *wave) run(ctx context.Context, arms []Arm) (reasons []string, err error) {
	defer func() {
		for _, a := range w.arms {
			if a.events != nil {
				err = errors.Join(err, a.close())
			}
		}
	}()
	if err := w.open(arms); err != nil {
		return nil, err
	}
	defer w.remove(ctx)
	defer func() {
		if err == nil || ctx.Err() != nil || w.dead != nil {
			return
		}
		actx, cancel := context.WithTimeout(ctx, askCap)
		defer cancel()
		if w.dead = w.died(actx); w.dead != nil { // which explains the rest
			err = errors.Join(w.dead, err)
		}
	}()
	if err := w.provide(ctx); err != nil {
		return nil, err
	}
	w.census = takeCensus(ctx, w.clusters())
	defer func() {
		err = errors.Join(err, w.muster(context.WithoutCancel(ctx)))
		for _, a := range w.arms {
			reasons = append(reasons, a.ails()...)
		}
		reasons = unique(reasons)
	}()
	defer w.watch(ctx)()

	// The workers end with the load or the drain, or when ctx does. Their errors reach the plan as the machine's.
	drive, stopDriving := context.WithCancel(ctx)
	defer func() {
		stopDriving()
		_, _ = w.loads.Wait(), w.processes.Wait()
		for _, a := range w.arms {
			err = errors.Join(err, a.heal(ctx)) // what struck while the arm was drained
		}
	}()
	if err := w.phase("warm"); err != nil {
		return nil, err
	}
	first, err := w.warm(ctx)
	if err != nil {
		return nil, err
	}
	err = w.phase("load")
	w.loadAt = clock.Now()
	for c, p := range first {
		w.drive(drive, c, p)
	}
	if err != nil {
		return nil, err
	}
	stopWatching := w.live.watch(w)
	reasons, err = w.work(drive)
	stopWatching()
	if err != nil {
		return reasons, err
	}
	for _, a := range w.arms {
		a.endLoad()
	}
	if err := w.loads.Wait(); err != nil {
		return reasons, err
	}
	return w.finish(drive, reasons)
}

// warm opens the clients of all workers that are there from the beginning.
func (w *wave) warm(ctx context.Context) (map[*crew]*worker.Process, error) {
	var mu sync.Mutex
	first := map[*crew]*worker.Process{}
	g, gctx := errgroup.WithContext(ctx)
	for _, a := range w.arms {
		for _, c := range a.crews() {
			if c.manual {
				continue
			}
			c.claim()
			g.Go(func() error {
				p, err := c.start(gctx)
				if err != nil {
					c.rest()
					return environment(err)
				}
				mu.Lock()
				first[c] = p
				mu.Unlock()
				return nil
			})
		}
	}
	err := g.Wait()
	if err != nil {
		for c, p := range first {
			p.Kill()
			_, ended := c.finish(p, "the client of another worker was not open")
			c.rest()
			err = errors.Join(err, ended)
		}
	}
	return first, err
}

// drive lets a crew work whose first worker is ready.
func (w *wave) drive(ctx context.Context, c *crew, p *worker.Process) {
	group := &w.processes
	if c.name == producerCrew {
		group = &w.loads
	}
	group.Go(func() error { return c.drive(ctx, p) })
}

// work runs the plan under load and heals whatever it leaves behind.
func (w *wave) work(ctx context.Context) (reasons []string, err error) {
	w.nemesis = &nemesis{w: w, plan: w.plan, drive: ctx, targets: map[string][]system.Node{}, marks: map[string]mark{}}
	err = w.nemesis.run(ctx)
	if inconclusive(err) && ctx.Err() == nil {
		reasons, err = append(reasons, err.Error()), nil
	}
	// What a plan leaves behind beside its own heals is cleaned up in the heal phase; where it heals
	// nothing itself, this is the heal whose recovery under load is looked at.
	var early error
	if !w.nemesis.healed {
		early = w.nemesis.healAll(ctx)
	}
	err = errors.Join(err, early, w.phase("heal"), w.nemesis.healAll(ctx))
	w.nemesis.noteBites()
	if err != nil {
		return reasons, err
	}
	if err := w.inSync(ctx); err != nil {
		if !inconclusive(err) {
			return reasons, err
		}
		reasons = append(reasons, err.Error())
	}
	if len(reasons) == 0 { // a load that proves nothing need not go on
		return reasons, w.tail(ctx)
	}
	return reasons, nil
}

// inconclusive says whether an error means that we do not know, and not that the machine failed.
func inconclusive(err error) bool {
	return (errors.Is(err, errCapped) || errors.Is(err, errUnwell) || errors.Is(err, system.ErrNotApplicable)) && !errors.Is(err, system.ErrEnvironment)
}

// inSync waits until every replica of every arm is in sync.
func (w *wave) inSync(ctx context.Context) error {
	if _, ok := w.cluster.Cluster.(system.LeaderFinder); !ok {
		return nil
	}
	return w.poll(ctx, w.e.cfg.caps.inSync, "replicas in sync", func(ctx context.Context) (bool, string, error) {
		return each(w.arms, func(a *armRun) (bool, string, error) { return w.replicas(ctx, a, plan.FullyInSync, nil) })
	})
}

// tail keeps the load up until the evidence after the heal is there, and for as long as was asked.
func (w *wave) tail(ctx context.Context) error {
	healed := time.Now()
	marks, handled := map[string]Counts{}, map[string]int{}
	for _, a := range w.arms {
		if a.producers != nil {
			marks[a.arm.Name] = a.producers.Counts()
		}
		handled[a.arm.Name] = a.Counts().Handled
	}
	last := ""
	err := w.poll(ctx, w.e.cfg.caps.after+w.load.Tail+w.e.cfg.Duration, "load after the heal", func(context.Context) (bool, string, error) {
		enough, ended := true, true
		var seen []string
		for _, a := range w.arms {
			if a.hasEnded() {
				continue
			}
			ended = false
			c := a.producers.Counts().minus(marks[a.arm.Name])
			got := c.Confirmed
			switch all := a.producers.Counts(); { // of the load: what its processes do is drained
			case all.Confirmed > 0:
			case all.Claimed > 0:
				got = c.Claimed
			default:
				got = c.Ordered
			}
			enough = enough && got >= w.scenario.Evidence.After && a.Counts().Handled-handled[a.arm.Name] >= w.scenario.Evidence.HandledAfter
			seen = append(seen, fmt.Sprintf("%s %d", a.arm.Name, got))
		}
		last = strings.Join(seen, ", ")
		long := time.Since(healed) >= w.load.Tail && w.sinceLoad() >= w.e.cfg.Duration
		return ended || enough && long, last, nil
	})
	if errors.Is(err, errCapped) || errors.Is(err, errUnwell) {
		return nil // the audit sees what is missing
	}
	return err
}

// poll waits for a state of the whole wave.
func (w *wave) poll(ctx context.Context, limit time.Duration, what string, reached func(context.Context) (bool, string, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errCapped)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	seen := ""
	for {
		ok, now, err := reached(ctx)
		if err != nil {
			now = err.Error()
		} else if ok {
			return nil
		}
		if ctx.Err() == nil {
			seen = now
		}
		if err := w.machineFault(); err != nil {
			return err
		}
		if died := w.bereft(); died != "" { // what is waited for may never come, and would prove nothing
			return fmt.Errorf("%s: %w: %s", what, errUnwell, died)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, errCapped) {
				return cause
			}
			return fmt.Errorf("%s: %w (%s): %s", what, errCapped, limit, seen)
		}
	}
}

// finish drains the arms, ends their processes, proves quiescence and reads all that is there.
func (w *wave) finish(ctx context.Context, reasons []string) ([]string, error) {
	if err := w.phase("drain"); err != nil {
		return reasons, err
	}
	if err := w.drain(ctx); err != nil {
		return reasons, err
	}
	for _, a := range w.arms {
		for _, c := range a.processes {
			c.end()
		}
	}
	if err := w.processes.Wait(); err != nil {
		return reasons, err
	}
	detail, err := w.quiesce(ctx)
	quiet := ledger.Event{Kind: ledger.Quiet, Outcome: ledger.OK, Detail: detail}
	if err != nil {
		if !inconclusive(err) {
			return reasons, err
		}
		reasons = append(reasons, err.Error())
		quiet.Outcome, quiet.Detail = ledger.InDoubt, err.Error()
	}
	for _, a := range w.arms {
		e := quiet
		if e.Outcome == ledger.OK && a.drained.Kind != 0 && a.drained.Outcome != ledger.OK {
			e = a.drained
			reasons = append(reasons, a.arm.Name+": "+e.Detail)
		}
		if err := a.record(e); err != nil {
			return reasons, err
		}
	}
	if err := w.phase("read"); err != nil {
		return reasons, err
	}
	reader, ok := w.cluster.Cluster.(system.StoreReader)
	if !ok {
		return append(reasons, "the cluster's store cannot be read"), nil
	}
	for _, a := range w.arms {
		for _, read := range []func() error{
			func() error { return w.read(ctx, reader, a) },
			func() error { return w.snapshot(ctx, a) },
		} {
			if err := read(); err != nil {
				if ctx.Err() != nil {
					return reasons, context.Cause(ctx)
				}
				if errors.Is(err, system.ErrEnvironment) {
					return reasons, err
				}
				reasons = append(reasons, err.Error())
			}
		}
	}
	return reasons, w.recordAll(w.arms, ledger.Event{Kind: ledger.Phase, Text: "audit"})
}

// quiesce waits until the end positions of all arms are the same in two reads a span apart (2 s),
// with all replicas in sync, and records them. The producers have ended and the heals are confirmed by then.
func (w *wave) quiesce(ctx context.Context) (string, error) {
	positions, ok := w.cluster.Cluster.(system.Positions)
	if !ok {
		return "", fmt.Errorf("end positions %w: the cluster does not tell them", errCapped)
	}
	var last [][]int64
	var since time.Time
	err := w.poll(ctx, w.e.cfg.caps.still, "quiescence", func(ctx context.Context) (bool, string, error) {
		var now [][]int64
		for _, a := range w.arms {
			actx, cancel := context.WithTimeout(ctx, askCap)
			for _, d := range a.header.Destinations {
				ends, err := positions.EndPositions(actx, d.Name)
				if err != nil {
					cancel()
					return false, "", err
				}
				now = append(now, ends)
			}
			cancel()
		}
		if last == nil || !slices.EqualFunc(now, last, slices.Equal) {
			last, since = now, time.Now()
			return false, fmt.Sprintf("end positions move: %v", now), nil
		}
		if time.Since(since) < w.e.cfg.caps.quiet {
			return false, "end positions stand, not yet for long enough", nil
		}
		if _, ok := w.cluster.Cluster.(system.LeaderFinder); !ok {
			return true, "", nil
		}
		return each(w.arms, func(a *armRun) (bool, string, error) { return w.replicas(ctx, a, plan.FullyInSync, nil) })
	})
	if err != nil {
		return "", err
	}
	for _, a := range w.arms {
		for d := range a.header.Destinations {
			for p, end := range last[0] {
				pos := ledger.Position{Destination: uint16(d), Partition: int32(p), Offset: end}
				if err := a.record(ledger.Event{Kind: ledger.EndPosition, Pos: pos}); err != nil {
					return "", err
				}
			}
			last = last[1:]
		}
	}
	return fmt.Sprintf("end positions stood for %s", w.e.cfg.caps.quiet), nil
}

// read records what the store holds and where the arm's groups stand, into a segment of its own.
func (w *wave) read(ctx context.Context, reader system.StoreReader, a *armRun) error {
	return w.segment(ctx, a, "reader", "final read", func(ctx context.Context, sink func(ledger.Event)) error {
		for i, d := range a.header.Destinations {
			to := sink
			if d.DeadLetter { // one view of it is enough
				to = func(e ledger.Event) {
					if e.View == ledger.ViewRaw {
						e.View = ledger.ViewDeadLetter
						sink(e)
					}
				}
			}
			if err := reader.ReadStore(ctx, d.Name, uint16(i), a.header.Tag(), to); err != nil {
				return fmt.Errorf("read the store of arm %s: %w", a.arm.Name, err)
			}
		}
		groups, ok := w.cluster.Cluster.(system.GroupPositions)
		if !ok {
			return nil
		}
		for _, g := range a.header.Groups {
			for i, d := range a.header.Destinations {
				if d.DeadLetter {
					continue
				}
				ps, err := groups.GroupPositions(ctx, d.Name, g.Name)
				if err != nil {
					return fmt.Errorf("read positions of group %s: %w", g.Name, err)
				}
				for _, p := range ps {
					sink(ledger.Event{
						Kind: ledger.GroupEnd, Text: g.Name, At: clock.Now(),
						Pos: ledger.Position{Destination: uint16(i), Partition: p.Partition, Offset: p.Committed},
					})
				}
			}
		}
		return nil
	})
}

// snapshot records the final state of the arm's tables, into a segment of its own.
func (w *wave) snapshot(ctx context.Context, a *armRun) error {
	if w.scenario.Snapshot == nil {
		return nil
	}
	return w.segment(ctx, a, "snapshot", "snapshot", func(ctx context.Context, sink func(ledger.Event)) error {
		err := w.scenario.Snapshot(ctx, w.armEnv(a), func(e ledger.Event) {
			if e.At == 0 {
				e.At = clock.Now()
			}
			if e.Kind == ledger.SnapshotEnd && e.Detail == "" {
				e.Detail = a.schema // of tables that are in none
			}
			sink(e)
		})
		if err != nil {
			return fmt.Errorf("read the tables of arm %s: %w", a.arm.Name, err)
		}
		return nil
	})
}

// segment records what f finds in a segment of that name.
func (w *wave) segment(ctx context.Context, a *armRun, name, what string, f func(context.Context, func(ledger.Event)) error) (err error) {
	limit := w.e.cfg.caps.read
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s: %w (%s)", what, errCapped, limit))
	defer cancel()
	j, err := createJournal(a.folder, a.segment(name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.close()) }()
	if err := f(ctx, j.w.Append); err != nil {
		return err
	}
	return j.flush()
}

// remove deletes what was made for the arms; what cannot be deleted, as in a system that died, goes with
// the cluster.
func (w *wave) remove(ctx context.Context) {
	if w.e.cfg.Keep {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeCap)
	defer cancel()
	for _, a := range w.arms {
		if w.scenario.Cleanup != nil && w.dead == nil {
			if err := w.scenario.Cleanup(ctx, w.armEnv(a)); err != nil {
				w.e.log.Warn("arm not cleaned up", "arm", a.arm.Name, "error", err)
			}
		}
		for name, c := range w.with {
			if schemas, ok := c.(system.Schemas); ok && w.dead == nil {
				if err := schemas.DropSchema(ctx, a.schema); err != nil {
					w.e.log.Warn("schema not dropped", "system", name, "schema", a.schema, "error", err)
				}
			}
		}
		for _, d := range a.header.Destinations {
			if err := w.cluster.Delete(ctx, d.Name); err != nil {
				w.e.log.Warn("destination not deleted", "destination", d.Name, "error", err)
			}
		}
	}
}
