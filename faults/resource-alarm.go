package faults

import (
	"context"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:     "resource-alarm",
		Summary:  "the node believes that memory or disk runs out and stops taking messages from publishers; healed by lifting the alarm",
		Params:   map[string]string{"resource": "memory or disk; default memory"},
		Proof:    "the node reports the alarm",
		Spares:   true,
		Supports: needs[system.Alarmer]("raise an alarm"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.Alarmer](s.Cluster)
			if err != nil {
				return nil, err
			}
			return onEachLasting(ctx, s.Targets, func(n system.Node) (system.Injection, error) {
				return c.RaiseAlarm(ctx, n, param(s, "resource", "memory"))
			})
		},
	})
}
