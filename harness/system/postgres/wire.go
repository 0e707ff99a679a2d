package postgres

import (
	"context"
	"fmt"
	"slices"

	"conform/harness/internal/netproxy"
	"conform/harness/system"
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
	m := netproxy.Hole
	switch {
	case mode == system.Reset && d == system.Both:
		m = netproxy.Refuse
	case mode == system.BlackHole && d == system.Both:
	case mode == system.BlackHole && d == system.Inbound:
		m = netproxy.HoleIn
	case mode == system.BlackHole && d == system.Outbound:
		m = netproxy.HoleOut
	default:
		return nil, fmt.Errorf("cut link of %s: no cut %q in direction %q: %w", nodeName, mode, d, system.ErrUsage)
	}
	cut, err := n.link.Cut(m)
	if err != nil {
		return nil, err
	}
	return &linkCut{cut: cut, mode: mode}, nil
}

type linkCut struct {
	cut  *netproxy.Cut
	mode system.CutMode
}

func (l *linkCut) Evidence(context.Context) (system.Evidence, error) {
	count := l.cut.Bitten()
	what := "frames and connections held back on"
	if l.mode == system.Reset {
		what = "connections reset on"
	}
	return system.Evidence{Bit: count > 0, Count: count, Detail: fmt.Sprintf("%d %s the link of %s", count, what, nodeName)}, nil
}

func (l *linkCut) Heal(context.Context) error { return l.cut.Heal() }

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
	rule := netproxy.Rule{Kind: r.Kind, Client: r.Client, Nth: r.Nth, Count: r.Count, Action: action}
	armed, err := n.link.Arm(rule)
	if err != nil {
		return nil, err
	}
	return &wireFault{armed: armed, rule: rule, want: int64(max(1, r.Count))}, nil
}

type wireFault struct {
	armed *netproxy.Armed
	rule  netproxy.Rule
	want  int64
}

func (w *wireFault) Evidence(context.Context) (system.Evidence, error) {
	h := w.armed.Hits()
	client := w.rule.Client
	if client == "" {
		client = "any client"
	}
	did := "forwarded, their replies seen whole and swallowed"
	if w.rule.Action == netproxy.ResetRequest {
		did = "swallowed and not forwarded"
	}
	return system.Evidence{
		Bit: h.Done >= w.want, Count: h.Done,
		Detail: fmt.Sprintf("%d of %d %s requests of %s to %s %s, %d such requests seen",
			h.Done, w.want, w.rule.Kind, client, nodeName, did, h.Seen),
	}, nil
}

func (w *wireFault) Heal(context.Context) error {
	w.armed.Heal()
	return nil
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
