package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/system/memory"
	"conform/harness/worker"
)

const secret = "a-password-of-the-database"

func init() {
	worker.Register("memory-consumer", worker.ConsumerRole(memory.Clients{}, func(_ context.Context, s *worker.Session, ds []system.Delivery) error {
		s.Count(worker.Counts{Handled: int64(len(ds))})
		return nil
	}))
	worker.Register("memory-taker", func(ctx context.Context, s *worker.Session) error { // never settles
		c, err := memory.Clients{}.OpenConsumer(ctx, s.Config.Client)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close(ctx) }()
		if err := s.Ready(ctx); err != nil {
			return err
		}
		_, err = c.Poll(ctx)
		if err != nil {
			return err
		}
		<-s.Stopping()
		return nil
	})
	worker.Register("deaf", func(ctx context.Context, s *worker.Session) error {
		if err := s.Ready(ctx); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
	worker.Register("sick", func(ctx context.Context, s *worker.Session) error {
		if err := s.Ready(ctx); err != nil {
			return err
		}
		return errors.New("I do not feel well")
	})
	worker.Register("orders", func(ctx context.Context, s *worker.Session) error {
		c := s.Config
		if e := c.With["database"]; !strings.Contains(e.DSN, secret) || !strings.Contains(e.DSN, c.Client.ClientID) || len(e.Endpoints) == 0 || c.Schema == "" || c.Params["table"] != "orders" {
			return fmt.Errorf("configured with %v, schema %q, parameters %v", e, c.Schema, c.Params)
		}
		if c.Peers["relay"] == "" || c.Listen != "" {
			return fmt.Errorf("peers %v, listens at %q", c.Peers, c.Listen)
		}
		if err := s.Ready(ctx); err != nil {
			return err
		}
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for seq := uint64(0); ; seq++ {
			select {
			case <-s.Stopping():
				return nil
			case <-tick.C:
			}
			key := uint32(seq % 4)
			if err := s.PointOf(ctx, "ordered", ledger.EventID(c.Stream, seq), key); err != nil {
				return err
			}
			s.Count(worker.Counts{Ordered: 1})
		}
	})
}

func consumer(name string) Process {
	return Process{Name: name, Role: "memory-consumer", Group: "g"}
}

// withProcesses is a scenario in which nothing strikes but the arms' own workers.
func withProcesses(name string, steps []plan.Step, processes ...Process) Scenario {
	g, c := guarded(), control(memory.CorruptPayload, "corrupted", "")
	g.Processes, c.Processes = processes, processes
	return Scenario{Name: name, Load: quickLoad, Arms: []Arm{g, c}, Steps: steps, Evidence: ledger.Evidence{After: 20}}
}

func only(t *testing.T, res Result) ScenarioResult {
	t.Helper()
	if n := len(res.Suites[0].Scenarios); n != 1 {
		t.Fatalf("%d scenarios", n)
	}
	return res.Suites[0].Scenarios[0]
}

// events reads an arm's whole ledger.
func events(t *testing.T, cfg Config, arm ArmRun) []ledger.Event {
	t.Helper()
	open, closeAll := openLedger(filepath.Join(cfg.Out, arm.Folder))
	defer func() { _ = closeAll() }()
	sources, err := open()
	if err != nil {
		t.Fatal(err)
	}
	var all []ledger.Event
	for _, s := range sources {
		r, err := ledger.NewReader(s.R, s.Name)
		if err != nil {
			t.Fatal(err)
		}
		for {
			var e ledger.Event
			if err := r.Next(&e); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
	}
	return all
}

func find(all []ledger.Event, kind ledger.Kind, text string) []ledger.Event {
	return slices.DeleteFunc(slices.Clone(all), func(e ledger.Event) bool { return e.Kind != kind || e.Text != text })
}

func TestProcessCrashesAndIsRestarted(t *testing.T) {
	t.Parallel()
	crashing := consumer("consumer-1")
	crashing.CrashAt, crashing.CrashNth, crashing.Restart = worker.PointBeforeSettle, 5, true
	sc := withProcesses("crash", []plan.Step{
		{Name: "crashed", Until: []plan.State{{Kind: plan.ProcessAt, Process: "consumer-1", Point: worker.PointBeforeSettle}, {Kind: plan.ProcessEnded, Process: "consumer-1"}}},
		{Name: "goes on", Until: []plan.State{{Kind: plan.Handled, N: 100, Since: "crashed", Process: "consumer-1"}}},
		{Name: "all", Until: []plan.State{{Kind: plan.Settled, N: 50, Since: "crashed"}, {Kind: plan.Received, N: 50}}},
	}, crashing)
	cfg := testConfig(t, testSuite(sc))
	got := only(t, run(t, cfg))
	if got.Status != audit.Pass {
		t.Fatalf("%v: %v", got.Status, got.Reasons)
	}
	arm := got.Repeats[0].Arms[0]
	if !slices.Equal(arm.Header.Evidence.Bites, []string{"crash-consumer-1"}) || len(arm.Header.Groups) != 1 {
		t.Errorf("evidence %+v, groups %v", arm.Header.Evidence, arm.Header.Groups)
	}
	for worker, want := range map[string]bool{"consumer-1": true, "consumer-1-r2": true, "producer-1": false} {
		if arm.Header.InBackground(worker) != want {
			t.Errorf("%s in the background: want %t of %v", worker, want, arm.Header.Background)
		}
	}
	all := events(t, cfg, arm)
	inject, heal := find(all, ledger.Inject, "crash-consumer-1"), find(all, ledger.Heal, "crash-consumer-1")
	first, second := find(all, ledger.WorkerEnd, "consumer-1"), find(all, ledger.WorkerEnd, "consumer-1-r2")
	if len(inject) != 1 || len(heal) != 1 || len(first) != 1 || len(second) != 1 {
		t.Fatalf("strikes %v, heals %v, ends %v and %v", inject, heal, first, second)
	}
	if inject[0].At > first[0].At || heal[0].At < first[0].At || first[0].Detail != "killed itself at crash point before-settle" || second[0].Detail != "exited" {
		t.Errorf("strike at %d, heal at %d, ends %v and %v", inject[0].At, heal[0].At, first[0], second[0])
	}
	// Every delivery was settled: the group stands at the end of both partitions.
	var ends, positions []int64
	for _, e := range all {
		switch {
		case e.Kind == ledger.StoreEnd && e.View == ledger.ViewRaw:
			ends = append(ends, e.N)
		case e.Kind == ledger.GroupEnd:
			positions = append(positions, e.Pos.Offset)
		}
	}
	if !slices.Equal(ends, positions) || len(ends) != 2 {
		t.Errorf("the store ends at %v, the group at %v", ends, positions)
	}
	consumers := map[uint32]bool{}
	for _, e := range all {
		if e.Kind == ledger.Received {
			consumers[e.Consumer] = true
		}
	}
	if len(consumers) != 2 || !consumers[1] || !consumers[2] {
		t.Errorf("consumers %v", consumers)
	}
}

func TestProcessesThatAPlanStrikes(t *testing.T) {
	t.Parallel()
	held := consumer("held")
	held.HoldAt, held.Group = worker.PointAfterFetch, "h"
	late := consumer("late")
	late.Manual, late.Group = true, "l"
	steps := []plan.Step{
		{Name: "held", Until: []plan.State{{Kind: plan.ProcessAt, Process: "held", Point: worker.PointAfterFetch}, {Kind: plan.Confirmed, N: 100}}},
		{Name: "let go", Do: DoReleaseProcess, Process: "held"},
		{Name: "handles", Until: []plan.State{{Kind: plan.Handled, N: 20, Process: "held", Since: "let go"}}},
		{Name: "frozen", Do: DoFreezeProcess, Process: "held"},
		{Name: "others go on", Until: []plan.State{{Kind: plan.Confirmed, N: 50, Since: "frozen"}}},
		{Name: "thawed", Do: DoThawProcess, Process: "held"},
		{Name: "handles again", Until: []plan.State{{Kind: plan.Handled, N: 20, Process: "held", Since: "thawed"}}},
		{Name: "killed", Do: DoKillProcess, Process: "held"},
		{Name: "late", Do: DoStartProcess, Process: "late"},
		{Name: "back", Do: DoStartProcess, Process: "held"},
		{Name: "both handle", Until: []plan.State{{Kind: plan.Handled, N: 20, Process: "held", Since: "back"}, {Kind: plan.Handled, N: 20, Process: "late"}}},
		{Name: "stopped", Do: DoStopProcess, Process: "held"},
		{Name: "gone", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "held", Since: "back"}}},
		{Name: "again", Do: DoStartProcess, Process: "held", Arms: []string{"guarded"}},
		{Name: "and again", Do: DoStartProcess, Process: "held", Arms: []string{memory.CorruptPayload}},
	}
	sc := withProcesses("struck", steps, held, late)
	cfg := testConfig(t, testSuite(sc))
	got := only(t, run(t, cfg))
	if got.Status != audit.Pass {
		t.Fatalf("%v: %v", got.Status, got.Reasons)
	}
	arm := got.Repeats[0].Arms[0]
	if bites := arm.Header.Evidence.Bites; !slices.Equal(bites, []string{"frozen", "killed", "hold-held"}) {
		t.Errorf("bites %v", bites)
	}
	all := events(t, cfg, arm)
	for worker, how := range map[string]string{"held": "killed by the plan", "held-r2": "exited", "held-r3": "exited", "late": "exited"} {
		if ends := find(all, ledger.WorkerEnd, worker); len(ends) != 1 || ends[0].Detail != how || ends[0].Outcome != ledger.OK {
			t.Errorf("%s ended as %v", worker, ends)
		}
	}
	if proof := find(all, ledger.Bite, "frozen"); len(proof) != 1 || !strings.Contains(proof[0].Detail, "in state T") {
		t.Errorf("proof of the freeze %v", proof)
	}
	if proof := find(all, ledger.Bite, "killed"); len(proof) != 1 || !strings.Contains(proof[0].Detail, "is gone: signal: killed") {
		t.Errorf("proof of the kill %v", proof)
	}
	for _, s := range got.Repeats[0].Steps {
		if (s.Name == "frozen" || s.Name == "killed") && (!s.Bit || s.Evidence == "") {
			t.Errorf("step %+v", s)
		}
	}
}

