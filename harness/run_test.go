package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/system/memory"
	"conform/harness/worker"
)

// The test binary is its own worker: TestMain runs it as one when it is started with this argument.
const asWorker = "run-as-worker"

func init() {
	worker.Register("memory-producer", worker.ProducerRole(memory.Clients{}))
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asWorker {
		if err := worker.Main(context.Background(), os.Args[2:], os.Stdin, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Under the race detector every process sleeps for a second before it exits, to let others report.
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	goleak.VerifyTestMain(m)
}

// testInjection is a fault of these tests.
type testInjection struct {
	evidence func() (system.Evidence, error)
	heal     func(context.Context) error
}

func (i testInjection) Evidence(context.Context) (system.Evidence, error) { return i.evidence() }
func (i testInjection) Heal(ctx context.Context) error                    { return i.heal(ctx) }

func bit(detail string) func() (system.Evidence, error) {
	return func() (system.Evidence, error) { return system.Evidence{Bit: true, Count: 1, Detail: detail}, nil }
}

func testFaults() map[string]system.Fault {
	noHeal := func(context.Context) error { return nil }
	return map[string]system.Fault{
		"killed": {Name: "killed", Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			k := s.Cluster.(system.Killer)
			proof, err := k.Kill(ctx, s.Targets[0])
			return testInjection{bit(proof), func(ctx context.Context) error { return k.Start(ctx, s.Targets[0]) }}, err
		}},
		"paused": {Name: "paused", Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			p := s.Cluster.(system.Pauser)
			proof, err := p.Pause(ctx, s.Targets[0])
			return testInjection{bit(proof), func(ctx context.Context) error { return p.Resume(ctx, s.Targets[0]) }}, err
		}},
		"dropped": {Name: "dropped", Params: map[string]string{"nth": ""}, Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			var all []system.Injection
			for _, c := range s.Clients {
				i, err := s.Cluster.(system.ResponseDropper).DropResponse(ctx, s.Targets[0], system.WireRule{Client: c, Nth: 2})
				if err != nil {
					return nil, err
				}
				all = append(all, i)
			}
			return testInjection{func() (system.Evidence, error) {
				for _, i := range all {
					if e, err := i.Evidence(ctx); err != nil || !e.Bit {
						return e, err
					}
				}
				return system.Evidence{Bit: true, Count: int64(len(all)), Detail: "each client's response"}, nil
			}, func(ctx context.Context) error {
				var errs []error
				for _, i := range all {
					errs = append(errs, i.Heal(ctx))
				}
				return errors.Join(errs...)
			}}, nil
		}},
		"nothing": {Name: "nothing", Inject: func(context.Context, system.Strike) (system.Injection, error) {
			return testInjection{func() (system.Evidence, error) { return system.Evidence{Detail: "no packet was dropped"}, nil }, noHeal}, nil
		}},
		"moment": {Name: "moment", Inject: func(context.Context, system.Strike) (system.Injection, error) {
			return testInjection{bit("struck"), noHeal}, nil
		}},
		"fails": {Name: "fails", Inject: func(context.Context, system.Strike) (system.Injection, error) {
			return nil, errors.New("no such rule")
		}},
		"unhealable": {Name: "unhealable", Inject: func(context.Context, system.Strike) (system.Injection, error) {
			return testInjection{bit("struck"), func(context.Context) error { return errors.New("it stays") }}, nil
		}},
	}
}

func testSuite(scenarios ...Scenario) Suite {
	return Suite{
		Name: "memory-acks", System: System{System: memory.System{}, Producer: "memory-producer"},
		Title:     "what was confirmed stays",
		Promise:   ledger.Promise{Text: "what was confirmed is there once and in order", Start: "confirm", End: "log", Places: []string{"store"}},
		Scenarios: scenarios,
	}
}

