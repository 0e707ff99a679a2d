package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"conform/harness"
	"conform/harness/host"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system/memory"
	"conform/harness/worker"
)

// The suites of the tests run on the system in memory: the whole of conform, engine, worker
// processes, ledger, audit and reports, without a container.
var memorySystem = harness.System{System: memory.System{}, Producer: "memory-producer", Consumer: "memory-consumer"}

func TestMain(m *testing.M) {
	if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
		panic(err)
	}
	worker.Register(memorySystem.Producer, worker.ProducerRole(memory.Clients{}))
	worker.Register(memorySystem.Consumer, worker.ConsumerRole(memory.Clients{}, nil))
	if len(os.Args) > 1 && os.Args[1] == "worker" { // this binary, started again by the engine
		os.Exit(start(wired()))
	}
	testscript.Main(m, map[string]func(){
		"conform": func() { os.Exit(start(tested())) },
	})
}

// tested is the real backend with suites that need no engine for containers, and no engine.
func tested() backend {
	b := wired()
	b.suites = append(b.suites, memorySuites()...)
	if os.Getenv("CONFORM_TEST_NO_ENGINE") != "" {
		b.prepare = func(context.Context, host.Options) (host.Images, error) {
			return nil, &host.Error{Op: "connect to container engine", Err: os.ErrNotExist, Fix: "conform prepare --install-docker"}
		}
	}
	return b
}

func memorySuites() []harness.Suite {
	promise := ledger.Promise{
		Text: "what was confirmed is stored once", Start: "the confirm", End: "the store, read to its end", Places: []string{"store"},
	}
	bug := func(name string) map[string]string { return map[string]string{"bug": name} }
	guarded := harness.Arm{Name: "guarded", Role: harness.Guarded}
	control := func(planted string, expect harness.Break) harness.Arm {
		expect.Knob, expect.Place = "bug="+planted, "store"
		return harness.Arm{Name: "control", Role: harness.Control, Destination: bug(planted), Break: &expect}
	}
	scenario := func(name string, arms ...harness.Arm) harness.Scenario {
		return harness.Scenario{
			Name: name, Window: "W3", Cost: 5 * time.Second, Summary: "one node is killed and comes back", Guarded: "no bug is planted",
			LookFor: "nowhere: this broker is ours",
			Load:    harness.Load{Rate: 1000, Tail: 200 * time.Millisecond},
			Targets: map[string]plan.Role{"leader": plan.Leader}, Arms: arms,
			Steps: []plan.Step{
				{Name: "killed", Until: []plan.State{{Kind: plan.Confirmed, N: 200}}, Inject: &plan.Exposure{Fault: "node-killed", Target: "leader"}},
				{Name: "restarted", Heal: "killed"},
				{Name: "recovered", Until: []plan.State{{Kind: plan.Confirmed, N: 100, Since: "restarted"}}},
			},
			Evidence: ledger.Evidence{Before: 200, After: 100, Bites: []string{"killed"}},
		}
	}
	lost := harness.Break{Anomaly: "lost", Attribution: "broker"}
	broken := guarded
	broken.Destination = bug(memory.LoseConfirmed)
	down := guarded
	down.Node = map[string]string{"fail": "start"}
	slow := scenario("slow", guarded)
	slow.Load.Tail = time.Minute
	return []harness.Suite{
		{Name: "memory-holds", Title: "nothing confirmed is lost", System: memorySystem, Promise: promise, Scenarios: []harness.Scenario{
			scenario("node-killed", guarded, control(memory.LoseConfirmed, lost)),
		}},
		{Name: "memory-broken", Title: "nothing confirmed is lost, says who planted a bug", System: memorySystem, Promise: promise, Scenarios: []harness.Scenario{
			scenario("node-killed", broken, control(memory.LoseConfirmed, lost)),
		}},
		{Name: "memory-vacuous", Title: "a control that shows nothing proves nothing", System: memorySystem, Promise: promise, Scenarios: []harness.Scenario{
			scenario("node-killed", guarded, harness.Arm{Name: "control", Role: harness.Control, Break: &harness.Break{
				Knob: "none", Place: "store", Anomaly: "lost", Attribution: "broker",
			}}),
		}},
		{Name: "memory-down", Title: "a broker that never becomes ready", System: memorySystem, Promise: promise, Scenarios: []harness.Scenario{
			scenario("node-killed", down),
		}},
		{Name: "memory-slow", Title: "long enough to be interrupted", System: memorySystem, Promise: promise, Scenarios: []harness.Scenario{slow}},
	}
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("CONFORM_TEST_UPDATE") != "",
		Setup: func(e *testscript.Env) error {
			e.Setenv("CI", "")
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, ".cache"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":  exits,
			"damage": damage,
		},
	})
}

// exits runs a command and wants its exit code: exits 3 conform audit run. Its output can be
// looked at by stdout and stderr as after exec.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARGS...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		if _, got, _ = strings.Cut(err.Error(), "exit status "); got == "" {
			ts.Fatalf("%v", err)
		}
	}
	if got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

// damage flips one byte in the middle of a file: damage FILE-GLOB.
func damage(ts *testscript.TestScript, _ bool, args []string) {
	found, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(found) == 0 {
		ts.Fatalf("no file matches %s", args[0])
	}
	b, err := os.ReadFile(found[0])
	ts.Check(err)
	b[len(b)/2] ^= 0x40
	ts.Check(os.WriteFile(found[0], b, 0o600))
}
