package harness

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"conform/harness/audit"
	"conform/harness/ledger"
)

// suiteResult is the result of a suite before anything was run: what it promises and would show.
func suiteResult(s *Suite, cfg Config) SuiteResult {
	name := s.System.Name()
	version := cfg.Versions[name]
	if version == "" {
		version = s.System.Versions()[0]
	}
	r := SuiteResult{Name: s.Name, Title: s.Title, System: name, Version: version, Promise: s.Promise}
	for _, sc := range s.Scenarios {
		x := ScenarioResult{
			Suite: s.Name, Name: sc.Name, Window: sc.Window, Summary: sc.Summary, Guarded: sc.Guarded, LookFor: sc.LookFor,
		}
		for _, a := range sc.Arms {
			y := ArmSummary{Name: a.Name, Role: string(a.Role), High: 1}
			if a.Break != nil {
				y.Knob, y.Forces, y.Expect = a.Break.Knob, a.Break.Forces, a.Break.Anomaly
				if a.Break.Attribution != "" {
					y.Expect += "/" + a.Break.Attribution
				}
			}
			x.Arms = append(x.Arms, y)
		}
		r.Scenarios = append(r.Scenarios, x)
	}
	return r
}

// untied is said of a ledger that was recorded before its segments named what they were written for.
const untied = "segments are not tied to their header: recorded by an older version"

// auditArm judges one arm from its folder alone. What cannot be read, and segments that were written for
// another arm, are damage: the arm is inconclusive.
func auditArm(dir, folder string) ArmRun {
	path := filepath.Join(dir, folder)
	h, wanted, err := readHeader(path)
	if err != nil {
		h = headerOf(folder)
		run := ArmRun{Name: h.Arm, Folder: folder, Header: h}
		run.damage(err.Error())
		return run
	}
	run := ArmRun{Name: h.Arm, Role: h.Role, Folder: folder, Header: h}
	strange, tied, err := strangers(path, wanted)
	if err == nil {
		open, closeAll := openLedger(path)
		run.Verdict, err = audit.Audit(h, open)
		err = errors.Join(err, closeAll())
	}
	if err != nil {
		run.Verdict = audit.Verdict{}
		run.damage(err.Error())
		return run
	}
	if armPath(h) != strings.TrimPrefix(filepath.ToSlash(folder), ledgerDir+"/") {
		strange = append(strange, fmt.Sprintf("%s holds the ledger of %s", folder, armPath(h)))
	}
	if !tied {
		run.Verdict.Differs = append(run.Verdict.Differs, untied)
	}
	run.damage(strange...)
	return run
}

// damage makes an arm inconclusive.
func (r *ArmRun) damage(what ...string) {
	if len(what) == 0 {
		return
	}
	v := &r.Verdict
	r.broken = true
	v.Arm = audit.ArmInconclusive
	v.Reasons, v.Damage = append(v.Reasons, what...), append(v.Damage, what...)
}

// headerOf tells what the place of an arm's folder says about it.
func headerOf(folder string) ledger.Header {
	parts := strings.Split(filepath.ToSlash(folder), "/")
	if len(parts) < 5 {
		return ledger.Header{}
	}
	h := ledger.Header{Suite: parts[1], Scenario: parts[2], Arm: parts[4]}
	_, _ = fmt.Sscanf(parts[3], "repeat-%d", &h.Repeat)
	return h
}

// unknown says of how many runs of each arm there is no whole ledger: what they showed is not known.
func unknown(sc *ScenarioResult, runs int) (missing []string) {
	for _, r := range sc.Repeats {
		runs = max(runs, r.Index+1)
	}
	for i := range sc.Arms {
		a := &sc.Arms[i]
		a.Unknown = runs
		for _, r := range sc.Repeats {
			left := slices.DeleteFunc(slices.Clone(r.Arms), func(r ArmRun) bool { return r.Name != a.Name })
			if len(left) > 0 && !slices.ContainsFunc(left, func(r ArmRun) bool { return !r.whole() }) {
				a.Unknown--
			}
		}
		if a.Unknown > 0 {
			missing = append(missing, fmt.Sprintf("%s: of %d of %d runs there is no whole ledger", a.Name, a.Unknown, runs))
		}
	}
	return missing
}

// whole says whether the arm has left a ledger without damage.
func (r *ArmRun) whole() bool {
	return !r.broken && !slices.ContainsFunc(r.Verdict.Proofs, func(p audit.Proof) bool { return p.Name == audit.ProofLedger && !p.OK })
}

