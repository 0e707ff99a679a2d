package rabbitmq

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
// node opens to the peers' ports (Outbound), that they open to its (Inbound), or both; requests and answers alike. Nodes
// share one connection for both ways, whoever opened it. Clients, and the adapter's own requests, come from outside the
// cluster's network and pass. The only listener is "cluster"; none = everything between the nodes.
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
	c.inForce(is, "isolation: "+what)
	return is, nil
}

// rules returns the packet rules of an isolation, and it in words.
func (c *Cluster) rules(n *Node, i system.Isolation) ([]netns.Rule, string, error) {
	asked := i.Peers
	if len(asked) == 0 {
		asked = c.Nodes()
	}
	var peers []*Node
	for _, p := range asked {
		peer, err := c.own(p)
		if err != nil {
			return nil, "", err
		}
		if peer != n {
			peers = append(peers, peer)
		}
	}
	if len(peers) == 0 {
		return nil, "", fmt.Errorf("no peers: %w", system.ErrUsage)
	}
	for _, l := range i.Listeners {
		if l != ListenerCluster {
			return nil, "", fmt.Errorf("listener %q: want %s: %w", l, ListenerCluster, system.ErrUsage)
		}
	}
	direction := i.Direction
	switch direction {
	case "":
		direction = system.Both
	case system.Both, system.Inbound, system.Outbound:
	default:
		return nil, "", fmt.Errorf("direction %q: %w", direction, system.ErrUsage)
	}
	ports, what := []int{portCluster, portMapper}, ListenerCluster
	if len(i.Listeners) == 0 && direction == system.Both {
		ports, what = []int{0}, "everything" // all packets: no listener to tell by
	}
	var rules []netns.Rule
	var names []string
	for _, peer := range peers {
		names = append(names, peer.name)
		for _, port := range ports {
			if port == 0 {
				rules = append(rules, netns.Rule{Peer: peer.pod.IP()})
				continue
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
	return rules, fmt.Sprintf("%s, %s, between %s and %s", what, direction, n.name, strings.Join(names, ", ")), nil
}

// inForce notes something that must be undone before the cluster is as good as new; over forgets it.
func (c *Cluster) inForce(key any, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active[key] = what
}

func (c *Cluster) over(key any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.active, key)
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
	i.node.cluster.over(i)
	return nil
}
