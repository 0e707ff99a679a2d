package harness

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
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
	drain  time.Duration // nothing moves any more
	read   time.Duration // the final read
	quiet  time.Duration // no cap: the span between the two reads that prove quiescence
}

var defaultCaps = caps{
	start: 30 * time.Second, flush: 30 * time.Second, after: 30 * time.Second,
	inSync: 90 * time.Second, drain: 90 * time.Second, read: 2 * time.Minute, quiet: 2 * time.Second,
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
	repeat   *Repeat
	plan     plan.Plan
	load     Load
	arms     []*armRun
	loadAt   int64
	steps    []StepResult
	nemesis  *nemesis
	live     *live
}

// prepare resolves the plan, creates the destinations and opens the ledgers.
func (w *wave) prepare(ctx context.Context, arms []Arm) error {
	nodes := w.cluster.Nodes()
	leader := nodes[w.plan.Pick("placement", len(nodes))]
	for _, arm := range arms {
		name := fmt.Sprintf("%s.%s.r%d.%s", w.e.cfg.RunID, w.scenario.Name, w.repeat.Index, arm.Name)
		a := &armRun{
			arm: arm, destination: name, client: name + ".", load: w.load, argv: w.e.cfg.Worker,
			folder: filepath.Join(w.e.dir.dir, armFolder(w.suite.Name, w.scenario.Name, w.repeat.Index, arm.Name)),
			system: w.suite.System, endpoints: w.cluster.Endpoints(), flushCap: w.e.cfg.caps.flush,
			stop: make(chan struct{}), ended: make(chan struct{}),
		}
		a.header = w.header(a)
		if err := a.open(); err != nil {
			return err
		}
		w.arms = append(w.arms, a)
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, a := range w.arms {
		g.Go(func() error {
			err := w.cluster.Create(gctx, system.DestinationSpec{
				Name: a.destination, Partitions: w.load.Partitions, Leader: leader, Settings: a.arm.Destination,
			})
			if err != nil {
				return environment(fmt.Errorf("create destination of arm %s: %w", a.arm.Name, err))
			}
			return nil
		})
	}
	return g.Wait()
}

func (w *wave) header(a *armRun) ledger.Header {
	evidence := w.scenario.Evidence
	evidence.During = a.arm.During
	if evidence.Bites == nil { // a fault nobody asked about must have bitten too
		for _, s := range w.plan.Steps {
			if s.Inject != nil {
				evidence.Bites = append(evidence.Bites, s.Name)
			}
		}
	}
	evidence.Bites = slices.DeleteFunc(slices.Clone(evidence.Bites), func(step string) bool {
		return slices.ContainsFunc(w.plan.Steps, func(s plan.Step) bool {
			return s.Name == step && s.Inject != nil && len(s.Inject.Arms) > 0 && !slices.Contains(s.Inject.Arms, a.arm.Name)
		})
	})
	promise := w.suite.Promise
	if a.arm.Promise.Text != "" {
		promise = a.arm.Promise
	}
	return ledger.Header{
		Schema: ledger.SchemaVersion, Run: w.e.cfg.RunID, Suite: w.suite.Name, System: w.suite.System.Name(), Version: w.cluster.Version(),
		Scenario: w.scenario.Name, Arm: a.arm.Name, Role: string(a.arm.Role), Window: w.scenario.Window,
		Seed: w.repeat.Seed, Repeat: w.repeat.Index,
		Destinations: []ledger.Destination{{Name: a.destination, Partitions: w.load.Partitions}},
		Workload:     ledger.Workload{Keys: w.load.Keys, PayloadSize: w.load.PayloadSize},
		Promise:      promise, Expect: a.arm.expect(), Evidence: evidence,
		Deadlines: map[string]time.Duration{"flush": w.e.cfg.caps.flush, "in sync": w.e.cfg.caps.inSync, "drain": w.e.cfg.caps.drain, "read": w.e.cfg.caps.read},
		Settings:  a.arm.settings(), Timing: w.cluster.Timing(), Plan: w.plan.Words(), Checks: audit.Checks(),
		Reproduce: fmt.Sprintf("conform run --suite %s --scenario %s --seed %d", w.suite.Name, w.scenario.Name, w.repeat.Seed),
	}
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
		Cluster: w.cluster.Cluster, Targets: w.nemesis.targets, Destinations: map[string]string{}, Clients: map[string]string{},
		Counts: func(arm string) Counts {
			for _, a := range w.arms {
				if a.arm.Name == arm {
					return a.Counts()
				}
			}
			return Counts{}
		},
	}
	for _, a := range w.arms {
		e.Destinations[a.arm.Name], e.Clients[a.arm.Name] = a.destination, a.client
	}
	return e
}

func (w *wave) noteTarget(name string, nodes []system.Node) {
	if w.repeat.Targets == nil {
		w.repeat.Targets = map[string][]string{}
	}
	w.repeat.Targets[name] = nodeNames(nodes)
}

func (w *wave) machineFault() error {
	for _, a := range w.arms {
		if err := a.machineFault(); err != nil {
			return err
		}
	}
	return nil
}