func testConfig(t *testing.T, suites ...Suite) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	progress := &syncBuffer{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(progress.String())
		}
	})
	c := defaultCaps
	c.flush, c.after, c.quiet, c.watch = 2*time.Second, 5*time.Second, 300*time.Millisecond, 10*time.Millisecond
	return Config{
		RunID: "t", Suites: suites, Seed: 7, Out: filepath.Join(t.TempDir(), "run"), Worker: []string{self, asWorker},
		Faults: testFaults(), Binary: "test", Progress: progress, caps: c,
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var quickLoad = Load{Rate: 1000, Partitions: 2, Keys: 8, Tail: 100 * time.Millisecond}

func guarded() Arm { return Arm{Name: "guarded", Role: Guarded} }

func control(bug, anomaly, attribution string) Arm {
	return Arm{
		Name: bug, Role: Control, Destination: map[string]string{"bug": bug},
		Break: &Break{Knob: "bug=" + bug, Place: "store", Anomaly: anomaly, Attribution: attribution},
	}
}

// killed is a scenario in which the leader is killed under load.
func killed(name string, arms ...Arm) Scenario {
	return Scenario{
		Name: name, Load: quickLoad, Arms: arms, Targets: map[string]plan.Role{"leader": plan.Leader},
		Steps: []plan.Step{
			{Name: "killed", Until: []plan.State{{Kind: plan.Confirmed, N: 100}}, Inject: &plan.Exposure{Fault: "killed", Target: "leader"}},
			{Name: "moved", Until: []plan.State{{Kind: plan.LeaderNot, Target: "leader"}, {Kind: plan.Confirmed, N: 50, Since: "killed"}}},
		},
		Evidence: ledger.Evidence{Before: 100, After: 50},
	}
}

func checkReplay(t *testing.T, cfg Config, res Result) {
	t.Helper()
	again, err := AuditDir(cfg.Out, cfg.Suites)
	if err != nil {
		t.Fatalf("audit of the folder: %v", err)
	}
	for i := range res.Suites {
		for j := range res.Suites[i].Scenarios {
			a, b := toJSON(t, res.Suites[i].Scenarios[j]), toJSON(t, again.Suites[i].Scenarios[j])
			if a != b {
				t.Errorf("the run said\n%s\nthe folder says\n%s", a, b)
			}
		}
	}
	if again.Status != res.Status {
		t.Errorf("the run is %v, from its folder %v", res.Status, again.Status)
	}
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func run(t *testing.T, cfg Config) Result {
	t.Helper()
	res, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatalf("run: %v", err)
	}
	checkReplay(t, cfg, res)
	return res
}

func TestPlantedBugs(t *testing.T) {
	t.Parallel()
	sc := Scenario{
		Name: "planted", Load: quickLoad, Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []Arm{
			guarded(),
			control(memory.LoseConfirmed, "lost", "broker"),
			control(memory.ConfirmBeforeStore, "lost", "broker"),
			control(memory.DuplicateOnReconnect, "duplicate-store", ""),
			control(memory.ReorderKey, "reordered-store", ""),
			control(memory.LeakAborted, "resurrected", ""),
			control(memory.CorruptPayload, "corrupted", ""),
			control(memory.Misroute, "misrouted", ""),
		},
		Steps: []plan.Step{
			{Name: "dropped", Until: []plan.State{{Kind: plan.Confirmed, N: 200}}, Inject: &plan.Exposure{Fault: "dropped", Target: "leader", Params: map[string]string{"nth": "draw:2..9"}}},
			{Name: "bitten", Until: []plan.State{{Kind: plan.Bit, Since: "dropped"}, {Kind: plan.Confirmed, N: 50, Since: "dropped"}}},
			{Name: "healed", Heal: "dropped"},
			{Name: "killed", Until: []plan.State{{Kind: plan.ConfirmedBy, N: 50, Since: "healed", Target: "leader"}}, Inject: &plan.Exposure{Fault: "killed", Target: "leader"}},
			{Name: "moved", Until: []plan.State{{Kind: plan.LeaderNot, Target: "leader"}, {Kind: plan.Confirmed, N: 50, Since: "killed"}}},
			{Name: "restarted", Heal: "killed"},
			{Name: "whole", Until: []plan.State{{Kind: plan.FullyInSync}}},
		},
		Evidence: ledger.Evidence{Before: 100, After: 50},
	}
	cfg := testConfig(t, testSuite(sc))
	res := run(t, cfg)
	got := res.Suites[0].Scenarios[0]
	if got.Status != audit.Pass || res.Status != audit.Pass {
		t.Errorf("status %v: %v", got.Status, got.Reasons)
	}
	for _, a := range got.Repeats[0].Arms {
		var found []string
		for _, f := range a.Verdict.Findings {
			found = append(found, f.Name())
		}
		switch {
		case a.Name == "guarded":
			if a.Verdict.Arm != audit.Held || len(found) > 0 {
				t.Errorf("guarded: %v, found %v, reasons %v", a.Verdict.Arm, found, a.Verdict.Reasons)
			}
		case len(a.Verdict.Findings) != 1 || a.Verdict.Findings[0].Anomaly != a.Header.Expect.Anomaly || a.Verdict.Arm != audit.Reproduced:
			t.Errorf("%s: %v, found %v, reasons %v", a.Name, a.Verdict.Arm, found, a.Verdict.Reasons)
		}
	}
	if len(got.Repeats[0].Targets["leader"]) != 1 || !strings.Contains(verdictLine(&got), "PASS") {
		t.Errorf("targets %v, line %q", got.Repeats[0].Targets, verdictLine(&got))
	}
	for _, s := range got.Repeats[0].Steps {
		if !s.Reached || (s.Name == "dropped" || s.Name == "killed") && !s.Bit {
			t.Errorf("step %+v", s)
		}
	}
	stories, err := Story(cfg.Out, ledger.MessageID{Stream: 1, Seq: 3}, "guarded")
	if err != nil || len(stories) != 1 || len(stories[0].Lines) < 3 {
		t.Errorf("story %+v, error %v", stories, err)
	}
	if _, err := Story(cfg.Out, ledger.MessageID{Stream: 1}, "nobody"); !errors.Is(err, system.ErrUsage) {
		t.Errorf("story of an unknown arm: error %v", err)
	}
	for _, name := range []string{"memory-1.log", "memory-3.log"} {
		if _, err := os.Stat(filepath.Join(cfg.Out, logsDir, "memory-1", name)); err != nil {
			t.Error(err)
		}
	}
}

func TestGuardedArmThatBreaksFails(t *testing.T) {
	t.Parallel()
	bad := guarded()
	bad.Destination = map[string]string{"bug": memory.LoseConfirmed}
	// The broken promise is kept although the next cluster cannot be started.
	second := killed("second", guarded())
	second.Arms[0].Node = map[string]string{"fail": "start"}
	cfg := testConfig(t, testSuite(killed("first", bad, control(memory.LoseConfirmed, "lost", "broker")), second))
	res, err := Run(t.Context(), cfg)
	if !errors.Is(err, system.ErrEnvironment) || res.Status != audit.Fail {
		t.Errorf("status %v, error %v", res.Status, err)
	}
	if sc := res.Suites[0].Scenarios; sc[0].Status != audit.Fail || sc[1].Status != audit.Inconclusive || sc[1].Error == "" {
		t.Errorf("%v (%v) and %v (%s)", sc[0].Status, sc[0].Reasons, sc[1].Status, sc[1].Error)
	}
	checkReplay(t, cfg, res)
}

func TestInconclusive(t *testing.T) {
	t.Parallel()
	never := killed("never-struck", guarded(), control(memory.LoseConfirmed, "lost", "broker"))
	never.Steps = []plan.Step{
		{Name: "nothing", Until: []plan.State{{Kind: plan.Confirmed, N: 100}}, Inject: &plan.Exposure{Fault: "nothing", Target: "leader"}},
		{Name: "more", Until: []plan.State{{Kind: plan.Confirmed, N: 50, Since: "nothing"}}},
	}
	capped := killed("capped", guarded(), control(memory.LoseConfirmed, "lost", "broker"))
	capped.Steps = append(capped.Steps, plan.Step{Name: "refused", Until: []plan.State{{Kind: plan.Refused, N: 1}}, Cap: 200 * time.Millisecond})
	missed := killed("missed", guarded(), control(memory.LoseConfirmed, "lost", "broker"))
	missed.Arms[1].Destination = nil
	alone := killed("control-elsewhere", guarded(), control(memory.DuplicateOnReconnect, "lost", "broker"))
	for _, tc := range []struct {
		sc   Scenario
		want string
	}{
		{never, "no packet was dropped"},
		{capped, "not reached in time"},
		{missed, "did not reproduce"},
		{alone, "did not reproduce"},
	} {
		t.Run(tc.sc.Name, func(t *testing.T) {
			t.Parallel()
			res := run(t, testConfig(t, testSuite(tc.sc)))
			sc := res.Suites[0].Scenarios[0]
			if sc.Status != audit.Inconclusive || res.Status != audit.Inconclusive || !strings.Contains(strings.Join(sc.Reasons, "\n"), tc.want) {
				t.Errorf("%v, reasons %q, want %q", sc.Status, sc.Reasons, tc.want)
			}
		})
	}
}

func TestHungWorkerIsInconclusiveAndNoLoss(t *testing.T) {
	t.Parallel()
	hung := guarded()
	hung.Client = map[string]string{"hang.after": "200"}
	sc := killed("hung", hung, control(memory.LoseConfirmed, "lost", "broker"))
	sc.Load.Window, sc.Load.Tail = 5000, 500*time.Millisecond // it hangs while the load lasts
	sc.Steps[1].Until[1].N, sc.Evidence.After = 1, 0
	res := run(t, testConfig(t, testSuite(sc)))
	got := res.Suites[0].Scenarios[0]
	v := got.Repeats[0].Arms[0].Verdict
	if got.Status != audit.Inconclusive || v.Totals.InDoubt == 0 {
		t.Errorf("%v, in doubt %d", got.Status, v.Totals.InDoubt)
	}
	for _, f := range v.Findings {
		if f.Anomaly == "lost" {
			t.Errorf("found %s (%d)", f.Name(), f.Count)
		}
	}
	if why := strings.Join(got.Reasons, "\n"); !strings.Contains(why, "killed by the engine: stuck") {
		t.Errorf("reasons %q", why)
	}
}

func TestCrashedProducers(t *testing.T) {
	t.Parallel()
	linger := map[string]string{"linger.ms": "1000"}
	ends := func(e Ending) []Incarnation {
		return []Incarnation{{Messages: 200, End: e}, {Messages: 200, End: EndKill}, {Messages: 200}}
	}
	sc := Scenario{
		Name: "unflushed", Load: quickLoad,
		Arms: []Arm{
			{Name: "guarded", Role: Guarded, Client: linger, Producer: Producer{Incarnations: ends(EndFlush)}},
			{
				Name: "enqueue", Role: Control, Client: linger, Producer: Producer{Claim: AtEnqueue, Incarnations: ends(EndExit)},
				Break: &Break{Knob: "claim at enqueue", Place: "store", Anomaly: "lost", Attribution: "client-buffer"},
			},
		},
		Steps:    []plan.Step{{Name: "ended", Until: []plan.State{{Kind: plan.Ended}}}},
		Evidence: ledger.Evidence{Ends: []string{"producer-1", "producer-2"}},
	}
	res := run(t, testConfig(t, testSuite(sc)))
	if got := res.Suites[0].Scenarios[0]; got.Status != audit.Pass {
		t.Errorf("%v: %v", got.Status, got.Reasons)
		t.Log(toJSON(t, got.Repeats[0].Arms))
	}
}

func TestArmsWithNodeSettingsHaveTheirOwnCluster(t *testing.T) {
	t.Parallel()
	c := control(memory.LoseConfirmed, "lost", "broker")
	c.Node, c.Destination = c.Destination, nil
	destructive := killed("destructive", guarded(), c)
	destructive.Destructive = true
	cfg := testConfig(t, testSuite(destructive))
	cfg.Runs = 2
	res := run(t, cfg)
	sc := res.Suites[0].Scenarios[0]
	if sc.Status != audit.Pass || len(res.Clusters) != 2 {
		t.Errorf("%v (%v) on %d clusters", sc.Status, sc.Reasons, len(res.Clusters))
	}
	for _, a := range sc.Arms {
		if a.K != 2 || a.N != 2 || a.Low < 0.1 || a.High != 1 {
			t.Errorf("%+v", a)
		}
	}
	if sc.Repeats[0].Seed == sc.Repeats[1].Seed {
		t.Error("two repeats have one seed")
	}
	if got := res.Clusters[0].RebuiltAfter; len(got) != 2 || !strings.Contains(got[0], "checked") {
		t.Errorf("after the scenario: %q", got)
	}
}

func TestClusterIsRebuiltWhenItsBaselineFails(t *testing.T) {
	t.Parallel()
	a := guarded()
	a.Node = map[string]string{"fail": "baseline"}
	b := control(memory.LoseConfirmed, "lost", "broker")
	b.Node = a.Node
	sc := killed("destructive", a, b)
	sc.Destructive = true
	cfg := testConfig(t, testSuite(sc))
	cfg.Runs = 2
	res := run(t, cfg)
	if len(res.Clusters) != 2 || !strings.Contains(strings.Join(res.Clusters[0].RebuiltAfter, ""), "rebuilt") {
		t.Errorf("clusters %+v", res.Clusters)
	}
}

func TestNotApplicableIsDecidedBefore(t *testing.T) {
	t.Parallel()
	sc := killed("elect", guarded())
	sc.Steps = append(sc.Steps, plan.Step{Name: "elected", Do: DoElectUnclean})
	res := run(t, testConfig(t, testSuite(sc)))
	got := res.Suites[0].Scenarios[0]
	if got.Status != audit.NotApplicable || len(got.Repeats) > 0 || !strings.Contains(got.Reasons[0], "elections") {
		t.Errorf("%v %v", got.Status, got.Reasons)
	}
}

func TestScenarioOfALaterVersion(t *testing.T) {
	t.Parallel()
	later, same := killed("later", guarded()), killed("same", guarded())
	later.Since, same.Since = "1.1", "1"
	res := run(t, testConfig(t, testSuite(later, same)))
	got := res.Suites[0].Scenarios
	if got[0].Status != audit.NotApplicable || len(got[0].Repeats) > 0 || !strings.Contains(got[0].Reasons[0], "older than 1.1") {
		t.Errorf("%v %v", got[0].Status, got[0].Reasons)
	}
	if got[1].Status == audit.NotApplicable {
		t.Errorf("%v", got[1].Reasons)
	}
}

func TestObservation(t *testing.T) {
	t.Parallel()
	sc := killed("seen", Arm{Name: "seen", Role: Observation, Reason: "no control"})
	sc.Steps[0].Inject.Fault = "moment"
	sc.Steps[1].Until = sc.Steps[1].Until[1:]
	res := run(t, testConfig(t, testSuite(sc)))
	got := res.Suites[0].Scenarios[0]
	if got.Status != audit.Observed {
		t.Errorf("%v %v", got.Status, got.Reasons)
	}
}

func TestFaultsThatFailAreTheEnvironments(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"fails", "unhealable"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			sc := killed("broken", guarded())
			sc.Steps = sc.Steps[:1]
			sc.Steps[0].Inject.Fault = fault
			cfg := testConfig(t, testSuite(sc, killed("next", guarded(), control(memory.LoseConfirmed, "lost", "broker"))))
			res, err := Run(t.Context(), cfg)
			if !errors.Is(err, system.ErrEnvironment) {
				t.Errorf("error %v", err)
			}
			if got := res.Suites[0].Scenarios; got[0].Status != audit.Inconclusive || got[0].Error == "" || got[1].Status != audit.Pass {
				t.Errorf("%v (%s) and %v (%v)", got[0].Status, got[0].Error, got[1].Status, got[1].Reasons)
			}
			checkReplay(t, cfg, res)
		})
	}
}

