// Package harness is the engine: it runs the scenarios of a suite against a real cluster and
// returns what was judged.
//
// It knows suites, scenarios, arms and phases (provision, warm, load, heal, drain, read, audit,
// stop). It must not import a suite, a fault, a report or an adapter: those are handed to it.
//
//	res, err := harness.Run(ctx, harness.Config{Suites: chosen, Seed: 7, Out: dir, Worker: argv})
//	fmt.Println(res.Status, err)
package harness
