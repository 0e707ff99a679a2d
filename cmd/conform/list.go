package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"conform/harness"
	"conform/harness/audit"
)

// catalogue is what `conform list --json` prints.
type catalogue struct {
	Suites    []listedSuite `json:"suites"`
	Faults    []listedName  `json:"faults"`
	Anomalies []listedName  `json:"anomalies"`
}

type listedSuite struct {
	Name      string           `json:"name"`
	System    string           `json:"system"`
	Versions  []string         `json:"versions"` // the default first
	Title     string           `json:"title"`
	Scenarios []listedScenario `json:"scenarios"`
}

type listedScenario struct {
	Name    string      `json:"name"` // suite/scenario
	Window  string      `json:"window,omitempty"`
	Summary string      `json:"summary"`
	Arms    []listedArm `json:"arms"`
	Cost    float64     `json:"costSeconds"`
}

type listedArm struct {
	Name   string `json:"name"`
	Role   string `json:"role"`
	Knob   string `json:"knob,omitempty"`
	Expect string `json:"expect,omitempty"`
}

type listedName struct {
	Name    string `json:"name"`
	Place   string `json:"place,omitempty"`
	Summary string `json:"summary"`
}

func (a *app) catalogue() catalogue {
	out := catalogue{Suites: []listedSuite{}, Faults: []listedName{}, Anomalies: []listedName{}}
	for _, s := range a.suites {
		ls := listedSuite{Name: s.Name, System: s.System.Name(), Versions: s.System.Versions(), Title: s.Title, Scenarios: []listedScenario{}}
		for _, sc := range s.Scenarios {
			l := listedScenario{Name: s.Name + "/" + sc.Name, Window: sc.Window, Summary: sc.Summary, Arms: []listedArm{}, Cost: sc.Cost.Seconds()}
			for _, arm := range sc.Arms {
				la := listedArm{Name: arm.Name, Role: string(arm.Role)}
				if arm.Break != nil {
					la.Knob, la.Expect = arm.Break.Knob, expected(*arm.Break)
				}
				l.Arms = append(l.Arms, la)
			}
			ls.Scenarios = append(ls.Scenarios, l)
		}
		out.Suites = append(out.Suites, ls)
	}
	for _, name := range slices.Sorted(maps.Keys(a.faults)) {
		out.Faults = append(out.Faults, listedName{Name: name, Summary: a.faults[name].Summary})
	}
	for _, an := range audit.Anomalies() {
		out.Anomalies = append(out.Anomalies, listedName{Name: an.Name, Place: an.Place, Summary: an.Meaning})
	}
	return out
}

// expected names the anomaly a control must show, "lost/broker".
func expected(b harness.Break) string {
	if b.Attribution == "" {
		return b.Anomaly
	}
	return b.Anomaly + "/" + b.Attribution
}

func (a *app) listCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "list",
		Short: "list suites and scenarios, faults and anomalies",
		Args:  args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			all := a.catalogue()
			if asJSON {
				enc := json.NewEncoder(a.stdout)
				enc.SetIndent("", "  ")
				return enc.Encode(all)
			}
			return a.list(all)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return c
}

func (a *app) list(all catalogue) error {
	t := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	for _, s := range all.Suites {
		var cost time.Duration
		for _, sc := range s.Scenarios {
			cost += time.Duration(sc.Cost * float64(time.Second))
		}
		fmt.Fprintf(t, "%s: %s (%s, about %s)\n", s.Name, s.Title, s.System, cost.Round(time.Second))
		for _, sc := range s.Scenarios {
			var knobs []string
			for _, arm := range sc.Arms {
				if knob := arm.Knob + " -> " + arm.Expect; arm.Knob != "" && !slices.Contains(knobs, knob) { // once for all protocols
					knobs = append(knobs, knob)
				}
			}
			if len(knobs) == 0 {
				knobs = []string{"observed"}
			}
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", strings.TrimPrefix(sc.Name, s.Name+"/"), sc.Window, time.Duration(sc.Cost*float64(time.Second)), strings.Join(knobs, "; "))
		}
	}
	fmt.Fprint(t, "\nfaults\n")
	for _, f := range all.Faults {
		fmt.Fprintf(t, "  %s\t%s\n", f.Name, f.Summary)
	}
	fmt.Fprint(t, "\nanomalies\n")
	for _, an := range all.Anomalies {
		fmt.Fprintf(t, "  %s\t%s\t%s\n", an.Name, an.Place, an.Summary)
	}
	fmt.Fprint(t, "\nconform explain NAME says more about any of them.\n")
	return t.Flush()
}
