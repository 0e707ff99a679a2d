package reports

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"conform/harness"
)

//go:embed page/report.html.tmpl
var pageSource string

//go:embed page/report.css
var pageStyle string

//go:embed page/report.js
var pageScript string

func init() { register(Format{Name: "html", File: "report.html", Write: writeHTML}) }

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"style":     func() template.CSS { return template.CSS(pageStyle) }, //nolint:gosec // our own file
	"script":    func() template.JS { return template.JS(pageScript) },  //nolint:gosec // our own file
	"count":     func(n int) string { return count(n) },
	"plural":    plural,
	"join":      strings.Join,
	"clean":     clean,
	"stamp":     func(t time.Time) string { return t.Format("2006-01-02 15:04:05 UTC") },
	"icon":      func(status string) string { return icons[status] },
	"label":     func(status string) string { return strings.ReplaceAll(status, "-", " ") },
	"anchor":    anchor,
	"short":     func(suite, name string) string { return strings.TrimPrefix(name, suite+"/") },
	"strikeAt":  strikeChain,
	"storyAt":   storyChain,
	"chart":     newChart,
	"sheet":     newSheet,
	"why":       why,
	"window":    func(w string) string { return windows[w].Words },
	"percent":   func(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) },
	"interest":  interesting,
	"storiesOf": storiesOf,
	"lead":      lead,
	"regions":   func() []string { return []string{"prefix", "middle", "suffix"} },
	"inc":       func(i int) int { return i + 1 },
	"pair":      func(a Arm, f Finding) telling { return telling{Arm: a, Finding: f} },
}).Parse(pageSource))

// icons are shapes beside the words, so that nothing is said by colour alone.
var icons = map[string]string{
	"pass": "✓", "held": "✓", "fail": "✗", "broke": "✗", "reproduced": "✓", "missed": "?", "inconclusive": "?", "mixed": "?",
	"observed": "○", "not-applicable": "–", "not run": "–",
}

// writeHTML writes one page with everything in it. html/template escapes all that comes from
// a run; style and script are our own files.
func writeHTML(w io.Writer, d Document) error {
	var b bytes.Buffer
	if err := page.Execute(&b, d); err != nil {
		return fmt.Errorf("write html report: %w", err)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write html report: %w", err)
	}
	return nil
}

// anchor makes an id out of a name.
func anchor(parts ...any) string {
	s := strings.ToLower(strings.Trim(fmt.Sprintln(parts...), "\n"))
	return strings.Map(func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') {
			return r
		}
		return '-'
	}, s)
}

// link is one station of the chain and what stands between it and the next one.
type link struct {
	Stage  string
	State  string // "", "reached" or "gone"
	Strike string // window at which the fault strikes after this stage
	Words  string
	Broken bool // the message did not get past this stage
}

// strikeChain draws where in the chain a scenario's fault strikes.
func strikeChain(window string) []link {
	w, known := windows[window]
	names := slices.Clone(stages)
	if window == "W6" { // settled first: that order is the fault
		names[6], names[7] = names[7], names[6]
		w.After = 6
	}
	out := make([]link, len(names))
	for i, n := range names {
		out[i].Stage = n
		if known && i == w.After {
			out[i].Strike, out[i].Words = window, w.Words
		}
	}
	return out
}

// reached says which stages an event of a story proves.
var reached = map[string][]int{
	"committed": {0}, "sent": {1}, "confirmed": {2, 3}, "stored": {2, 4}, "delivered": {5}, "applied": {6}, "settled": {7},
}

// storyChain draws how far a message came and where it was lost.
func storyChain(s Story, f Finding) []link {
	out := strikeChain("")
	for _, l := range s.Lines {
		for _, i := range reached[l.Place] {
			out[i].State = "reached"
		}
	}
	if at, ok := brokenLink(f.Anomaly, f.Attribution); ok {
		out[at].Broken = true
		for i := at + 1; i < len(out); i++ {
			// A store event in the story of a lost message is about what stands in its place.
			if out[i].State == "" || i <= 4 {
				out[i].State = "gone"
			}
		}
	}
	return out
}

// interesting is the index of the repeat to show open: the first that did not go as promised.
func interesting(s Scenario) int {
	for i, r := range s.Repeats {
		if r.Status != s.Repeats[0].Status && r.Status != "pass" {
			return i
		}
	}
	return 0
}

// storiesOf picks the stories of a finding's sample.
func storiesOf(a Arm, f Finding) []Story {
	var out []Story
	for _, s := range a.Stories {
		if slices.Contains(f.Sample, s.Message) {
			out = append(out, s)
		}
	}
	return out
}

