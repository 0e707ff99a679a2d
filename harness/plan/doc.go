// Package plan turns a seed and a scenario's exposures into the gated steps of one run.
//
// It knows names only: targets by role, faults by name, states to wait for. It is pure: no
// os, net, os/exec, clock or log, and no global randomness. A plan waits for states, never for
// times, so a control reproduces by construction.
//
//	p, err := plan.New(seed, targets, steps)
//	for _, s := range p.Steps { fmt.Println(s) } // "until >= 200 sent to cut: isolate leader"
package plan
