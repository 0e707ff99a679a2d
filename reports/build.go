package reports

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"conform/harness"
	"conform/harness/audit"
	"conform/harness/ledger"
)

// Options say how a document is made.
type Options struct {
	// CI makes a scenario that is not applicable inconclusive unless AllowSkip lists it: on a
	// machine that nobody watches, a test that silently stops to run is a broken test.
	CI        bool
	AllowSkip []string // scenario names or patterns, "kafka-acks/two-*"
	Notes     []string
}

// New pictures a result.
func New(r harness.Result, o Options) Document {
	d := Document{
		Schema: SchemaVersion,
		Run: Run{
			ID: r.RunID, Seed: strconv.FormatUint(r.Seed, 10), Conform: r.Binary, Command: r.Command, Started: r.Started.UTC(),
			Elapsed: millisOf(max(0, r.Ended.Sub(r.Started))), Machine: r.Machine, Kept: r.Kept,
		},
		Status:   statusWord(r.Status),
		Suites:   []Suite{},
		Clusters: []Cluster{},
		Notes:    slices.Clone(o.Notes),
	}
	for _, s := range r.Suites {
		d.Suites = append(d.Suites, suite(s, o))
	}
	for _, c := range r.Clusters {
		d.Clusters = append(d.Clusters, Cluster{
			System: c.System, Version: c.Version, Image: c.Image, Startup: millisOf(c.Startup), MemoryMiB: c.MemoryMiB,
			Settings: c.Settings, Timing: c.Timing, Checked: c.RebuiltAfter,
		})
	}
	d.Counts = tally(d)
	if d.Counts.Inconclusive > 0 && d.Status != "fail" {
		d.Status = "inconclusive"
	}
	d.Headline = headline(d)
	return d
}

func suite(r harness.SuiteResult, o Options) Suite {
	s := Suite{
		Name: r.Name, Title: r.Title, System: r.System, Version: r.Version, Promise: promise(r.Promise),
		Status: statusWord(r.Status), Elapsed: millisOf(r.Elapsed), Scenarios: []Scenario{},
	}
	for _, sc := range r.Scenarios {
		s.Scenarios = append(s.Scenarios, scenario(r, sc, o))
	}
	if s.Status != "fail" && slices.ContainsFunc(s.Scenarios, func(sc Scenario) bool { return sc.Status == "inconclusive" }) {
		s.Status = "inconclusive"
	}
	return s
}

func promise(p ledger.Promise) Promise {
	out := Promise{Text: p.Text, Start: p.Start, End: p.End, Places: p.Places}
	for _, name := range slices.Sorted(maps.Keys(p.Rules)) {
		r := Rule{Anomaly: name, Rule: "forbidden"}
		switch rule := p.Rules[name]; {
		case rule.Allowed:
			r.Rule = "allowed"
		case rule.Bound > 0:
			r.Rule = fmt.Sprintf("at most %d", rule.Bound)
		}
		out.Rules = append(out.Rules, r)
	}
	if p.MaxUnavailable > 0 {
		out.Rules = append(out.Rules, Rule{Anomaly: "unavailable", Rule: "at most " + words(p.MaxUnavailable)})
	}
	return out
}

func scenario(su harness.SuiteResult, r harness.ScenarioResult, o Options) Scenario {
	s := Scenario{
		Name: su.Name + "/" + r.Name, Window: r.Window, Summary: r.Summary, Guarded: r.Guarded, LookFor: r.LookFor,
		Status: statusWord(r.Status), Reasons: slices.Clone(r.Reasons), Error: r.Error, Elapsed: millisOf(r.Elapsed),
		Plan: r.Plan, Arms: []Tally{}, Repeats: []Repeat{},
	}
	for _, a := range r.Arms {
		s.Arms = append(s.Arms, Tally(a))
	}
	for _, rep := range r.Repeats {
		s.Repeats = append(s.Repeats, repeat(su, rep))
	}
	s.Reproduce = reproduce(r)
	if s.Status == "not-applicable" && o.CI {
		s.Allowed = slices.ContainsFunc(o.AllowSkip, func(pattern string) bool {
			ok, err := path.Match(pattern, s.Name)
			return err == nil && ok
		})
		if !s.Allowed {
			s.Status = "inconclusive"
			s.Reasons = append(s.Reasons, "not applicable here, and the workflow does not list it with --allow-skip")
		}
	}
	s.Sentence = sentence(s)
	return s
}

