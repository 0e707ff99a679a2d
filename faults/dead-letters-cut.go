package faults

import (
	"context"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:    "dead-letters-cut",
		Summary: "the exchange to which the arms' queues dead-letter, or the binding behind it, is deleted; healed by making it again",
		Params: map[string]string{
			"what": "exchange or binding; default binding",
		},
		Proof:    "the broker lists no such exchange, or no such binding",
		Spares:   true,
		Supports: needs[system.DeadLetterCutter]("lose the way of its dead letters"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.DeadLetterCutter](s.Cluster)
			if err != nil {
				return nil, err
			}
			what := s.Params["what"]
			if what == "" {
				what = "binding"
			}
			return c.CutDeadLetters(ctx, destinations(s), what)
		},
	})
}
