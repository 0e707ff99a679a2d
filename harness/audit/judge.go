package audit

import (
	"fmt"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// The roles of arms, as Header.Role has them.
const (
	roleGuarded     = "guarded"
	roleControl     = "control"
	roleObservation = "observation"
)

// ArmVerdict is one arm's result as Judge takes it.
type ArmVerdict struct {
	Arm    string
	Role   string // guarded, control, observation
	Result ArmResult
}

// Tally is k of n for one arm over several runs.
type Tally struct {
	Arm  string
	Role string
	// K of N runs came out as wanted: held, or reproduced. Inconclusive runs are in N of a control, and
	// not in N of a guarded arm or an observation, nor are guarded holds in a run whose control missed.
	K, N     int
	Low, Hi  float64 // Clopper-Pearson interval of K/N at 95 %
	Excluded int     // runs of a guarded arm or an observation that are not in N
}

// Judge merges the arms of one run of a scenario; the strings are the reasons for anything but a pass.
func Judge(arms []ArmVerdict) (Status, []string) {
	status, reasons, _ := JudgeRuns([][]ArmVerdict{arms})
	return status, reasons
}

// JudgeRuns merges the runs of a scenario, each with the same arms. One guarded or observed arm that
// broke in one run is a Fail. A control that reproduced in none is Inconclusive, and so is a guarded
// arm of which no hold counts: a hold counts in runs whose controls all reproduced. Arms without any
// control or guarded arm beside them are Observed.
func JudgeRuns(runs [][]ArmVerdict) (Status, []string, []Tally) {
	var tallies []Tally
	tally := func(a ArmVerdict) *Tally {
		i := slices.IndexFunc(tallies, func(t Tally) bool { return t.Arm == a.Arm && t.Role == a.Role })
		if i < 0 {
			i = len(tallies)
			tallies = append(tallies, Tally{Arm: a.Arm, Role: a.Role})
		}
		return &tallies[i]
	}
	broke := map[string]int{}
	for _, arms := range runs {
		reproduced, controls := true, false
		for _, a := range arms {
			if a.Role == roleControl {
				controls = true
				reproduced = reproduced && a.Result == Reproduced
			}
		}
		for _, a := range arms {
			t := tally(a)
			switch {
			case a.Role == roleControl:
				t.N++
				if a.Result == Reproduced {
					t.K++
				}
			case a.Result == Broke:
				t.N++
				broke[a.Arm]++
			case a.Result == Held && (a.Role == roleObservation || a.Role == roleGuarded && controls && reproduced):
				t.N++
				t.K++
			default:
				t.Excluded++
			}
		}
	}

	var failed, unsure []string
	pass := false
	for i := range tallies {
		t := &tallies[i]
		t.Low, t.Hi = ClopperPearson(t.K, t.N, 0.95)
		switch {
		case broke[t.Arm] > 0 && t.Role != roleControl:
			failed = append(failed, fmt.Sprintf("%s arm %s broke its promise in %d of %d runs", t.Role, t.Arm, broke[t.Arm], t.N))
		case t.Role == roleControl && t.K == 0:
			unsure = append(unsure, fmt.Sprintf("control %s did not reproduce its anomaly in any of %d runs", t.Arm, t.N))
		case t.Role == roleControl:
		case t.Role == roleGuarded && t.K > 0:
			pass = true
		case t.Role == roleGuarded:
			unsure = append(unsure, fmt.Sprintf("guarded arm %s: no hold in a run whose controls all reproduced", t.Arm))
		case t.Role == roleObservation && t.K > 0:
		case t.Role == roleObservation:
			unsure = append(unsure, fmt.Sprintf("observation %s is inconclusive in all %d runs", t.Arm, t.Excluded))
		default:
			unsure = append(unsure, fmt.Sprintf("arm %s has the unknown role %q", t.Arm, t.Role))
		}
	}
	switch {
	case len(failed) > 0:
		return Fail, append(failed, unsure...), tallies
	case len(tallies) == 0:
		return Inconclusive, []string{"no arm was run"}, nil
	case len(unsure) > 0:
		return Inconclusive, unsure, tallies
	case pass:
		return Pass, nil, tallies
	case slices.ContainsFunc(tallies, func(t Tally) bool { return t.Role == roleControl }):
		return Inconclusive, []string{"a control without a guarded arm proves nothing"}, tallies
	default:
		return Observed, nil, tallies
	}
}

// Merge returns the worst of the statuses: Fail > Inconclusive > Pass > Observed > NotApplicable.
// Of none it is Inconclusive, and a status out of range counts as Inconclusive.
func Merge(s ...Status) Status {
	rank := func(s Status) int {
		switch s {
		case Fail:
			return 4
		case Pass:
			return 2
		case Observed:
			return 1
		case NotApplicable:
			return 0
		default:
			return 3
		}
	}
	if len(s) == 0 {
		return Inconclusive
	}
	worst := s[0]
	for _, t := range s[1:] {
		if rank(t) > rank(worst) {
			worst = t
		}
	}
	if rank(worst) == 3 {
		return Inconclusive
	}
	return worst
}

// ClopperPearson returns the exact confidence interval of k successes in n trials, e.g. at
// confidence 0.95. It is 0..1 where nothing can be said: n <= 0, k outside 0..n, or confidence outside
// 0..1.
func ClopperPearson(k, n int, confidence float64) (lo, hi float64) {
	if n <= 0 || k < 0 || k > n || !(confidence > 0 && confidence < 1) {
		return 0, 1
	}
	tail := (1 - confidence) / 2
	lo, hi = 0, 1
	if k > 0 {
		lo = distuv.Beta{Alpha: float64(k), Beta: float64(n - k + 1)}.Quantile(tail)
	}
	if k < n {
		hi = distuv.Beta{Alpha: float64(k + 1), Beta: float64(n - k)}.Quantile(1 - tail)
	}
	return lo, hi
}
