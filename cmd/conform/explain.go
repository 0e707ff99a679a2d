package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conform/fixtures"
	"conform/harness"
	"conform/harness/audit"
	"conform/harness/system"
	"conform/reports"
	"conform/suites/chain"
)

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain NAME",
		Short: "explain a suite, a scenario, a fault or an anomaly",
		Example: `  conform explain kafka-acks
  conform explain kafka-acks/leader-isolated
  conform explain lost`,
		Args: args(cobra.ExactArgs(1)),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return slices.Sorted(maps.Keys(a.topics())), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			topics := a.topics()
			found, ok := topics[args[0]]
			if !ok {
				return &fixtures.UnknownError{Kind: "name", Got: args[0], Nearest: nearest(args[0], slices.Collect(maps.Keys(topics)))}
			}
			for i, say := range found {
				if i > 0 {
					fmt.Fprintln(a.stdout)
				}
				say(a.stdout)
			}
			return nil
		},
	}
}

// topics is everything that can be explained. A scenario's short name may stand for several.
func (a *app) topics() map[string][]func(io.Writer) {
	out := map[string][]func(io.Writer){}
	add := func(name string, say func(io.Writer)) { out[name] = append(out[name], say) }
	// What a pattern is on one broker it is on the others: of the names that leave the broker open, the first is explained.
	first := func(name, whole string, say func(io.Writer)) {
		if _, there := out[name]; there {
			say = func(w io.Writer) { fmt.Fprintf(w, "the same on another broker: conform explain %s\n", whole) }
		}
		add(name, say)
	}
	for _, s := range a.suites {
		base, _, pattern := strings.Cut(s.Name, "@")
		say := func(w io.Writer) { explainSuite(w, s) }
		if add(s.Name, say); pattern {
			first(base, s.Name, say)
		}
		for _, sc := range s.Scenarios {
			whole := s.Name + "/" + sc.Name
			say := func(w io.Writer) { explainScenario(w, s, sc) }
			add(whole, say)
			if !pattern {
				add(sc.Name, say)
				continue
			}
			first(base+"/"+sc.Name, whole, say)
			first(sc.Name, whole, say)
		}
	}
	for name, f := range a.faults {
		add(name, func(w io.Writer) { a.explainFault(w, f) })
	}
	for _, an := range audit.Anomalies() {
		add(an.Name, func(w io.Writer) { a.explainAnomaly(w, an) })
		for _, at := range an.Attributions {
			if _, there := out[at]; !there {
				add(at, func(w io.Writer) { a.explainAttribution(w, at) })
			}
		}
	}
	return out
}

// field prints one named paragraph; an empty one is left out.
func field(w io.Writer, name, text string) {
	if text != "" {
		fmt.Fprintf(w, "%-10s %s\n", name, text)
	}
}

func explainSuite(w io.Writer, s harness.Suite) {
	fmt.Fprintf(w, "suite %s: %s\n\n", s.Name, s.Title)
	field(w, "promise", s.Promise.Text)
	field(w, "from", s.Promise.Start)
	field(w, "to", s.Promise.End)
	field(w, "judged", strings.Join(s.Promise.Places, ", "))
	for _, name := range slices.Sorted(maps.Keys(s.Promise.Rules)) {
		switch r := s.Promise.Rules[name]; {
		case r.Allowed:
			field(w, "", name+" is allowed")
		case r.Bound > 0:
			field(w, "", fmt.Sprintf("%s at most %d times", name, r.Bound))
		default:
			field(w, "", name+" is forbidden")
		}
	}
	if s.Promise.MaxUnavailable > 0 {
		field(w, "", fmt.Sprintf("at most %s without a confirm", s.Promise.MaxUnavailable))
	}
	for _, sys := range s.Systems() {
		field(w, "system", sys.Name()+" "+strings.Join(sys.Versions(), ", ")+" (the first is the default)")
	}
	var cost time.Duration
	for _, sc := range s.Scenarios {
		cost += sc.Cost
	}
	field(w, "cost", fmt.Sprintf("about %s and %d MiB", cost, s.MemoryMiB()))
	fmt.Fprintln(w, "\nscenarios")
	for _, sc := range s.Scenarios {
		fmt.Fprintf(w, "  %s: %s\n", sc.Name, sc.Summary)
	}
}

