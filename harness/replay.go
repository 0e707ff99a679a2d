package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
)

// AuditDir judges a recorded run again, from its folder alone, by the recorded promises: the same
// ledgers give the same verdicts as Run did. The ledgers are believed, not the recorded result: what is in one
// of them and not in the other is named, and inconclusive. Damage is named by file and
// offset in the verdicts, and so is where the promises of the known suites differ from the recorded
// ones; verdicts that differ from the recorded ones are in Result.Changed. The error wraps
// system.ErrUsage if dir holds no run.
func AuditDir(dir string, known []Suite) (Result, error) {
	res, judged, err := readResult(dir)
	if err != nil {
		return Result{}, err
	}
	folders, err := armFolders(dir)
	if err != nil {
		return Result{}, err
	}
	was := map[*ScenarioResult]audit.Status{}
	res.scenarios(func(sc *ScenarioResult) {
		for k := range sc.Repeats {
			sc.Repeats[k].Arms = nil
		}
	})
	var runs []ArmRun
	for _, folder := range folders {
		run := auditArm(dir, folder)
		if run.Header.Schema != 0 { // of a header that cannot be read nothing differs
			run.Verdict.Differs = unique(append(run.Verdict.Differs, differs(run.Header, known)...))
			run.damage(res.strange(run.Header)...)
		}
		res.know(run.Header)
		runs = append(runs, run)
	}
	res.scenarios(func(sc *ScenarioResult) { was[sc] = sc.Status })
	for _, run := range runs {
		sc := scenarioOf(&res, run.Header)
		if i := armIndex(sc, run.Name); sc.Arms[i].Role != run.Role && run.Header.Schema != 0 {
			run.damage(fmt.Sprintf("the header calls the arm %s, the recorded result %s", run.Role, sc.Arms[i].Role))
		}
		if sc.Status == audit.NotApplicable { // it was run all the same
			sc.Status, sc.Reasons = audit.Inconclusive, nil
		}
		r := repeatOf(sc, run.Header)
		r.Arms = append(r.Arms, run)
	}
	res.scenarios(func(sc *ScenarioResult) {
		for k := range sc.Repeats { // in the order of the scenario, as Run has them
			slices.SortStableFunc(sc.Repeats[k].Arms, func(a, b ArmRun) int { return armIndex(sc, a.Name) - armIndex(sc, b.Name) })
		}
	})
	conclude(&res)
	if judged {
		res.scenarios(func(sc *ScenarioResult) {
			if sc.Status != was[sc] {
				res.Changed = append(res.Changed, Change{Scenario: sc.Suite + "/" + sc.Name, Was: was[sc], Now: sc.Status, Why: newRules(sc)})
			}
		})
	}
	return res, nil
}

// scenarios calls f for every scenario.
func (r *Result) scenarios(f func(*ScenarioResult)) {
	for i := range r.Suites {
		for j := range r.Suites[i].Scenarios {
			f(&r.Suites[i].Scenarios[j])
		}
	}
}

// strange says what in a header is of another run than the one recorded.
func (r *Result) strange(h ledger.Header) []string {
	var out []string
	if h.Run != r.RunID {
		out = append(out, fmt.Sprintf("the ledger is of run %s, the recorded result of %s", h.Run, r.RunID))
	}
	if seed := plan.RepeatSeed(r.Seed, h.Repeat); h.Seed != seed {
		out = append(out, fmt.Sprintf("the ledger is of seed %d, the recorded result of %d", h.Seed, seed))
	}
	return out
}

// know adds what a header tells of and the recorded result does not.
func (r *Result) know(h ledger.Header) {
	const why = "the recorded result does not know "
	i := slices.IndexFunc(r.Suites, func(s SuiteResult) bool { return s.Name == h.Suite })
	if i < 0 {
		i = len(r.Suites)
		r.Suites = append(r.Suites, SuiteResult{Name: h.Suite, Title: h.Promise.Text, System: h.System, Version: h.Version, Promise: h.Promise})
	}
	s := &r.Suites[i]
	j := slices.IndexFunc(s.Scenarios, func(sc ScenarioResult) bool { return sc.Name == h.Scenario })
	if j < 0 {
		j = len(s.Scenarios)
		s.Scenarios = append(s.Scenarios, ScenarioResult{Suite: h.Suite, Name: h.Scenario, Window: h.Window, Plan: h.Plan, Error: why + "this scenario"})
	}
	sc := &s.Scenarios[j]
	if armIndex(sc, h.Arm) >= 0 {
		return
	}
	a := ArmSummary{Name: h.Arm, Role: h.Role, High: 1}
	if h.Expect != nil {
		a.Knob, a.Forces, a.Expect = h.Expect.Knob, h.Expect.Forces, h.Expect.Anomaly
		if h.Expect.Attribution != "" {
			a.Expect += "/" + h.Expect.Attribution
		}
	}
	sc.Arms = append(sc.Arms, a)
	sc.Error = joinSeen(sc.Error, why+"arm "+h.Arm)
}

