package audit

import (
	"fmt"
)

func init() {
	register(check{name: Unpublished, version: 2, reports: []string{Unpublished}, start: func(a *auditor) any { return &unpublishedCheck{a} }})
}

// unpublishedCheck finds committed business events of which no message was ever accepted by the broker:
// none confirmed, none in the store, none delivered. What was confirmed and is gone is lost, and what
// waits among the dead letters was given up for a reason that stands there.
type unpublishedCheck struct{ a *auditor }

func (c *unpublishedCheck) conclude() error {
	if !c.a.header.Chain.Ordered {
		return nil
	}
	c.a.business.walk(func(event uint64, f *facts) {
		if *f&(ordered|rowFound) == 0 || *f&(accepted|inStore) != 0 || f.any(delivered) {
			return
		}
		if _, ends := c.a.letterOf(event, *f); f.any(deadLetter) && ends {
			return
		}
		id, published := identity(event), *f&published != 0
		c.a.findings.add(findingKey{anomaly: Unpublished}, id, "", func() string {
			if published {
				return fmt.Sprintf("event %s is committed; it was handed to a client, and no confirm from the broker is on record", id)
			}
			return fmt.Sprintf("event %s is committed, and nobody ever handed it to a client", id)
		})
	})
	return nil
}