func TestProcessesThatFailAreNoLoss(t *testing.T) {
	t.Parallel()
	quick := []plan.Step{{Name: "loaded", Until: []plan.State{{Kind: plan.Confirmed, N: 50}}}}
	never := []plan.Step{{Name: "handled", Until: []plan.State{{Kind: plan.Handled, N: 1, Process: "p"}}}}
	unreached := consumer("p")
	unreached.CrashAt = "nowhere"
	for _, tc := range []struct {
		name    string
		process Process
		steps   []plan.Step
		want    string
	}{
		{"hangs", Process{Name: "p", Role: "deaf"}, quick, "p of arm guarded killed by the engine: stuck, it did not end within 2s"},
		{"dies", Process{Name: "p", Role: "sick"}, never, "died of itself: worker p: I do not feel well"},
		{"never crashes", unreached, quick, "its crash point was never reached"},
		{"moves for ever", Process{Name: "p", Role: "memory-producer"}, quick, "still moving"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			sc := withProcesses("fails", tc.steps, tc.process)
			sc.Evidence = ledger.Evidence{}
			cfg := testConfig(t, testSuite(sc))
			cfg.caps.stuck, cfg.caps.drain = 500*time.Millisecond, 3*time.Second
			begun := time.Now()
			got := only(t, run(t, cfg))
			if why := strings.Join(got.Reasons, "\n"); got.Status != audit.Inconclusive || !strings.Contains(why, tc.want) {
				t.Errorf("%v: %s", got.Status, why)
			}
			if took := time.Since(begun); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
			for _, f := range got.Repeats[0].Arms[0].Verdict.Findings {
				if f.Anomaly == "lost" {
					t.Errorf("found %s", f.Name())
				}
			}
		})
	}
}

