package rocketmq

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
	_ system.RequestDropper  = (*Cluster)(nil)
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

// DropResponse swallows the response to the picked request, e.g. "send", and resets its connection. The Go client does not
// notice the reset before its timeout.
func (c *Cluster) DropResponse(_ context.Context, node system.Node, r system.WireRule) (system.Injection, error) {
	return c.arm(node, r, netproxy.Rule{Action: netproxy.DropResponse})
}

// DropRequest swallows the picked request and resets its connection.
func (c *Cluster) DropRequest(_ context.Context, node system.Node, r system.WireRule) (system.Injection, error) {
	return c.arm(node, r, netproxy.Rule{Action: netproxy.ResetRequest})
}

func (c *Cluster) arm(node system.Node, r system.WireRule, rule netproxy.Rule) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	if !knownKind(r.Kind) {
		return nil, fmt.Errorf("kind of request %q: %w", r.Kind, system.ErrUsage)
	}
	return links.Edit(n.link, n.name, r, rule, KindSend)
}

// WireCounts returns what the broker's link has seen of the clients whose id begins with client. The Go client
// does not mark one-way sends as such: brokers answer them, and nobody listens.
func (c *Cluster) WireCounts(node system.Node, client string) system.WireCounts {
	n, err := c.own(node)
	if err != nil {
		return system.WireCounts{}
	}
	k := n.link.Counts(client, KindSend)
	return system.WireCounts{Sent: k.Sent, Confirmed: k.Confirmed, Refused: k.Refused}
}
