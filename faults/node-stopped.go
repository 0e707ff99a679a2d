package faults

import (
	"context"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:    "node-stopped",
		Summary: "the node is shut down gracefully (SIGTERM), its disk kept; healed by a start",
		Proof:   "the process is gone, with the exit status the engine reports",
		Supports: func(c system.Cluster) error {
			if err := needs[system.Stopper]("stop a node")(c); err != nil {
				return err
			}
			return needs[system.Killer]("start a node again")(c)
		},
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			stop, err := capability[system.Stopper](s.Cluster)
			if err != nil {
				return nil, err
			}
			start, err := capability[system.Killer](s.Cluster)
			if err != nil {
				return nil, err
			}
			return onEach(ctx, s.Targets, stop.Stop, start.Start)
		},
	})
}
