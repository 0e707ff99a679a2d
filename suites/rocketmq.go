package suites

import (
	"context"
	"fmt"
	"strings"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/system/rocketmq"
	"conform/harness/worker"
)

// rocketSystem binds RocketMQ suites to the adapter and to the worker roles of its client, rocketmq-client-go.
var rocketSystem = harness.System{System: rocketmq.System{}, Producer: "rocketmq-producer", Consumer: "rocketmq-consumer"}

func init() {
	worker.Register(rocketSystem.Producer, worker.ProducerRole(rocketmq.Clients{}))
	worker.Register(rocketSystem.Consumer, worker.ConsumerRole(rocketmq.Clients{}, nil))
	worker.Register(roleRetrying, retryingRole)
}

// roleRetrying is a load whose client has settings of its own (paramClient), beside consumers that do not know them.
const roleRetrying = "rocketmq-retrying"

func retryingRole(ctx context.Context, s *worker.Session) error {
	s.Config.Client.Settings = map[string]string{}
	for setting := range strings.FieldsSeq(s.Config.Params[paramClient]) {
		name, value, _ := strings.Cut(setting, "=")
		s.Config.Client.Settings[name] = value
	}
	return worker.ProducerRole(rocketmq.Clients{})(ctx, s)
}

// onRocketMQ is RocketMQ for the suites of patterns. One send at a time keeps the order of what is published together.
var onRocketMQ = broker{
	system:   rocketSystem,
	clients:  rocketmq.Clients{},
	producer: with(rerouted, "max.in.flight", "1"),
	consumer: map[string]string{"max.poll.records": "32", "route": "reopen"},
	few:      map[string]string{"max.poll.records": "4", "queues": "shared", "route": "refresh"},
}

func init() { onRocketMQ.registerRoles() }

// rocketRules is what RocketMQ does not promise: there is no idempotent producer, so a send that is tried again stands twice,
// and sends that are under way at once stand in the order in which the broker's threads get to them.
var rocketRules = map[string]ledger.Rule{"duplicate-store": {Allowed: true}, "reordered-store": {Allowed: true}}

// rerouted is a producer whose client is opened anew when an attempt ends without an answer: the library asks for routes
// every 30 s only.
var rerouted = map[string]string{"route": "reopen"}

// rocketNode returns node settings: the layout, and what more is given, names and values in turn.
func rocketNode(layout string, more ...string) map[string]string {
	return with(map[string]string{rocketmq.SettingLayout: layout}, more...)
}

// doPromote is the operator of a pair whose master, the target "master", is gone for good: the replica is made the master.
const doPromote = "promote-replica"

var promoting = map[string]harness.Action{
	doPromote: func(ctx context.Context, e harness.Env, s plan.Step) (string, error) {
		c, ok := e.Cluster.(*rocketmq.Cluster)
		if !ok {
			return "", fmt.Errorf("%s has no pair of brokers: %w", e.Cluster.System(), system.ErrUsage)
		}
		return c.Promote(ctx, e.Targets[s.Target][0])
	},
}
