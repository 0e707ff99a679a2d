package main

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"

	"conform/fixtures"
	"conform/harness"
)

// nearest returns up to three names most similar to got. A name that contains got, or the
// other way round, counts as similar.
func nearest(got string, names []string) []string {
	distance := func(name string) int {
		d := levenshtein.ComputeDistance(strings.ToLower(got), strings.ToLower(name))
		if got != "" && strings.Contains(name, got) {
			d /= 4
		}
		return d
	}
	sorted := slices.Clone(names)
	slices.SortStableFunc(sorted, func(a, b string) int { return cmp.Or(cmp.Compare(distance(a), distance(b)), cmp.Compare(a, b)) })
	return sorted[:min(3, len(sorted))]
}

// oneOf checks a flag's value.
func oneOf(flag, got string, names ...string) error {
	if slices.Contains(names, got) {
		return nil
	}
	return &fixtures.UnknownError{Kind: "value of --" + flag, Got: got, Nearest: nearest(got, names)}
}

// chooseSuites picks suites by names, globs, "all", or the part before "@", keeping each once
// and in order of name.
func chooseSuites(all []harness.Suite, wanted []string) ([]harness.Suite, error) {
	names := make([]string, 0, len(all))
	for _, s := range all {
		names = append(names, s.Name)
	}
	if len(wanted) == 0 {
		return nil, usagef("say which suite: --suite NAME, where NAME is all, a glob, or one of %s", strings.Join(names, ", "))
	}
	chosen := map[string]bool{}
	for _, w := range wanted {
		hit := false
		for _, n := range names {
			if matches(w, n) {
				chosen[n], hit = true, true
			}
		}
		if !hit {
			return nil, &fixtures.UnknownError{Kind: "suite", Got: w, Nearest: nearest(w, names)}
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(s harness.Suite) bool { return !chosen[s.Name] }), nil
}

func matches(pattern, name string) bool {
	if pattern == "all" || pattern == name {
		return true
	}
	if base, _, ok := strings.Cut(name, "@"); ok && pattern == base {
		return true
	}
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

// chooseScenarios keeps the wanted scenarios of the suites, by name, by suite/name or by glob.
// No wish keeps all.
func chooseScenarios(chosen []harness.Suite, wanted []string) ([]harness.Suite, error) {
	if len(wanted) == 0 {
		return chosen, nil
	}
	var names []string
	hit := make([]bool, len(wanted))
	var out []harness.Suite
	for _, s := range chosen {
		var kept []harness.Scenario
		for _, sc := range s.Scenarios {
			names = append(names, sc.Name)
			keep := false
			for i, w := range wanted {
				if matches(w, sc.Name) || matches(w, s.Name+"/"+sc.Name) {
					keep, hit[i] = true, true
				}
			}
			if keep {
				kept = append(kept, sc)
			}
		}
		if len(kept) > 0 {
			s.Scenarios = kept
			out = append(out, s)
		}
	}
	for i, w := range wanted {
		if !hit[i] {
			return nil, &fixtures.UnknownError{Kind: "scenario", Got: w, Nearest: nearest(w[strings.LastIndex(w, "/")+1:], names)}
		}
	}
	return out, nil
}
