package rabbitmq

import (
	"slices"
	"testing"

	"conform/harness/system"
)

// Before 4.3 a queue's record is all there is while a member is down.
func TestRecord(t *testing.T) {
	c := &Cluster{}
	for _, name := range []string{"rabbit-1", "rabbit-2", "rabbit-3"} {
		c.nodes = append(c.nodes, &Node{name: name, cluster: c})
	}
	of := func(numbers ...int) (names []string) {
		for _, n := range numbers {
			names = append(names, c.nodes[n-1].erlang())
		}
		return names
	}
	for name, test := range map[string]struct {
		q      queueInfo
		leader int // 0 = none
	}{
		"another leads":            {queueInfo{State: "running", Leader: of(3)[0], Members: of(1, 2, 3), Online: of(2, 3)}, 3},
		"the dead one, as yet":     {queueInfo{State: "down", Leader: of(1)[0], Members: of(1, 2, 3), Online: of(2, 3)}, 0},
		"the dead one, still up":   {queueInfo{State: "running", Leader: of(1)[0], Members: of(1, 2, 3), Online: of(2, 3)}, 0},
		"a minority":               {queueInfo{State: "minority", Leader: of(2)[0], Members: of(1, 2, 3), Online: of(2)}, 0},
		"a minority that hopes on": {queueInfo{State: "running", Leader: of(2)[0], Members: of(1, 2, 3), Online: of(2)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			v := c.record(test.q)
			if len(v.Replicas) != 3 {
				t.Errorf("%d replicas", len(v.Replicas))
			}
			if test.leader == 0 {
				if v.Leader != nil || len(v.InSync) > 0 {
					t.Errorf("%v leads, %v in sync", v.Leader, v.InSync)
				}
				return
			}
			want := system.Node(c.nodes[test.leader-1])
			if v.Leader != want || !slices.Equal(v.InSync, []system.Node{want}) {
				t.Errorf("%v leads, %v in sync", v.Leader, v.InSync)
			}
		})
	}
}
