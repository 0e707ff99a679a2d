// Package rabbitmq is the adapter of RabbitMQ: three clustered nodes in containers behind fault-injecting links, the clients
// on amqp091-go, and what a confirm, a return, a nack or a broken connection says about a publish.
//
// It knows RabbitMQ's settings, ports, protocol and management interface. It must not import suites, faults, audits or
// reports; containers, relays and packet rules come from harness/internal.
//
//	cluster, err := rabbitmq.System{}.Start(ctx, system.Spec{Run: "r1", Version: "4.3", Image: image})
//	defer cluster.Close(context.WithoutCancel(ctx))
//	err = cluster.Create(ctx, system.DestinationSpec{Name: "q", Leader: cluster.Nodes()[0], Settings: map[string]string{"type": "quorum"}})
//	p, err := rabbitmq.Clients{}.OpenProducer(ctx, system.ClientConfig{
//		Endpoints: cluster.Endpoints(), DSN: cluster.DSN("guarded", false), ClientID: "guarded", Destination: "q",
//	})
//
// A destination is a queue, and a direct exchange of the same name that it is bound to: producers publish to the exchange, so
// that a missing binding is an ordinary fault. See [DestinationSettings] for dead-letter targets and arguments. A group of
// consumers is a queue of its own, bound to the same exchange: then the destination's own queue, which nobody consumes from,
// is the store.
//
// Nothing answers an ack. What a consumer has settled stays in doubt, until Close has returned nil.
//
// A node has three ports. 5672 is AMQP's: clients reach it through the node's link, the adapter's own drains past it. 15672
// is the management interface, which tells who leads and which members have what. 25672 and 4369 are what nodes talk over; an
// [system.Isolation] names them "cluster". There is one port for everything between the nodes: replication, metadata and
// liveness cannot be cut apart.
//
// The store of a queue is what a drain takes out of it: ReadStore empties the queue and its dead-letter target.
package rabbitmq
