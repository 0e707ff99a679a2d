package audit

import (
	"fmt"

	"conform/harness/ledger"
)

func init() {
	register(check{name: DuplicateStore, version: 1, reports: []string{DuplicateStore}, start: func(a *auditor) any { return &duplicateCheck{a} }})
}

// duplicateCheck finds messages that stand at a second position. The same position read twice is one
// record.
type duplicateCheck struct{ a *auditor }

func (c *duplicateCheck) stored(s *segment, e *ledger.Event, seen sighting, m *flags) {
	if m == nil || e.View != c.a.primary || seen == again || *m&c.a.primaryFlag == 0 {
		return
	}
	*m |= duplicated
	id, pos := e.ID(), e.Pos
	c.a.findings.add(findingKey{anomaly: DuplicateStore}, id, "", func() string {
		return fmt.Sprintf("%s: %s stands again at %s", s.title(), id, place(pos))
	})
}
