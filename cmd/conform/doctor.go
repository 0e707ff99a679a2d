package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"conform/harness/host"
)

func (a *app) doctorCommand() *cobra.Command {
	var f imageFlags
	var clean bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "say what is missing, and the line that fixes it",
		Long: `doctor looks at the engine, disk, memory, cores, images, kernel abilities and strays. Exit code 4 when something
that every run needs is missing.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if clean {
				removed, err := a.clean(c.Context())
				if err != nil {
					return interrupted(c.Context(), err)
				}
				for _, s := range removed {
					fmt.Fprintf(a.stdout, "removed %s %s of run %s\n", s.Kind, s.Name, s.Run)
				}
				if len(removed) == 0 {
					fmt.Fprintln(a.stdout, "no strays")
				}
				return nil
			}
			findings := a.doctor(c.Context(), host.DoctorOptions{Versions: f.withDefaults(a.systems()), Dir: "."})
			if err := c.Context().Err(); err != nil {
				return interrupted(c.Context(), err)
			}
			return a.diagnose(findings)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&clean, "clean", false, "remove what runs left whose owner is dead, also what --keep left up")
	return c
}

// diagnose prints the findings; what every run needs and is missing makes it fail.
func (a *app) diagnose(findings []host.Finding) error {
	missing := false
	t := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	for _, f := range findings {
		word := "ok"
		switch {
		case f.OK:
		case f.Optional:
			word = "limited"
		default:
			word, missing = "missing", true
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", word, f.Name, strings.ReplaceAll(f.Detail, "\n", " "))
		if f.Fix != "" && !f.OK {
			fmt.Fprintf(t, "\t\tfix: %s\n", f.Fix)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if missing {
		return &verdictError{exitEnvironment}
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
