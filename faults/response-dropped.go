package faults

import (
	"context"
	"errors"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:     "response-dropped",
		Summary:  "the n-th request passes, its response is swallowed and the connection reset",
		Params:   wireParams,
		Proof:    "the request was forwarded, its response came back and was not handed on",
		Spares:   true,
		Supports: needs[system.ResponseDropper]("drop a response"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.ResponseDropper](s.Cluster)
			if err != nil {
				return nil, err
			}
			return onEachWire(ctx, s, func(n system.Node, r system.WireRule) (system.Injection, error) {
				return c.DropResponse(ctx, n, r)
			})
		},
	})
}

// wireParams are the parameters that pick requests on a client link.
var wireParams = map[string]string{
	"kind":   "kind of request, by the system's name for it; default produce",
	"nth":    "which such request from the strike on; default 1",
	"count":  "how many in a row; default 1",
	"of":     "which clients of an arm, by what their names begin with: p1 is the load's first; default all",
	"behind": "refusals only: hold the answer back until so many later requests have passed; default 0",
}

// onEachWire arms one rule per target node and client, so that every arm is hit alike.
func onEachWire(ctx context.Context, s system.Strike, arm func(system.Node, system.WireRule) (system.Injection, error)) (system.Injection, error) {
	rule := system.WireRule{Kind: param(s, "kind", "produce")}
	var err error
	if rule.Nth, err = count(s, "nth", 1); err != nil {
		return nil, err
	}
	if rule.Count, err = count(s, "count", 1); err != nil {
		return nil, err
	}
	if rule.Behind, err = count(s, "behind", 0); err != nil {
		return nil, err
	}
	clients := s.Clients
	if len(clients) == 0 {
		clients = []string{""}
	}
	return onEachLasting(ctx, s.Targets, func(n system.Node) (system.Injection, error) {
		var all several
		for _, client := range clients {
			rule.Client = client + param(s, "of", "")
			i, err := arm(n, rule)
			if err != nil {
				return nil, errors.Join(err, all.Heal(context.WithoutCancel(ctx)))
			}
			all = append(all, i)
		}
		return all, nil
	})
}
