package faults

import (
	"context"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:     "node-killed",
		Summary:  "the node's process ends by SIGKILL; the page cache survives; healed by a restart",
		Proof:    "the process is gone, with the exit status the engine reports",
		Supports: needs[system.Killer]("kill a node"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.Killer](s.Cluster)
			if err != nil {
				return nil, err
			}
			return onEach(ctx, s.Targets, c.Kill, c.Start)
		},
	})
}
