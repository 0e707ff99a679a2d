package rabbitmq

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

// DropResponse swallows what the node says to a client, by its kind: "confirm" (a confirm of one publish or of many),
// "deliver" or "return". The connection is reset then.
func (c *Cluster) DropResponse(_ context.Context, node system.Node, r system.WireRule) (system.Injection, error) {
	return c.arm(node, r, netproxy.Rule{Action: netproxy.DropResponse})
}

// DropRequest swallows what a client says, by its kind: "publish", or a consumer's "ack", "nack" or "reject". The connection
// is reset then.
func (c *Cluster) DropRequest(_ context.Context, node system.Node, r system.WireRule) (system.Injection, error) {
	return c.arm(node, r, netproxy.Rule{Action: netproxy.ResetRequest})
}

func (c *Cluster) arm(node system.Node, r system.WireRule, rule netproxy.Rule) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	if !knownKind(r.Kind) {
		return nil, fmt.Errorf("kind of frame %q: %w", r.Kind, system.ErrUsage)
	}
	return links.Edit(n.link, n.name, r, rule, "")
}

// WireCounts returns what the node's link has seen of the clients whose connection name begins with client.
func (c *Cluster) WireCounts(node system.Node, client string) system.WireCounts {
	n, err := c.own(node)
	if err != nil {
		return system.WireCounts{}
	}
	sent, said := n.link.Counts(client, KindPublish), n.link.Counts(client, KindConfirm)
	return system.WireCounts{Sent: sent.Sent, Confirmed: said.Confirmed, Refused: said.Refused}
}
