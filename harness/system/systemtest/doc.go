// Package systemtest is the battery that every adapter must pass: one list of checks of the contracts in package system,
// each skipped where the cluster lacks the capability.
//
// It knows the contracts and the ledger. It must not import an adapter, nor package testing: checks return errors, the
// adapter's test runs them.
//
//	b := systemtest.Bench{Cluster: cluster, Clients: kafka.Clients{}, Seed: 1}
//	for _, c := range systemtest.Checks() {
//		t.Run(c.Name, func(t *testing.T) {
//			if err := c.Run(t.Context(), b); errors.Is(err, system.ErrNotApplicable) { t.Skip(err) } else if err != nil { t.Error(err) }
//		})
//	}
package systemtest
