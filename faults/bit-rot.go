package faults

import (
	"context"
	"fmt"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:    "bit-rot",
		Summary: "one file on the data disk of a node that is down decays: a bit flips, or its end is cut off",
		Params: map[string]string{
			"file":   "shell pattern below the disk's root; the last file that matches and is not empty decays; required",
			"offset": "of the byte whose lowest bit is flipped, modulo the file's size; default 0",
			"cut":    "bytes to cut off the file's end instead; default 0",
		},
		Proof:    "the file, its size, and the byte before and after",
		Supports: needs[system.BitRotter]("damage a file"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.BitRotter](s.Cluster)
			if err != nil {
				return nil, err
			}
			rot := system.Rot{Pattern: param(s, "file", "")}
			if rot.Pattern == "" {
				return nil, fmt.Errorf("fault bit-rot: no file is named: %w", system.ErrUsage)
			}
			offset, err := count(s, "offset", 0)
			if err != nil {
				return nil, err
			}
			cut, err := count(s, "cut", 0)
			if err != nil {
				return nil, err
			}
			rot.Offset, rot.Cut = int64(offset), int64(cut)
			return onEach(ctx, s.Targets, func(ctx context.Context, n system.Node) (string, error) { return c.RotFile(ctx, n, rot) }, nil)
		},
	})
}
