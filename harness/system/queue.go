package system

import "context"

// The capabilities of systems with queues, asked for by type assertion on a Cluster like the others.

// Alarmer makes a node believe that a resource runs out, so that it stops taking messages.
type Alarmer interface {
	// RaiseAlarm lowers the limit of resource ("memory" or "disk") below what is used. The heal restores it and returns once
	// the alarm is over. Proof: the node's own report of the alarm.
	RaiseAlarm(ctx context.Context, n Node, resource string) (Injection, error)
}

// Limiter bounds queues from outside, as an operator's policy does.
type Limiter interface {
	// LimitQueues bounds each destination: limits by the system's own names ("max-length": "100"). The heal lifts them.
	// Proof: the limits are in force, and what the queue holds.
	LimitQueues(ctx context.Context, destinations []string, limits map[string]string) (Injection, error)
}

// Unbinder takes a destination's route away, so that what is sent to it finds no queue.
type Unbinder interface {
	// Unbind returns once the route is gone; the heal brings it back. Proof: the broker's own list of routes.
	Unbind(ctx context.Context, destinations []string) (Injection, error)
}

// Attendant is the consumer that a destination may have been made with (a setting of it), and that can go away.
type Attendant interface {
	// Leave ends the consumers in order and returns once the broker knows. Nothing heals it: who comes back late finds what
	// is left. Proof: what has become of each destination.
	Leave(ctx context.Context, destinations []string) (Injection, error)
}

// Unconfirmed is a Consumer that may belong to a protocol without answers to settles.
type Unconfirmed interface {
	// SettlesUnconfirmed says that Settle returns once a settle is written: whether the broker took it is in doubt.
	SettlesUnconfirmed() bool
}

// GroupBacklogs is a Cluster whose groups have queues instead of positions.
type GroupBacklogs interface {
	// GroupBacklog says how many messages of a destination wait for a group, delivered or not. 0 is certain.
	GroupBacklog(ctx context.Context, destination, group string) (int64, error)
}

// DeadLetterCutter takes away where the dead letters of destinations go.
type DeadLetterCutter interface {
	// CutDeadLetters takes away what ("exchange" or "binding"); the heal brings it back. Proof: the broker's own list of routes.
	CutDeadLetters(ctx context.Context, destinations []string, what string) (Injection, error)
}

// DeadLetterFinder tells which node holds the dead letters of a destination.
type DeadLetterFinder interface {
	DeadLetterNode(ctx context.Context, destination string) (Node, error)
}

// DeadLetterKeeper tells how many dead letters a destination keeps until their target takes them.
type DeadLetterKeeper interface {
	DeadLettersKept(ctx context.Context, destination string) (int64, error)
}
