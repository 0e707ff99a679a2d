package chain

import (
	"reflect"
	"strings"
	"testing"
)

// TestPairs proves of every pair that its functions differ in one marked line, and nothing else.
func TestPairs(t *testing.T) {
	names := map[string]bool{}
	unsafe := map[string]bool{}
	for _, p := range Pairs() {
		if names[p.Name] {
			t.Errorf("%s: two pairs of that name", p.Name)
		}
		names[p.Name] = true
		unsafe[p.Unsafe] = true
		if p.Anomaly == "" || p.LookFor == "" {
			t.Errorf("%s: incomplete", p.Name)
		}
		guarded, twin := functions[p.Guarded], functions[p.Unsafe]
		if guarded == nil || reflect.TypeOf(guarded) != reflect.TypeOf(twin) {
			t.Errorf("%s: %s is a %T, %s a %T", p.Name, p.Guarded, guarded, p.Unsafe, twin)
		}
		if _, _, err := p.Lines(); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if strings.Contains(p.GuardedSource(), MarkUnsafe) {
			t.Errorf("%s: the guarded function has an unsafe line", p.Name)
		}
	}
	for name := range declarations() {
		if strings.Contains(Source(name), MarkUnsafe) && !unsafe[name] {
			t.Errorf("%s is marked unsafe and stands in no pair", name)
		}
	}
	for name := range functions {
		if Source(name) == "" {
			t.Errorf("%s has no source", name)
		}
	}
}

// TestLines checks the proof itself.
func TestLines(t *testing.T) {
	for _, c := range []struct {
		name, guarded, unsafe string
		ok                    bool
	}{
		{"Replay", "Replay", "ReplayAsNew", true},
		{"moved", "Relay", "RelayMarkFirst", true},
		{"itself", "Replay", "Replay", false},
		{"two lines", "Relay", "RelayPastCursor", false},
		{"twins of one", "RelayPastLast", "RelayWithoutLanes", false},
		{"unmarked", "ReplayAsNew", "Replay", false},
		{"missing", "Replay", "Nothing", false},
	} {
		if _, _, err := (Pair{Guarded: c.guarded, Unsafe: c.unsafe}).Lines(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestHelpers(t *testing.T) {
	p, ok := Find("outbox/late-commit-gap/status")
	if !ok {
		t.Fatal("no such pair")
	}
	helpers, err := p.Helpers()
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(helpers, "\n")
	for _, want := range []string{"byStatus = `SELECT", "pastLast = `SELECT", "func (w *work) read("} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not among the helpers", want)
		}
	}
	if n := len(PairsOf("outbox/late-commit-gap")); n != 2 {
		t.Errorf("%d pairs of late-commit-gap", n)
	}
}