func TestFullDiskOfAWorker(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, testSuite(killed("full", guarded())))
	cfg.Rate = 5000
	cfg.Worker = append([]string{"/bin/sh", "-c", `trap '' XFSZ; ulimit -f 16; exec "$@"`, "sh"}, cfg.Worker...)
	res, err := Run(t.Context(), cfg)
	if !errors.Is(err, system.ErrEnvironment) || res.Status != audit.Inconclusive {
		t.Errorf("status %v, error %v", res.Status, err)
	}
	if v := res.Suites[0].Scenarios[0].Repeats[0].Arms[0].Verdict; v.Totals.Invoked == 0 {
		t.Error("what was recorded was not audited")
	}
	checkReplay(t, cfg, res)
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	for _, phase := range []string{"warm", "load", "heal", "drain"} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			sc := killed("cut-short", guarded())
			sc.Steps[0].Inject.Fault = "paused"
			if phase == "load" {
				sc.Steps[1].Until = []plan.State{{Kind: plan.Refused, N: 1}}
			} else {
				sc.Steps[1].Until = nil
			}
			cfg := testConfig(t, testSuite(sc))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cfg.Live = func(l Live) {
				if l.Phase == phase && (phase != "load" || l.Fault != "") {
					cancel()
				}
			}
			res, err := Run(ctx, cfg)
			if !errors.Is(err, ErrInterrupted) || res.Status != audit.Inconclusive {
				t.Errorf("status %v, error %v", res.Status, err)
			}
			sc0 := res.Suites[0].Scenarios[0]
			if !strings.Contains(sc0.Error, "interrupted") {
				t.Errorf("error of the scenario %q", sc0.Error)
			}
			checkReplay(t, cfg, res)
			if phase == "warm" {
				return
			}
			v := sc0.Repeats[0].Arms[0].Verdict
			if v.Totals.Invoked < 100 || len(v.Damage) > 0 {
				t.Errorf("invoked %d, damage %v", v.Totals.Invoked, v.Damage)
			}
			for _, p := range v.Proofs {
				if p.Name == "heals" && !p.OK {
					t.Errorf("heals: %s", p.Got)
				}
			}
		})
	}
}

