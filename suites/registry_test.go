package suites

import (
	"fmt"
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
		var guards []harness.Arm
		for _, a := range sc.Arms {
			if a.Role == harness.Guarded {
				guards = append(guards, a)
			}
		}
		if len(guards) == 0 {
			for _, a := range sc.Arms {
				if a.Role != harness.Observation || a.Reason == "" {
					t.Errorf("arm %s: a scenario without a guarded arm has observations with a reason only", a.Name)
				}
			}
			return
		}
		controls := 0
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
			// Of several guarded arms, say one for each protocol, it is compared with the one that is nearest.
			var unnamed []string
			for i, g := range guards {
				others := differences(g, a, named)
				if i == 0 || len(others) < len(unnamed) {
					unnamed = others
				}
			}
			if len(unnamed) > 0 {
				t.Errorf("control %s differs in %q, which neither knob nor forces name (%s)", a.Name, unnamed, named)
			}
		}
		if controls == 0 {
			t.Error("a guarded arm without a control proves nothing")
		}
	})
}

// differences lists the settings of a control that differ from those of a guarded arm and are not named.
func differences(guarded, control harness.Arm, named string) []string {
	settings := func(a harness.Arm) map[string]string {
		all := map[string]string{}
		add := func(prefix string, m map[string]string) {
			for k, v := range m {
				all[prefix+k] = v
			}
		}
		add("client ", a.Client)
		add("destination ", a.Destination)
		add("node ", a.Node)
		for _, p := range a.Processes {
			add(p.Name+" client ", p.Client)
			add(p.Name+" parameter ", p.Params)
			add(p.Name+" ", map[string]string{
				"role": p.Role, "crash": fmt.Sprint(p.CrashAt, p.CrashNth, p.CrashIf), "hold": fmt.Sprint(p.HoldAt, p.HoldNth, p.HoldIf),
				"group": p.Group, "manual": fmt.Sprint(p.Manual), "restart": fmt.Sprint(p.Restart),
			})
		}
		return all
	}
	a, b := settings(guarded), settings(control)
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	var unnamed []string
	for _, k := range slices.Compact(keys) {
		name := strings.TrimPrefix(k[strings.LastIndexByte(k, ' ')+1:], "feature.")
		_, set := b[k]
		if a[k] != b[k] && !strings.Contains(named, name+"="+b[k]) && (set || !strings.Contains(named, name+" unset")) {
			unnamed = append(unnamed, k+"="+b[k])
		}
	}
	return unnamed
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

// Evidence that names what the plan has not is never there, and an arm that asks for no proof of its fault proves
// nothing.
func TestEvidenceIsOfThePlan(t *testing.T) {
	eachScenario(t, func(t *testing.T, _ harness.Suite, sc harness.Scenario) {
		step := func(name string) bool {
			return name == "" || slices.ContainsFunc(sc.Steps, func(s plan.Step) bool { return s.Name == name })
		}
		strikes := slices.ContainsFunc(sc.Steps, func(s plan.Step) bool {
			return s.Inject != nil || s.Do == harness.DoKillProcess || s.Do == harness.DoFreezeProcess
		})
		for _, a := range sc.Arms {
			evidence := sc.Evidence
			if a.Evidence != nil {
				evidence = *a.Evidence
			}
			if !step(a.During.At) || !step(evidence.InFlightAt) {
				t.Errorf("arm %s: evidence is asked of %q and %q, which the plan has not", a.Name, a.During.At, evidence.InFlightAt)
			}
			if a.Break != nil {
				for _, name := range a.Break.Also {
					anomaly, attribution, _ := strings.Cut(name, "/")
					if row, ok := audit.Lookup(anomaly); !ok || name == a.Break.Anomaly || attribution != "" && !slices.Contains(row.Attributions, attribution) {
						t.Errorf("arm %s also causes %q", a.Name, name)
					}
				}
			}
			points := slices.ContainsFunc(a.Producer.Incarnations, func(i harness.Incarnation) bool { return i.CrashAt+i.HoldAt != "" }) ||
				slices.ContainsFunc(a.Processes, func(p harness.Process) bool { return p.CrashAt+p.HoldAt != "" })
			if a.Role != harness.Observation && !strikes && !points && len(evidence.Bites)+len(evidence.Ends) == 0 {
				t.Errorf("arm %s asks for no proof of a fault", a.Name)
			}
		}
	})
}
