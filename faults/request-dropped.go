package faults

import (
	"context"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:     "request-dropped",
		Summary:  "the n-th request is swallowed before it reaches the node and the connection reset",
		Params:   wireParams,
		Proof:    "the request was seen and not forwarded",
		Spares:   true,
		Supports: needs[system.RequestDropper]("drop a request"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.RequestDropper](s.Cluster)
			if err != nil {
				return nil, err
			}
			return onEachWire(ctx, s, func(n system.Node, r system.WireRule) (system.Injection, error) {
				return c.DropRequest(ctx, n, r)
			})
		},
	})
}
