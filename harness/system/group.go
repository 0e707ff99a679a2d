package system

import (
	"context"

	"conform/harness/ledger"
)

// The consumer side's capabilities: those of a Consumer that is a member of a group, and those of a Cluster with groups,
// positions and partitions. All are optional, as those of capability.go.

// ChangeKind says what happened to a member of a group.
type ChangeKind string

// The kinds of change.
const (
	// Assigned: the member owns the partitions now.
	Assigned ChangeKind = "assigned"
	// Revoked: the member is about to give the partitions up, and may still settle what it has processed.
	Revoked ChangeKind = "revoked"
	// LostPartitions: the group went on without the member; the partitions are somebody else's by now.
	LostPartitions ChangeKind = "lost"
	// AutoCommitted: the client committed positions by itself.
	AutoCommitted ChangeKind = "auto-commit"
)

// Change is something that happened to a consumer as a member of its group.
type Change struct {
	Kind       ChangeKind
	At         int64        // CLOCK_MONOTONIC in ns
	Partitions []int32      // of Assigned, Revoked and LostPartitions, sorted; may be empty
	Commits    []Settlement // of AutoCommitted
}

// Settlement is how the commit of one partition's position ended.
type Settlement struct {
	Partition int32
	Next      int64          // the position asked for: of the first delivery that is not settled
	Outcome   ledger.Outcome // OK: the broker said so; Failed: it refused; InDoubt: no answer
	Err       string         // error class, for the ledger; empty if OK
}

// Member is a consumer that is a member of a group.
type Member interface {
	// Watch hands every change to f, beginning with those that came before. It is called once, before the first Poll. f is
	// called by the client, one change at a time, and a rebalance waits for its return.
	Watch(f func(Change))
	// Commit settles like Settle, and says for each partition how that ended.
	Commit(ctx context.Context, ds []Delivery) []Settlement
}

// GroupPosition is where a group stands in one partition.
type GroupPosition struct {
	Partition  int32
	Committed  int64 // the next delivery's position; -1 = none
	Start, End int64 // of the partition
}

// Lag is how many positions of the partition the group has not passed.
func (p GroupPosition) Lag() int64 { return max(0, p.End-max(p.Committed, p.Start)) }

// GroupPositions tells where a group stands in all partitions of a destination, past the links. A group that does not exist
// stands nowhere: Committed is -1 everywhere.
type GroupPositions interface {
	GroupPositions(ctx context.Context, destination, group string) ([]GroupPosition, error)
}

// PositionClients are Clients that can ask where a group stands, over an application's own links.
type PositionClients interface {
	OpenPositions(ctx context.Context, c ClientConfig) (GroupAsker, error)
}

// GroupAsker is what PositionClients open.
type GroupAsker interface {
	GroupPositions
	Close(ctx context.Context) error
}

// GroupMembers tells who is in a group: how many members it has, which protocol it speaks ("classic", "consumer") and whether
// it is stable, which is when no rebalance is under way. A group that does not exist has no members.
type GroupMembers interface {
	GroupMembers(ctx context.Context, group string) (GroupState, error)
}

// GroupState is a group as its coordinator sees it.
type GroupState struct {
	Protocol string
	State    string // the broker's own word
	Stable   bool
	Members  int
}

// GroupSetter changes the positions of a group without members, as an operator does.
type GroupSetter interface {
	// SetGroupPositions commits a position for each partition, from 0; a negative one leaves the partition as it is.
	SetGroupPositions(ctx context.Context, destination, group string, next []int64) error
	// DeleteGroupPositions deletes the group's positions in the destination.
	DeleteGroupPositions(ctx context.Context, destination, group string) error
	// DeleteGroup deletes the group; one that does not exist is no error.
	DeleteGroup(ctx context.Context, group string) error
}

// PartitionAdder gives a destination more partitions.
type PartitionAdder interface {
	// AddPartitions returns when every node knows that there are total partitions.
	AddPartitions(ctx context.Context, destination string, total int) error
}

// RecordDeleter deletes what lies before a position.
type RecordDeleter interface {
	// DeleteRecords moves the start of each partition, from 0, to a position; a negative one leaves the partition as it is.
	DeleteRecords(ctx context.Context, destination string, before []int64) error
}

// StartPositions returns the start of each partition, which retention moves.
type StartPositions interface {
	StartPositions(ctx context.Context, destination string) ([]int64, error)
}

// Configurer changes settings of a destination that is in use, by the system's own names.
type Configurer interface {
	Configure(ctx context.Context, destination string, settings map[string]string) error
}
