package suites

import (
	"conform/harness"
	"conform/harness/system/rocketmq"
)

// lookForBacklog is how to look for a backlog that does not drain.
const lookForBacklog = "mqadmin consumerProgress -g GROUP: a difference that grows, beside an inflow (mqadmin statsAll) that is above what is consumed: then it never drains"

func init() {
	for _, s := range []harness.Suite{outbox(onRocketMQ), inbox(onRocketMQ), retryDeadletter(onRocketMQ), backlogs(onRocketMQ)} {
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
