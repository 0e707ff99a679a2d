package audit

// ArmVerdict is one arm's result as Judge takes it.
type ArmVerdict struct {
	Arm    string
	Role   string // guarded, control, observation
	Result ArmResult
}

// Tally is k of n for one arm over several runs.
type Tally struct {
	Arm      string
	Role     string
	K, N     int     // K of N runs came out as wanted: held, or reproduced
	Low, Hi  float64 // Clopper-Pearson interval of K/N at 95 %
	Excluded int     // guarded holds not counted because a control of that run missed
}

// Judge merges the arms of one run of a scenario; the strings are the reasons.
func Judge(arms []ArmVerdict) (Status, []string) { return Inconclusive, nil }

// JudgeRuns merges n runs of a scenario, each with the same arms.
func JudgeRuns(runs [][]ArmVerdict) (Status, []string, []Tally) { return Inconclusive, nil, nil }

// Merge returns the worst of the statuses: Fail > Inconclusive > Pass > Observed > NotApplicable.
// Of none it is Inconclusive.
func Merge(s ...Status) Status { return Inconclusive }

// ClopperPearson returns the exact confidence interval of k successes in n trials.
func ClopperPearson(k, n int, confidence float64) (lo, hi float64) { return 0, 1 }
