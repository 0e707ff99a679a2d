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
	"conform/harness/system/postgres"
)

// TestReconcile runs the suite with real workers and a real PostgreSQL, on the broker in memory.
func TestReconcile(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL: not with -short")
	}
	version := fixtures.Versions(postgres.Name)[0]
	images, err := host.Prepare(t.Context(), host.Options{Systems: []fixtures.Version{version}})
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("needs a container engine and images: %v", err)
		}
		t.Skipf("needs a container engine and images: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := reconcile(onMemory)
	// given-up is for a real broker alone: the consumers in memory do not connect again when their link was cut.
	s.Scenarios = slices.DeleteFunc(s.Scenarios, func(sc harness.Scenario) bool { return sc.Name == "given-up" })
	r, err := harness.Run(t.Context(), harness.Config{
		RunID: fmt.Sprintf("reconcile-%d", os.Getpid()), Suites: []harness.Suite{s}, Seed: 1, Out: filepath.Join(t.TempDir(), "run"), Worker: []string{self, "worker"},
		Faults: faults.All(), Images: map[string]string{"memory": "none", postgres.Name: images[version.String()].Ref},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, sc := range r.Suites[0].Scenarios {
		t.Logf("%s: %s after %s", sc.Name, sc.Status, sc.Elapsed.Round(100*time.Millisecond))
		if sc.Status != audit.Pass {
			t.Errorf("%s: %s: %q %s", sc.Name, sc.Status, sc.Reasons, sc.Error)
		}
	}
}
