package suites

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"conform/faults"
	"conform/fixtures"
	"conform/harness"
	"conform/harness/audit"
	"conform/harness/host"
	"conform/harness/system/memory"
	"conform/harness/system/postgres"
	"conform/harness/worker"
)

// onMemory is conform's own system: all of a suite but the broker.
var onMemory = broker{
	system:   harness.System{System: memory.System{}, Producer: "memory-producer", Consumer: "memory-consumer"},
	clients:  memory.Clients{},
	producer: map[string]string{"acks": "all", "idempotence": "true"},
}

func init() {
	worker.Register("memory-producer", worker.ProducerRole(memory.Clients{}))
	onMemory.registerRoles()
}

// TestPatterns runs one scenario of each suite of patterns from end to end, with real workers and a real PostgreSQL, so that
// what breaks the reference code, the workers or the audit is seen without a broker. What a broker does to them is for the
// suites themselves.
func TestPatterns(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL: not with -short")
	}
	images, err := host.Prepare(t.Context(), host.Options{Systems: []fixtures.Version{fixtures.Versions(postgres.Name)[0]}})
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("needs a container engine and images: %v", err)
		}
		t.Skipf("needs a container engine and images: %v", err)
	}
	var suites []harness.Suite
	for _, pick := range []struct {
		suite     harness.Suite
		scenarios []string
	}{
		{outbox(onMemory), []string{"late-commit-gap"}},
		{inbox(onMemory), []string{"two-consumers"}},
		{retryDeadletter(onMemory), []string{"unknown-outcome"}},
		{externalEffect(onMemory), []string{"inside-transaction"}},
	} {
		s := pick.suite
		s.Scenarios = slices.DeleteFunc(slices.Clone(s.Scenarios), func(sc harness.Scenario) bool { return !slices.Contains(pick.scenarios, sc.Name) })
		if s.With = slices.Clone(s.With[:1]); len(s.Scenarios) != len(pick.scenarios) || s.With[0].Name() != postgres.Name {
			t.Fatalf("suite %s has not all of %v, or does not begin with PostgreSQL", s.Name, pick.scenarios)
		}
		suites = append(suites, s)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, err := harness.Run(t.Context(), harness.Config{
		RunID: fmt.Sprintf("patterns-%d", os.Getpid()), Suites: suites, Seed: 1, Out: filepath.Join(t.TempDir(), "run"), Worker: []string{self, "worker"},
		Faults: faults.All(), Images: map[string]string{"memory": "none", postgres.Name: images[fixtures.Versions(postgres.Name)[0].String()].Ref},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Suites {
		for _, sc := range s.Scenarios {
			t.Logf("%s/%s: %s after %s", s.Name, sc.Name, sc.Status, sc.Elapsed.Round(100*time.Millisecond))
			if sc.Status != audit.Pass {
				t.Errorf("%s/%s: %s: %q %s", s.Name, sc.Name, sc.Status, sc.Reasons, sc.Error)
			}
		}
	}
}
