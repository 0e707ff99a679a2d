package harness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/mod/semver"

	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
)

const (
	closeCap    = 2 * time.Minute  // a cluster is removed
	collectCap  = 30 * time.Second // its logs are copied before that
	baselineCap = time.Minute
)

// errTimeout is the cause of a run that Config.Timeout ended: inconclusive, not interrupted.
var errTimeout = errors.New("the run's timeout has passed")

type engine struct {
	cfg     Config
	log     *slog.Logger
	dir     *folder
	res     Result
	up      []*running // the broker and the systems beside it, in no order
	made    int        // clusters started
	release func()     // of the memory that is reserved for the suite; nil = none is
}

// running is the cluster that is up.
type running struct {
	system.Cluster
	name     string // of its system
	number   int
	suite    *Suite
	settings map[string]string
}

// Run runs the scenarios of cfg.Suites and returns what was found. The Result is whole as far as
// the run came, also with an error, and a promise found broken stays in it. Errors wrap
// system.ErrUsage (nothing was run), system.ErrEnvironment, or ErrInterrupted when ctx ended: then
// all is healed and removed, and the ledger kept. An audit of the run folder gives the same verdicts.
func Run(ctx context.Context, cfg Config) (Result, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return Result{}, err
	}
	dir, err := openFolder(cfg.Out)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = dir.close() }()
	e := &engine{cfg: cfg, log: cfg.Log, dir: dir}
	e.res = Result{
		RunID: cfg.RunID, Seed: cfg.Seed, Runs: cfg.Runs, Binary: cfg.Binary, Command: cfg.Command, Machine: cfg.Machine, Started: time.Now(),
	}
	for i := range cfg.Suites {
		e.res.Suites = append(e.res.Suites, suiteResult(&cfg.Suites[i], cfg))
	}
	if err := dir.save(runFile, e.res); err != nil {
		return e.res, err
	}
	if cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, cfg.Timeout, errTimeout)
		defer cancel()
	}
	err = e.runAll(ctx)
	err = errors.Join(err, e.closeAll(ctx, cfg.Keep && ctx.Err() == nil))
	conclude(&e.res)
	e.res.Ended = time.Now()
	if saved := dir.save(resultFile, e.res); saved != nil {
		err = errors.Join(err, saved)
	}
	return e.res, err
}