func TestStuckArmIsRecordedAsStuck(t *testing.T) {
	t.Parallel()
	sc := withProcesses("stuck", nil, Process{Name: "p", Role: "memory-taker", Group: "g"})
	sc.Load.Tail = 300 * time.Millisecond
	s := testSuite(sc)
	s.Promise.Places = []string{"store", "liveness"}
	cfg := testConfig(t, s)
	cfg.caps.stuck = 300 * time.Millisecond
	got := only(t, run(t, cfg))
	arm := got.Repeats[0].Arms[0]
	if !slices.ContainsFunc(arm.Verdict.Findings, func(f audit.Finding) bool { return f.Anomaly == "stuck" }) || got.Status != audit.Fail {
		t.Errorf("%v (%v), findings %v", got.Status, got.Reasons, arm.Verdict.Findings)
	}
	quiet := find(events(t, cfg, arm), ledger.Quiet, "")
	if len(quiet) != 1 || quiet[0].Outcome != ledger.Failed || quiet[0].N < int64(cfg.caps.stuck) || !strings.Contains(quiet[0].Detail, "lag ") {
		t.Errorf("quiescence %v", quiet)
	}
	if arm.Header.Deadlines["stuck"] != cfg.caps.stuck {
		t.Errorf("deadlines %v", arm.Header.Deadlines)
	}
}

