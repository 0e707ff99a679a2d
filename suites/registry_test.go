package suites

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"conform/faults"
	"conform/harness"
	"conform/harness/audit"
	"conform/harness/plan"
)

func eachScenario(t *testing.T, check func(t *testing.T, s harness.Suite, sc harness.Scenario)) {
	t.Helper()
	if len(All()) == 0 {
		t.Fatal("no suite is registered")
	}
	for _, s := range All() {
		for _, sc := range s.Scenarios {
			t.Run(s.Name+"/"+sc.Name, func(t *testing.T) { check(t, s, sc) })
		}
	}
}

// An arm proves something about one knob only if nothing else differs from the guarded arm but
// what the knob forces.
func TestControlsDifferInTheNamedKnobOnly(t *testing.T) {
	eachScenario(t, func(t *testing.T, _ harness.Suite, sc harness.Scenario) {
		i := slices.IndexFunc(sc.Arms, func(a harness.Arm) bool { return a.Role == harness.Guarded })
		if i < 0 {
			for _, a := range sc.Arms {
				if a.Role != harness.Observation || a.Reason == "" {
					t.Errorf("arm %s: a scenario without a guarded arm has observations with a reason only", a.Name)
				}
			}
			return
		}
		guarded, controls := sc.Arms[i], 0
		for _, a := range sc.Arms {
			if a.Role != harness.Control {
				continue
			}
			controls++
			if a.Break == nil {
				t.Fatalf("control %s names nothing that it breaks", a.Name)
			}
			if _, ok := audit.Lookup(a.Break.Anomaly); !ok {
				t.Errorf("control %s expects %q, which is no anomaly", a.Name, a.Break.Anomaly)
			}
			named := strings.Join(append([]string{a.Break.Knob}, a.Break.Forces...), "; ")
			for _, pair := range [][2]map[string]string{{guarded.Client, a.Client}, {guarded.Destination, a.Destination}, {guarded.Node, a.Node}} {
				keys := slices.Collect(maps.Keys(pair[0]))
				keys = slices.AppendSeq(keys, maps.Keys(pair[1]))
				for _, k := range keys {
					if pair[0][k] != pair[1][k] && !strings.Contains(named, k+"="+pair[1][k]) {
						t.Errorf("control %s differs in %s=%q, which neither knob nor forces name (%s)", a.Name, k, pair[1][k], named)
					}
				}
			}
		}
		if controls == 0 {
			t.Error("a guarded arm without a control proves nothing")
		}
	})
}

func TestPlansNameWhatExists(t *testing.T) {
	known := faults.All()
	eachScenario(t, func(t *testing.T, _ harness.Suite, sc harness.Scenario) {
		if sc.Summary == "" || sc.Guarded == "" || sc.LookFor == "" || len(sc.Sources) == 0 || sc.Cost <= 0 {
			t.Error("summary, guard, what to look for, sources or cost is missing")
		}
		if _, err := plan.New(1, sc.Targets, sc.Steps); err != nil {
			t.Error(err)
		}
		var injected []string
		for _, st := range sc.Steps {
			if st.Inject == nil {
				continue
			}
			injected = append(injected, st.Name)
			f, ok := known[st.Inject.Fault]
			if !ok {
				t.Fatalf("step %s injects %q, which is no fault", st.Name, st.Inject.Fault)
			}
			if err := f.CheckParams(st.Inject.Params); err != nil {
				t.Error(err)
			}
		}
		for _, name := range injected {
			if !slices.Contains(sc.Evidence.Bites, name) {
				t.Errorf("no proof is asked that %q bit", name)
			}
		}
		if len(sc.Evidence.Bites)+len(sc.Evidence.Ends) == 0 {
			t.Error("a scenario without evidence of its fault can pass without one")
		}
	})
}

func TestFileNamesAreSuiteNames(t *testing.T) {
	for _, s := range All() {
		base, _, _ := strings.Cut(s.Name, "@")
		if _, err := os.Stat(base + ".go"); err != nil {
			t.Errorf("suite %s has no file of its name: %v", s.Name, err)
		}
	}
}
