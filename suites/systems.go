package suites

import (
	"conform/harness"
	"conform/harness/system/kafka"
	"conform/harness/worker"
)

// kafkaSystem binds Kafka suites to the adapter and to the worker roles of its client, franz-go.
var kafkaSystem = harness.System{System: kafka.System{}, Producer: "kafka-producer", Consumer: "kafka-consumer"}

func init() {
	worker.Register(kafkaSystem.Producer, worker.ProducerRole(kafka.Clients{}))
	worker.Register(kafkaSystem.Consumer, worker.ConsumerRole(kafka.Clients{}, nil))
}
