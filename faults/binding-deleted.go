package faults

import (
	"context"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:     "binding-deleted",
		Summary:  "the route from where the arms publish to their queues is taken away; healed by making it again",
		Proof:    "the broker lists no such route",
		Spares:   true,
		Supports: needs[system.Unbinder]("take a route away"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.Unbinder](s.Cluster)
			if err != nil {
				return nil, err
			}
			return c.Unbind(ctx, destinations(s))
		},
	})
}
