package audit

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// arms writes one run as words: g = guarded, c = control, o = observation, then H(eld), B(roke),
// R(eproduced), M(issed), I(nconclusive).
func arms(words ...string) []ArmVerdict {
	roles := map[byte]string{'g': roleGuarded, 'c': roleControl, 'o': roleObservation}
	results := map[byte]ArmResult{'H': Held, 'B': Broke, 'R': Reproduced, 'M': Missed, 'I': ArmInconclusive}
	var out []ArmVerdict
	for i, w := range words {
		out = append(out, ArmVerdict{Arm: string(rune('a' + i)), Role: roles[w[0]], Result: results[w[1]]})
	}
	return out
}

func TestJudge(t *testing.T) {
	tests := []struct {
		name string
		runs [][]ArmVerdict
		want Status
	}{
		{"held and reproduced", [][]ArmVerdict{arms("gH", "cR")}, Pass},
		{"two controls", [][]ArmVerdict{arms("gH", "cR", "cR")}, Pass},
		{"broke", [][]ArmVerdict{arms("gB", "cR")}, Fail},
		{"broke, control missed", [][]ArmVerdict{arms("gB", "cM")}, Fail},
		{"control missed", [][]ArmVerdict{arms("gH", "cM")}, Inconclusive},
		{"one of two controls missed", [][]ArmVerdict{arms("gH", "cR", "cM")}, Inconclusive},
		{"control inconclusive", [][]ArmVerdict{arms("gH", "cI")}, Inconclusive},
		{"guarded inconclusive", [][]ArmVerdict{arms("gI", "cR")}, Inconclusive},
		{"no control", [][]ArmVerdict{arms("gH")}, Inconclusive},
		{"no guarded arm", [][]ArmVerdict{arms("cR")}, Inconclusive},
		{"observed", [][]ArmVerdict{arms("oH")}, Observed},
		{"two observed", [][]ArmVerdict{arms("oH", "oH")}, Observed},
		{"observed, broke", [][]ArmVerdict{arms("oB")}, Fail},
		{"observed, inconclusive", [][]ArmVerdict{arms("oI")}, Inconclusive},
		{"observed beside a proof", [][]ArmVerdict{arms("gH", "cR", "oH")}, Pass},
		{"no arm", [][]ArmVerdict{{}}, Inconclusive},
		{"no run", nil, Inconclusive},
		{"zero values", [][]ArmVerdict{{{}}}, Inconclusive},
		{"an unknown role", [][]ArmVerdict{append(arms("gH", "cR"), ArmVerdict{Arm: "x", Role: "x", Result: Held})}, Inconclusive},

		{"one failure in five", [][]ArmVerdict{arms("gH", "cR"), arms("gH", "cR"), arms("gB", "cR"), arms("gH", "cR"), arms("gH", "cR")}, Fail},
		{"control missed once", [][]ArmVerdict{arms("gH", "cR"), arms("gH", "cM")}, Pass},
		{"control never", [][]ArmVerdict{arms("gH", "cM"), arms("gH", "cM")}, Inconclusive},
		{"held only where the control missed", [][]ArmVerdict{arms("gH", "cM"), arms("gI", "cR")}, Inconclusive},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, reasons, _ := JudgeRuns(test.runs)
			if got != test.want {
				t.Errorf("%s, want %s: %q", got, test.want, reasons)
			}
			if (got == Fail || got == Inconclusive) && len(reasons) == 0 {
				t.Error("no reason is given")
			}
			if len(test.runs) == 1 {
				if one, _ := Judge(test.runs[0]); one != got {
					t.Errorf("a single run: %s", one)
				}
			}
		})
	}
}

func TestTally(t *testing.T) {
	_, _, tallies := JudgeRuns([][]ArmVerdict{arms("gH", "cR"), arms("gH", "cM"), arms("gI", "cR"), arms("gH", "cR")})
	for i := range tallies {
		tallies[i].Low, tallies[i].Hi = 0, 0
	}
	want := []Tally{
		{Arm: "a", Role: roleGuarded, K: 2, N: 2, Excluded: 2},
		{Arm: "b", Role: roleControl, K: 3, N: 4},
	}
	if !reflect.DeepEqual(tallies, want) {
		t.Errorf("got %+v, want %+v", tallies, want)
	}
}

