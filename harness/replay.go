package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/system"
)

// AuditDir judges a recorded run again, from its folder alone, by the recorded promises: the same
// ledgers give the same verdicts as Run did. Arms whose ledger is there but which the recorded
// result does not know, because conform was killed, are audited too. Damage is named by file and
// offset in the verdicts, and so is where the promises of the known suites differ from the recorded
// ones. The error wraps system.ErrUsage if dir holds no run.
func AuditDir(dir string, known []Suite) (Result, error) {
	res, err := readResult(dir)
	if err != nil {
		return Result{}, err
	}
	folders, err := armFolders(dir)
	if err != nil {
		return Result{}, err
	}
	for i := range res.Suites {
		for j := range res.Suites[i].Scenarios {
			sc := &res.Suites[i].Scenarios[j]
			for k := range sc.Repeats {
				sc.Repeats[k].Arms = nil
			}
		}
	}
	for _, folder := range folders {
		run, err := auditArm(dir, folder)
		if err != nil {
			return res, fmt.Errorf("audit %s: %w", folder, err)
		}
		if run.Header.Schema != 0 { // of a header that cannot be read nothing differs
			run.Verdict.Differs = differs(run.Header, known)
		}
		if sc := scenarioOf(&res, run.Header); sc != nil {
			r := repeatOf(sc, run.Header)
			r.Arms = append(r.Arms, run)
		}
	}
	for i := range res.Suites {
		for j := range res.Suites[i].Scenarios {
			sc := &res.Suites[i].Scenarios[j]
			for k := range sc.Repeats { // in the order of the scenario, as Run has them
				slices.SortStableFunc(sc.Repeats[k].Arms, func(a, b ArmRun) int { return armIndex(sc, a.Name) - armIndex(sc, b.Name) })
			}
		}
	}
	conclude(&res)
	return res, nil
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

func readResult(dir string) (Result, error) {
	var errs []error
	for _, name := range []string{resultFile, runFile} { // what was planned tells enough to judge by
		var res Result
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(b, &res)
		}
		if err == nil {
			return res, nil
		}
		errs = append(errs, err)
	}
	return Result{}, fmt.Errorf("read run in %s: %w: %w", dir, errors.Join(errs...), system.ErrUsage)
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
		h, err := readHeader(filepath.Join(dir, folder))
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