// judge merges the arms of every repeat of a scenario. An error of ours makes inconclusive what
// would have passed; it never hides a broken promise. Reasons of repeats are for the reader: whatever
// they tell is in the ledgers too, so that an audit comes to the same verdict.
func judge(sc *ScenarioResult, planned int) {
	if sc.Status == audit.NotApplicable {
		return
	}
	var runs [][]audit.ArmVerdict
	for i := range sc.Repeats {
		r := &sc.Repeats[i]
		arms := verdicts(sc, *r)
		runs = append(runs, arms)
		r.Status, _ = audit.Judge(arms)
		if r.Error != "" && r.Status != audit.Fail {
			r.Status = audit.Inconclusive
		}
	}
	status, reasons, tallies := audit.JudgeRuns(runs)
	sc.Status, sc.Reasons = status, reasons
	for _, t := range tallies {
		for i := range sc.Arms {
			if a := &sc.Arms[i]; a.Name == t.Arm {
				a.K, a.N, a.Low, a.High = t.K, t.N, t.Low, t.Hi
			}
		}
	}
	missing := unknown(sc, planned)
	if sc.Status == audit.Pass || sc.Status == audit.Observed {
		if sc.Error != "" || len(missing) > 0 {
			sc.Status, sc.Reasons = audit.Inconclusive, missing
		} else {
			return
		}
	}
	for _, r := range sc.Repeats {
		for _, why := range r.Reasons {
			sc.Reasons = appendNew(sc.Reasons, why)
		}
		for _, a := range r.Arms {
			for _, why := range a.Verdict.Reasons {
				sc.Reasons = appendNew(sc.Reasons, a.Name+": "+why)
			}
		}
	}
}

// verdicts lists the arms of a repeat; one that left no ledger is inconclusive, not forgotten.
func verdicts(sc *ScenarioResult, r Repeat) []audit.ArmVerdict {
	var arms []audit.ArmVerdict
	for _, a := range sc.Arms {
		v := audit.ArmVerdict{Arm: a.Name, Role: a.Role}
		if i := slices.IndexFunc(r.Arms, func(x ArmRun) bool { return x.Name == a.Name }); i >= 0 {
			v.Result = r.Arms[i].Verdict.Arm
		}
		arms = append(arms, v)
	}
	return arms
}

func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// conclude merges scenarios to suites and suites to the run.
func conclude(res *Result) {
	var suites []audit.Status
	for i := range res.Suites {
		s := &res.Suites[i]
		var scenarios []audit.Status
		for j := range s.Scenarios {
			sc := &s.Scenarios[j]
			judge(sc, res.Runs)
			if sc.Status == audit.Inconclusive && len(sc.Reasons) == 0 && sc.Error == "" {
				sc.Reasons = []string{"it was not run"}
			}
			scenarios = append(scenarios, sc.Status)
		}
		s.Status = audit.Merge(scenarios...)
		suites = append(suites, s.Status)
	}
	res.Status = audit.Merge(suites...)
}

// verdictLine says a scenario's verdict in one line.
func verdictLine(sc *ScenarioResult) string {
	words := map[audit.Status]string{
		audit.Pass: "PASS", audit.Fail: "FAIL", audit.Inconclusive: "INCONCLUSIVE", audit.NotApplicable: "NOT APPLICABLE", audit.Observed: "OBSERVED",
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s: %s", sc.Suite, sc.Name, words[sc.Status])
	if sc.Status == audit.NotApplicable {
		fmt.Fprintf(&b, ": %s", strings.Join(sc.Reasons, "; "))
		return b.String()
	}
	for i, a := range sc.Arms {
		sep := ", "
		if i == 0 {
			sep = ": "
		}
		switch Role(a.Role) {
		case Control:
			fmt.Fprintf(&b, "%s%s reproduced %s %d/%d", sep, a.Name, a.Expect, a.K, a.N)
		default:
			fmt.Fprintf(&b, "%s%s held %d/%d", sep, a.Name, a.K, a.N)
		}
		if a.Unknown > 0 {
			fmt.Fprintf(&b, ", %d not known", a.Unknown)
		}
	}
	if sc.Status != audit.Pass && sc.Status != audit.Observed && len(sc.Reasons) > 0 {
		fmt.Fprintf(&b, "; %s", sc.Reasons[0])
	}
	return b.String()
}
