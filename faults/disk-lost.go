package faults

import (
	"context"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:     "disk-lost",
		Summary:  "the data disk of a node that is down is replaced by an empty one",
		Proof:    "what the disk held before, and that it is empty now",
		Supports: needs[system.Diskful]("lose a disk"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.Diskful](s.Cluster)
			if err != nil {
				return nil, err
			}
			return onEach(ctx, s.Targets, c.LoseDisk, nil)
		},
	})
}
