package suites

import (
	"maps"
	"slices"
	"strings"

	"conform/harness"
	"conform/harness/system"
	"conform/harness/system/kafka"
	"conform/harness/system/rabbitmq"
	"conform/harness/worker"
)

// broker is what the suites of patterns (outbox@kafka, inbox@kafka, ...) need to know of a broker. One more of these is one
// more of each of them.
type broker struct {
	system  harness.System
	clients system.Clients
	// Settings of its clients, and of the arms' destinations.
	producer, consumer, destination map[string]string
	// few are settings of a consumer that fetches only a few records at once.
	few map[string]string
	// queues says that groups of consumers have a queue each, bound to what producers publish to, and that a queue which
	// nobody consumes from is beside them: it is the store, in the order of publishing.
	queues bool
}

// onKafka is Kafka for the suites of patterns.
var onKafka = broker{
	system:  kafkaSystem,
	clients: kafka.Clients{},
	producer: map[string]string{
		"acks": "all", "idempotence": "true", "in.flight": "5", "linger.ms": "0",
	},
	consumer:    member["classic"],
	few:         map[string]string{"max.poll.records": "4"},
	destination: minInSync2,
}

// onRabbitMQ is RabbitMQ for the suites of patterns.
var onRabbitMQ = broker{
	system:      rabbitSystem,
	clients:     rabbitmq.Clients{},
	producer:    map[string]string{"confirms": "true", "disconnected": "fail"},
	consumer:    map[string]string{"ack": "manual", "prefetch": "50"},
	few:         map[string]string{"max.poll": "4", "prefetch": "4"},
	destination: quorumQueue,
	queues:      true,
}

func init() {
	patterns(onKafka)
	patterns(onRabbitMQ)
}

// patterns registers the suites of patterns on a broker, and the roles of their workers.
func patterns(b broker) {
	b.registerRoles()
	for _, s := range []harness.Suite{outbox(b), inbox(b), retryDeadletter(b), backlogs(b)} {
		register(b.queued(s))
	}
}

func (b broker) registerRoles() {
	for name, role := range map[string]worker.Role{
		roleConsume: consumeRole(b.clients), roleOrders: b.ordersRole(), roleJob: b.jobRole(), roleReplay: b.replayRole(),
		roleWriter: writerRole(b.clients), roleStorm: stormRole(b.clients),
	} {
		if name = b.role(name); name != roleKafkaConsume { // that one is there already
			worker.Register(name, role)
		}
	}
}

// queued gives each group of an arm a queue of its own, where groups have queues.
func (b broker) queued(s harness.Suite) harness.Suite {
	if !b.queues {
		return s
	}
	for _, scenario := range s.Scenarios {
		for i := range scenario.Arms {
			a := &scenario.Arms[i]
			var groups []string
			a.Processes = slices.Clone(a.Processes)
			for j := range a.Processes {
				p := &a.Processes[j]
				if p.Group == "" {
					continue
				}
				p.Client = with(p.Client, "queue", "group")
				if !slices.Contains(groups, p.Group) {
					groups = append(groups, p.Group)
				}
			}
			if len(groups) > 0 {
				a.Destination = with(a.Destination, "groups", strings.Join(groups, " "))
			}
		}
	}
	return s
}

// The roles of patterns; on a broker their names begin with its name.
const (
	roleConsume = "consume" // fetches, processes, settles
	roleOrders  = "orders"  // the load: carries out a command for each event
	roleJob     = "job"     // a relay, or another job, in a loop or once
	roleReplay  = "replay"  // sends events again
	roleWriter  = "writer"  // a second producer beside the load
	roleStorm   = "storm"   // a consumer that works on all it has fetched at once, in attempts that may fail
)

func (b broker) role(name string) string { return b.system.Name() + "-" + name }

// suite names a suite of patterns on the broker.
func (b broker) suite(name string) string { return name + "@" + b.system.Name() }

// orders is a load that begins in the database, or at a caller: one command for each event.
func (b broker) orders(params map[string]string, incarnations ...harness.Incarnation) harness.Producer {
	return harness.Producer{Role: b.role(roleOrders), Params: params, Incarnations: incarnations}
}

// relay runs a job with a publisher.
func (b broker) relay(name string, params map[string]string) harness.Process {
	return harness.Process{Name: name, Role: b.role(roleJob), Params: params}
}

// replayer sends events again, once a step starts it.
func (b broker) replayer(name string, params map[string]string) harness.Process {
	return harness.Process{Name: name, Role: b.role(roleReplay), Params: params, Manual: true}
}

// reader is a consumer of the group that bears its name.
func (b broker) reader(name string, params map[string]string) harness.Process {
	return harness.Process{Name: name, Role: b.role(roleConsume), Group: group, Client: b.consumer, Params: params}
}

// with returns a copy of params with more.
func with(params map[string]string, more ...string) map[string]string {
	params = maps.Clone(params)
	if params == nil {
		params = map[string]string{}
	}
	for i := 0; i+1 < len(more); i += 2 {
		params[more[i]] = more[i+1]
	}
	return params
}
