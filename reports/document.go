package reports

import (
	"encoding/json"
	"fmt"
	"time"
)

// SchemaVersion is the version of Document. It grows when a field changes its meaning or
// goes; new fields alone do not make a new version. The JSON Schema is in schema.json.
const SchemaVersion = 1

// Millis is a duration that stands in JSON as a number of milliseconds with microsecond
// precision, so that no consumer has to guess a unit.
type Millis time.Duration

// MarshalJSON writes the number of milliseconds.
func (m Millis) MarshalJSON() ([]byte, error) {
	return json.Marshal(float64(time.Duration(m).Microseconds()) / 1000)
}

// UnmarshalJSON reads a number of milliseconds.
func (m *Millis) UnmarshalJSON(b []byte) error {
	var ms float64
	if err := json.Unmarshal(b, &ms); err != nil {
		return err
	}
	*m = Millis(time.Duration(ms * float64(time.Millisecond)).Round(time.Microsecond))
	return nil
}

// String writes the duration for people, with at most four significant digits.
func (m Millis) String() string { return words(time.Duration(m)) }

// Document is a run as reports show it. Counts are messages unless said otherwise, times in
// an arm count from the start of its load, durations are milliseconds in JSON.
type Document struct {
	Schema   int       `json:"schema"`
	Run      Run       `json:"run"`
	Status   string    `json:"status"`   // pass, fail, inconclusive, not-applicable or observed
	Headline string    `json:"headline"` // the verdict in one sentence
	Counts   Counts    `json:"counts"`
	Suites   []Suite   `json:"suites"`
	Clusters []Cluster `json:"clusters"`
	Notes    []string  `json:"notes,omitempty"` // what the reader must know beside the verdict: our own failure, damage
}

// Run says which run this is and how to repeat it.
type Run struct {
	ID      string            `json:"id"`
	Seed    string            `json:"seed"`    // decimal; a string because 64 bits do not survive a JavaScript number
	Conform string            `json:"conform"` // version of conform
	Command string            `json:"command"` // repeats the run
	Started time.Time         `json:"started"`
	Elapsed Millis            `json:"elapsedMs"`
	Machine map[string]string `json:"machine,omitempty"`
	Kept    []string          `json:"kept,omitempty"` // how to reach what was left up
}

// Counts sums up the run.
type Counts struct {
	Scenarios     int `json:"scenarios"`
	Pass          int `json:"pass"`
	Fail          int `json:"fail"`
	Inconclusive  int `json:"inconclusive"`
	Observed      int `json:"observed"`
	NotApplicable int `json:"notApplicable"`
	Guarded       int `json:"guardedRuns"` // arms run over all repeats
	Held          int `json:"guardedHeld"`
	Controls      int `json:"controlRuns"`
	Reproduced    int `json:"controlsReproduced"`
	Sent          int `json:"sent"` // over all arms
	Confirmed     int `json:"confirmed"`
}

// Cluster is one cluster that was started.
type Cluster struct {
	System    string            `json:"system"`
	Version   string            `json:"version"`
	Image     string            `json:"image"`
	Startup   Millis            `json:"startupMs"`
	MemoryMiB map[string]int    `json:"memoryMiB,omitempty"` // node -> MiB
	Settings  map[string]string `json:"settings,omitempty"`
	Timing    map[string]string `json:"timing,omitempty"` // lowered to keep runs short
	Checked   []string          `json:"checked,omitempty"`
}

// Suite is the verdict on one promise.
type Suite struct {
	Name      string     `json:"name"`
	Title     string     `json:"title"`
	System    string     `json:"system"`
	Version   string     `json:"version"`
	Promise   Promise    `json:"promise"`
	Status    string     `json:"status"`
	Elapsed   Millis     `json:"elapsedMs"`
	Scenarios []Scenario `json:"scenarios"`
}

