package rocketmq

import (
	"context"
	"fmt"

	"conform/harness/system"
)

var (
	_ system.GroupPositions = (*Cluster)(nil)
)

// GroupPositions asks the master for what the group has committed, and for the queues' ends.
func (c *Cluster) GroupPositions(ctx context.Context, destination, group string) ([]system.GroupPosition, error) {
	topic := topicName(destination)
	queues, err := c.queues(topic)
	if err != nil {
		return nil, fmt.Errorf("find positions of group %s: %w", group, err)
	}
	n, err := c.leader(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("find positions of group %s: %w", group, err)
	}
	var positions []system.GroupPosition
	for q := range int32(queues) {
		p := system.GroupPosition{Partition: q}
		// The ends last: a lag may be taken for greater than it is, never for less.
		p.Committed, err = committed(ctx, n.ask, topic, topicName(group), q)
		if err == nil {
			p.Start, err = n.offset(ctx, codeMinOffset, topic, int(q))
		}
		if err == nil {
			p.End, err = n.maxOffset(ctx, topic, int(q))
		}
		if err != nil {
			return nil, fmt.Errorf("find positions of group %s: %w", group, err)
		}
		positions = append(positions, p)
	}
	return positions, nil
}

// ask asks the broker, past its link.
func (n *Node) ask(ctx context.Context, code int, fields map[string]string) (map[string]string, error) {
	answer, _, err := ask(ctx, n.direct(), code, fields, nil)
	return answer, err
}
