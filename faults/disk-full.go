package faults

import (
	"context"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:     "disk-full",
		Summary:  "the data disk of the node fills up while it runs; healed by freeing it and starting the node if it has ended",
		Params:   map[string]string{"leave": "bytes left free; default 0"},
		Proof:    "free bytes on the disk and the size of the ballast",
		Supports: onDisks[system.DiskFiller]("fill a disk"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.DiskFiller](s.Cluster)
			if err != nil {
				return nil, err
			}
			leave, err := count(s, "leave", 0)
			if err != nil {
				return nil, err
			}
			return onEachLasting(ctx, s.Targets, func(n system.Node) (system.Injection, error) {
				return c.FillDisk(ctx, n, int64(leave))
			})
		},
	})
}