// database is a second system: one in memory with a password, schemas and a death of its own.
type database struct {
	memory.System
	mu      sync.Mutex
	schemas map[string]bool
	made    int
	dead    atomic.Bool
	fail    error // of CreateSchema
	spec    system.Spec
	cluster system.Cluster
}

func (*database) Name() string { return "database" }

func (d *database) Start(ctx context.Context, spec system.Spec) (system.Cluster, error) {
	d.spec = spec
	spec.Nodes = 1
	c, err := d.System.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	d.cluster = &databaseCluster{Cluster: c, Killer: c.(system.Killer), d: d}
	return d.cluster, nil
}

type databaseCluster struct {
	system.Cluster
	system.Killer
	d *database
}

func (c *databaseCluster) Kill(ctx context.Context, n system.Node) (string, error) {
	c.d.dead.Store(true)
	return c.Killer.Kill(ctx, n)
}

func (c *databaseCluster) Start(ctx context.Context, n system.Node) error {
	defer c.d.dead.Store(false)
	return c.Killer.Start(ctx, n)
}

func (c *databaseCluster) DSN(client string, direct bool) string {
	return fmt.Sprintf("db://%s:%s@%s/%v", client, secret, c.Endpoints()[0], direct)
}

func (c *databaseCluster) CreateSchema(_ context.Context, name string) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.d.fail != nil {
		return c.d.fail
	}
	c.d.schemas[name] = true
	c.d.made++
	return nil
}

func (c *databaseCluster) DropSchema(_ context.Context, name string) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	delete(c.d.schemas, name)
	return nil
}

func (c *databaseCluster) Died(context.Context) error {
	if c.d.dead.Load() {
		return errors.New("process 7 is gone, exit code 137")
	}
	return nil
}

// chained is a suite on a broker and a database, with orders for a load and a relay that is a producer.
func chained(d *database, steps ...plan.Step) Suite {
	d.schemas = map[string]bool{}
	arm := func(a Arm) Arm {
		a.Producer = Producer{Role: "orders", Params: map[string]string{"table": "orders"}}
		a.Processes = []Process{{Name: "relay", Role: "memory-producer", Listen: true}}
		return a
	}
	sc := Scenario{
		Name: "chain", Load: quickLoad, Steps: steps, Evidence: ledger.Evidence{},
		Arms: []Arm{arm(guarded()), arm(control(memory.CorruptPayload, "corrupted", ""))},
		Drained: func(_ context.Context, e ArmEnv) (bool, string, int64, error) {
			return e.Counts(e.Arm.Name).Confirmed > 100, "more than 100", 0, nil
		},
	}
	s := testSuite(sc)
	s.With = []system.System{d}
	return s
}

