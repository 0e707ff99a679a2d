package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"conform/harness/audit"
	"conform/harness/ledger"
)

// recorded returns the folder of a passed run that each of the tests has for itself.
func recorded(t *testing.T, runs int) func(*testing.T) string {
	t.Helper()
	cfg := testConfig(t, testSuite(killed("killed", guarded(), control("lose-confirmed", "lost", "broker"))))
	cfg.Runs = runs
	if res := run(t, cfg); res.Status != audit.Pass {
		t.Fatalf("%v: %v", res.Status, res.Suites[0].Scenarios[0].Reasons)
	}
	return func(t *testing.T) string {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(cfg.Out)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
}

// edit changes a JSON file as any value.
func edit(t *testing.T, path string, change func(map[string]any)) {
	t.Helper()
	var v map[string]any
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	change(v)
	if b, err = json.Marshal(v); err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func scenarioIn(v map[string]any) map[string]any {
	suite := v["Suites"].([]any)[0].(map[string]any)
	return suite["Scenarios"].([]any)[0].(map[string]any)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The ledgers are believed, and only those that belong together.
func TestAuditOfAFolderThatWasChanged(t *testing.T) {
	t.Parallel()
	folder, other := recorded(t, 2), recorded(t, 1)
	const arms = "ledger/memory-acks/killed/repeat-0/"
	for _, tc := range []struct {
		name   string
		change func(t *testing.T, dir string)
		want   string // of reasons, error and damage
	}{
		{"header of one arm edited", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, arms, "guarded", headerFile), func(h map[string]any) { h["Evidence"].(map[string]any)["After"] = 1 })
		}, "was written for another header.json"},
		{"role in the header", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, arms, "lose-confirmed", headerFile), func(h map[string]any) { h["Role"] = "observation" })
		}, "the header calls the arm observation, the recorded result control"},
		{"segment of another arm", func(t *testing.T, dir string) {
			b, err := os.ReadFile(filepath.Join(dir, arms, "lose-confirmed", "reader.journal"))
			check(t, err)
			check(t, os.WriteFile(filepath.Join(dir, arms, "guarded", "reader.journal"), b, 0o600))
		}, "segment reader.journal was written for memory-acks/killed/repeat-0/lose-confirmed"},
		{"folder of another arm", func(t *testing.T, dir string) {
			check(t, os.CopyFS(filepath.Join(dir, arms, "third"), os.DirFS(filepath.Join(dir, arms, "guarded"))))
		}, "third holds the ledger of memory-acks/killed/repeat-0/guarded"},
		{"arm of another run", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, resultFile), func(r map[string]any) { r["RunID"] = "another" })
		}, "the ledger is of run t, the recorded result of another"},
		{"seed of another run", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, resultFile), func(r map[string]any) { r["Seed"] = 8 })
		}, "the ledger is of seed"},
		{"segment that says nothing among others", func(t *testing.T, dir string) {
			f, err := os.Create(filepath.Join(dir, arms, "guarded", "extra.journal"))
			check(t, err)
			w, err := ledger.NewWriter(f, ledger.Segment{Name: "extra", Role: "reader"})
			check(t, err)
			check(t, w.Close())
			check(t, f.Close())
		}, "extra.journal does not say which arm"},
		{"segment that cannot be read", func(t *testing.T, dir string) {
			path := filepath.Join(dir, arms, "guarded", "reader.journal")
			check(t, os.Remove(path))
			check(t, os.Mkdir(path, 0o700))
		}, "is a directory"},
		{"header gone", func(t *testing.T, dir string) {
			check(t, os.Remove(filepath.Join(dir, arms, "guarded", headerFile)))
		}, "header.json: no such file"},
		{"scenario gone from the result", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, resultFile), func(r map[string]any) { r["Suites"].([]any)[0].(map[string]any)["Scenarios"] = []any{} })
		}, "the recorded result does not know this scenario"},
		{"suites gone from the result", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, resultFile), func(r map[string]any) { r["Suites"] = []any{} })
		}, "the recorded result does not know this scenario"},
		{"arm gone from the result", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, resultFile), func(r map[string]any) {
				sc := scenarioIn(r)
				sc["Arms"] = sc["Arms"].([]any)[:1]
			})
		}, "the recorded result does not know arm lose-confirmed"},
		{"repeat gone from the ledgers", func(t *testing.T, dir string) {
			check(t, os.RemoveAll(filepath.Join(dir, "ledger/memory-acks/killed/repeat-1")))
		}, "guarded: of 1 of 2 runs there is no whole ledger"},
		{"repeat gone from ledgers and result", func(t *testing.T, dir string) {
			check(t, os.RemoveAll(filepath.Join(dir, "ledger/memory-acks/killed/repeat-1")))
			edit(t, filepath.Join(dir, resultFile), func(r map[string]any) {
				sc := scenarioIn(r)
				sc["Repeats"] = sc["Repeats"].([]any)[:1]
			})
		}, "guarded: of 1 of 2 runs there is no whole ledger"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := folder(t)
			tc.change(t, dir)
			res, err := AuditDir(dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			sc := res.Suites[0].Scenarios[0]
			if told := strings.Join(append(sc.Reasons, sc.Error), "\n"); res.Status != audit.Inconclusive || !strings.Contains(told, tc.want) {
				t.Errorf("%v: %s", res.Status, told)
			}
			if line := verdictLine(&sc); strings.HasPrefix(tc.name, "repeat gone") && !strings.Contains(line, "guarded held 1/1, 1 not known") {
				t.Error(line)
			}
			judged := 0 // the others are judged all the same
			for _, r := range sc.Repeats {
				for _, a := range r.Arms {
					if a.Verdict.Arm != audit.ArmInconclusive {
						judged++
					}
				}
			}
			if judged == 0 && !strings.Contains(tc.want, "recorded result of") && !strings.Contains(tc.want, "the ledger is of") {
				t.Error("nothing was judged")
			}
		})
	}
	t.Run("not applicable after all", func(t *testing.T) {
		dir := other(t)
		edit(t, filepath.Join(dir, resultFile), func(r map[string]any) { scenarioIn(r)["Status"] = "not-applicable" })
		res, err := AuditDir(dir, nil)
		if err != nil || res.Status != audit.Pass {
			t.Errorf("%v, error %v", res.Status, err)
		}
	})
}