func explainScenario(w io.Writer, s harness.Suite, sc harness.Scenario) {
	fmt.Fprintf(w, "scenario %s/%s\n\n", s.Name, sc.Name)
	field(w, "promise", s.Title)
	if sc.Since != "" {
		field(w, "since", sc.Since)
	}
	if sc.Window != "" {
		field(w, "window", sc.Window+", "+reports.Window(sc.Window))
	}
	field(w, "fault", sc.Summary)
	field(w, "guard", sc.Guarded)
	field(w, "cost", "about "+sc.Cost.String()+" with all arms")
	fmt.Fprintln(w, "\narms")
	for _, arm := range sc.Arms {
		switch {
		case arm.Break != nil:
			fmt.Fprintf(w, "  %s (control): %s must show %s in the %s", arm.Name, arm.Break.Knob, expected(*arm.Break), arm.Break.Place)
			if len(arm.Break.Forces) > 0 {
				fmt.Fprintf(w, "; it forces %s", strings.Join(arm.Break.Forces, ", "))
			}
			fmt.Fprintln(w)
		case arm.Role == harness.Observation:
			fmt.Fprintf(w, "  %s (observation, no control): %s\n", arm.Name, arm.Reason)
		default:
			fmt.Fprintf(w, "  %s (%s): must hold\n", arm.Name, arm.Role)
		}
		for _, knobs := range []struct {
			of  string
			set map[string]string
		}{{"client", arm.Client}, {"destination", arm.Destination}, {"node", arm.Node}} {
			for _, k := range slices.Sorted(maps.Keys(knobs.set)) {
				fmt.Fprintf(w, "    %s %s = %s\n", knobs.of, k, knobs.set[k])
			}
		}
	}
	explainSides(w, sc)
	explainCode(w, s, sc)
	fmt.Fprintln(w, "\nsteps")
	for i, st := range sc.Steps {
		fmt.Fprintf(w, "  %d. %s: %s", i+1, st.Name, st)
		if len(st.Arms) > 0 {
			fmt.Fprintf(w, " (only %s)", strings.Join(st.Arms, ", "))
		}
		fmt.Fprintln(w)
	}
	if sc.LookFor != "" {
		fmt.Fprintf(w, "\nhow to look for it in your own system\n  %s\n", sc.LookFor)
	}
	if len(sc.Sources) > 0 {
		fmt.Fprintln(w, "\nsources")
		for _, src := range sc.Sources {
			fmt.Fprintf(w, "  %s\n", src)
		}
	}
	fmt.Fprintf(w, "\nrun it\n  conform run --suite %s --scenario %s\n", quote(s.Name), sc.Name)
}

// explainCode shows the reference code of each control beside the line that makes it unsafe, and the query that finds what
// that does.
func explainCode(w io.Writer, s harness.Suite, sc harness.Scenario) {
	base, _, _ := strings.Cut(s.Name, "@")
	pairs := append(chain.PairsOf(base+"/"+sc.Name), chain.Pairs()...)
	shown := map[string]bool{}
	for _, arm := range sc.Arms {
		if arm.Code == nil || arm.Code.Unsafe == "" || shown[arm.Code.Unsafe] {
			continue // the same code under another protocol
		}
		i := slices.IndexFunc(pairs, func(p chain.Pair) bool {
			return p.Guarded == arm.Code.Guarded && p.Unsafe == arm.Code.Unsafe
		})
		if i < 0 {
			continue
		}
		pair := pairs[i]
		shown[arm.Code.Unsafe], shown[arm.Code.Guarded] = true, true
		fmt.Fprintf(w, "\ncode of the guarded arm, and the line of %s (suites/chain: %s, %s)\n", arm.Name, pair.Guarded, pair.Unsafe)
		explainPair(w, pair)
		if pair.Query != "" {
			fmt.Fprintf(w, "\nthe query that finds it, in the tables of suites/chain\n%s\n", indent(pair.Query))
		}
	}
	explainAlone(w, sc, shown)
}