func TestSuiteOnTwoSystems(t *testing.T) {
	t.Parallel()
	d := &database{}
	key := uint32(2)
	s := chained(d,
		plan.Step{Name: "ordered", Until: []plan.State{{Kind: plan.ProcessAt, Process: "producer", Point: "ordered"}, {Kind: plan.Confirmed, N: 50, Process: "relay"}}},
		plan.Step{Name: "let go", Do: DoReleaseProcess, Process: "producer"},
		plan.Step{Name: "more", Until: []plan.State{{Kind: plan.Ordered, N: 50, Since: "let go"}}},
		plan.Step{Name: "database killed", Inject: &plan.Exposure{Fault: "killed", Target: "database"}},
		plan.Step{Name: "database back", Until: []plan.State{{Kind: plan.Bit, Since: "database killed"}, {Kind: plan.Elapsed, Hold: 200 * time.Millisecond}}, Heal: "database killed"},
	)
	sc := &s.Scenarios[0]
	sc.Targets = map[string]plan.Role{"database": plan.On("database", plan.One)}
	sc.Destinations = []Destination{{Name: "retry", Partitions: 3}, {Name: "dead", DeadLetter: true}}
	sc.Tables = []string{"orders", ledger.TableDeadLetter}
	for i := range sc.Arms {
		sc.Arms[i].Producer.Incarnations = []Incarnation{{HoldAt: "ordered", HoldNth: 3, HoldIf: worker.Match{Key: &key}}}
		sc.Arms[i].WithNode = map[string]map[string]string{"database": {"shared": "yes"}}
		sc.Arms[i].Letters.Others = i
	}
	var mu sync.Mutex
	var calls []string
	called := func(what string, e ArmEnv) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, what+" "+e.Arm.Name)
		d.mu.Lock()
		defer d.mu.Unlock()
		if c, ok := e.With["database"].(*databaseCluster); !ok || c.d != d || !d.schemas[e.Schema] || e.Schemas[e.Arm.Name] != e.Schema || e.Destinations[e.Arm.Name] != e.Destination || e.Tag == 0 {
			t.Errorf("%s sees %+v", what, e)
		}
	}
	sc.Setup = func(_ context.Context, e ArmEnv) error { called("setup", e); return nil }
	sc.Snapshot = func(_ context.Context, e ArmEnv, sink func(ledger.Event)) error {
		called("snapshot", e)
		sink(ledger.Event{Kind: ledger.SnapshotEnd, Text: "orders"})
		sink(ledger.Event{Kind: ledger.SnapshotEnd, Text: ledger.TableDeadLetter, Detail: e.Schema})
		return nil
	}
	sc.Cleanup = func(_ context.Context, e ArmEnv) error { called("cleanup", e); return nil }
	reserved := 0
	cfg := testConfig(t, s)
	cfg.Reserve = func(_ context.Context, mib int) (func(), error) {
		reserved += mib
		return func() { reserved -= mib }, nil
	}
	res := run(t, cfg)
	got := only(t, res)
	if got.Status != audit.Pass {
		t.Fatalf("%v: %v", got.Status, got.Reasons)
	}
	if len(calls) != 6 || !strings.HasPrefix(calls[0], "setup") || !strings.HasPrefix(calls[2], "snapshot") || !strings.HasPrefix(calls[5], "cleanup") {
		t.Errorf("hooks %v", calls)
	}
	if len(d.schemas) != 0 || d.made != 2 || reserved != 0 || d.spec.Settings["shared"] != "yes" {
		t.Errorf("schemas %v of %d, reserved %d, settings %v", d.schemas, d.made, reserved, d.spec.Settings)
	}
	if len(res.Clusters) != 2 || !slices.Equal(got.Repeats[0].Targets["database"], []string{"memory-1"}) {
		t.Errorf("clusters %v, targets %v", res.Clusters, got.Repeats[0].Targets)
	}
	arm := got.Repeats[0].Arms[0]
	if ds := arm.Header.Destinations; len(ds) != 3 || ds[1].Partitions != 3 || !ds[2].DeadLetter || !slices.Equal(arm.Header.Tables, sc.Tables) || arm.Header.Settings["with database"] != "1" {
		t.Errorf("header %+v", arm.Header)
	}
	for i, arm := range got.Repeats[0].Arms { // an arm that names no letters may leave none
		if l := arm.Header.Chain.Letters; l == nil || l.Others != i || len(l.Events)+len(l.Passing) > 0 {
			t.Errorf("%s may leave %+v", arm.Name, l)
		}
	}
	if ends := find(events(t, cfg, arm), ledger.SnapshotEnd, "orders"); len(ends) != 1 || ends[0].Detail == "" || ends[0].Detail != arm.Header.Space {
		t.Errorf("ends of the snapshot %v, the arm's schema %q", ends, arm.Header.Space)
	}
	for _, dir := range []string{"database-2", "memory-1"} {
		if _, err := os.Stat(filepath.Join(cfg.Out, logsDir, dir)); err != nil && dir == "memory-1" {
			t.Error(err)
		}
	}
	_ = filepath.WalkDir(cfg.Out, func(path string, f fs.DirEntry, err error) error {
		if err != nil || f.IsDir() {
			return err
		}
		if b, err := os.ReadFile(path); err != nil || strings.Contains(string(b), secret) {
			t.Errorf("%s holds the password (error %v)", path, err)
		}
		return nil
	})
}

