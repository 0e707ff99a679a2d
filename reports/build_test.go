package reports

import (
	"bytes"
	"strings"
	"testing"

	"conform/harness"
	"conform/harness/audit"
	"conform/harness/ledger"
)

func TestWhatAReportMakesOfAResult(t *testing.T) {
	arm := func(seed string, result audit.ArmResult, read bool) harness.ArmRun {
		return harness.ArmRun{
			Name: "guarded", Role: "guarded", Header: ledger.Header{Reproduce: "conform run --seed " + seed},
			Verdict: audit.Verdict{
				Arm: result, Differs: []string{"this binary has no such suite"},
				Findings: []audit.Finding{{Anomaly: audit.Lost, Place: "store", Count: 3, Forbidden: true}},
				Proofs:   []audit.Proof{{Name: audit.ProofFinalRead, OK: read}},
			},
		}
	}
	sc := harness.ScenarioResult{
		Suite: "s", Name: "x", Status: audit.Fail, Error: harness.ErrInterrupted.Error(),
		Arms: []harness.ArmSummary{{Name: "guarded", Role: "guarded", K: 1, N: 2, Unknown: 4}},
		Repeats: []harness.Repeat{
			{Seed: 1, Status: audit.Inconclusive, Arms: []harness.ArmRun{arm("1", audit.ArmInconclusive, false)}},
			{Index: 1, Seed: 2, Status: audit.Fail, Arms: []harness.ArmRun{arm("2", audit.Broke, true)}},
		},
	}
	d := New(harness.Result{Suites: []harness.SuiteResult{{Name: "s", Scenarios: []harness.ScenarioResult{sc}}}}, Options{})
	if found := d.Suites[0].Scenarios[0].Repeats[0].Arms[0].Findings; len(found) != 0 {
		t.Errorf("without a final read it found %v", found)
	}
	for _, write := range []func(*bytes.Buffer) error{
		func(b *bytes.Buffer) error { return writeText(b, d) },
		func(b *bytes.Buffer) error { return writeMarkdown(b, d) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"this binary has no such suite", "stopped from outside: interrupted", "conform run --seed 2", "1/2, 4 not known", " x 3"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("no %q in\n%s", want, b.String())
			}
		}
		if strings.Contains(b.String(), "own failure") || strings.Contains(b.String(), " x 6") {
			t.Error(b.String())
		}
	}
}
