package suites

import (
	"cmp"
	"slices"

	"conform/harness"
)

var registry []harness.Suite

// register adds a suite; called from init only. A second suite of one name is a bug of ours.
func register(s harness.Suite) {
	if slices.ContainsFunc(registry, func(r harness.Suite) bool { return r.Name == s.Name }) {
		panic("suite registered twice: " + s.Name)
	}
	registry = append(registry, s)
}

// All returns every suite, ordered by name.
func All() []harness.Suite {
	return slices.SortedFunc(slices.Values(registry), func(a, b harness.Suite) int { return cmp.Compare(a.Name, b.Name) })
}
