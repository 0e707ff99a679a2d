package reports

import (
	"fmt"
	"strings"
)

// Price is what an arm's setting costs while nothing fails, beside what it lost when the power went.
type Price struct {
	Arm       string
	Knob      string // empty for the guarded arm
	Confirmed int    // messages, all repeats
	Lost      int    // messages, all repeats
	Rate      float64
	P99       Millis // of the slowest repeat, before the power went
}

// Risk is what was not on disk when the power went in one repeat, and for how long that is so.
type Risk struct {
	Repeat int
	Text   string
}

// Risks are those of a scenario's power cuts; none where the power stayed.
func (s Scenario) Risks() []Risk {
	var out []Risk
	for _, r := range s.Repeats {
		for _, st := range r.Steps {
			if st.AtRisk != "" {
				out = append(out, Risk{Repeat: r.Index, Text: st.AtRisk})
			}
		}
	}
	return out
}

// Prices compares the arms of a scenario in which the power went, so that a setting can be chosen by what it costs.
func (s Scenario) Prices() []Price {
	if len(s.Risks()) == 0 {
		return nil
	}
	var out []Price
	for _, t := range s.Arms {
		p := Price{Arm: t.Name, Knob: t.Knob}
		runs := s.runs(t)
		for _, a := range runs {
			p.Confirmed += a.Totals.Confirmed
			p.Rate += a.Liveness.Rate / float64(len(runs))
			p.P99 = max(p.P99, a.Liveness.Before.P99)
			for _, f := range a.Findings {
				if f.Anomaly == "lost" {
					p.Lost += f.Count
				}
			}
		}
		out = append(out, p)
	}
	return out
}

// String says it in one line.
func (p Price) String() string {
	name := p.Arm
	if p.Knob != "" && !strings.Contains(p.Knob, p.Arm) {
		name += " (" + p.Knob + ")"
	}
	return fmt.Sprintf("%s: %s confirmed/s, p99 %s; %s confirmed, %s lost", name, count(int(p.Rate+0.5)), p.P99, count(p.Confirmed), count(p.Lost))
}