func (w *wave) counts() Counts {
	var sum Counts
	for _, a := range w.arms {
		c := a.Counts()
		sum.Sent += c.Sent
		sum.Confirmed += c.Confirmed
		sum.Refused += c.Refused
		sum.InDoubt += c.InDoubt
		sum.Claimed += c.Claimed
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
	if err := w.prepare(ctx, arms); err != nil {
		return nil, err
	}
	defer w.remove(ctx)

	if err := w.phase("warm"); err != nil {
		return nil, err
	}
	first := make([]*worker.Process, len(w.arms))
	g, gctx := errgroup.WithContext(ctx)
	for i, a := range w.arms {
		g.Go(func() error {
			sctx, cancel := context.WithTimeoutCause(gctx, w.e.cfg.caps.start, fmt.Errorf("client of arm %s is not open after %s: %w", a.arm.Name, w.e.cfg.caps.start, system.ErrEnvironment))
			defer cancel()
			var err error
			first[i], err = a.start(sctx, 0)
			return environment(err)
		})
	}
	if err := g.Wait(); err != nil {
		for i, a := range w.arms {
			if first[i] != nil {
				first[i].Kill()
				err = errors.Join(err, a.finish(first[i], 0, "the client of another arm was not open"))
			}
		}
		return nil, err
	}

	// The producers end with the load, or when ctx does. Their errors reach the plan as the machine's.
	drive, stopDriving := context.WithCancel(ctx)
	defer stopDriving()
	var producers errgroup.Group
	if err := w.phase("load"); err != nil {
		stopDriving()
	}
	w.loadAt = clock.Now()
	for i, a := range w.arms {
		producers.Go(func() error { return a.drive(drive, first[i]) })
	}
	stopWatching := w.live.watch(w)
	reasons, err = w.work(ctx)
	stopWatching()
	if err != nil {
		stopDriving()
	}
	for _, a := range w.arms {
		a.endLoad()
	}
	if driven := producers.Wait(); err == nil {
		err = driven
	}
	for _, a := range w.arms {
		reasons = append(reasons, a.unwell...)
	}
	if err != nil {
		return reasons, err
	}
	return w.finish(ctx, reasons)
}

// work runs the plan under load and heals whatever it leaves behind.
func (w *wave) work(ctx context.Context) (reasons []string, err error) {
	w.nemesis = &nemesis{w: w, plan: w.plan, targets: map[string][]system.Node{}, marks: map[string]mark{}}
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
	return (errors.Is(err, errCapped) || errors.Is(err, system.ErrNotApplicable)) && !errors.Is(err, system.ErrEnvironment)
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
	marks := map[string]Counts{}
	for _, a := range w.arms {
		marks[a.arm.Name] = a.Counts()
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
			c := a.Counts().minus(marks[a.arm.Name])
			got := c.Confirmed
			if a.Counts().Confirmed == 0 {
				got = c.Claimed
			}
			enough = enough && got >= w.scenario.Evidence.After
			seen = append(seen, fmt.Sprintf("%s %d", a.arm.Name, got))
		}
		last = strings.Join(seen, ", ")
		long := time.Since(healed) >= w.load.Tail && w.sinceLoad() >= w.e.cfg.Duration
		return ended || enough && long, last, nil
	})
	if errors.Is(err, errCapped) {
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

// finish proves quiescence and reads the store.
func (w *wave) finish(ctx context.Context, reasons []string) ([]string, error) {
	if err := w.phase("drain"); err != nil {
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
	if err := w.recordAll(w.arms, quiet); err != nil {
		return reasons, err
	}
	if err := w.phase("read"); err != nil {
		return reasons, err
	}
	reader, ok := w.cluster.Cluster.(system.StoreReader)
	if !ok {
		return append(reasons, "the cluster's store cannot be read"), nil
	}
	for _, a := range w.arms {
		if err := w.read(ctx, reader, a); err != nil {
			if ctx.Err() != nil {
				return reasons, context.Cause(ctx)
			}
			if errors.Is(err, system.ErrEnvironment) {
				return reasons, err
			}
			reasons = append(reasons, err.Error())
		}
	}
	return reasons, w.recordAll(w.arms, ledger.Event{Kind: ledger.Phase, Text: "audit"})
}

// quiesce waits until the end positions of all arms are the same in two reads a span apart (2 s),
// with all replicas in sync. The producers have ended and the heals are confirmed by then.
func (w *wave) quiesce(ctx context.Context) (string, error) {
	positions, ok := w.cluster.Cluster.(system.Positions)
	if !ok {
		return "", fmt.Errorf("end positions %w: the cluster does not tell them", errCapped)
	}
	var last [][]int64
	var since time.Time
	err := w.poll(ctx, w.e.cfg.caps.drain, "quiescence", func(ctx context.Context) (bool, string, error) {
		var now [][]int64
		for _, a := range w.arms {
			actx, cancel := context.WithTimeout(ctx, askCap)
			ends, err := positions.EndPositions(actx, a.destination)
			cancel()
			if err != nil {
				return false, "", err
			}
			now = append(now, ends)
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
	return fmt.Sprintf("end positions stood for %s", w.e.cfg.caps.quiet), err
}

// read records what the store holds into a segment of its own.
func (w *wave) read(ctx context.Context, reader system.StoreReader, a *armRun) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, w.e.cfg.caps.read, fmt.Errorf("final read: %w (%s)", errCapped, w.e.cfg.caps.read))
	defer cancel()
	j, err := createJournal(a.folder, ledger.Segment{Name: "reader", Role: "reader"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.close()) }()
	if err := reader.ReadStore(ctx, a.destination, 0, a.header.Tag(), j.w.Append); err != nil {
		return fmt.Errorf("read the store of arm %s: %w", a.arm.Name, err)
	}
	return j.flush()
}

// remove deletes the destinations; what cannot be deleted goes with the cluster.
func (w *wave) remove(ctx context.Context) {
	if w.e.cfg.Keep {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeCap)
	defer cancel()
	for _, a := range w.arms {
		if err := w.cluster.Delete(ctx, a.destination); err != nil {
			w.e.log.Warn("destination not deleted", "destination", a.destination, "error", err)
		}
	}
}
