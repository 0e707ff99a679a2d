package audit

import (
	"fmt"

	"conform/harness/ledger"
)

func init() {
	register(check{name: Undelivered, version: 2, reports: []string{Undelivered}, start: func(a *auditor) any { return &undeliveredCheck{a} }})
}

// undeliveredCheck finds records that a group never had, at or behind its final position. What that
// has passed is the commit-gap check's. Of what comes from a queue no position is known: there the message counts.
type undeliveredCheck struct{ a *auditor }

func (c *undeliveredCheck) conclude() error {
	bad := func(p *groupPart, end *storeEnd, offset int64) bool {
		return (end == nil || offset >= end.Pos.Offset) && !p.received(offset)
	}
	return c.a.suspects(bad, func(s *segment, e *ledger.Event, p *groupPart) {
		if q := p.group.queues[p.destination]; q != nil && q.had[e.ID()] > 0 {
			return
		}
		id, pos := e.ID(), e.Pos
		c.a.findings.add(findingKey{anomaly: Undelivered}, id, "", func() string {
			return fmt.Sprintf("%s: %s stands at %s and was never delivered to group %q", s.title(), id, place(pos), p.group.Name)
		})
	})
}
