package reports

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"conform/harness"
)

func init() { register(Format{Name: "text", File: "report.txt", Write: writeText}) }

// writeText writes the summary for a terminal: no colour, no control characters, also when a
// key or a message of a broker holds some.
func writeText(w io.Writer, d Document) error {
	var b bytes.Buffer
	for _, s := range d.Suites {
		fmt.Fprintf(&b, "%s on %s %s: %s\n", s.Name, s.System, s.Version, strings.ToUpper(s.Status))
		fmt.Fprintf(&b, "  %s\n", s.Title)
		if s.Promise.Start != "" {
			fmt.Fprintf(&b, "  from %s to %s\n", s.Promise.Start, s.Promise.End)
		}
		b.WriteByte('\n')
		if err := textTable(&b, s); err != nil {
			return fmt.Errorf("write text report: %w", err)
		}
		for _, sc := range s.Scenarios {
			textTrouble(&b, sc)
			textPrices(&b, sc)
			for _, differs := range sc.Differs() {
				fmt.Fprintf(&b, "  note on %s: %s\n", sc.Name, clean(differs))
			}
		}
		b.WriteByte('\n')
	}
	for _, n := range d.Notes {
		fmt.Fprintf(&b, "note: %s\n", clean(n))
	}
	for _, k := range d.Run.Kept {
		fmt.Fprintf(&b, "left up: %s\n", clean(k))
	}
	fmt.Fprintf(&b, "%s: %s\n", strings.ToUpper(d.Status), d.Headline)
	fmt.Fprintf(&b, "run %s, seed %s, %s, %s sent, %s confirmed\n",
		d.Run.ID, d.Run.Seed, d.Run.Elapsed, count(d.Counts.Sent), count(d.Counts.Confirmed))
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write text report: %w", err)
	}
	return nil
}

func textTable(w io.Writer, s Suite) error {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  scenario\tverdict\tarm\tresult\tk/n\tfound\tevidence")
	for _, sc := range s.Scenarios {
		name, verdict := strings.TrimPrefix(sc.Name, s.Name+"/"), sc.Status
		if sc.Window != "" {
			name += " (" + sc.Window + ")"
		}
		if len(sc.Arms) == 0 {
			fmt.Fprintf(t, "  %s\t%s\t\t\t\t\t\n", name, verdict)
		}
		for _, a := range sc.Arms {
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, verdict, a.Name, sc.Outcome(a), a.Share(), sc.Found(a), sc.Evidence(a))
			name, verdict = "", ""
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for l := range bytes.Lines(b.Bytes()) {
		if _, err := fmt.Fprintf(w, "%s\n", bytes.TrimRight(l, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// textTrouble says why a scenario is not a pass.
func textTrouble(w io.Writer, sc Scenario) {
	if sc.Status == "pass" || sc.Status == "observed" {
		return
	}
	fmt.Fprintf(w, "\n  %s: %s\n", sc.Name, clean(sc.Sentence))
	for _, r := range sc.Reasons {
		fmt.Fprintf(w, "    because %s\n", clean(r))
	}
	if sc.Error != "" {
		fmt.Fprintf(w, "    %s: %s\n", sc.Trouble(), clean(sc.Error))
	}
	if sc.Reproduce != "" {
		fmt.Fprintf(w, "    again: %s\n", sc.Reproduce)
	}
}

// textPrices says what each setting costs and loses where the power went.
func textPrices(w io.Writer, sc Scenario) {
	if len(sc.Risks()) == 0 {
		return
	}
	fmt.Fprintf(w, "\n  %s, what a confirm cost and was worth:\n", sc.Name)
	for _, p := range sc.Prices() {
		fmt.Fprintf(w, "    %s\n", clean(p.String()))
	}
	for _, r := range sc.Risks() {
		fmt.Fprintf(w, "    at risk when the power went (run %d): %s\n", r.Repeat, clean(r.Text))
	}
}

// Outcome is the result of an arm over all repeats in one word: its only result, or "mixed".
func (s Scenario) Outcome(t Tally) string {
	word := ""
	for _, a := range s.runs(t) {
		if word != "" && word != a.Result {
			return "mixed"
		}
		word = a.Result
	}
	if word == "" {
		return "not run"
	}
	return word
}

// Found names what an arm showed, counts added up over all repeats: the expected and the
// forbidden; what its promise allows is left to the longer reports.
func (s Scenario) Found(t Tally) string {
	var names []string
	sum := map[string]int{}
	for _, a := range s.runs(t) {
		for _, f := range a.Findings {
			if !f.Forbidden && !f.Expected {
				continue
			}
			name := f.Name
			if a.Result == "inconclusive" {
				name += " (not proven)"
			}
			if sum[name] == 0 {
				names = append(names, name)
			}
			sum[name] += f.Count
		}
	}
	if len(names) == 0 {
		return "nothing"
	}
	for i, n := range names {
		names[i] = fmt.Sprintf("%s x %s", n, count(sum[n]))
	}
	return strings.Join(names, ", ")
}

// Evidence counts the proofs of an arm over all repeats: "7 of 7".
func (s Scenario) Evidence(t Tally) string {
	ok, all := 0, 0
	for _, a := range s.runs(t) {
		for _, p := range a.Evidence {
			all++
			if p.OK {
				ok++
			}
		}
	}
	return fmt.Sprintf("%d of %d", ok, all)
}

// Differs says in what this binary differs from the one that recorded the arms, each once.
func (s Scenario) Differs() []string {
	var out []string
	for _, r := range s.Repeats {
		for _, a := range r.Arms {
			for _, d := range a.Differs {
				if !slices.Contains(out, d) {
					out = append(out, d)
				}
			}
		}
	}
	return out
}

// Trouble says whose failure Error is.
func (s Scenario) Trouble() string {
	if strings.Contains(s.Error, harness.ErrInterrupted.Error()) {
		return "stopped from outside"
	}
	return "our own failure"
}

// runs are the runs of one arm.
func (s Scenario) runs(t Tally) []Arm {
	var out []Arm
	for _, r := range s.Repeats {
		for _, a := range r.Arms {
			if a.Name == t.Name {
				out = append(out, a)
			}
		}
	}
	return out
}

// clean replaces what would move a terminal's cursor or end a line.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, s)
}