func TestMergeLaws(t *testing.T) {
	all := rapid.SampledFrom([]Status{Inconclusive, Pass, Fail, NotApplicable, Observed})
	order := []Status{Fail, Inconclusive, Pass, Observed, NotApplicable}
	rapid.Check(t, func(rt *rapid.T) {
		s := rapid.SliceOfN(all, 1, 8).Draw(rt, "statuses")
		got := Merge(s...)
		worst := slices.MinFunc(s, func(a, b Status) int { return slices.Index(order, a) - slices.Index(order, b) })
		if got != worst {
			rt.Fatalf("%v merge to %s, want %s", s, got, worst)
		}
		n := rapid.IntRange(0, len(s)).Draw(rt, "split")
		if n > 0 && n < len(s) && Merge(Merge(s[:n]...), Merge(s[n:]...)) != got {
			rt.Fatalf("not associative at %d: %v", n, s)
		}
		slices.Reverse(s)
		if Merge(s...) != got || Merge(append(s, s...)...) != got {
			rt.Fatalf("not commutative and idempotent: %v", s)
		}
	})
	if Merge() != Inconclusive || Merge(Status(99), Pass) != Inconclusive || Merge(Status(99)) != Inconclusive {
		t.Error("nothing, or nonsense, is good news")
	}
}

func TestZeroValues(t *testing.T) {
	var s Status
	var r ArmResult
	if s != Inconclusive || r != ArmInconclusive || (Verdict{}).Arm != ArmInconclusive {
		t.Error("a zero value is good news")
	}
}

func TestNames(t *testing.T) {
	for s := Inconclusive; s <= Observed; s++ {
		var back Status
		if b, err := s.MarshalText(); err != nil || back.UnmarshalText(b) != nil || back != s {
			t.Errorf("%s comes back as %s", s, back)
		}
	}
	for r := ArmInconclusive; r <= Missed; r++ {
		var back ArmResult
		if b, err := r.MarshalText(); err != nil || back.UnmarshalText(b) != nil || back != r {
			t.Errorf("%s comes back as %s", r, back)
		}
	}
	var s Status
	var r ArmResult
	if s.UnmarshalText([]byte("fine")) == nil || r.UnmarshalText([]byte("fine")) == nil {
		t.Error("unknown names are accepted")
	}
}

func TestClopperPearson(t *testing.T) {
	// Closed forms: of n/n the lower end is (a/2)^(1/n), of 0/n the upper one is 1 - (a/2)^(1/n).
	tests := []struct {
		k, n   int
		lo, hi float64
	}{
		{0, 0, 0, 1},
		{-1, 5, 0, 1},
		{6, 5, 0, 1},
		{5, 5, math.Pow(0.025, 0.2), 1},
		{0, 5, 0, 1 - math.Pow(0.025, 0.2)},
		{1, 1, 0.025, 1},
		{5, 10, 0.18709, 0.81291}, // the textbook's
	}
	for _, test := range tests {
		lo, hi := ClopperPearson(test.k, test.n, 0.95)
		if math.Abs(lo-test.lo) > 1e-5 || math.Abs(hi-test.hi) > 1e-5 {
			t.Errorf("%d/%d: %v..%v, want %v..%v", test.k, test.n, lo, hi, test.lo, test.hi)
		}
	}
	for _, c := range []float64{0, 1, -1, math.NaN()} {
		if lo, hi := ClopperPearson(1, 2, c); lo != 0 || hi != 1 {
			t.Errorf("confidence %v: %v..%v", c, lo, hi)
		}
	}
}

func TestAnomalies(t *testing.T) {
	seen := map[string]bool{}
	places := []string{"store", "delivery", "effect", "outbox", "liveness"}
	for _, a := range Anomalies() {
		if seen[a.Name] || a.Meaning == "" || !slices.Contains(places, a.Place) {
			t.Errorf("row %+v", a)
		}
		seen[a.Name] = true
		if got, ok := Lookup(a.Name); !ok || got.Meaning != a.Meaning {
			t.Errorf("%s is not found", a.Name)
		}
		for _, x := range a.Attributions {
			if MeaningOf(x) == "" {
				t.Errorf("attribution %s of %s has no meaning", x, a.Name)
			}
		}
	}
	// The design's table.
	for _, name := range []string{
		"lost", "duplicate-store", "reordered-store", "phantom", "resurrected", "corrupted", "misrouted", "conflict", "aborted-read",
		"early-read", "torn-txn", "undelivered", "commit-gap", "commit-ahead", "commit-rewind", "double-owner", "duplicate-delivery",
		"redelivered-after-settle", "reordered-delivery", "early", "late", "expired-delivered", "dead-letter-lost", "dead-letter-wrong",
		"missing-effect", "duplicate-effect", "stale-effect", "phantom-effect", "unpublished", "published-uncommitted", "stall",
		"unavailable", "rto", "stuck",
	} {
		if !seen[name] {
			t.Errorf("%s is missing", name)
		}
		delete(seen, name)
	}
	if len(seen) > 0 {
		t.Errorf("the design has no %v", seen)
	}
	if _, ok := Lookup("recovered"); ok {
		t.Error("recovered is no anomaly")
	}
	for _, c := range checks {
		if c.version < 1 || len(c.reports) == 0 {
			t.Errorf("check %s: version %d, reports %v", c.name, c.version, c.reports)
		}
		for _, name := range c.reports {
			if _, ok := Lookup(name); !ok {
				t.Errorf("check %s reports the unknown anomaly %s", c.name, name)
			}
		}
	}
}
