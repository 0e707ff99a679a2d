package faults

import (
	"context"
	"strings"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:    "queue-limited",
		Summary: "the arms' queues get a limit from outside, as a policy sets it; healed by lifting it",
		Params: map[string]string{
			"max-length":  "messages in the queue at most; default none",
			"message-ttl": "milliseconds that a message may wait; default none",
			"of":          "dead-letters: the limit is one of the arms' dead-letter queues; default their own",
		},
		Proof:    "the limit is in force, and how many messages the queue holds",
		Spares:   true,
		Supports: needs[system.Limiter]("limit a queue"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.Limiter](s.Cluster)
			if err != nil {
				return nil, err
			}
			return c.LimitQueues(ctx, destinations(s), s.Params)
		},
	})
}

// destinations of the arms that a strike is limited to: a client id begins with its arm's destination and a dot.
func destinations(s system.Strike) []string {
	names := make([]string, len(s.Clients))
	for i, c := range s.Clients {
		names[i] = strings.TrimSuffix(c, ".")
	}
	return names
}