// Promise is what was judged, from where to where.
type Promise struct {
	Text   string   `json:"text"`
	Start  string   `json:"start"`
	End    string   `json:"end"`
	Places []string `json:"places,omitempty"` // whose anomalies are forbidden unless a rule says otherwise
	Rules  []Rule   `json:"rules,omitempty"`
}

// Rule is what the promise makes of one anomaly: "forbidden", "allowed" or "at most n".
type Rule struct {
	Anomaly string `json:"anomaly"`
	Rule    string `json:"rule"`
}

// Scenario is the verdict on one fault window, over all repeats.
type Scenario struct {
	Name      string   `json:"name"` // suite/scenario
	Window    string   `json:"window,omitempty"`
	Summary   string   `json:"summary"` // the fault
	Guarded   string   `json:"guarded"` // what makes the guarded arm safe
	LookFor   string   `json:"lookFor"`
	Reproduce string   `json:"reproduce"` // the command
	Status    string   `json:"status"`
	Allowed   bool     `json:"skipAllowed,omitempty"` // not applicable, and the workflow lists it
	Sentence  string   `json:"sentence"`              // the verdict in words
	Reasons   []string `json:"reasons,omitempty"`     // why not a pass
	Error     string   `json:"error,omitempty"`       // what our own environment did
	Elapsed   Millis   `json:"elapsedMs"`
	Plan      []string `json:"plan,omitempty"`
	Arms      []Tally  `json:"arms"`
	Repeats   []Repeat `json:"repeats"`
}

// Tally is one arm over all repeats.
type Tally struct {
	Name   string   `json:"name"`
	Role   string   `json:"role"` // guarded, control or observation
	Knob   string   `json:"knob,omitempty"`
	Forces []string `json:"forces,omitempty"`
	Expect string   `json:"expect,omitempty"` // the anomaly a control must reproduce
	K      int      `json:"k"`                // held (guarded, observation) or reproduced (control)
	N      int      `json:"n"`
	Low    float64  `json:"low"` // Clopper-Pearson, 95 %
	High   float64  `json:"high"`
	// Unknown runs have left no whole ledger.
	Unknown int `json:"unknown,omitempty"`
}

// Share is k/n, and how much is not known.
func (t Tally) Share() string {
	s := fmt.Sprintf("%d/%d", t.K, t.N)
	if t.Unknown > 0 {
		s += fmt.Sprintf(", %d not known", t.Unknown)
	}
	return s
}

// Repeat is one run of a scenario.
type Repeat struct {
	Index   int                 `json:"index"` // from 1
	Seed    string              `json:"seed"`
	Status  string              `json:"status"`
	Elapsed Millis              `json:"elapsedMs"`
	Targets map[string][]string `json:"targets,omitempty"`
	Steps   []Step              `json:"steps,omitempty"`
	Arms    []Arm               `json:"arms"`
	Reasons []string            `json:"reasons,omitempty"`
	Error   string              `json:"error,omitempty"`
}

// Step is a plan step as it went. Kind is inject, heal, act or wait.
type Step struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	Words    string `json:"words"`
	Seen     string `json:"seen,omitempty"`
	At       Millis `json:"atMs"`   // when it was done, since the start of the load
	Took     Millis `json:"tookMs"` // with the wait for its state
	Reached  bool   `json:"reached"`
	Evidence string `json:"evidence,omitempty"`
	Bit      bool   `json:"bit"`
	AtRisk   string `json:"atRisk,omitempty"` // what was not on disk when the power went, and for how long that is so
}

