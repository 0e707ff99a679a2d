package plan

import (
	"errors"
	"reflect"
	"strconv"
	"testing"
	"time"
)

func inject(name string, params map[string]string) Step {
	return Step{Name: name, Inject: &Exposure{Fault: "f", Target: "cut", Params: params}}
}

var targets = map[string]Role{"cut": Leader, "other": Follower}

func TestNewReplaysFromTheSeed(t *testing.T) {
	steps := []Step{
		inject("a", map[string]string{"nth": "draw:5..40", "for": "draw:1s..3s", "code": "X"}),
		inject("b", map[string]string{"nth": "draw:-3..-1"}),
	}
	one, err := New(7, targets, steps)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if again, _ := New(7, targets, steps); !reflect.DeepEqual(one, again) {
			t.Fatalf("seed 7 gave %v, then %v", one.Words(), again.Words())
		}
	}
	if steps[0].Inject.Params["nth"] != "draw:5..40" {
		t.Error("New changed the steps it was handed")
	}
	differ := false
	for seed := range uint64(50) {
		p, err := New(seed, targets, steps)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(p.Steps[0].Inject.Params["nth"])
		if err != nil || n < 5 || n > 40 {
			t.Errorf("seed %d drew nth=%s from 5..40", seed, p.Steps[0].Inject.Params["nth"])
		}
		d, err := time.ParseDuration(p.Steps[0].Inject.Params["for"])
		if err != nil || d < time.Second || d > 3*time.Second {
			t.Errorf("seed %d drew for=%s from 1s..3s", seed, p.Steps[0].Inject.Params["for"])
		}
		if m, _ := strconv.Atoi(p.Steps[1].Inject.Params["nth"]); m < -3 || m > -1 {
			t.Errorf("seed %d drew nth=%d from -3..-1", seed, m)
		}
		if p.Steps[0].Inject.Params["code"] != "X" {
			t.Errorf("a plain parameter became %q", p.Steps[0].Inject.Params["code"])
		}
		differ = differ || !reflect.DeepEqual(p.Steps, one.Steps)
	}
	if !differ {
		t.Error("fifty seeds gave the same plan")
	}
}

func TestNewRefuses(t *testing.T) {
	ok := inject("a", nil)
	for name, steps := range map[string][]Step{
		"no name":            {{}},
		"name twice":         {ok, ok},
		"two acts":           {{Name: "x", Heal: "a", Do: "b"}},
		"unknown target":     {{Name: "x", Inject: &Exposure{Fault: "f", Target: "nobody"}}},
		"no target":          {{Name: "x", Inject: &Exposure{Fault: "f"}}},
		"unknown do target":  {{Name: "x", Do: "restart", Target: "nobody"}},
		"heal of nothing":    {{Name: "x", Heal: "a"}},
		"heal before inject": {{Name: "x", Heal: "a"}, ok},
		"bite of nothing":    {{Name: "x", Until: []State{{Kind: Bit, Since: "a"}}}},
		"bite of a heal":     {ok, {Name: "h", Heal: "a"}, {Name: "x", Until: []State{{Kind: Bit, Since: "h"}}}},
		"since nothing":      {{Name: "x", Until: []State{{Kind: Confirmed, N: 1, Since: "a"}}}},
		"state target":       {{Name: "x", Until: []State{{Kind: LeaderNot}}}},
		"no hold":            {{Name: "x", Until: []State{{Kind: Elapsed}}}},
		"nameless gate":      {{Name: "x", Until: []State{{Kind: Custom}}}},
		"draw one bound":     {inject("x", map[string]string{"n": "draw:5"})},
		"draw backwards":     {inject("x", map[string]string{"n": "draw:9..5"})},
		"draw words":         {inject("x", map[string]string{"n": "draw:a..b"})},
	} {
		if _, err := New(1, targets, steps); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", name, err)
		}
	}
}

func TestNewDefaultsTheCap(t *testing.T) {
	p, err := New(1, targets, []Step{{Name: "a"}, {Name: "b", Cap: time.Second}})
	if err != nil || p.Steps[0].Cap != DefaultCap || p.Steps[1].Cap != time.Second {
		t.Errorf("caps %v and %v, error %v", p.Steps[0].Cap, p.Steps[1].Cap, err)
	}
}

func TestPickIsStablePerPurpose(t *testing.T) {
	counts := map[int]int{}
	for seed := range uint64(300) {
		p := Plan{Seed: seed}
		n := p.Pick("follower", 3)
		if again := p.Pick("follower", 3); again != n {
			t.Fatalf("seed %d picked %d, then %d", seed, n, again)
		}
		counts[n]++
	}
	for i := range 3 {
		if counts[i] < 60 {
			t.Errorf("300 seeds picked %d of 3 only %d times", i, counts[i])
		}
	}
}

func TestWordsSayDrawnParameters(t *testing.T) {
	p, err := New(1, targets, []Step{{
		Name:   "cut",
		Until:  []State{{Kind: Confirmed, N: 200}},
		Inject: &Exposure{Fault: "link-cut", Target: "cut", Params: map[string]string{"mode": "reset"}, Arms: []string{"guarded"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := "cut: until >= 200 confirmed: link-cut on cut mode=reset (guarded)"
	if got := p.Words(); len(got) != 1 || got[0] != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestRepeatSeed(t *testing.T) {
	if RepeatSeed(9, 0) != 9 {
		t.Error("the first repeat does not use the seed itself")
	}
	seen := map[uint64]bool{}
	for i := range 100 {
		seen[RepeatSeed(9, i)] = true
	}
	if len(seen) != 100 {
		t.Errorf("100 repeats have %d seeds", len(seen))
	}
}
