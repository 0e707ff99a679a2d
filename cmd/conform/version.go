package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"conform/fixtures"
)

// buildVersion is the module's version, or the commit it was built from, or "dev".
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "dev"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	revision, dirty := "dev", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	return revision + dirty
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print conform's version and the versions of systems it knows",
		Args:  args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			fmt.Fprintf(a.stdout, "conform %s, %s, %s/%s\n", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			for _, system := range fixtures.Systems() {
				var numbers []string
				for _, v := range fixtures.Versions(system) {
					numbers = append(numbers, v.Number)
				}
				fmt.Fprintf(a.stdout, "%s: %s (the first is the default)\n", system, strings.Join(numbers, ", "))
			}
			return nil
		},
	}
}