// reproduce is the line that repeats the first repeat that came out as the scenario did, or else the first.
func reproduce(r harness.ScenarioResult) string {
	first := ""
	for _, rep := range r.Repeats {
		for _, a := range rep.Arms {
			if a.Header.Reproduce == "" {
				continue
			}
			if rep.Status == r.Status {
				return a.Header.Reproduce
			}
			if first == "" {
				first = a.Header.Reproduce
			}
		}
	}
	return first
}

func repeat(su harness.SuiteResult, r harness.Repeat) Repeat {
	out := Repeat{
		Index: r.Index + 1, Seed: strconv.FormatUint(r.Seed, 10), Status: statusWord(r.Status), Elapsed: millisOf(r.Elapsed), Targets: r.Targets,
		Reasons: r.Reasons, Error: r.Error, Arms: []Arm{},
	}
	for _, st := range r.Steps {
		out.Steps = append(out.Steps, Step{
			Name: st.Name, Kind: kind(st.Words), Words: strings.TrimPrefix(st.Words, st.Name+": "), Seen: st.Seen, At: millisOf(st.At + st.Took), Took: millisOf(st.Took),
			Reached: st.Reached, Evidence: st.Evidence, Bit: st.Bit, AtRisk: st.AtRisk,
		})
	}
	for _, a := range r.Arms {
		out.Arms = append(out.Arms, arm(su, a))
	}
	return out
}

func arm(su harness.SuiteResult, r harness.ArmRun) Arm {
	v, h := r.Verdict, r.Header
	a := Arm{
		Name: r.Name, Role: r.Role, Result: resultWord(v.Arm), Folder: r.Folder, Settings: h.Settings, Timing: h.Timing,
		Totals: Totals{
			Sent: v.Totals.Invoked, Confirmed: v.Totals.Confirmed, Refused: v.Totals.Refused, InDoubt: v.Totals.InDoubt,
			Claimed: v.Totals.Claimed, Stored: v.Totals.Stored, Recovered: v.Totals.Recovered, Expired: v.Totals.Expired,
			Received: v.Totals.Received, Effects: v.Totals.Effects,
		},
		Findings: []Finding{}, Evidence: []Proof{}, Reasons: v.Reasons, Checks: v.Checks, Damage: v.Damage, Differs: v.Differs,
		Liveness: liveness(v.Liveness),
	}
	if h.Promise.Text != su.Promise.Text {
		a.Promise = h.Promise.Text
	}
	if e := h.Expect; e != nil {
		a.Knob, a.Forces, a.Place, a.Expect = e.Knob, e.Forces, e.Place, e.Anomaly
		if e.Attribution != "" {
			a.Expect += "/" + e.Attribution
		}
	}
	// What was not read to its end may be there: its absence is nothing that was found.
	unread := slices.ContainsFunc(v.Proofs, func(p audit.Proof) bool { return p.Name == audit.ProofFinalRead && !p.OK })
	for _, f := range v.Findings {
		if unread && audit.RestsOnAbsence(f.Anomaly) {
			continue
		}
		a.Findings = append(a.Findings, finding(f, h.Expect))
	}
	for _, p := range v.Proofs {
		a.Evidence = append(a.Evidence, Proof(p))
	}
	told := map[ledger.MessageID]bool{}
	stories := v.Stories
	if v.Story != nil {
		stories = slices.Concat([]audit.Story{*v.Story}, stories)
	}
	for _, st := range stories {
		if told[st.ID] {
			continue
		}
		told[st.ID] = true
		a.Stories = append(a.Stories, story(st))
	}
	return a
}

func finding(f audit.Finding, e *ledger.Expect) Finding {
	out := Finding{
		Name: f.Name(), Anomaly: f.Anomaly, Place: f.Place, Attribution: f.Attribution, Count: f.Count, When: f.Window,
		Forbidden: f.Forbidden, Witnesses: f.Witnesses,
		Expected: e != nil && e.Anomaly == f.Anomaly && (e.Attribution == "" || e.Attribution == f.Attribution),
	}
	for region, n := range f.Regions {
		if out.Regions == nil {
			out.Regions = map[string]int{}
		}
		out.Regions[string(region)] = n
	}
	for _, id := range f.Sample {
		out.Sample = append(out.Sample, id.String())
	}
	return out
}

func story(s audit.Story) Story {
	out := Story{Message: s.ID.String(), Title: s.Title, Lines: []Line{}}
	for _, l := range s.Lines {
		out.Lines = append(out.Lines, Line{Since: millisOf(l.Since), Place: l.Place, Text: l.Text})
	}
	return out
}

