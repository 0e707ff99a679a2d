package reports

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

func init() { register(Format{Name: "markdown", File: "report.md", Write: writeMarkdown}) }

var marks = map[string]string{
	"pass": "✅ pass", "fail": "❌ fail", "inconclusive": "❔ inconclusive", "observed": "👁 observed", "not-applicable": "➖ not applicable",
}

// writeMarkdown writes the step summary of a CI job.
func writeMarkdown(w io.Writer, d Document) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "## %s\n\n%s\n\n", marks[d.Status], md(d.Headline))
	for _, s := range d.Suites {
		fmt.Fprintf(&b, "### %s on %s %s: %s\n\n", md(s.Name), md(s.System), md(s.Version), marks[s.Status])
		fmt.Fprintf(&b, "%s\n\n", md(s.Title))
		b.WriteString("| scenario | verdict | arm | result | k/n | found | evidence |\n|---|---|---|---|---|---|---|\n")
		for _, sc := range s.Scenarios {
			name, verdict := md(strings.TrimPrefix(sc.Name, s.Name+"/")), marks[sc.Status]
			if sc.Window != "" {
				name += " (" + md(sc.Window) + ")"
			}
			if len(sc.Arms) == 0 {
				fmt.Fprintf(&b, "| %s | %s | | | | | |\n", name, verdict)
			}
			for _, a := range sc.Arms {
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n",
					name, verdict, md(a.Name), sc.Outcome(a), a.Share(), md(sc.Found(a)), sc.Evidence(a))
				name, verdict = "", ""
			}
		}
		b.WriteByte('\n')
		for _, sc := range s.Scenarios {
			markdownTrouble(&b, sc)
			markdownPrices(&b, sc)
			for _, differs := range sc.Differs() {
				fmt.Fprintf(&b, "> %s: %s\n\n", md(sc.Name), md(differs))
			}
		}
	}
	for _, n := range d.Notes {
		fmt.Fprintf(&b, "> %s\n\n", md(n))
	}
	fmt.Fprintf(&b, "Run `%s`, seed `%s`, %s, %s messages sent, %s confirmed.\n", d.Run.ID, d.Run.Seed, d.Run.Elapsed, count(d.Counts.Sent), count(d.Counts.Confirmed))
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write markdown report: %w", err)
	}
	return nil
}

func markdownTrouble(b *bytes.Buffer, sc Scenario) {
	if sc.Status == "pass" || sc.Status == "observed" {
		return
	}
	fmt.Fprintf(b, "**%s**: %s\n\n", md(sc.Name), md(sc.Sentence))
	for _, r := range sc.Reasons {
		fmt.Fprintf(b, "- %s\n", md(r))
	}
	if sc.Error != "" {
		fmt.Fprintf(b, "- %s: %s\n", sc.Trouble(), md(sc.Error))
	}
	if sc.Reproduce != "" {
		fmt.Fprintf(b, "\nAgain:\n\n    %s\n", clean(sc.Reproduce))
	}
	b.WriteByte('\n')
}

// markdownPrices says what each setting costs and loses where the power went.
func markdownPrices(b *bytes.Buffer, sc Scenario) {
	if len(sc.Risks()) == 0 {
		return
	}
	fmt.Fprintf(b, "**%s**, what a confirm cost and was worth:\n\n", md(sc.Name))
	for _, p := range sc.Prices() {
		fmt.Fprintf(b, "- %s\n", md(p.String()))
	}
	for _, r := range sc.Risks() {
		fmt.Fprintf(b, "- at risk when the power went (run %d): %s\n", r.Repeat, md(r.Text))
	}
	b.WriteByte('\n')
}

// md makes a text safe inside a table cell: what came from a broker must not become markup.
func md(s string) string {
	return strings.NewReplacer(
		"\\", "\\\\", "|", "\\|", "`", "\\`", "*", "\\*", "_", "\\_", "[", "\\[", "]", "\\]", "<", "&lt;", ">", "&gt;", "&", "&amp;",
	).Replace(clean(s))
}
