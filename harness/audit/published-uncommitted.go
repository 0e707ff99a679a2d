package audit

import (
	"fmt"
)

func init() {
	register(check{name: PublishedUncommitted, version: 2, reports: []string{PublishedUncommitted}, start: func(a *auditor) any { return &uncommittedCheck{a} }})
}

// uncommittedCheck finds events in the store, or delivered, whose business transaction was not
// committed: it was rolled back, or, if nobody was told, has no row in the table of all orders.
type uncommittedCheck struct{ a *auditor }

func (c *uncommittedCheck) conclude() error {
	if !c.a.header.Chain.Ordered {
		return nil
	}
	c.a.business.walk(func(event uint64, f *facts) {
		if *f&(accepted|inStore) == 0 && !f.any(delivered) || !c.a.uncommitted(*f) {
			return
		}
		id, back := identity(event), *f&rolledBack != 0
		c.a.findings.add(findingKey{anomaly: PublishedUncommitted}, id, "", func() string {
			if back {
				return fmt.Sprintf("event %s was published, and its transaction was rolled back", id)
			}
			return fmt.Sprintf("event %s was published, and %s has no row of it", id, c.a.header.Chain.Orders)
		})
	})
	return nil
}
