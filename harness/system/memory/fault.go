package memory

import (
	"context"
	"fmt"
	"strings"

	"conform/harness/system"
)

// cut is a client link that is cut; guarded by the node's mutex.
type cut struct {
	n     *node
	mode  system.CutMode
	dir   system.Direction
	count int64
}

// swallows says whether a request, or its response, vanishes in a cut link.
func (n *node) swallows() (in, out bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut == nil || n.cut.mode != system.BlackHole {
		return false, false
	}
	n.cut.count++
	return n.cut.dir != system.Outbound, n.cut.dir != system.Inbound
}

// Evidence counts what was reset, refused or swallowed.
func (c *cut) Evidence(context.Context) (system.Evidence, error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	return system.Evidence{
		Bit: c.count > 0, Count: c.count,
		Detail: fmt.Sprintf("%s: %d connections reset or refused, or requests swallowed", c.n.name, c.count),
	}, nil
}

// Heal lets the link pass again. Connections that a black hole has made deaf are reset.
func (c *cut) Heal(context.Context) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.n.cut != c {
		return nil
	}
	if c.mode == system.Reset && !c.n.closed {
		if err := c.n.listen(); err != nil {
			return err
		}
	}
	c.n.cut = nil
	if c.mode == system.BlackHole {
		c.n.resetAll()
	}
	return nil
}

// rule picks produce requests; guarded by the node's mutex.
type rule struct {
	n          *node
	w          system.WireRule
	refuse     bool
	seen, hits int
}

// match counts a request against the rules and returns the one that picks it.
func (n *node) match(client string) *rule {
	n.mu.Lock()
	defer n.mu.Unlock()
	var hit *rule
	for _, r := range n.rules {
		if !strings.HasPrefix(client, r.w.Client) {
			continue
		}
		r.seen++
		first := max(1, r.w.Nth)
		if r.seen >= first && r.seen < first+max(1, r.w.Count) && hit == nil {
			r.hits++
			hit = r
		}
	}
	return hit
}

// Evidence counts the requests that were picked.
func (r *rule) Evidence(context.Context) (system.Evidence, error) {
	r.n.mu.Lock()
	defer r.n.mu.Unlock()
	what := "responses dropped after their requests had passed"
	if r.refuse {
		what = "requests refused without being passed on"
	}
	return system.Evidence{Bit: r.hits > 0, Count: int64(r.hits), Detail: fmt.Sprintf("%s: %d %s", r.n.name, r.hits, what)}, nil
}

// Heal disarms the rule.
func (r *rule) Heal(context.Context) error {
	r.n.mu.Lock()
	defer r.n.mu.Unlock()
	for i, other := range r.n.rules {
		if other == r {
			r.n.rules = append(r.n.rules[:i], r.n.rules[i+1:]...)
			break
		}
	}
	return nil
}

func (c *cluster) arm(n system.Node, w system.WireRule, refuse bool) (system.Injection, error) {
	m, err := c.own(n)
	if err != nil {
		return nil, err
	}
	if w.Kind != "" && w.Kind != "produce" {
		return nil, fmt.Errorf("pick requests of kind %q: only produce is known: %w", w.Kind, system.ErrUsage)
	}
	r := &rule{n: m, w: w, refuse: refuse}
	m.mu.Lock()
	m.rules = append(m.rules, r)
	m.mu.Unlock()
	return r, nil
}

// DropResponse implements system.ResponseDropper.
func (c *cluster) DropResponse(_ context.Context, n system.Node, w system.WireRule) (system.Injection, error) {
	return c.arm(n, w, false)
}

// RefuseRequest implements system.RequestRefuser; the one code that is known is a retriable refusal.
func (c *cluster) RefuseRequest(_ context.Context, n system.Node, w system.WireRule, code string) (system.Injection, error) {
	if code != codeNotLeader {
		return nil, fmt.Errorf("refuse requests with %q: only %s is known: %w", code, codeNotLeader, system.ErrUsage)
	}
	return c.arm(n, w, true)
}

const codeNotLeader = "NOT_LEADER_OR_FOLLOWER"

// CutLink implements system.LinkCutter.
func (c *cluster) CutLink(_ context.Context, n system.Node, mode system.CutMode, dir system.Direction) (system.Injection, error) {
	m, err := c.own(n)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := &cut{n: m, mode: mode, dir: dir}
	m.cut = k
	if mode == system.Reset {
		_ = m.l.Close() // new connections are refused
		k.count += int64(m.resetAll())
	}
	return k, nil
}

// Kill implements system.Killer: connections are reset, leadership moves to a node that is up, and
// bugs that a crash triggers strike.
func (c *cluster) Kill(_ context.Context, n system.Node) (string, error) {
	m, err := c.own(n)
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	m.down, m.paused = true, false
	m.resume.Broadcast()
	k := m.resetAll()
	m.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.destinations {
		d.crash()
		if d.leader == m {
			d.leader = c.anyUp()
			d.epoch++
		}
	}
	return fmt.Sprintf("%s is gone, %d connections reset", m.name, k), nil
}

// Incarnation implements system.Incarnated.
func (c *cluster) Incarnation(_ context.Context, n system.Node) (string, error) {
	m, err := c.own(n)
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return "not running", nil
	}
	return fmt.Sprintf("life %d", m.life+1), nil
}

// Start implements system.Killer.
func (c *cluster) Start(_ context.Context, n system.Node) error {
	m, err := c.own(n)
	if err != nil {
		return err
	}
	m.mu.Lock()
	if m.down {
		m.life++
	}
	m.down = false
	m.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.destinations {
		if d.leader == nil {
			d.leader = m
			d.epoch++
		}
	}
	return nil
}

// Pause implements system.Pauser: requests wait in their sockets.
func (c *cluster) Pause(_ context.Context, n system.Node) (string, error) {
	m, err := c.own(n)
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = true
	return m.name + " is frozen", nil
}

// Resume implements system.Pauser.
func (c *cluster) Resume(_ context.Context, n system.Node) error {
	m, err := c.own(n)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = false
	m.resume.Broadcast()
	return nil
}
