package faults

import (
	"context"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:     "slow-disk",
		Summary:  "the node's writes to its data disk are throttled",
		Params:   map[string]string{"rate": "bytes per second; default 262144"},
		Proof:    "a timed write from within the node's own resource group",
		Spares:   true,
		Supports: onDisks[system.DiskThrottler]("slow a disk down"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.DiskThrottler](s.Cluster)
			if err != nil {
				return nil, err
			}
			rate, err := count(s, "rate", 256<<10)
			if err != nil {
				return nil, err
			}
			return onEachLasting(ctx, s.Targets, func(n system.Node) (system.Injection, error) {
				return c.ThrottleDisk(ctx, n, int64(rate))
			})
		},
	})
}