func TestTimeoutIsInconclusiveAndNoError(t *testing.T) {
	t.Parallel()
	sc := killed("slow", guarded())
	sc.Steps[1].Until = []plan.State{{Kind: plan.Refused, N: 1}}
	cfg := testConfig(t, testSuite(sc, killed("never", guarded())))
	cfg.Timeout = 700 * time.Millisecond
	res, err := Run(t.Context(), cfg)
	if err != nil || res.Status != audit.Inconclusive {
		t.Errorf("status %v, error %v", res.Status, err)
	}
	for _, sc := range res.Suites[0].Scenarios {
		if !strings.Contains(sc.Error, "timeout") {
			t.Errorf("%s: error %q", sc.Name, sc.Error)
		}
	}
}

func TestKilledRunCanBeAudited(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, testSuite(killed("first", guarded(), control(memory.LoseConfirmed, "lost", "broker"))))
	run(t, cfg)
	// What is left if conform is killed before it has saved a result.
	if err := os.Remove(filepath.Join(cfg.Out, resultFile)); err != nil {
		t.Fatal(err)
	}
	res, err := AuditDir(cfg.Out, cfg.Suites)
	if err != nil || len(res.Suites[0].Scenarios[0].Repeats) != 1 || res.Suites[0].Scenarios[0].Status != audit.Pass {
		t.Fatalf("%+v, error %v", res.Status, err)
	}
	// Damage is named by file and offset.
	folder := filepath.Join(cfg.Out, armFolder("memory-acks", "first", 0, "guarded"))
	path := filepath.Join(folder, "producer-1"+journalTail)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	res, err = AuditDir(cfg.Out, cfg.Suites)
	if err != nil {
		t.Fatal(err)
	}
	arms := res.Suites[0].Scenarios[0].Repeats[0].Arms
	if res.Status != audit.Inconclusive || len(arms[0].Verdict.Damage) == 0 || !strings.Contains(arms[0].Verdict.Damage[0], "producer-1.journal is damaged at byte") {
		t.Errorf("%v, damage %v", res.Status, arms[0].Verdict.Damage)
	}
	if err := os.WriteFile(filepath.Join(folder, headerFile), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	res, err = AuditDir(cfg.Out, cfg.Suites)
	if err != nil || res.Status != audit.Inconclusive || !slices.ContainsFunc(res.Suites[0].Scenarios[0].Reasons, func(s string) bool { return strings.Contains(s, headerFile) }) {
		t.Errorf("%v, reasons %v, error %v", res.Status, res.Suites[0].Scenarios[0].Reasons, err)
	}
	if _, err := AuditDir(t.TempDir(), nil); !errors.Is(err, system.ErrUsage) {
		t.Errorf("audit of an empty folder: error %v", err)
	}
}

func TestRunFolderIsForOneRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openFolder(dir); !errors.Is(err, system.ErrUsage) || !strings.Contains(err.Error(), "another run") {
		t.Errorf("a locked folder: error %v", err)
	}
	if err := f.save(runFile, Result{}); err != nil {
		t.Fatal(err)
	}
	_ = f.close()
	if _, err := openFolder(dir); !errors.Is(err, system.ErrUsage) || !strings.Contains(err.Error(), "holds a run") {
		t.Errorf("a used folder: error %v", err)
	}
	if _, err := openFolder("/proc/no/such"); !errors.Is(err, system.ErrEnvironment) {
		t.Errorf("a folder that cannot be made: error %v", err)
	}
}

func TestConfigurationsThatCannotRun(t *testing.T) {
	for name, change := range map[string]func(*Config, *Scenario){
		"no suite":          func(c *Config, _ *Scenario) { c.Suites = nil },
		"no scenario":       func(c *Config, _ *Scenario) { c.Suites[0].Scenarios = nil },
		"unknown fault":     func(_ *Config, s *Scenario) { s.Steps[0].Inject.Fault = "flood" },
		"unknown param":     func(_ *Config, s *Scenario) { s.Steps[0].Inject.Params = map[string]string{"x": "1"} },
		"unknown target":    func(_ *Config, s *Scenario) { s.Steps[0].Inject.Target = "x" },
		"unknown arm":       func(_ *Config, s *Scenario) { s.Steps[0].Inject.Arms = []string{"x"} },
		"unknown state arm": func(_ *Config, s *Scenario) { s.Steps[0].Until[0].Arms = []string{"x"} },
		"unknown action":    func(_ *Config, s *Scenario) { s.Steps[1].Do = "dance" },
		"unknown gate":      func(_ *Config, s *Scenario) { s.Steps[1].Until[0] = plan.State{Kind: plan.Custom, Name: "x"} },
		"arm twice":         func(_ *Config, s *Scenario) { s.Arms = append(s.Arms, guarded()) },
		"control unbroken":  func(_ *Config, s *Scenario) { s.Arms[0].Role = Control },
		"arm is a path":     func(_ *Config, s *Scenario) { s.Arms[0].Name = "../x" },
	} {
		cfg := testConfig(t, testSuite(killed("s", guarded())))
		change(&cfg, &cfg.Suites[0].Scenarios[0])
		if _, err := Run(t.Context(), cfg); !errors.Is(err, system.ErrUsage) {
			t.Errorf("%s: error %v", name, err)
		}
		if _, err := os.Stat(cfg.Out); err == nil {
			t.Errorf("%s: a run folder was made", name)
		}
	}
}