func TestDatabaseThatFailsIsTheEnvironments(t *testing.T) {
	t.Parallel()
	dies := func(d *database) Suite {
		s := chained(d,
			plan.Step{Name: "dies", Until: []plan.State{{Kind: plan.Confirmed, N: 50}}, Do: "die"},
			plan.Step{Name: "waits", Until: []plan.State{{Kind: plan.Refused, N: 1}}},
		)
		s.Scenarios[0].Actions = map[string]Action{"die": func(context.Context, Env, plan.Step) (string, error) { d.dead.Store(true); return "", nil }}
		return s
	}
	drains := func(d *database) Suite {
		s := chained(d)
		s.Scenarios[0].Drained = func(context.Context, ArmEnv) (bool, string, int64, error) {
			d.dead.Store(true)
			return false, "", 0, fmt.Errorf("connection refused: %w", system.ErrEnvironment)
		}
		return s
	}
	exists := func(d *database) Suite {
		d.fail = fmt.Errorf("schema exists already: %w", system.ErrUsage)
		return chained(d)
	}
	unread := func(d *database) Suite {
		s := chained(d)
		s.Scenarios[0].Snapshot = func(context.Context, ArmEnv, func(ledger.Event)) error {
			return fmt.Errorf("too many clients already: %w", system.ErrEnvironment)
		}
		return s
	}
	for name, tc := range map[string]struct {
		suite func(*database) Suite
		want  string
	}{
		"in the plan":     {dies, "exit code 137"},
		"in the drain":    {drains, "exit code 137"},
		"schema exists":   {exists, "schema exists already"},
		"snapshot failed": {unread, "too many clients already"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t, tc.suite(&database{}))
			res, err := Run(t.Context(), cfg)
			if !errors.Is(err, system.ErrEnvironment) || errors.Is(err, system.ErrUsage) || !strings.Contains(fmt.Sprint(err), tc.want) {
				t.Errorf("error %v", err)
			}
			if got := only(t, res); got.Status != audit.Inconclusive || got.Error == "" {
				t.Errorf("%v %v, error %q", got.Status, got.Reasons, got.Error)
			}
			checkReplay(t, cfg, res)
		})
	}
}

// keeper is the broker in memory, which remembers its clusters.
type keeper struct{ clusters *[]system.Cluster }

func (keeper) Name() string       { return "memory" }
func (keeper) Versions() []string { return []string{"1"} }
func (keeper) MemoryMiB(int) int  { return 1 }
func (k keeper) Start(ctx context.Context, spec system.Spec) (system.Cluster, error) {
	c, err := memory.System{}.Start(ctx, spec)
	*k.clusters = append(*k.clusters, c)
	return c, err
}

