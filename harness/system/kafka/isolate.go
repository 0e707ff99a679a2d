package kafka

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"conform/harness/internal/netns"
	"conform/harness/system"
)

var _ system.Isolator = (*Cluster)(nil)

// Isolate drops packets between a node and its peers in the node's own network namespace: those of connections that the
// node opens to the peers' listeners (Outbound), that they open to its (Inbound), or both; requests and answers alike.
// Clients, and the adapter's own requests, come from outside the cluster's network and pass. Listeners are "replication"
// and "controller"; none = everything between the nodes, listeners or not.
//
// Cutting replication alone shrinks the in-sync replicas while everybody stays in session; cutting everything makes the
// controllers fence the node and elect another leader.
func (c *Cluster) Isolate(ctx context.Context, node system.Node, i system.Isolation) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	rules, what, err := c.rules(n, i)
	if err != nil {
		return nil, fmt.Errorf("isolate %s: %w", n.name, err)
	}
	cut, err := netns.Apply(ctx, n.pod, strings.ToLower(rand.Text()[:10]), netns.Share(rules, i.Share)...)
	if err != nil {
		return nil, fmt.Errorf("isolate %s: %w", n.name, err)
	}
	is := &isolation{node: n, cut: cut, what: what}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cuts == nil {
		c.cuts = map[*isolation]struct{}{}
	}
	c.cuts[is] = struct{}{}
	return is, nil
}

// rules returns the packet rules of an isolation, and it in words.
func (c *Cluster) rules(n *Node, i system.Isolation) ([]netns.Rule, string, error) {
	peers := make([]*Node, 0, len(c.nodes))
	for _, p := range i.Peers {
		peer, err := c.own(p)
		if err != nil {
			return nil, "", err
		}
		if peer != n {
			peers = append(peers, peer)
		}
	}
	if len(i.Peers) == 0 {
		for _, peer := range c.nodes {
			if peer != n {
				peers = append(peers, peer)
			}
		}
	}
	if len(peers) == 0 {
		return nil, "", fmt.Errorf("no peers: %w", system.ErrUsage)
	}
	ports := make([]int, 0, len(i.Listeners))
	for _, l := range i.Listeners {
		switch l {
		case ListenerReplication:
			ports = append(ports, portInternal)
		case ListenerController:
			ports = append(ports, portController)
		default:
			return nil, "", fmt.Errorf("listener %q: want %s or %s: %w", l, ListenerReplication, ListenerController, system.ErrUsage)
		}
	}
	direction := i.Direction
	if direction == "" {
		direction = system.Both
	}
	if len(ports) == 0 {
		if direction == system.Both {
			ports = []int{0} // all packets: no listener to tell by
		} else {
			ports = []int{portInternal, portController}
		}
	}
	var rules []netns.Rule
	var names []string
	for _, peer := range peers {
		names = append(names, peer.name)
		for _, port := range ports {
			switch {
			case port == 0:
				rules = append(rules, netns.Rule{Peer: peer.pod.IP()})
				continue
			case direction != system.Both && direction != system.Inbound && direction != system.Outbound:
				return nil, "", fmt.Errorf("direction %q: %w", direction, system.ErrUsage)
			}
			if direction != system.Inbound {
				rules = append(rules,
					netns.Rule{Peer: peer.pod.IP(), Port: port, Direction: netns.Out, Side: netns.DestinationPort},
					netns.Rule{Peer: peer.pod.IP(), Port: port, Direction: netns.In, Side: netns.SourcePort})
			}
			if direction != system.Outbound {
				rules = append(rules,
					netns.Rule{Peer: peer.pod.IP(), Port: port, Direction: netns.In, Side: netns.DestinationPort},
					netns.Rule{Peer: peer.pod.IP(), Port: port, Direction: netns.Out, Side: netns.SourcePort})
			}
		}
	}
	listeners := "everything"
	if len(i.Listeners) > 0 {
		listeners = strings.Join(i.Listeners, "+")
	}
	return rules, fmt.Sprintf("%s, %s, between %s and %s", listeners, direction, n.name, strings.Join(names, ", ")), nil
}

// isolation is an isolation in force.
type isolation struct {
	node *Node
	cut  *netns.Cut
	what string
}

// Evidence counts the packets that the rules have dropped.
func (i *isolation) Evidence(ctx context.Context) (system.Evidence, error) {
	k, err := i.cut.Counters(ctx)
	if err != nil {
		return system.Evidence{}, err
	}
	return system.Evidence{
		Bit: k.Packets > 0, Count: k.Packets,
		Detail: fmt.Sprintf("%d packets (%d bytes) dropped: %s", k.Packets, k.Bytes, i.what),
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
	delete(c.cuts, i)
	return nil
}
