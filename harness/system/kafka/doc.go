// Package kafka is the adapter of Apache Kafka: three combined KRaft nodes in containers behind fault-injecting links, the
// clients on franz-go, and what a broker's error says about a send.
//
// It knows Kafka's settings, listeners, protocol and admin calls. It must not import suites, faults, audits or reports;
// containers, relays and packet rules come from harness/internal.
//
//	cluster, err := kafka.System{}.Start(ctx, system.Spec{Run: "r1", Version: "4.2.0", Image: image})
//	defer cluster.Close(context.WithoutCancel(ctx))
//	err = cluster.Create(ctx, system.DestinationSpec{Name: "t", Partitions: 1, Leader: cluster.Nodes()[0]})
//	p, err := kafka.Clients{}.OpenProducer(ctx, system.ClientConfig{Endpoints: cluster.Endpoints(), ClientID: "guarded", Destination: "t"})
//
// A node has four listeners. INTERNAL (9092) carries what brokers ask of each other, replication above all; CONTROLLER
// (9093) the quorum, heartbeats and registrations; CLIENT (9094) is advertised as the address of the node's link, so that
// clients only ever pass through it; DIRECT (9095) is advertised as the pod's published port and never faulted: the
// adapter's own admin calls and final reads go there. An [system.Isolation] names the first two "replication" and
// "controller".
//
// A consumer in a group is a [system.Member]: it tells what it owns, what the client commits by itself, and how each commit
// ended. franz-go calls back while the rebalance waits, so that a member can commit what it is about to lose; after a callback
// that says "lost" it cannot any more. What an operator does to groups and topics (see group.go) goes over DIRECT too.
package kafka