func TestKeptClusters(t *testing.T) {
	t.Parallel()
	d := &database{}
	s := chained(d)
	var kept []system.Cluster
	s.System.System = keeper{&kept}
	cfg := testConfig(t, s)
	cfg.Keep = true
	released := false
	cfg.Reserve = func(context.Context, int) (func(), error) { return func() { released = true }, nil }
	res := run(t, cfg)
	for _, c := range append(kept, d.cluster) {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if len(res.Kept) != 2 || !d.spec.Keep || len(d.schemas) == 0 || released {
		t.Errorf("kept %q, schemas %v, released %v", res.Kept, d.schemas, released)
	}
}

func TestAuditSaysWhatDiffers(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, testSuite(killed("first", guarded(), control(memory.LoseConfirmed, "lost", "broker"))))
	run(t, cfg)
	changed := cfg.Suites[0]
	changed.Promise.Rules = map[string]ledger.Rule{"lost": {Allowed: true}}
	for name, tc := range map[string]struct {
		known []Suite
		want  string
	}{
		"rule":    {[]Suite{changed}, "lost is recorded as"},
		"unknown": {nil, "this binary has no memory-acks/first with an arm guarded"},
	} {
		res, err := AuditDir(cfg.Out, tc.known)
		if err != nil || res.Status != audit.Pass {
			t.Fatalf("%s: %v, error %v", name, res.Status, err)
		}
		if got := strings.Join(only(t, res).Repeats[0].Arms[0].Verdict.Differs, "\n"); !strings.Contains(got, tc.want) {
			t.Errorf("%s: differs in %q", name, got)
		}
	}
}

func TestProcessesThatCannotRun(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Scenario){
		"no name":         func(s *Scenario) { s.Arms[0].Processes[0].Name = "" },
		"no role":         func(s *Scenario) { s.Arms[0].Processes[0].Role = "" },
		"engine's name":   func(s *Scenario) { s.Arms[0].Processes[0].Name = "reader" },
		"producer's name": func(s *Scenario) { s.Arms[0].Processes[0].Name = "producer-1" },
		"twice":           func(s *Scenario) { s.Arms[0].Processes = append(s.Arms[0].Processes, consumer("c")) },
		"restart":         func(s *Scenario) { s.Arms[0].Processes[0].Restart = true },
		"unknown process": func(s *Scenario) { s.Steps = []plan.Step{{Name: "s", Do: DoKillProcess, Process: "x"}} },
		"no process":      func(s *Scenario) { s.Steps = []plan.Step{{Name: "s", Do: DoKillProcess}} },
		"unknown in state": func(s *Scenario) {
			s.Steps = []plan.Step{{Name: "s", Until: []plan.State{{Kind: plan.Handled, Process: "x"}}}}
		},
		"nameless state": func(s *Scenario) { s.Steps = []plan.Step{{Name: "s", Until: []plan.State{{Kind: plan.ProcessAt}}}} },
		"load started":   func(s *Scenario) { s.Steps = []plan.Step{{Name: "s", Do: DoStartProcess, Process: "producer"}} },
		"unknown system": func(s *Scenario) { s.Targets = map[string]plan.Role{"t": plan.On("database", plan.One)} },
		"nothing at all": func(s *Scenario) { s.Arms[0] = Arm{Name: "guarded", Role: Guarded, Producer: Producer{None: true}} },
	} {
		sc := withProcesses("s", nil, consumer("c"))
		change(&sc)
		if _, err := Run(t.Context(), testConfig(t, testSuite(sc))); !errors.Is(err, system.ErrUsage) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// What an arm's own workers are to do is evidence by number and by point.
func TestPlannedStrikes(t *testing.T) {
	a := Arm{
		Producer:  Producer{Incarnations: []Incarnation{{CrashAt: "before"}, {CrashAt: "after"}, {HoldAt: "there"}}},
		Processes: []Process{{Name: "relay", CrashAt: "mark"}, {Name: "consumer"}},
	}
	times, ends := a.planned(ledger.Evidence{
		Bites: []string{"crash-producer", "hold-producer", "crash-relay"}, Ends: []string{"producer-1", "producer-2", "producer-3", "relay", "consumer"},
	})
	if !maps.Equal(times, map[string]int{"crash-producer": 2}) || !maps.Equal(ends, map[string]string{"producer-1": "before", "producer-2": "after", "relay": "mark"}) {
		t.Errorf("times %v, ends %v", times, ends)
	}
	if times, ends := a.planned(ledger.Evidence{}); len(times)+len(ends) != 0 {
		t.Errorf("nobody asked for %v, %v", times, ends)
	}
}