func (c Config) withDefaults() Config {
	c.Runs = max(1, c.Runs)
	if c.Timing == "" {
		c.Timing = "short"
	}
	if c.caps == (caps{}) {
		c.caps = defaultCaps
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// check refuses what can never work before anything is started.
func (c Config) check() error {
	if c.RunID == "" || len(c.Worker) == 0 || len(c.Suites) == 0 {
		return fmt.Errorf("run: run id, worker command and a suite are wanted: %w", system.ErrUsage)
	}
	for _, s := range c.Suites {
		if len(s.Scenarios) == 0 {
			return fmt.Errorf("run %s: no scenario is chosen: %w", s.Name, system.ErrUsage)
		}
		seen := map[string]bool{}
		for _, sc := range s.Scenarios {
			if seen[sc.Name] {
				return fmt.Errorf("run %s: two scenarios are named %s: %w", s.Name, sc.Name, system.ErrUsage)
			}
			seen[sc.Name] = true
			if err := c.checkScenario(s, sc); err != nil {
				return fmt.Errorf("run %s/%s: %w: %w", s.Name, sc.Name, err, system.ErrUsage)
			}
		}
	}
	return nil
}

func (c Config) checkScenario(suite Suite, sc Scenario) error {
	p, err := plan.New(c.Seed, sc.Targets, sc.Steps)
	if err != nil {
		return err
	}
	for name, role := range sc.Targets {
		r, on := role.Split()
		if on == "" {
			continue
		}
		if !slices.ContainsFunc(suite.With, func(s system.System) bool { return s.Name() == on }) {
			return fmt.Errorf("target %q is on %s, which the suite does not run with", name, on)
		}
		if r != plan.One && r != plan.All && r != plan.Majority {
			return fmt.Errorf("target %q: a %s of %s cannot be told", name, r, on)
		}
	}
	arms, processes := map[string]bool{}, map[string]bool{producerCrew: true}
	for _, a := range sc.Arms {
		if arms[a.Name] || a.Name == "" || strings.ContainsAny(a.Name, "/\\") {
			return fmt.Errorf("arm name %q is empty, not unique or not a file name", a.Name)
		}
		arms[a.Name] = true
		if (a.Role == Control) != (a.Break != nil) {
			return fmt.Errorf("arm %s: a control, and only a control, has a break", a.Name)
		}
		if err := a.checkProcesses(processes); err != nil {
			return fmt.Errorf("arm %s: %w", a.Name, err)
		}
	}
	known := func(names []string, process string) error {
		for _, n := range names {
			if !arms[n] {
				return fmt.Errorf("no arm is named %q", n)
			}
		}
		if process != "" && !processes[process] {
			return fmt.Errorf("no process is named %q", process)
		}
		return nil
	}
	for _, s := range p.Steps {
		for _, u := range s.Until {
			if err := known(u.Arms, u.Process); err != nil {
				return fmt.Errorf("step %q: %w", s.Name, err)
			}
			if u.Kind == plan.Custom && sc.Gates[u.Name] == nil {
				return fmt.Errorf("step %q: no gate is named %q", s.Name, u.Name)
			}
		}
		if err := known(s.Arms, s.Process); err != nil {
			return fmt.Errorf("step %q: %w", s.Name, err)
		}
		if s.Do != "" && sc.Actions[s.Do] == nil && !doesProcess(s.Do) && !slices.Contains([]string{DoStart, DoRestart, DoStopLoad, DoElectUnclean, DoBaseline}, s.Do) {
			return fmt.Errorf("step %q: no action is named %q", s.Name, s.Do)
		}
		if doesProcess(s.Do) && (s.Process == "" || s.Process == producerCrew && s.Do == DoStartProcess) {
			return fmt.Errorf("step %q: %s wants a process", s.Name, s.Do)
		}
		if s.Inject == nil {
			continue
		}
		if err := known(s.Inject.Arms, ""); err != nil {
			return fmt.Errorf("step %q: %w", s.Name, err)
		}
		f, ok := c.Faults[s.Inject.Fault]
		if !ok {
			return fmt.Errorf("step %q: no fault is named %q", s.Name, s.Inject.Fault)
		}
		if err := f.CheckParams(s.Inject.Params); err != nil {
			return fmt.Errorf("step %q: %w", s.Name, err)
		}
	}
	return nil
}

// reserved are the names of segments that the engine writes itself.
var reserved = []string{producerCrew, "engine", "reader", "snapshot"}

// checkProcesses checks the processes of an arm and adds their names to known.
func (a Arm) checkProcesses(known map[string]bool) error {
	own := map[string]bool{}
	for _, p := range a.Processes {
		bad := p.Name == "" || own[p.Name] || slices.Contains(reserved, p.Name) || strings.HasPrefix(p.Name, producerCrew+"-") || strings.ContainsAny(p.Name, "/\\")
		switch {
		case bad:
			return fmt.Errorf("process name %q is empty, not unique, not a file name or the engine's own", p.Name)
		case p.Role == "":
			return fmt.Errorf("process %s has no role", p.Name)
		case p.Restart && p.CrashAt == "":
			return fmt.Errorf("process %s starts again after a crash that is not planned", p.Name)
		}
		own[p.Name], known[p.Name] = true, true
	}
	if a.Producer.None && len(a.Processes) == 0 {
		return errors.New("it has neither a load nor a process")
	}
	return nil
}

func (e *engine) say(format string, args ...any) {
	if e.cfg.Progress != nil {
		fmt.Fprintf(e.cfg.Progress, format+"\n", args...)
	}
}

// nodeSettings are the node settings of the broker and of the systems beside it, by system name.
type nodeSettings map[string]map[string]string

// unit is those arms of a scenario that share a cluster.
type unit struct {
	scenario int
	arms     []Arm
}

// group collects the units of a suite by the node settings they need, in the order of their first
// use: a cluster is started once for all that can share it.
func group(s *Suite) (settings []nodeSettings, units [][]unit) {
	for i, sc := range s.Scenarios {
		for _, arm := range sc.Arms {
			wanted := nodeSettings{s.System.Name(): arm.Node}
			for _, other := range s.With {
				wanted[other.Name()] = arm.WithNode[other.Name()]
			}
			g := slices.IndexFunc(settings, func(m nodeSettings) bool { return maps.EqualFunc(m, wanted, maps.Equal) })
			if g < 0 {
				g = len(settings)
				settings, units = append(settings, wanted), append(units, nil)
			}
			if n := len(units[g]); n > 0 && units[g][n-1].scenario == i {
				units[g][n-1].arms = append(units[g][n-1].arms, arm)
			} else {
				units[g] = append(units[g], unit{scenario: i, arms: []Arm{arm}})
			}
		}
	}
	return settings, units
}

// runAll runs every suite. Its error is the first one of the environment, or why all was ended.
func (e *engine) runAll(ctx context.Context) error {
	var first error
	for i := range e.cfg.Suites {
		s := &e.cfg.Suites[i]
		err := e.runSuite(ctx, s, &e.res.Suites[i])
		if first == nil {
			first = err
		}
		if ctx.Err() != nil || hopeless(err) {
			break
		}
		// Another suite may be on another system, and needs the memory.
		if err := e.closeAll(ctx, e.cfg.Keep && i == len(e.cfg.Suites)-1); first == nil {
			first = err
		}
	}
	if ctx.Err() != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errTimeout) {
			e.notRun(cause.Error())
			return nil
		}
		e.notRun(ErrInterrupted.Error())
		return ErrInterrupted
	}
	return first
}

