package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"conform/fixtures"
	"conform/harness"
	"conform/harness/host"
)

// imageFlags say which versions of which systems, and where their images come from.
type imageFlags struct {
	versions, images []string
	source           string
	own              map[string]string // of --image, by system; set by check
	parsed           []fixtures.Version
}

func (f *imageFlags) add(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.versions, "version", nil, "version of a system, e.g. kafka:4.1.1; repeatable (default: `conform version` lists them)")
	c.Flags().StringArrayVar(&f.images, "image", nil, "your own image of a system, e.g. kafka=NAME:TAG; repeatable")
	c.Flags().StringVar(&f.source, "image-source", "", "where images come from: auto (what is here, else the official one, else built), local, pull or build")
}

func (f *imageFlags) check() error {
	if _, err := host.ParseSource(f.source); err != nil {
		return &fixtures.UnknownError{Kind: "value of --image-source", Got: f.source, Nearest: nearest(f.source, sourceNames())}
	}
	f.own, f.parsed = map[string]string{}, nil
	for _, text := range f.versions {
		v, err := fixtures.ParseVersion(text)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(f.parsed, func(w fixtures.Version) bool { return w.System == v.System }); i >= 0 {
			return usagef("--version %s and --version %s: one version of a system at a time", f.parsed[i], v)
		}
		f.parsed = append(f.parsed, v)
	}
	for _, text := range f.images {
		name, ref, ok := strings.Cut(text, "=")
		if !ok || ref == "" {
			return usagef("--image %q: want SYSTEM=NAME:TAG, e.g. kafka=registry.example/kafka:4.2.0", text)
		}
		if !slices.Contains(fixtures.Systems(), name) {
			return &fixtures.UnknownError{Kind: "system", Got: name, Nearest: nearest(name, fixtures.Systems())}
		}
		f.own[name] = ref
	}
	return nil
}

// versionsOf returns the versions whose images the suites need, and the version by system.
// Systems without images (the one in memory) are left out of both.
func (f *imageFlags) versionsOf(chosen []harness.Suite) ([]fixtures.Version, map[string]string, error) {
	var versions []fixtures.Version
	pinned := map[string]string{}
	for _, s := range chosen {
		for _, sys := range s.Systems() {
			name := sys.Name()
			if !slices.Contains(fixtures.Systems(), name) || pinned[name] != "" {
				continue
			}
			v, err := fixtures.ParseVersion(name)
			if err != nil {
				return nil, nil, err
			}
			if i := slices.IndexFunc(f.parsed, func(w fixtures.Version) bool { return w.System == name }); i >= 0 {
				v = f.parsed[i]
			}
			versions = append(versions, v)
			pinned[name] = v.Number
		}
	}
	for _, v := range f.parsed {
		if pinned[v.System] == "" {
			return nil, nil, usagef("--version %s: none of the chosen suites runs on %s", v, v.System)
		}
	}
	for _, name := range sortedKeys(f.own) {
		if pinned[name] == "" {
			return nil, nil, usagef("--image %s=%s: none of the chosen suites runs on %s", name, f.own[name], name)
		}
	}
	return versions, pinned, nil
}

func sourceNames() []string {
	var names []string
	for _, s := range host.Sources() {
		names = append(names, string(s))
	}
	return names
}
