package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"conform/fixtures"
	"conform/harness/host"
)

func (a *app) prepareCommand() *cobra.Command {
	var f imageFlags
	var install, dev bool
	c := &cobra.Command{
		Use:   "prepare",
		Short: "bring the container engine and the images",
		Long: `prepare brings what runs need: the images of the default versions (or those named), built here where they
cannot be had otherwise, and with --install-docker the engine itself. What is there already is used as it is.`,
		Example: `  conform prepare --install-docker
  conform prepare --version kafka:4.1.1 --image-source pull`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			source, err := host.ParseSource(f.source)
			if err != nil {
				return err
			}
			images, err := a.prepare(c.Context(), host.Options{
				InstallEngine: install, Dev: dev, Systems: f.withDefaults(a.systems()), Source: source, Images: f.own, Progress: a.stderr, Log: a.log(),
			})
			if err != nil {
				return interrupted(c.Context(), err)
			}
			for _, name := range sortedKeys(images) {
				fmt.Fprintf(a.stdout, "%s: %s (%s)\n", name, images[name].Ref, images[name].Source)
			}
			return nil
		},
	}
	f.add(c)
	c.Flags().BoolVar(&install, "install-docker", false, "install and start a container engine where there is none (root, Debian-like)")
	c.Flags().BoolVar(&dev, "dev", false, "also bring what conform's own tests need: Chromium and a C compiler")
	return c
}

// systems are those that suites run on and that have images.
func (a *app) systems() []string {
	var out []string
	for _, s := range a.suites {
		for _, sys := range s.Systems() {
			if name := sys.Name(); slices.Contains(fixtures.Systems(), name) && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// withDefaults is what was asked for, and the default version of every other system.
func (f *imageFlags) withDefaults(systems []string) []fixtures.Version {
	out := slices.Clone(f.parsed)
	for _, name := range systems {
		if !slices.ContainsFunc(out, func(v fixtures.Version) bool { return v.System == name }) {
			out = append(out, fixtures.Versions(name)[0])
		}
	}
	return out
}
