package reports

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"
)

// TestPrices puts what a setting costs beside what it loses, only where the power went.
func TestPrices(t *testing.T) {
	arm := func(name, result string, confirmed, lost int, rate float64, p99 time.Duration) Arm {
		a := Arm{
			Name: name, Result: result, Totals: Totals{Confirmed: confirmed},
			Liveness: Liveness{Rate: rate, Before: Latency{P99: Millis(p99)}},
		}
		if lost > 0 {
			a.Findings = []Finding{{Name: "lost(confirmed)/broker", Anomaly: "lost", Count: lost, Expected: true}}
		}
		return a
	}
	repeat := func(i int, risk string, arms ...Arm) Repeat {
		return Repeat{Index: i, Steps: []Step{{Name: "cut", AtRisk: risk}}, Arms: arms}
	}
	sc := Scenario{
		Name: "kafka-durability/power-cut-all", Status: "pass",
		Arms: []Tally{{Name: "guarded", Role: "guarded"}, {Name: "default-flush", Role: "control", Knob: "flush.messages=default"}},
		Repeats: []Repeat{
			repeat(1, "not on disk: 4096 bytes of kafka-1", arm("guarded", "held", 1000, 0, 100, 40*time.Millisecond), arm("default-flush", "reproduced", 4000, 4000, 400, 4*time.Millisecond)),
			repeat(2, "not on disk: 8192 bytes of kafka-1", arm("guarded", "held", 3000, 0, 300, 20*time.Millisecond), arm("default-flush", "reproduced", 6000, 5000, 600, 6*time.Millisecond)),
		},
	}
	want := []string{
		"guarded: 200 confirmed/s, p99 40 ms; 4,000 confirmed, 0 lost",
		"default-flush (flush.messages=default): 500 confirmed/s, p99 6.0 ms; 10,000 confirmed, 9,000 lost",
		"(run 1): not on disk: 4096 bytes of kafka-1",
		"(run 2): not on disk: 8192 bytes of kafka-1",
	}
	doc := Document{Status: "pass", Suites: []Suite{{Name: "kafka-durability", Status: "pass", Scenarios: []Scenario{sc}}}}
	for f, write := range map[string]func(io.Writer, Document) error{"text": writeText, "markdown": writeMarkdown, "html": writeHTML} {
		var b bytes.Buffer
		if err := write(&b, doc); err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if f == "html" && strings.HasPrefix(w, "(run") {
				w = strings.TrimPrefix(w[strings.Index(w, ":"):], ": ") // there it stands at its step
			}
			if f != "text" {
				w = w[strings.LastIndex(w, ": ")+2:]
			}
			if !strings.Contains(strings.ReplaceAll(b.String(), "\\", ""), w) {
				t.Errorf("%s lacks %q in\n%s", f, w, b.String())
			}
		}
	}
	for i := range sc.Repeats {
		sc.Repeats[i].Steps[0].AtRisk = ""
	}
	if p := sc.Prices(); p != nil {
		t.Errorf("no power was cut, yet %v", p)
	}
}