// hopeless says whether nothing else can be run either.
func hopeless(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, system.ErrUsage) || errors.Is(err, errNoCluster)
}

// errNoCluster marks a cluster that could not be started: the next one would not either.
var errNoCluster = errors.New("no cluster")

// notRun gives a reason to the scenarios that were not run to their end.
func (e *engine) notRun(why string) {
	for i := range e.res.Suites {
		for j := range e.res.Suites[i].Scenarios {
			sc := &e.res.Suites[i].Scenarios[j]
			whole := len(sc.Repeats) == e.cfg.Runs && !slices.ContainsFunc(sc.Repeats, func(r Repeat) bool {
				return len(r.Arms) < len(e.cfg.Suites[i].Scenarios[j].Arms)
			})
			if sc.Status == audit.NotApplicable || whole && !slices.ContainsFunc(sc.Repeats, func(r Repeat) bool { return r.Error != "" }) {
				continue
			}
			sc.Error = joinSeen(sc.Error, why)
		}
	}
}

func (e *engine) runSuite(ctx context.Context, s *Suite, res *SuiteResult) error {
	begun := time.Now()
	defer func() { res.Elapsed = time.Since(begun) }()
	var first error
	settings, units := group(s)
	left := map[int]int{} // units still to run, by scenario
	for _, g := range units {
		for _, u := range g {
			left[u.scenario] += e.cfg.Runs
		}
	}
	for g := range settings {
		for repeat := range e.cfg.Runs {
			for _, u := range units[g] {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				sc := &res.Scenarios[u.scenario]
				err := e.runUnit(ctx, s, u, settings[g], repeat, sc)
				if err != nil && ctx.Err() == nil {
					sc.Error = joinSeen(sc.Error, system.Plain(err.Error()))
					e.say("%s/%s: %s", s.Name, sc.Name, err)
					if first == nil {
						first = err
					}
				}
				judge(sc, e.cfg.Runs)
				left[u.scenario]--
				if left[u.scenario] == 0 {
					e.say("%s", verdictLine(sc))
				}
				if saved := e.dir.save(resultFile, e.res); saved != nil {
					return errors.Join(first, saved)
				}
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if hopeless(err) {
					return err
				}
			}
		}
	}
	return first
}

