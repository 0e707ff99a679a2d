package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/system"
)

// Config is one call of `conform run`.
type Config struct {
	RunID    string
	Suites   []Suite  // with the wanted scenarios only
	Seed     uint64   // of the first repeat; repeat i uses a seed derived from it
	Runs     int      // 0 = 1
	Out      string   // run folder; created, locked while the run lasts
	Worker   []string // argv prefix that starts a worker: {"/path/conform", "worker"}
	Faults   map[string]system.Fault
	Versions map[string]string                                              // system -> version; missing = default
	Images   map[string]string                                              // system -> resolved image reference
	Timing   string                                                         // short (default) or production
	Rate     int                                                            // overrides Load.Rate
	Duration time.Duration                                                  // minimum length of the load
	Timeout  time.Duration                                                  // of the whole run; past it everything is healed and removed
	Keep     bool                                                           // leave the last cluster up and say how to reach it
	Reserve  func(ctx context.Context, mib int) (release func(), err error) // nil = no reservation
	Binary   string                                                         // version of conform
	Command  string                                                         // the command line, for the report
	Again    []string                                                       // flags that a run of one scenario needs to be like this one, for a shell
	Machine  map[string]string                                              // cores, memory, kernel, engine, for the report
	Progress io.Writer                                                      // lines for the user, a few per scenario; may be nil
	Live     func(Live)                                                     // called about four times a second while a load runs; may be nil
	Log      *slog.Logger                                                   // may be nil

	caps caps
}

// Live is where a run stands, for a terminal.
type Live struct {
	Suite, Scenario    string
	Repeat, Runs       int // from 1
	Phase, Step, Fault string
	Rate               float64 // confirmed per second, over the last second
	Counts             Counts  // of all arms together
	Elapsed            time.Duration
}

// Result is all that a run found; reports are made from it.
type Result struct {
	RunID    string
	Seed     uint64
	Runs     int // of each scenario, as asked for; 0 = recorded by an older version
	Binary   string
	Command  string
	Started  time.Time
	Ended    time.Time
	Status   audit.Status
	Suites   []SuiteResult
	Clusters []ClusterInfo
	Kept     []string          // how to reach what was left up
	Machine  map[string]string // cores, memory, kernel, engine
	Changed  []Change          `json:",omitempty"` // by AuditDir: scenarios whose verdict is another than the recorded one
}

// Change is a verdict that an audit of the recorded ledgers does not confirm.
type Change struct {
	Scenario string // suite/scenario
	Was, Now audit.Status
	Why      []string // what differs between the recording binary's rules and this one's; empty = nothing that is known
}

// String returns it in words.
func (c Change) String() string {
	s := fmt.Sprintf("%s: recorded: %s, now: %s", c.Scenario, c.Was, c.Now)
	if len(c.Why) > 0 {
		s += ", because " + strings.Join(c.Why, "; ")
	}
	return s
}

// Better says that the new verdict is one that the run itself did not come to, though its worst is past.
func (c Change) Better() bool { return audit.Merge(c.Was, c.Now) == c.Was && c.Now != c.Was }

// ClusterInfo describes one cluster that was started.
type ClusterInfo struct {
	System, Version, Image string
	Startup                time.Duration
	MemoryMiB              map[string]int
	Settings, Timing       map[string]string
	RebuiltAfter           []string // scenarios after which it was checked against its baseline or rebuilt, and which of the two
}

// SuiteResult is the verdict on one suite.
type SuiteResult struct {
	Name, Title, System, Version string
	Promise                      ledger.Promise
	Status                       audit.Status
	Scenarios                    []ScenarioResult
	Elapsed                      time.Duration
}

// ScenarioResult is the verdict on one scenario, over all repeats.
type ScenarioResult struct {
	Suite, Name, Window, Summary, Guarded, LookFor string
	Status                                         audit.Status
	Reasons                                        []string // why not a pass
	Error                                          string   // ours: what the environment did
	Plan                                           []string
	Arms                                           []ArmSummary // k/n over the repeats
	Repeats                                        []Repeat
	Elapsed                                        time.Duration
}

// ArmSummary is k/n of one arm.
type ArmSummary struct {
	Name, Role, Knob string
	Forces           []string
	Expect           string  // printed anomaly, controls only
	K, N             int     // held of counted, or reproduced of run
	Low, High        float64 // Clopper-Pearson 95 %
	Unknown          int     `json:",omitempty"` // runs that have left no ledger
}

// Repeat is one run of one scenario.
type Repeat struct {
	Index   int
	Seed    uint64
	Elapsed time.Duration
	Targets map[string][]string
	Steps   []StepResult
	Arms    []ArmRun
	Status  audit.Status
	Reasons []string
	Error   string
}

// StepResult is one plan step as it went.
type StepResult struct {
	Name, Words, Seen string
	At, Took          time.Duration // since the start of the load
	Reached           bool
	Evidence          string
	Bit               bool
	AtRisk            string // what was not on disk when it struck, and for how long that is so; empty where that is no question
}

// ArmRun is one arm of one repeat.
type ArmRun struct {
	Name, Role string
	Folder     string // of its ledger, relative to the run folder
	Header     ledger.Header
	Verdict    audit.Verdict
	broken     bool // it cannot be read, or is not of this arm
}

// ErrInterrupted is returned by Run when its context ended: healed, removed, ledger kept.
var ErrInterrupted = errors.New("interrupted")
