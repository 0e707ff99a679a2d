package postgres

import (
	"context"
	"fmt"
	"slices"

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

// CutLink cuts the link between the clients and the server, see package netproxy for what the modes are true to. The
// engine's own connections still reach it.
func (c *Cluster) CutLink(_ context.Context, node system.Node, mode system.CutMode, d system.Direction) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	return links.Cut(n.link, nodeName, mode, d)
}

// DropResponse lets the picked statement pass, swallows its whole reply once the server has given it, and resets the
// connection. Of a COMMIT that means: it is decided, and the client never learns how.
func (c *Cluster) DropResponse(_ context.Context, node system.Node, r system.WireRule) (system.Injection, error) {
	return c.arm(node, r, netproxy.DropResponse)
}

// DropRequest swallows the picked statement and resets the connection: the server never sees it, and rolls back the
// transaction it belongs to.
func (c *Cluster) DropRequest(_ context.Context, node system.Node, r system.WireRule) (system.Injection, error) {
	return c.arm(node, r, netproxy.ResetRequest)
}

func (c *Cluster) arm(node system.Node, r system.WireRule, action netproxy.Action) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(kinds, r.Kind) {
		return nil, fmt.Errorf("kind of request %q: want one of %q: %w", r.Kind, kinds, system.ErrUsage)
	}
	if r.Behind != 0 {
		return nil, fmt.Errorf("behind %d: only refusals can wait: %w", r.Behind, system.ErrUsage)
	}
	return links.Edit(n.link, nodeName, r, netproxy.Rule{Action: action}, "")
}

// WireCounts returns what the link has seen of the COMMITs of the clients whose application_name begins with client.
func (c *Cluster) WireCounts(node system.Node, client string) system.WireCounts {
	n, err := c.own(node)
	if err != nil {
		return system.WireCounts{}
	}
	k := n.link.Counts(client, KindCommit)
	return system.WireCounts{Sent: k.Sent, Confirmed: k.Confirmed, Refused: k.Refused}
}
