package kafka

import (
	"context"
	"fmt"

	"conform/harness/internal/netproxy"
	"conform/harness/system"
	"conform/harness/system/links"
)

var (
	_ system.LinkCutter      = (*Cluster)(nil)
	_ system.ResponseDropper = (*Cluster)(nil)
	_ system.RequestRefuser  = (*Cluster)(nil)
	_ system.WireCounter     = (*Cluster)(nil)
)

// CutLink cuts the link between the clients and a node, see package netproxy for what the modes are true to. Other nodes,
// and the adapter's own requests, still reach it.
func (c *Cluster) CutLink(_ context.Context, node system.Node, mode system.CutMode, d system.Direction) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	return links.Cut(n.link, n.name, mode, d)
}

// DropResponse swallows the response of the picked request and resets its connection. Requests with acks=0 have no
// response and are never picked.
func (c *Cluster) DropResponse(_ context.Context, node system.Node, r system.WireRule) (system.Injection, error) {
	return c.arm(node, r, netproxy.Rule{Action: netproxy.DropResponse})
}

// RefuseRequest answers the picked produce request with the protocol's error code, e.g. NOT_LEADER_OR_FOLLOWER, for every
// partition in it. The broker never sees it. The answer keeps its place among the responses of its connection.
func (c *Cluster) RefuseRequest(_ context.Context, node system.Node, r system.WireRule, code string) (system.Injection, error) {
	return c.arm(node, r, netproxy.Rule{Action: netproxy.Answer, Code: code, Behind: r.Behind})
}

func (c *Cluster) arm(node system.Node, r system.WireRule, rule netproxy.Rule) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	if !knownKind(r.Kind) {
		return nil, fmt.Errorf("kind of request %q: %w", r.Kind, system.ErrUsage)
	}
	return links.Edit(n.link, n.name, r, rule, KindProduce)
}

// WireCounts returns what the node's link has seen of the clients whose id begins with client. Messages sent with acks=0
// are never confirmed.
func (c *Cluster) WireCounts(node system.Node, client string) system.WireCounts {
	n, err := c.own(node)
	if err != nil {
		return system.WireCounts{}
	}
	k := n.link.Counts(client, KindProduce)
	return system.WireCounts{Sent: k.Sent, Confirmed: k.Confirmed, Refused: k.Refused}
}
