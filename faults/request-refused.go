package faults

import (
	"context"
	"maps"

	"conform/harness/system"
)

func init() {
	params := maps.Clone(wireParams)
	params["code"] = "the refusal, by the system's name for it; default NOT_LEADER_OR_FOLLOWER"
	register(system.Fault{
		Name:     "request-refused",
		Summary:  "the n-th request is not forwarded but answered by a retriable refusal; those behind it pass",
		Params:   params,
		Proof:    "the request was answered by the link, and the later ones that passed it",
		Spares:   true,
		Supports: needs[system.RequestRefuser]("refuse a request"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.RequestRefuser](s.Cluster)
			if err != nil {
				return nil, err
			}
			code := param(s, "code", "NOT_LEADER_OR_FOLLOWER")
			return onEachWire(ctx, s, func(n system.Node, r system.WireRule) (system.Injection, error) {
				return c.RefuseRequest(ctx, n, r, code)
			})
		},
	})
}