// telling is one message that shows what a scenario is about.
type telling struct {
	Arm     Arm
	Finding Finding
	Story   Story
}

// lead is the message to tell first: of a broken guarded arm if there is one, else of a control
// that broke as named. nil = there is none.
func lead(r Repeat) *telling {
	for _, want := range []func(Arm, Finding) bool{
		func(a Arm, f Finding) bool { return a.Role != string(harness.Control) && f.Forbidden },
		func(_ Arm, f Finding) bool { return f.Expected },
		func(_ Arm, f Finding) bool { return f.Forbidden },
	} {
		for _, a := range r.Arms {
			for _, f := range a.Findings {
				if !want(a, f) {
					continue
				}
				if s := storiesOf(a, f); len(s) > 0 {
					return &telling{Arm: a, Finding: f, Story: s[0]}
				}
			}
		}
	}
	return nil
}

// sheet lays the arms of a repeat side by side.
type sheet struct {
	Arms   []Arm
	Groups []group
	Same   []string // settings that are equal in all arms, as "name = value"
}

type group struct {
	Title string
	Rows  []row
}

type row struct {
	Name   string
	Cells  []string
	Differ bool // a setting that is not equal in all arms
}

func newSheet(r Repeat) sheet {
	s := sheet{Arms: r.Arms}
	line := func(name string, cell func(Arm) string) row {
		out := row{Name: name}
		for _, a := range r.Arms {
			out.Cells = append(out.Cells, cell(a))
		}
		return out
	}
	knob := group{Title: "What differs"}
	knob.Rows = append(knob.Rows,
		line("the one knob", func(a Arm) string { return or(a.Knob, "as promised") }),
		line("it forces", func(a Arm) string { return or(strings.Join(a.Forces, ", "), "nothing") }))
	names := map[string]bool{}
	for _, a := range r.Arms {
		for k := range a.Settings {
			names[k] = true
		}
	}
	for _, k := range slices.Sorted(maps.Keys(names)) {
		l := line(k, func(a Arm) string { return or(a.Settings[k], "default") })
		l.Differ = slices.ContainsFunc(l.Cells, func(c string) bool { return c != l.Cells[0] })
		if l.Differ {
			knob.Rows = append(knob.Rows, l)
		} else {
			s.Same = append(s.Same, k+" = "+l.Cells[0])
		}
	}
	became := group{Title: "What became of the messages"}
	for _, c := range []struct {
		name string
		of   func(Totals) int
		rare bool
	}{
		{"sent", func(t Totals) int { return t.Sent }, false},
		{"confirmed", func(t Totals) int { return t.Confirmed }, false},
		{"refused", func(t Totals) int { return t.Refused }, false},
		{"in doubt", func(t Totals) int { return t.InDoubt }, false},
		{"said sent to the caller", func(t Totals) int { return t.Claimed }, false},
		{"in the store at the end", func(t Totals) int { return t.Stored }, false},
		{"in doubt, then found", func(t Totals) int { return t.Recovered }, false},
		{"expired", func(t Totals) int { return t.Expired }, true},
		{"received", func(t Totals) int { return t.Received }, true},
		{"effects", func(t Totals) int { return t.Effects }, true},
	} {
		any := false
		for _, a := range r.Arms {
			any = any || c.of(a.Totals) != 0
		}
		if any || !c.rare {
			became.Rows = append(became.Rows, line(c.name, func(a Arm) string { return count(c.of(a.Totals)) }))
		}
	}
	pace := group{Title: "Latency and availability"}
	for _, p := range []struct {
		name string
		of   func(Liveness) Latency
	}{
		{"send to confirm before the strike", func(l Liveness) Latency { return l.Before }},
		{"during the fault", func(l Liveness) Latency { return l.During }},
		{"after the heal", func(l Liveness) Latency { return l.After }},
	} {
		pace.Rows = append(pace.Rows, line(p.name, func(a Arm) string { return percentiles(p.of(a.Liveness)) }))
	}
	pace.Rows = append(pace.Rows,
		line("longest gap without a confirm", func(a Arm) string { return a.Liveness.LongestGap.String() }),
		line("first success after the strike", func(a Arm) string { return a.Liveness.FirstSuccess.String() }),
		line("confirmed per second before", func(a Arm) string { return count(int(a.Liveness.Rate)) }))
	s.Groups = []group{knob, became, pace}
	return s
}

func percentiles(l Latency) string {
	if l.Count == 0 {
		return "nothing confirmed"
	}
	return fmt.Sprintf("p50 %s, p99 %s, max %s", l.P50, l.P99, l.Max)
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