// runUnit runs some arms of a scenario once and judges them from their ledgers.
func (e *engine) runUnit(ctx context.Context, s *Suite, u unit, node nodeSettings, repeat int, res *ScenarioResult) error {
	if res.Status == audit.NotApplicable {
		return nil
	}
	begun := time.Now()
	sc := &s.Scenarios[u.scenario]
	l := &live{tell: e.cfg.Live, now: Live{Suite: s.Name, Scenario: sc.Name, Repeat: repeat + 1, Runs: e.cfg.Runs}}
	l.phase("provision")
	cluster, err := e.need(ctx, s, s.System, node)
	with := map[string]system.Cluster{}
	for _, other := range s.With {
		if err != nil {
			break
		}
		var c *running
		if c, err = e.need(ctx, s, other, node); err == nil {
			with[other.Name()] = c.Cluster
		}
	}
	if err != nil {
		return err
	}
	seed := plan.RepeatSeed(e.cfg.Seed, repeat)
	p, err := plan.New(seed, sc.Targets, sc.Steps)
	if err != nil {
		return err
	}
	if why := e.unable(cluster, with, sc); why != "" {
		res.Status, res.Reasons = audit.NotApplicable, []string{why}
		return nil
	}
	i := slices.IndexFunc(res.Repeats, func(r Repeat) bool { return r.Index == repeat })
	if i < 0 {
		i = len(res.Repeats)
		res.Repeats = append(res.Repeats, Repeat{Index: repeat, Seed: seed})
		if repeat == 0 {
			res.Plan = p.Words()
		}
	}
	r := &res.Repeats[i]
	w := &wave{e: e, suite: s, scenario: sc, cluster: cluster, with: with, repeat: r, plan: p, load: sc.Load.withDefaults(e.cfg), live: l}
	reasons, err := w.run(ctx, u.arms)
	r.Steps = append(r.Steps, w.steps...)
	r.Reasons = append(r.Reasons, reasons...)

	l.phase("audit")
	for _, a := range w.arms {
		folder := armFolder(s.Name, sc.Name, repeat, a.arm.Name)
		r.Arms = append(r.Arms, auditArm(e.dir.dir, folder))
	}
	r.Elapsed += time.Since(begun)
	res.Elapsed += time.Since(begun)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			r.Error = joinSeen(r.Error, system.Plain(err.Error()))
			return err
		}
		err = environment(err)
		r.Error = joinSeen(r.Error, system.Plain(err.Error()))
		// Whatever state it is in: the next scenario gets another.
		for _, c := range slices.Clone(e.up) {
			e.note(c, sc.Name+": rebuilt after an error")
			err = errors.Join(err, e.closeCluster(ctx, c, false))
		}
		return err
	}
	if sc.Destructive {
		for _, c := range slices.Clone(e.up) {
			if err := e.baseline(ctx, c, sc.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l Load) withDefaults(cfg Config) Load {
	if l.Rate == 0 {
		l.Rate = 2000
	}
	if cfg.Rate > 0 {
		l.Rate = cfg.Rate
	}
	if l.Keys == 0 {
		l.Keys = 64
	}
	if l.PayloadSize == 0 {
		l.PayloadSize = 160
	}
	l.PayloadSize = max(l.PayloadSize, ledger.MinPayload)
	l.Partitions = max(1, l.Partitions)
	if l.Window == 0 {
		l.Window = 1000
	}
	if l.Tail == 0 {
		l.Tail = defaultTail
	}
	return l
}

// unable says why a scenario cannot be run on a cluster, or nothing.
func (e *engine) unable(c *running, with map[string]system.Cluster, sc *Scenario) string {
	of := func(target string) system.Cluster {
		if _, name := sc.Targets[target].Split(); name != "" {
			return with[name]
		}
		return c.Cluster
	}
	has := func(ok bool, what string) string {
		if ok {
			return ""
		}
		return fmt.Sprintf("%s clusters cannot %s", c.System(), what)
	}
	_, reads := c.Cluster.(system.StoreReader)
	_, ends := c.Cluster.(system.Positions)
	_, leads := c.Cluster.(system.LeaderFinder)
	_, elects := c.Cluster.(system.Elector)
	whys := []string{has(reads && ends, "be read to their end")}
	if v := c.Version(); sc.Since != "" && semver.IsValid("v"+v) && semver.Compare("v"+v, "v"+sc.Since) < 0 {
		whys = append(whys, fmt.Sprintf("%s %s is older than %s, which does what this is about", c.System(), v, sc.Since))
	}
	for _, role := range sc.Targets {
		switch role, _ := role.Split(); role {
		case plan.All, plan.One, plan.Majority:
		default:
			whys = append(whys, has(leads, "tell who leads"))
		}
	}
	for _, s := range sc.Steps {
		for _, u := range s.Until {
			switch u.Kind {
			case plan.ConfirmedBy, plan.SentTo:
				_, counts := of(u.Target).(system.WireCounter)
				whys = append(whys, has(counts, "count messages on their links"))
			case plan.InSync, plan.FullyInSync, plan.LeaderNot, plan.LeaderIs, plan.LeaderNone, plan.LeaderAny:
				whys = append(whys, has(leads, "tell who leads"))
			}
		}
		if sc.Actions[s.Do] == nil {
			switch s.Do {
			case DoStart, DoRestart:
				_, kills := of(s.Target).(system.Killer)
				whys = append(whys, has(kills, "start a node"))
			case DoElectUnclean:
				whys = append(whys, has(elects, "hold unclean elections"))
			}
		}
		if s.Inject != nil {
			if f := e.cfg.Faults[s.Inject.Fault]; f.Supports != nil {
				if err := f.Supports(of(s.Inject.Target)); err != nil {
					whys = append(whys, err.Error())
				}
			}
		}
	}
	whys = slices.DeleteFunc(whys, func(s string) bool { return s == "" })
	slices.Sort(whys)
	return strings.Join(slices.Compact(whys), "; ")
}

// need returns a cluster of one of the suite's systems with these node settings, starting one if the one that is up is another.
func (e *engine) need(ctx context.Context, s *Suite, sys system.System, all nodeSettings) (*running, error) {
	name := sys.Name()
	node := all[name]
	for _, c := range slices.Clone(e.up) {
		switch {
		case c.suite != s:
		case c.name != name:
			continue
		case maps.Equal(c.settings, node):
			return c, nil
		}
		if err := e.closeCluster(ctx, c, false); err != nil {
			return nil, err
		}
	}
	version := e.cfg.Versions[name]
	if version == "" {
		version = sys.Versions()[0]
	}
	if e.cfg.Reserve != nil && e.release == nil {
		// For all of the suite's systems at once: two runs that each had a part would wait for each other.
		release, err := e.cfg.Reserve(ctx, s.MemoryMiB())
		if err != nil {
			return nil, fmt.Errorf("%w: reserve memory for %s: %w", errNoCluster, s.Name, environment(err))
		}
		e.release = release
	}
	e.say("%s: starting %s %s", s.Name, name, version)
	c, err := sys.Start(ctx, system.Spec{
		Run: e.cfg.RunID, Version: version, Image: e.cfg.Images[name], Settings: node, Timing: e.cfg.Timing,
		Seed: e.cfg.Seed, Keep: e.cfg.Keep, Log: e.log, Progress: e.cfg.Progress,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: start %s %s: %w", errNoCluster, name, version, environment(err))
	}
	e.made++
	r := &running{Cluster: c, name: name, number: e.made, suite: s, settings: maps.Clone(node)}
	e.up = append(e.up, r)
	info := ClusterInfo{
		System: c.System(), Version: c.Version(), Image: e.cfg.Images[name],
		Startup: c.Startup(), Settings: c.Settings(), Timing: c.Timing(),
	}
	if use, err := c.MemoryMiB(ctx); err == nil {
		info.MemoryMiB = use
	} else {
		e.log.Warn("memory of the cluster is unknown", "error", err)
	}
	e.res.Clusters = append(e.res.Clusters, info)
	e.say("%s: %s %s is up after %s", s.Name, name, version, c.Startup().Round(100*time.Millisecond))
	return r, nil
}

func (e *engine) note(c *running, what string) {
	info := &e.res.Clusters[c.number-1]
	info.RebuiltAfter = append(info.RebuiltAfter, what)
}

// baseline checks a cluster after a destructive scenario, and lets go of one that is not as good as
// new: the next scenario starts another.
func (e *engine) baseline(ctx context.Context, c *running, scenario string) error {
	bctx, cancel := context.WithTimeout(ctx, baselineCap)
	defer cancel()
	err := c.Baseline(bctx)
	if err == nil {
		e.note(c, scenario+": checked against its baseline")
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e.note(c, fmt.Sprintf("%s: rebuilt (%s)", scenario, err))
	return e.closeCluster(ctx, c, false)
}

// closeAll removes all clusters that are up, or keeps them, and lets go of their memory if they are gone.
func (e *engine) closeAll(ctx context.Context, keep bool) error {
	var errs []error
	for _, c := range slices.Clone(e.up) {
		errs = append(errs, e.closeCluster(ctx, c, keep))
	}
	if e.release != nil && !keep {
		e.release()
		e.release = nil
	}
	return errors.Join(errs...)
}

// closeCluster removes a cluster that is up, whatever becomes of ctx, after copying its logs. With
// keep it stays, and the result says how to reach it.
func (e *engine) closeCluster(ctx context.Context, c *running, keep bool) error {
	e.up = slices.DeleteFunc(e.up, func(r *running) bool { return r == c })
	ctx = context.WithoutCancel(ctx)
	e.collect(ctx, c)
	if keep {
		how := "at " + strings.Join(c.DirectEndpoints(), ",")
		if r, ok := c.Cluster.(system.Reachable); ok {
			how += ": " + r.Reach()
		}
		e.res.Kept = append(e.res.Kept, fmt.Sprintf("%s %s %s", c.System(), c.Version(), how))
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, closeCap)
	defer cancel()
	err := c.Close(ctx)
	if err != nil { // it may run twice
		err = c.Close(ctx)
	}
	if err != nil {
		return environment(fmt.Errorf("remove %s: %w", c.System(), err))
	}
	return nil
}

// collect copies the logs of the nodes. One that cannot be had is no failure of the run.
func (e *engine) collect(ctx context.Context, c *running) {
	collector, ok := c.Cluster.(system.LogCollector)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, collectCap)
	defer cancel()
	dir := filepath.Join(e.dir.dir, logsDir, fmt.Sprintf("%s-%d", c.name, c.number))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		e.log.Warn("logs not collected", "error", err)
		return
	}
	for _, n := range c.Nodes() {
		err := func() (err error) {
			f, err := os.Create(filepath.Join(dir, n.Name()+".log"))
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			return collector.CollectLog(ctx, n, f)
		}()
		if err != nil {
			e.log.Warn("log not collected", "node", n.Name(), "error", err)
		}
	}
}
