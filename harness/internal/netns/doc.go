// Package netns cuts broker-to-broker links with the packet filter of a pod's network namespace, by peer, port and
// direction. Clients are not touched: they reach the pod from another address.
//
// It knows iptables and nothing of brokers. It reaches the namespace only by running commands in the pod, and must not
// import the container engine.
//
// A follower stops fetching from the leader, while everything else between them goes on:
//
//	cut, err := netns.Apply(ctx, followerPod, "inj-7", netns.Rule{Peer: leader.IP(), Port: 9092, Side: netns.DestinationPort, Direction: netns.Out})
//	...
//	count, err := cut.Counters(ctx) // evidence: packets that were dropped
//	err = cut.Heal(context.WithoutCancel(ctx))
package netns
