package faults

import (
	"context"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:     "consumer-gone",
		Summary:  "the consumers that attend the arms' queues go away in order and do not come back; not healed",
		Proof:    "what has become of each queue: deleted, or there without a consumer",
		Spares:   true,
		Supports: needs[system.Attendant]("be left by its consumers"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.Attendant](s.Cluster)
			if err != nil {
				return nil, err
			}
			return c.Leave(ctx, destinations(s))
		},
	})
}
