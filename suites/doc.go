// Package suites holds what conform ships: one file per suite, named as the suite is, and the
// systems that suites run on.
//
// It may import the adapters, the faults (by name only) and the engine's contracts. A suite is
// data: scenarios, arms, steps. init only registers.
//
//	for _, s := range suites.All() { fmt.Println(s.Name, len(s.Scenarios)) }
package suites
