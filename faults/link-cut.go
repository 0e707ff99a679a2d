package faults

import (
	"context"
	"fmt"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:    "link-cut",
		Summary: "the link between the clients and the node is cut",
		Params: map[string]string{
			"mode":      "reset (connections reset, new ones refused) or black-hole (bytes vanish, connections stay); default reset",
			"direction": "black-hole only: in (towards the node), out (from it), both; default both",
		},
		Proof:    "connections reset or refused, bytes swallowed, counted on the link",
		Spares:   true,
		Supports: needs[system.LinkCutter]("cut a client link"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.LinkCutter](s.Cluster)
			if err != nil {
				return nil, err
			}
			d, err := direction(s)
			if err != nil {
				return nil, err
			}
			mode := system.CutMode(param(s, "mode", string(system.Reset)))
			switch {
			case mode != system.Reset && mode != system.BlackHole:
				return nil, fmt.Errorf("fault link-cut: mode=%q: want reset or black-hole: %w", mode, system.ErrUsage)
			case mode == system.Reset && d != system.Both:
				return nil, fmt.Errorf("fault link-cut: a reset has no direction: %w", system.ErrUsage)
			}
			return onEachLasting(ctx, s.Targets, func(n system.Node) (system.Injection, error) {
				return c.CutLink(ctx, n, mode, d)
			})
		},
	})
}
