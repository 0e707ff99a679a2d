package faults

import (
	"context"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:     "node-paused",
		Summary:  "the node's processes are frozen: sockets stay open, nothing answers; healed by letting them go on",
		Proof:    "the engine reports the processes as frozen",
		Spares:   true,
		Supports: needs[system.Pauser]("pause a node"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.Pauser](s.Cluster)
			if err != nil {
				return nil, err
			}
			return onEach(ctx, s.Targets, c.Pause, c.Resume)
		},
	})
}
