package rocketmq

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"strings"

	"conform/harness/internal/netns"
	"conform/harness/system"
)

var _ system.Isolator = (*Cluster)(nil)

// ListenerReplication is the name of what a replica follows its master over.
const ListenerReplication = "replication"

// Isolate drops packets of the replication between a broker and the others: of the connections that the others open to its
// replication port (Inbound), that it opens to theirs (Outbound), or both. Everything else passes: brokers share a network
// namespace with the name server, and without the replication there is nothing between them that a listener could tell.
func (c *Cluster) Isolate(ctx context.Context, node system.Node, i system.Isolation) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	if len(c.nodes) < 2 {
		return nil, fmt.Errorf("isolate %s: it has no peers: %w", n.name, system.ErrNotApplicable)
	}
	if len(i.Listeners) == 0 {
		return nil, fmt.Errorf("isolate %s: only its replication can be cut: %w", n.name, system.ErrNotApplicable)
	}
	for _, l := range i.Listeners {
		if l != ListenerReplication {
			return nil, fmt.Errorf("isolate %s: listener %q: want %s: %w", n.name, l, ListenerReplication, system.ErrUsage)
		}
	}
	var ports []int
	if i.Direction != system.Outbound {
		ports = append(ports, n.haPort)
	}
	if i.Direction != system.Inbound {
		for _, peer := range c.nodes {
			if peer != n {
				ports = append(ports, peer.haPort)
			}
		}
	}
	rules := make([]netns.Rule, 0, len(ports))
	for _, port := range ports {
		rules = append(rules, netns.Rule{Peer: netip.AddrFrom4([4]byte{127, 0, 0, 1}), Port: port})
	}
	cut, err := netns.Apply(ctx, c.pod, strings.ToLower(rand.Text()[:10]), netns.Share(rules, i.Share)...)
	if err != nil {
		return nil, fmt.Errorf("isolate %s: %w", n.name, err)
	}
	is := &isolation{node: n, cut: cut}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active[is] = "isolation of " + n.name
	return is, nil
}

// isolation is an isolation in force.
type isolation struct {
	node *Node
	cut  *netns.Cut
}

// Evidence counts the packets that the rules have dropped.
func (i *isolation) Evidence(ctx context.Context) (system.Evidence, error) {
	k, err := i.cut.Counters(ctx)
	if err != nil {
		return system.Evidence{}, err
	}
	return system.Evidence{
		Bit: k.Packets > 0, Count: k.Packets,
		Detail: fmt.Sprintf("%d packets (%d bytes) of the replication of %s dropped", k.Packets, k.Bytes, i.node.name),
	}, nil
}

// Heal takes the rules away.
func (i *isolation) Heal(ctx context.Context) error {
	if err := i.cut.Heal(ctx); err != nil {
		return fmt.Errorf("heal isolation of %s: %w", i.node.name, err)
	}
	c := i.node.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.active, i)
	return nil
}
