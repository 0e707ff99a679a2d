package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"conform/harness/system"
)

var (
	_ system.GroupBacklogs = (*Cluster)(nil)
	_ system.GroupMembers  = (*Cluster)(nil)
)

// GroupBacklog says how many messages the queue of a group holds, ready or delivered and not settled. What is ready the queue
// tells at once; what is not settled is told from time to time. So a queue is empty here only when nothing has been ready, and
// nothing unsettled, for longer than that takes: before, at least 1 is left.
func (c *Cluster) GroupBacklog(ctx context.Context, _, group string) (int64, error) {
	ready, unsettled, err := c.count(ctx, group)
	if err != nil {
		return 0, fmt.Errorf("count messages of %s: %w", group, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if ready+unsettled > 0 {
		delete(c.emptySince, group)
		return ready + unsettled, nil
	}
	since, ok := c.emptySince[group]
	if !ok {
		since = time.Now()
		c.emptySince[group] = since
	}
	if time.Since(since) < c.config.told() {
		return 1, nil
	}
	return 0, nil
}

// told is how old the oldest word about unsettled messages can be: each of two intervals may have begun just before.
func (c config) told() time.Duration {
	longest := 0
	for _, name := range []string{"collect_statistics_interval", advancedPrefix + "quorum_tick_interval"} {
		ms, err := strconv.Atoi(c.settings[name])
		if err != nil {
			ms = 5000 // the default
		}
		longest = max(longest, ms)
	}
	return 2 * time.Duration(longest) * time.Millisecond
}

// GroupMembers says how many consumers the queue of a group has. There are no rebalances: it is always stable.
func (c *Cluster) GroupMembers(ctx context.Context, group string) (system.GroupState, error) {
	n, _, err := c.home(ctx, group)
	if errors.Is(err, errNotFound) {
		return system.GroupState{State: "no such queue"}, nil
	}
	if err != nil {
		return system.GroupState{}, fmt.Errorf("count consumers of %s: %w", group, err)
	}
	var q amqp.Queue
	if err := n.inspect(ctx, group, &q); err != nil {
		return system.GroupState{}, fmt.Errorf("count consumers of %s: %w", group, err)
	}
	return system.GroupState{Protocol: "queue", State: "running", Stable: true, Members: q.Consumers}, nil
}
