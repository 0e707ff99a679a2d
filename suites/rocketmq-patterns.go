package suites

import (
	"conform/harness"
	"conform/harness/system/rocketmq"
)

// lookForBacklog is how to look for a backlog that does not drain.
const lookForBacklog = "mqadmin consumerProgress -g GROUP: a difference that grows, beside an inflow (mqadmin statsAll) that is above what is consumed: then it never drains"

func init() {
	suites := []harness.Suite{outbox(onRocketMQ), oneAtATime(inbox(onRocketMQ)), oneAtATime(retryDeadletter(onRocketMQ)), backlogs(onRocketMQ)}
	for _, s := range suites {
		for i := range s.Scenarios { // one broker: what they are about is on both sides of it
			scenario := &s.Scenarios[i]
			for j := range scenario.Arms {
				scenario.Arms[j].Node = rocketNode(rocketmq.Single)
			}
			scenario.LookFor = or(scenario.LookFor, lookForBacklog)
		}
		register(s)
	}
}

// oneAtATime makes loads send one message at a time: those that are under way at once stand in the order in which the broker's
// threads get to them, also of one key, and are delivered so.
func oneAtATime(s harness.Suite) harness.Suite {
	for _, scenario := range s.Scenarios {
		for i := range scenario.Arms {
			if load := &scenario.Arms[i].Producer; load.Role == "" {
				load.Role, load.Params = roleRetrying, with(load.Params, paramClient, "max.in.flight=1")
			}
		}
	}
	return s
}