func liveness(l audit.Liveness) Liveness {
	out := Liveness{
		Before: latency(l.Before), During: latency(l.During), After: latency(l.After),
		LongestGap: millisOf(l.LongestGap), FirstSuccess: millisOf(l.FirstSuccess), Rate: l.RatePerSecond,
	}
	for _, b := range l.Series {
		out.Series = append(out.Series, Bucket{
			At: millisOf(b.At), Confirmed: b.Confirmed, Refused: b.Refused, InDoubt: b.InDoubt, P50: millisOf(b.P50), Max: millisOf(b.Max),
		})
	}
	return out
}

func latency(l audit.Latency) Latency {
	return Latency{Count: l.Count, P50: millisOf(l.P50), P99: millisOf(l.P99), P999: millisOf(l.P999), Max: millisOf(l.Max)}
}

func tally(d Document) Counts {
	var c Counts
	for _, s := range d.Suites {
		for _, sc := range s.Scenarios {
			c.Scenarios++
			switch sc.Status {
			case "pass":
				c.Pass++
			case "fail":
				c.Fail++
			case "observed":
				c.Observed++
			case "not-applicable":
				c.NotApplicable++
			default:
				c.Inconclusive++
			}
			for _, r := range sc.Repeats {
				for _, a := range r.Arms {
					c.Sent += a.Totals.Sent
					c.Confirmed += a.Totals.Confirmed
					switch a.Role {
					case string(harness.Guarded):
						c.Guarded++
						if a.Result == "held" {
							c.Held++
						}
					case string(harness.Control):
						c.Controls++
						if a.Result == "reproduced" {
							c.Reproduced++
						}
					}
				}
			}
		}
	}
	return c
}

// headline says the verdict on the run in words and numbers.
func headline(d Document) string {
	c := d.Counts
	var broken, open []string
	for _, s := range d.Suites {
		for _, sc := range s.Scenarios {
			switch sc.Status {
			case "fail":
				broken = append(broken, sc.Name)
			case "inconclusive":
				open = append(open, sc.Name)
			}
		}
	}
	var head string
	switch {
	case c.Scenarios == 0:
		return "Nothing was judged."
	case len(broken) > 0:
		head = fmt.Sprintf("A promise is broken in %s of %d: %s.", plural(len(broken), "scenario"), c.Scenarios, some(broken))
	case len(open) > 0:
		head = fmt.Sprintf("Not known for %s of %d: %s.", plural(len(open), "scenario"), c.Scenarios, some(open))
	case c.Pass > 0:
		head = fmt.Sprintf("The promise holds: %d of %s passed.", c.Pass, plural(c.Scenarios, "scenario"))
	case c.Observed > 0:
		head = fmt.Sprintf("%s observed, none judged.", plural(c.Observed, "scenario"))
	default:
		return "None of the scenarios applies here: nothing was judged."
	}
	if c.Guarded > 0 {
		head += fmt.Sprintf(" Guarded arms held in %d of %d runs", c.Held, c.Guarded)
		if c.Controls > 0 {
			head += fmt.Sprintf(", controls broke as named in %d of %d", c.Reproduced, c.Controls)
		}
		head += "."
	}
	if c.Pass > 0 && c.Observed > 0 {
		head += fmt.Sprintf(" %d more observed without a control.", c.Observed)
	}
	return head
}

// some names the first three.
func some(names []string) string {
	if len(names) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}

// sentence says the verdict on a scenario in words.
func sentence(s Scenario) string {
	switch s.Status {
	case "pass":
		return "The guarded arm held; with its guard taken away it broke as named: " + controls(s) + "."
	case "observed":
		return "Measured without a control, and the promise was kept: reported, not counted as a pass."
	case "fail":
		var found []string
		for _, r := range s.Repeats {
			for _, a := range r.Arms {
				if a.Result != "broke" {
					continue
				}
				for _, f := range a.Findings {
					if f.Forbidden {
						found = append(found, fmt.Sprintf("%s x %s in %s", f.Name, count(f.Count), a.Name))
					}
				}
			}
		}
		if len(found) == 0 {
			return "The promise is broken."
		}
		return "The promise is broken: " + some(found) + "."
	case "not-applicable":
		return "Decided before the run: it does not apply here."
	default:
		return "We do not know."
	}
}

func controls(s Scenario) string {
	var out []string
	for _, a := range s.Arms {
		if a.Role == string(harness.Control) {
			out = append(out, fmt.Sprintf("%s showed %s in %d of %d", a.Knob, a.Expect, a.K, a.N))
		}
	}
	return strings.Join(out, "; ")
}
