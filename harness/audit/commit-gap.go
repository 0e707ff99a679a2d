package audit

import (
	"fmt"

	"conform/harness/ledger"
)

func init() {
	register(check{name: CommitGap, version: 1, reports: []string{CommitGap}, start: func(a *auditor) any { return &gapCheck{a} }})
}

// gapCheck finds records that the final position of a group has passed and whose work never ended well
// in any of its consumers. What could not be processed and was parked, has ended well.
type gapCheck struct{ a *auditor }

func (c *gapCheck) conclude() error {
	bad := func(p *groupPart, end *storeEnd, offset int64) bool {
		return end != nil && offset < end.Pos.Offset && !p.processed(offset)
	}
	return c.a.suspects(bad, func(s *segment, e *ledger.Event, p *groupPart) {
		if c.a.chained() && p.group.placed < p.group.handled && c.a.facts(e).any(applied|seenBefore|givenUp) {
			return // its work has ended well, but where the delivery stood is not recorded
		}
		id, pos := e.ID(), e.Pos
		what := "was delivered and its work never ended well"
		if !p.received(pos.Offset) {
			what = "was never delivered"
		}
		end := c.a.survey.groupEnds[groupKey{p.partitionKey, p.group.Name}].Pos.Offset
		c.a.findings.add(findingKey{anomaly: CommitGap}, id, "", func() string {
			return fmt.Sprintf("%s: %s at %s %s, and the final position of group %q is %d", s.title(), id, place(pos), what, p.group.Name, end)
		})
	})
}
