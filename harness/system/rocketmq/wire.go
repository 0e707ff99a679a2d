package rocketmq

import (
	"context"
	"fmt"

	"conform/harness/internal/netproxy"
	"conform/harness/system"
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
		return nil, fmt.Errorf("cut link of %s: no cut %q in direction %q: %w", n.name, mode, d, system.ErrUsage)
	}
	cut, err := n.link.Cut(m)
	if err != nil {
		return nil, err
	}
	return &linkCut{node: n, cut: cut, mode: mode}, nil
}

type linkCut struct {
	node *Node
	cut  *netproxy.Cut
	mode system.CutMode
}

func (l *linkCut) Evidence(context.Context) (system.Evidence, error) {
	count := l.cut.Bitten()
	what := "frames and connections held back on"
	if l.mode == system.Reset {
		what = "connections reset on"
	}
	return system.Evidence{Bit: count > 0, Count: count, Detail: fmt.Sprintf("%d %s the link of %s", count, what, l.node.name)}, nil
}

func (l *linkCut) Heal(context.Context) error { return l.cut.Heal() }

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
	rule.Kind, rule.Client, rule.Nth, rule.Count = r.Kind, r.Client, r.Nth, r.Count
	armed, err := n.link.Arm(rule)
	if err != nil {
		return nil, err
	}
	return &wireFault{node: n, armed: armed, rule: rule, want: int64(max(1, r.Count))}, nil
}

type wireFault struct {
	node  *Node
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
	did := "swallowed, which the broker never saw"
	bit := h.Done >= w.want
	if w.rule.Action == netproxy.DropResponse {
		did = "forwarded, their responses seen whole and swallowed"
		if w.rule.Kind == KindSend {
			bit = bit && h.Messages > 0 // a swallowed refusal takes no confirm away
		}
	}
	return system.Evidence{
		Bit: bit, Count: h.Done,
		Detail: fmt.Sprintf("%d of %d requests %q of %s to %s %s (%d messages), %d such requests seen",
			h.Done, w.want, w.rule.Kind, client, w.node.name, did, h.Messages, h.Seen),
	}, nil
}

func (w *wireFault) Heal(context.Context) error {
	w.armed.Heal()
	return nil
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
