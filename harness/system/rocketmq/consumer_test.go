package rocketmq

import (
	"slices"
	"testing"

	"github.com/apache/rocketmq-client-go/v2/primitive"

	"conform/harness/system"
)

func queues(ids ...int) []*primitive.MessageQueue {
	qs := make([]*primitive.MessageQueue, 0, len(ids))
	for _, id := range ids {
		qs = append(qs, &primitive.MessageQueue{Topic: "t", BrokerName: groupName, QueueId: id})
	}
	return qs
}

// What is lost is told while it can still be committed, what is won before it is delivered.
func TestOwnershipIsTold(t *testing.T) {
	k := &consumer{topic: "t", owned: map[int32]bool{}}
	k.own(queues(0, 1)) // before anybody watches
	var told []system.Change
	k.Watch(func(c system.Change) {
		c.At = 0
		for _, q := range c.Partitions {
			if k.owns(q) != (c.Kind == system.Assigned || len(told) == 1) {
				t.Errorf("%s of %d while owned is %t", c.Kind, q, k.owns(q))
			}
		}
		told = append(told, c)
	})
	all := queues(0, 1, 2, 3)
	if got := k.allocate("g", "b", all, []string{"a", "b"}); len(got) != 2 {
		t.Errorf("allocated %v", got)
	}
	k.allocate("g", "b", all, []string{"a", "b"}) // nothing changes
	other := queues(0)
	other[0].Topic = "another"
	k.allocate("g", "b", other, []string{"b"})
	want := []system.Change{
		{Kind: system.Assigned, Partitions: []int32{0, 1}},
		{Kind: system.Revoked, Partitions: []int32{0, 1}},
		{Kind: system.Assigned, Partitions: []int32{2, 3}},
	}
	if !slices.EqualFunc(told, want, func(a, b system.Change) bool {
		return a.Kind == b.Kind && slices.Equal(a.Partitions, b.Partitions)
	}) {
		t.Errorf("told %+v, want %+v", told, want)
	}
}
