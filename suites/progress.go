package suites

import (
	"context"
	"fmt"

	"conform/harness/system"
	"conform/harness/worker"
	"conform/suites/chain"
)

// openProgress lets a job of a consumers' group know how far that has come, where the broker's clients can ask. The function it
// returns closes the client.
func (b broker) openProgress(ctx context.Context, c worker.Config, service *chain.Service) (end func(context.Context) error, err error) {
	clients, ok := b.clients.(system.PositionClients)
	if !ok || c.Client.Group == "" {
		return func(context.Context) error { return nil }, nil
	}
	asker, err := clients.OpenPositions(ctx, c.Client)
	if err != nil {
		return nil, fmt.Errorf("open progress: %w", err)
	}
	service.Progress = groupProgress{asker, c.Client.Destination, c.Client.Group}
	return func(ctx context.Context) error { return asker.Close(context.WithoutCancel(ctx)) }, nil
}

// groupProgress is a chain.Progress: a mark is the end of each partition.
type groupProgress struct {
	positions          system.GroupPositions
	destination, group string
}

// Mark returns the ends.
func (g groupProgress) Mark(ctx context.Context) (any, error) {
	positions, err := g.positions.GroupPositions(ctx, g.destination, g.group)
	if err != nil {
		return nil, err
	}
	ends := map[int32]int64{}
	for _, p := range positions {
		ends[p.Partition] = p.End
	}
	return ends, nil
}

// Passed says whether the group has committed all of them.
func (g groupProgress) Passed(ctx context.Context, mark any) (bool, error) {
	positions, err := g.positions.GroupPositions(ctx, g.destination, g.group)
	if err != nil {
		return false, err
	}
	at := map[int32]int64{}
	for _, p := range positions {
		at[p.Partition] = max(p.Committed, p.Start)
	}
	for partition, end := range mark.(map[int32]int64) {
		if at[partition] < end {
			return false, nil
		}
	}
	return true, nil
}
