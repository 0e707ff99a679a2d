package audit

import (
	"fmt"
	"time"

	"conform/harness/ledger"
)

// Status is the verdict on a scenario, a suite or a run. The zero value is Inconclusive.
type Status uint8

const (
	// Inconclusive means that we do not know, with the reasons listed.
	Inconclusive Status = iota
	// Pass means that the guarded arm held and every control broke as named.
	Pass
	// Fail means that a promise is broken.
	Fail
	// NotApplicable was decided before the run, with its reason.
	NotApplicable
	// Observed means that an arm without a control was measured and kept its promise: reported,
	// never counted as a pass.
	Observed
)

// ArmResult is the verdict on one arm. The zero value is ArmInconclusive.
type ArmResult uint8

const (
	// ArmInconclusive means that evidence, a check or the final read is missing.
	ArmInconclusive ArmResult = iota
	// Held: guarded (or observed), evidence complete, promise kept.
	Held
	// Broke: guarded (or observed), promise broken.
	Broke
	// Reproduced: a control that showed the anomaly it names.
	Reproduced
	// Missed: a control, evidence complete, without the anomaly it names.
	Missed
)

// Region says where in its stream a run of anomalous messages lies.
type Region string

// The regions.
const (
	Prefix Region = "prefix"
	Middle Region = "middle"
	Suffix Region = "suffix"
)

// Finding is one anomaly with all its occurrences: never one finding a message.
type Finding struct {
	Anomaly     string // a name of Anomalies
	Place       string // store, delivery, effect, outbox, liveness
	Qualifier   string `json:",omitempty"` // lost: "confirmed" or "claimed"
	Attribution string `json:",omitempty"`
	Count       int
	Regions     map[Region]int     `json:",omitempty"`
	Window      string             `json:",omitempty"` // in words: "3.1 s .. 5.0 s, between cut and heal"
	From, To    int64              // monotonic ns of the first and last message concerned
	Sample      []ledger.MessageID // at most SampleSize, the first ones
	Witnesses   []string           // at most SampleSize lines: the events that prove it, with segment and position
	Forbidden   bool               // by the recorded promise, beyond its bound
}

// SampleSize bounds samples, witnesses and told stories of a finding.
const SampleSize = 20

// Name returns the printed name, such as "lost(confirmed)/broker".
func (f Finding) Name() string {
	n := f.Anomaly
	if f.Qualifier != "" {
		n += "(" + f.Qualifier + ")"
	}
	if f.Attribution != "" {
		n += "/" + f.Attribution
	}
	return n
}

// Names of proofs: that nothing of the ledger is damaged, and that the whole store was read.
const (
	ProofLedger    = "ledger"
	ProofFinalRead = "final read"
)

// Proof is one piece of required evidence and whether the ledger has it.
type Proof struct {
	Name string // "before the strike", "in flight", "bite leader-cut", "final read", ...
	Want string
	Got  string
	OK   bool
}

// Latency holds percentiles of send -> confirm.
type Latency struct {
	Count               int64
	P50, P99, P999, Max time.Duration
}

// Liveness is measured always and judged only where the promise bounds it.
type Liveness struct {
	// Before was confirmed before the first strike, After was sent after the last heal; what was in flight
	// at the strike is in During.
	Before, During, After Latency
	LongestGap            time.Duration // without any confirm, between first strike and the end of the load
	GapFrom               int64         // monotonic ns
	FirstSuccess          time.Duration // from the last strike to the first confirm of a send invoked after it; -1 = none
	RatePerSecond         float64       // confirmed per second before the first strike
	LongestWait           time.Duration `json:",omitempty"` // of a caller for its answer
	LongestHold           time.Duration `json:",omitempty"` // of deliveries of one partition, without an end to the work on any
	Series                []Bucket      // the load in slices, for timelines; in order, of BucketWidth each
}

// BucketWidth is the width of one Bucket.
const BucketWidth = 250 * time.Millisecond

// Bucket is what completed in one slice of the load.
type Bucket struct {
	At                          time.Duration // start of the slice, since the start of the load
	Confirmed, Refused, InDoubt int
	P50, Max                    time.Duration // send -> confirm of what was confirmed in it; 0 = nothing was. P50 within an eighth
}

// Totals counts messages by what became of them.
type Totals struct {
	Invoked, Confirmed, Refused, InDoubt, Claimed int
	Stored                                        int // distinct messages in the store
	Recovered                                     int // in doubt, then found
	Expired                                       int // below the log start
	Received, Effects                             int
	Ordered                                       int `json:",omitempty"` // business transactions known to be committed
	Handled                                       int `json:",omitempty"` // deliveries whose work ended well
	Redelivered                                   int `json:",omitempty"` // deliveries of what the group had had before
}

// Verdict is the judgement of one arm.
type Verdict struct {
	Arm      ArmResult
	Findings []Finding
	Proofs   []Proof
	Reasons  []string // why inconclusive or missed; empty otherwise
	Totals   Totals
	Liveness Liveness
	Checks   map[string]int    // checks that ran -> version
	Damage   []string          // damaged frames by file and offset
	Differs  []string          // where this binary's promise or checks differ from the recorded ones
	StoryOf  *ledger.MessageID `json:",omitempty"` // the message the report tells first
	Story    *Story            `json:",omitempty"`
	Stories  []Story           `json:",omitempty"` // of every Finding's Sample, each message once
}

// Story is what happened to one message, in order.
type Story struct {
	ID    ledger.MessageID
	Title string
	Lines []StoryLine
}

// StoryLine is one event of a story. Since is measured from the first line.
type StoryLine struct {
	At    int64
	Since time.Duration
	Place string // committed, sent, confirmed, claimed, stored, delivered, settled, applied, fault, verdict
	Text  string
}

// String returns inconclusive, pass, fail, not-applicable or observed.
func (s Status) String() string {
	switch s {
	case Pass:
		return "pass"
	case Fail:
		return "fail"
	case NotApplicable:
		return "not-applicable"
	case Observed:
		return "observed"
	default:
		return "inconclusive"
	}
}

// String returns inconclusive, held, broke, reproduced or missed.
func (r ArmResult) String() string {
	switch r {
	case Held:
		return "held"
	case Broke:
		return "broke"
	case Reproduced:
		return "reproduced"
	case Missed:
		return "missed"
	default:
		return "inconclusive"
	}
}

// MarshalText returns the name, so that documents hold words.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a name; an unknown one is an error.
func (s *Status) UnmarshalText(b []byte) error {
	for v := Inconclusive; v <= Observed; v++ {
		if v.String() == string(b) {
			*s = v
			return nil
		}
	}
	return fmt.Errorf("unknown status %q", b)
}

// MarshalText returns the name, so that documents hold words.
func (r ArmResult) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads a name; an unknown one is an error.
func (r *ArmResult) UnmarshalText(b []byte) error {
	for v := ArmInconclusive; v <= Missed; v++ {
		if v.String() == string(b) {
			*r = v
			return nil
		}
	}
	return fmt.Errorf("unknown arm result %q", b)
}
