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
	topic := c.topic(destination)
	queues, err := c.queues(topic)
	if err != nil {
		return nil, fmt.Errorf("find positions of group %s: %w", group, err)
	}
	n, err := c.leader(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("find positions of group %s: %w", group, err)
	}
	found, err := positionsAt(ctx, n.direct(), topic, topicName(group), queues)
	if err != nil {
		return nil, fmt.Errorf("find positions of group %s: ask %s: %w", group, n.name, err)
	}
	return found, nil
}

// positionsAt asks the broker at an address.
func positionsAt(ctx context.Context, addr, topic, group string, queues int) (found []system.GroupPosition, err error) {
	for q := range int32(queues) {
		p := system.GroupPosition{Partition: q}
		// The ends last: a lag may be taken for greater than it is, never for less.
		p.Committed, err = committed(ctx, func(ctx context.Context, code int, fields map[string]string) (map[string]string, error) {
			answer, _, err := ask(ctx, addr, code, fields, nil)
			return answer, err
		}, topic, group, q)
		if err == nil {
			p.Start, err = offsetAt(ctx, addr, codeMinOffset, topic, int(q))
		}
		if err == nil {
			p.End, err = offsetAt(ctx, addr, codeMaxOffset, topic, int(q))
		}
		if err != nil {
			return nil, err
		}
		found = append(found, p)
	}
	return found, nil
}