// A verdict that differs from the recorded one is told, with the rules that do.
func TestAuditTellsAnotherVerdict(t *testing.T) {
	t.Parallel()
	folder := recorded(t, 1)
	dir := folder(t)
	edit(t, filepath.Join(dir, resultFile), func(r map[string]any) { scenarioIn(r)["Status"] = "inconclusive" })
	res, err := AuditDir(dir, nil)
	if err != nil || len(res.Changed) != 1 || !res.Changed[0].Better() || res.Changed[0].String() != "memory-acks/killed: recorded: inconclusive, now: pass" {
		t.Errorf("%v, error %v", res.Changed, err)
	}
	sc := res.Suites[0].Scenarios[0]
	delete(sc.Repeats[0].Arms[0].Header.Checks, audit.EvidenceRules)
	want := Change{Scenario: "s", Was: audit.Inconclusive, Now: audit.Pass, Why: newRules(&sc)}
	if got := want.String(); got != fmt.Sprintf("s: recorded: inconclusive, now: pass, because the evidence rules differ (evidence 1 -> %d)", audit.Checks()[audit.EvidenceRules]) {
		t.Error(got)
	}
}

// A ledger of before segments were tied is judged, and that is said.
func TestAuditOfUntiedSegments(t *testing.T) {
	t.Parallel()
	dir := recorded(t, 1)(t)
	paths, err := filepath.Glob(filepath.Join(dir, "ledger/*/*/*/*/*"+journalTail))
	check(t, err)
	for _, path := range paths {
		untie(t, path)
		edit(t, filepath.Join(filepath.Dir(path), headerFile), func(h map[string]any) { delete(h["Checks"].(map[string]any), audit.EvidenceRules) })
	}
	res, err := AuditDir(dir, nil)
	check(t, err)
	for _, a := range res.Suites[0].Scenarios[0].Repeats[0].Arms {
		if len(a.Verdict.Damage) > 0 || !strings.Contains(strings.Join(a.Verdict.Differs, "\n"), untied) {
			t.Errorf("%s: damage %q, differs %q", a.Name, a.Verdict.Damage, a.Verdict.Differs)
		}
	}
}

// untie writes a segment as an older version did.
func untie(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	check(t, err)
	defer func() { _ = f.Close() }()
	r, err := ledger.NewReader(f, path)
	check(t, err)
	s := r.Segment()
	s.Run, s.Arm, s.Header = "", "", ""
	var events []ledger.Event
	for {
		var e ledger.Event
		if r.Next(&e) != nil {
			break
		}
		if e.Kind == ledger.WorkerEnd {
			e.Count = 0
		}
		events = append(events, e)
	}
	out, err := os.Create(path)
	check(t, err)
	defer func() { check(t, out.Close()) }()
	w, err := ledger.NewWriter(out, s)
	check(t, err)
	for _, e := range events {
		w.Append(e)
	}
	check(t, w.Flush())
}
