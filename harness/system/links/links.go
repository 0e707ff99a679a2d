package links

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"conform/harness/internal/netproxy"
	"conform/harness/system"
)

// Cut cuts the link between the clients and a node, see package netproxy for what the modes are true to. Other nodes, and the
// adapter's own requests, still reach it. It has bitten once a connection was reset, or a frame held back. A mode that cannot
// be had in a direction is ErrUsage.
func Cut(link *netproxy.Link, node string, mode system.CutMode, d system.Direction) (system.Injection, error) {
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
		return nil, fmt.Errorf("cut link of %s: no cut %q in direction %q: %w", node, mode, d, system.ErrUsage)
	}
	c, err := link.Cut(m)
	if err != nil {
		return nil, err
	}
	i := &cut{node: node, cut: c, mode: mode}
	if mode == system.Reset && c.Bitten() == 0 {
		i.idle = refuses(link.Addr())
	}
	return i, nil
}

// refuses says whether an address refuses a connection: the proof that a link which nobody had connected to is cut.
func refuses(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

type cut struct {
	node string
	cut  *netproxy.Cut
	mode system.CutMode
	idle bool // nobody was connected
}

func (c *cut) Evidence(context.Context) (system.Evidence, error) {
	count := c.cut.Bitten()
	what := "frames and connections held back on"
	if c.mode == system.Reset {
		what = "connections reset on"
	}
	e := system.Evidence{Bit: count > 0, Count: count, Detail: fmt.Sprintf("%d %s the link of %s", count, what, c.node)}
	if !e.Bit && c.idle {
		e.Idle, e.Detail = true, fmt.Sprintf("nobody was connected to the link of %s, which refuses connections", c.node)
	}
	return e, nil
}

func (c *cut) Heal(context.Context) error { return c.cut.Heal() }

// Edit does to the requests that r picks on a node's link what rule says, whose Action, Code and Behind are given. confirms is
// the kind whose responses confirm messages, if there is one: of those a swallowed response counts only if it did. It has
// bitten once as many requests as r asks for were picked and dealt with. The adapter has looked at r.Kind.
func Edit(link *netproxy.Link, node string, r system.WireRule, rule netproxy.Rule, confirms string) (system.Injection, error) {
	rule.Kind, rule.Client, rule.Nth, rule.Count = r.Kind, r.Client, r.Nth, r.Count
	armed, err := link.Arm(rule)
	if err != nil {
		return nil, err
	}
	return &edit{
		node: node, armed: armed, rule: rule, want: int64(max(1, r.Count)),
		confirms: rule.Action == netproxy.DropResponse && r.Kind == confirms,
	}, nil
}

type edit struct {
	node     string
	armed    *netproxy.Armed
	rule     netproxy.Rule
	want     int64
	confirms bool
}

func (e *edit) Evidence(context.Context) (system.Evidence, error) {
	h := e.armed.Hits()
	client := e.rule.Client
	if client == "" {
		client = "any client"
	}
	var did string
	switch e.rule.Action {
	case netproxy.DropResponse:
		did = "passed on, what the node said seen whole and swallowed"
	case netproxy.Answer:
		did = "answered with " + e.rule.Code + " and not passed on"
	default:
		did = "swallowed, and never seen by the node"
	}
	return system.Evidence{
		Bit:   h.Done >= e.want && (!e.confirms || h.Messages > 0), // a swallowed refusal takes no confirm away
		Count: h.Done,
		Detail: fmt.Sprintf("%d of %d %q of %s on the link of %s %s (%d messages), %d such seen",
			h.Done, e.want, e.rule.Kind, client, e.node, did, h.Messages, h.Seen),
	}, nil
}

func (e *edit) Heal(context.Context) error {
	e.armed.Heal()
	return nil
}
