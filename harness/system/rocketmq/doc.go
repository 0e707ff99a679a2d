// Package rocketmq is the adapter of Apache RocketMQ: a name server and one broker, a master with its replica, or two brokers
// under a controller, in containers behind fault-injecting links; the clients on rocketmq-client-go, and what a broker's
// answer says about a send.
//
// It knows RocketMQ's settings, its remoting protocol and its admin calls. It must not import suites, faults, audits or
// reports; containers, relays and packet rules come from harness/internal.
//
//	cluster, err := rocketmq.System{}.Start(ctx, system.Spec{Run: "r1", Version: "5.5.0", Image: image,
//		Settings: map[string]string{rocketmq.SettingLayout: rocketmq.Pair, "inSyncReplicas": "2"}})
//	defer cluster.Close(context.WithoutCancel(ctx))
//	err = cluster.Create(ctx, system.DestinationSpec{Name: "t", Partitions: 1})
//	p, err := rocketmq.Clients{}.OpenProducer(ctx, system.ClientConfig{DSN: cluster.DSN("", false), ClientID: "guarded", Destination: "t"})
//
// All processes share one network namespace: a broker registers 127.0.0.1 and the port of its link at the name server, so
// that this address is the broker for the others inside and its link for clients outside. Links are in front of the brokers;
// the name server, which only tells addresses, is reached directly.
//
// A replica follows its master over a connection of its own (haListenPort): an [system.Isolation] names it "replication".
// The brokers of one group have one name and one set of topics; whoever is master leads all of them.
//
// Only SEND_OK is a confirm. The other statuses (FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE) say that the
// message is in the master's log and that something that was asked for has not happened: in doubt. See outcome.go.
package rocketmq
