package suites

import (
	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/system/rabbitmq"
	"conform/harness/worker"
)

// rabbitSystem binds RabbitMQ suites to the adapter and to the worker roles of its client, amqp091-go.
var rabbitSystem = harness.System{System: rabbitmq.System{}, Producer: "rabbitmq-producer", Consumer: "rabbitmq-consumer"}

func init() {
	worker.Register(rabbitSystem.Producer, worker.ProducerRole(rabbitmq.Clients{}))
	worker.Register(rabbitSystem.Consumer, worker.ConsumerRole(rabbitmq.Clients{}, nil))
}

// rabbitRules is what no queue of RabbitMQ promises: a publish that is sent again stands twice, and behind later ones.
var rabbitRules = map[string]ledger.Rule{"duplicate-store": {Allowed: true}, "reordered-store": {Allowed: true}}

// Queue settings of the RabbitMQ suites by the names of the adapter's documentation.
var (
	quorumQueue  = map[string]string{"type": "quorum"}
	classicQueue = map[string]string{"type": "classic"}
	awaited      = map[string]string{"confirms": "true"}
	// republished is a producer that publishes again what was neither confirmed nor refused when its connection was lost.
	republished = map[string]string{"confirms": "true", "unconfirmed": "resend"}
)