// newRules says which rules this binary judges a scenario by are of another version than the recorded ones.
func newRules(sc *ScenarioResult) []string {
	own := audit.Checks()
	var changed []string
	evidence := false
	for _, r := range sc.Repeats {
		for _, a := range r.Arms {
			if a.Header.Schema == 0 {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(own)) {
				recorded := a.Header.Checks[name]
				if name == audit.EvidenceRules {
					recorded = max(1, recorded)
				}
				if recorded != 0 && recorded != own[name] {
					evidence = evidence || name == audit.EvidenceRules
					changed = appendNew(changed, fmt.Sprintf("%s %d -> %d", name, recorded, own[name]))
				}
			}
		}
	}
	switch {
	case len(changed) == 0:
		return nil
	case evidence:
		return []string{fmt.Sprintf("the evidence rules differ (%s)", strings.Join(changed, ", "))}
	default:
		return []string{fmt.Sprintf("the checks differ (%s)", strings.Join(changed, ", "))}
	}
}

// differs says where this binary's promise and checks differ from those that an arm was recorded with.
func differs(h ledger.Header, known []Suite) []string {
	for _, s := range known {
		if s.Name != h.Suite {
			continue
		}
		for _, sc := range s.Scenarios {
			for _, a := range sc.Arms {
				if sc.Name == h.Scenario && a.Name == h.Arm {
					return audit.Compare(h, s.promiseOf(a), audit.Checks())
				}
			}
		}
	}
	return append(audit.Compare(h, h.Promise, audit.Checks()), fmt.Sprintf("this binary has no %s/%s with an arm %s", h.Suite, h.Scenario, h.Arm))
}

// readResult reads the recorded result, or what was planned. judged says that it was the result.
func readResult(dir string) (res Result, judged bool, err error) {
	var errs []error
	for _, name := range []string{resultFile, runFile} { // what was planned tells enough to judge by
		var res Result
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(b, &res)
		}
		if err == nil && res.RunID == "" {
			err = fmt.Errorf("%s names no run", name)
		}
		if err == nil {
			return res, name == resultFile, nil
		}
		errs = append(errs, err)
	}
	return Result{}, false, fmt.Errorf("read run in %s: %w: %w", dir, errors.Join(errs...), system.ErrUsage)
}

func scenarioOf(res *Result, h ledger.Header) *ScenarioResult {
	for i := range res.Suites {
		if res.Suites[i].Name != h.Suite {
			continue
		}
		for j := range res.Suites[i].Scenarios {
			if sc := &res.Suites[i].Scenarios[j]; sc.Name == h.Scenario {
				return sc
			}
		}
	}
	return nil
}

func repeatOf(sc *ScenarioResult, h ledger.Header) *Repeat {
	for i := range sc.Repeats {
		if sc.Repeats[i].Index == h.Repeat {
			return &sc.Repeats[i]
		}
	}
	sc.Repeats = append(sc.Repeats, Repeat{Index: h.Repeat, Seed: h.Seed, Error: "the run ended before this was judged"})
	slices.SortFunc(sc.Repeats, func(a, b Repeat) int { return a.Index - b.Index })
	for i := range sc.Repeats {
		if sc.Repeats[i].Index == h.Repeat {
			return &sc.Repeats[i]
		}
	}
	return nil
}

func armIndex(sc *ScenarioResult, name string) int {
	return slices.IndexFunc(sc.Arms, func(a ArmSummary) bool { return a.Name == name })
}

// Story tells the whole story of one message in every arm of a recorded run that has it. arm, if
// set, is an arm's name or the end of its folder's path ("leader-killed/repeat-0/acks-0"), and
// limits the search. The error wraps system.ErrUsage if no arm is left.
func Story(dir string, id ledger.MessageID, arm string) ([]audit.Story, error) {
	folders, err := armFolders(dir)
	if err != nil {
		return nil, err
	}
	var stories []audit.Story
	looked := false
	for _, folder := range folders {
		if arm != "" && filepath.Base(folder) != arm && !endsWith(folder, arm) {
			continue
		}
		looked = true
		h, _, err := readHeader(filepath.Join(dir, folder))
		if err != nil {
			return stories, err
		}
		open, closeAll := openLedger(filepath.Join(dir, folder))
		s, err := audit.Tell(h, open, id)
		if err = errors.Join(err, closeAll()); err != nil {
			return stories, fmt.Errorf("tell %s of %s: %w", id, folder, err)
		}
		if len(s.Lines) == 0 {
			continue
		}
		s.Title = fmt.Sprintf("%s/%s, arm %s: %s", h.Suite, h.Scenario, h.Arm, s.Title)
		stories = append(stories, s)
	}
	if !looked {
		return nil, fmt.Errorf("tell %s: no arm %q has a ledger in %s: %w", id, arm, dir, system.ErrUsage)
	}
	return stories, nil
}

func endsWith(folder, tail string) bool {
	f, t := filepath.ToSlash(folder), filepath.ToSlash(tail)
	return len(f) > len(t) && f[len(f)-len(t):] == t && f[len(f)-len(t)-1] == '/'
}