// explainAlone prints the code of guarded arms that no control has a twin of.
func explainAlone(w io.Writer, sc harness.Scenario, shown map[string]bool) {
	for _, arm := range sc.Arms {
		if arm.Role != harness.Guarded || arm.Code == nil || shown[arm.Code.Guarded] {
			continue
		}
		shown[arm.Code.Guarded] = true
		if source := chain.Source(arm.Code.Guarded); source != "" {
			fmt.Fprintf(w, "\ncode of the arm %s (suites/chain: %s)\n%s\n", arm.Name, arm.Code.Guarded, indent(source))
		}
	}
}

// explainPair prints the guarded function, with the unsafe line where it would stand, and what the two lines use.
func explainPair(w io.Writer, pair chain.Pair) {
	guarded, unsafe, err := pair.Lines()
	if err != nil {
		return // a test sees to it that there is none
	}
	safe, broken := strings.Split(pair.GuardedSource(), "\n"), strings.Split(pair.UnsafeSource(), "\n")
	rest := slices.Delete(slices.Clone(safe), guarded, guarded+1)
	line := func(mark, text string) {
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("  %-7s | %s", mark, strings.ReplaceAll(text, "\t", "  ")), " "))
	}
	for i := range len(rest) + 1 {
		if i == guarded {
			line("guarded", safe[guarded])
		}
		if i == unsafe {
			line("unsafe", broken[unsafe])
		}
		if i < len(rest) {
			line("", rest[i])
		}
	}
	helpers, err := pair.Helpers()
	if err != nil || len(helpers) == 0 {
		return
	}
	fmt.Fprintln(w, "\nwhat the two lines use")
	for _, h := range helpers {
		fmt.Fprintln(w, indent(h))
	}
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.ReplaceAll(text, "\t", "  "), "\n", "\n  ")
}

func (a *app) explainFault(w io.Writer, f system.Fault) {
	fmt.Fprintf(w, "fault %s: %s\n\n", f.Name, f.Summary)
	field(w, "proof", f.Proof)
	for _, name := range slices.Sorted(maps.Keys(f.Params)) {
		field(w, "parameter", name+": "+f.Params[name])
	}
	a.usedBy(w, func(sc harness.Scenario) bool {
		for _, st := range sc.Steps {
			if st.Inject != nil && st.Inject.Fault == f.Name {
				return true
			}
		}
		return false
	})
}

func (a *app) explainAnomaly(w io.Writer, an audit.Anomaly) {
	fmt.Fprintf(w, "anomaly %s: %s\n\n", an.Name, an.Meaning)
	field(w, "place", an.Place)
	if len(an.Attributions) > 0 {
		fmt.Fprintln(w, "\nit is attributed, after a slash, to where the message died: it ...")
		for _, at := range an.Attributions {
			fmt.Fprintf(w, "  /%s ... %s\n", at, audit.MeaningOf(at))
		}
	}
	a.shownBy(w, func(b harness.Break) bool { return b.Anomaly == an.Name })
}

func (a *app) explainAttribution(w io.Writer, at string) {
	fmt.Fprintf(w, "attribution %s: where a message died or an effect went missing: it %s\n", at, audit.MeaningOf(at))
	a.shownBy(w, func(b harness.Break) bool { return b.Attribution == at })
}

// shownBy lists the scenarios whose controls show something, and how to look for it in one's own system.
func (a *app) shownBy(w io.Writer, shows func(harness.Break) bool) {
	head := "\nscenarios whose controls show it, and how to look for it in your own system\n"
	for _, s := range a.suites {
		for _, sc := range s.Scenarios {
			if slices.ContainsFunc(sc.Arms, func(arm harness.Arm) bool { return arm.Break != nil && shows(*arm.Break) }) {
				fmt.Fprintf(w, "%s  %s/%s\n%s\n", head, s.Name, sc.Name, indent(indent(sc.LookFor)))
				head = ""
			}
		}
	}
}

// usedBy lists the scenarios that show something.
func (a *app) usedBy(w io.Writer, uses func(harness.Scenario) bool) {
	head := "\nscenarios with it\n"
	for _, s := range a.suites {
		for _, sc := range s.Scenarios {
			if uses(sc) {
				fmt.Fprintf(w, "%s  %s/%s\n", head, s.Name, sc.Name)
				head = ""
			}
		}
	}
}
