package rocketmq

import (
	"context"
	"encoding/json"
	"fmt"

	"conform/harness/system"
)

var (
	_ system.GroupPositions = (*Cluster)(nil)
	_ system.GroupMembers   = (*Cluster)(nil)
)

// GroupMembers asks the master who is in the group. RocketMQ knows no rebalance that is under way: each member divides the
// queues by itself when the broker tells it of a change, so a group is always stable here.
func (c *Cluster) GroupMembers(ctx context.Context, group string) (system.GroupState, error) {
	state := system.GroupState{Protocol: "clustering", State: "offline", Stable: true}
	n, err := c.leader(ctx, clusterName)
	if err != nil {
		return state, fmt.Errorf("describe group %s: %w", group, err)
	}
	_, body, err := ask(ctx, n.direct(), codeConsumers, map[string]string{"consumerGroup": topicName(group)}, nil)
	if answered(err, answerNotOnline) {
		return state, nil
	}
	var list struct {
		Members []struct{} `json:"connectionSet"`
	}
	if err == nil {
		err = json.Unmarshal(body, &list)
	}
	if err != nil {
		return state, fmt.Errorf("describe group %s: %w", group, err)
	}
	state.Members, state.State = len(list.Members), "online"
	return state, nil
}

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