// Arm is one arm of one repeat.
type Arm struct {
	Name     string            `json:"name"`
	Role     string            `json:"role"`
	Result   string            `json:"result"`            // held, broke, reproduced, missed or inconclusive
	Folder   string            `json:"folder"`            // of its ledger, in the run folder
	Promise  string            `json:"promise,omitempty"` // where it differs from the suite's
	Knob     string            `json:"knob,omitempty"`
	Forces   []string          `json:"forces,omitempty"`
	Expect   string            `json:"expect,omitempty"`
	Place    string            `json:"place,omitempty"` // where in the chain a control breaks
	Settings map[string]string `json:"settings,omitempty"`
	Timing   map[string]string `json:"timing,omitempty"`
	Totals   Totals            `json:"totals"`
	Findings []Finding         `json:"findings"`
	Evidence []Proof           `json:"evidence"`
	Reasons  []string          `json:"reasons,omitempty"`
	Liveness Liveness          `json:"liveness"`
	Stories  []Story           `json:"stories,omitempty"`
	Checks   map[string]int    `json:"checks,omitempty"`
	Damage   []string          `json:"damage,omitempty"`
	Differs  []string          `json:"differs,omitempty"`
}

// Totals counts an arm's messages by what became of them.
type Totals struct {
	Sent      int `json:"sent"`
	Confirmed int `json:"confirmed"`
	Refused   int `json:"refused"`
	InDoubt   int `json:"inDoubt"`
	Claimed   int `json:"claimed"` // the caller was told "sent"
	Stored    int `json:"stored"`
	Recovered int `json:"recovered"` // in doubt, then found
	Expired   int `json:"expired"`
	Received  int `json:"received"`
	Effects   int `json:"effects"`
}

// Finding is one anomaly with all its occurrences.
type Finding struct {
	Name        string         `json:"name"`    // as printed, "lost(confirmed)/broker"
	Anomaly     string         `json:"anomaly"` // "lost"
	Place       string         `json:"place"`
	Attribution string         `json:"attribution,omitempty"`
	Count       int            `json:"count"`
	Regions     map[string]int `json:"regions,omitempty"`
	When        string         `json:"when,omitempty"`
	Forbidden   bool           `json:"forbidden"` // by the promise
	Expected    bool           `json:"expected"`  // the one the control names
	Sample      []string       `json:"sample,omitempty"`
	Witnesses   []string       `json:"witnesses,omitempty"`
}

// Proof is one piece of evidence that a verdict needs.
type Proof struct {
	Name string `json:"name"`
	Want string `json:"want"`
	Got  string `json:"got"`
	OK   bool   `json:"ok"`
}

// Liveness is measured always and judged only where the promise bounds it.
type Liveness struct {
	Before       Latency  `json:"before"`
	During       Latency  `json:"during"`
	After        Latency  `json:"after"`
	LongestGap   Millis   `json:"longestGapMs"`
	FirstSuccess Millis   `json:"firstSuccessMs"` // after the last strike; negative = none
	Rate         float64  `json:"ratePerSecond"`  // confirmed, before the strike
	Series       []Bucket `json:"series,omitempty"`
}

// Latency is send to confirm.
type Latency struct {
	Count int64  `json:"count"`
	P50   Millis `json:"p50Ms"`
	P99   Millis `json:"p99Ms"`
	P999  Millis `json:"p999Ms"`
	Max   Millis `json:"maxMs"`
}

// Bucket is one slice of the load.
type Bucket struct {
	At        Millis `json:"atMs"`
	Confirmed int    `json:"confirmed"`
	Refused   int    `json:"refused"`
	InDoubt   int    `json:"inDoubt"`
	P50       Millis `json:"p50Ms"`
	Max       Millis `json:"maxMs"`
}

// Story is all that happened to one message.
type Story struct {
	Message string `json:"message"` // stream/seq
	Title   string `json:"title"`
	Lines   []Line `json:"lines"`
}

// Line is one event of a story.
type Line struct {
	Since Millis `json:"sinceMs"` // since the first line
	Place string `json:"place"`
	Text  string `json:"text"`
}

// millisOf rounds to what JSON keeps, so that a document read back renders to equal bytes.
func millisOf(d time.Duration) Millis { return Millis(d.Round(time.Microsecond)) }
