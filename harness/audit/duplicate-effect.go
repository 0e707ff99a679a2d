package audit

import (
	"fmt"
	"maps"
	"slices"
)

func init() {
	register(check{name: DuplicateEffect, version: 2, reports: []string{DuplicateEffect}, start: func(a *auditor) any { return &twiceCheck{a} }})
}

// twiceCheck finds business acts with more than one effect in a table: two rows of one event, a row that
// says so itself, or rows of two event ids under which one act was asked for. The last is known from
// Resent events, or from rows that name the act.
type twiceCheck struct{ a *auditor }

func (c *twiceCheck) conclude() error {
	if !c.a.chained() {
		return nil
	}
	b := c.a.business
	b.walk(func(event uint64, f *facts) {
		if *f&allTwice == 0 {
			return
		}
		for i, t := range b.effects {
			if *f&(twiceBit<<i) != 0 {
				id := identity(event)
				c.a.findings.add(findingKey{anomaly: DuplicateEffect}, id, "", func() string {
					return fmt.Sprintf("%s holds more than one effect of event %s", t.Name, id)
				})
			}
		}
	})
	acts := b.siblings()
	for _, act := range slices.Sorted(maps.Keys(acts)) {
		for i, t := range b.effects {
			if t.State {
				continue
			}
			var with []uint64
			for _, event := range acts[act] {
				if *b.of(event)&(effectBit<<i) != 0 {
					with = append(with, event)
				}
			}
			for n := 1; n < len(with); n++ {
				first, again := identity(with[0]), identity(with[n])
				c.a.findings.add(findingKey{anomaly: DuplicateEffect}, again, "", func() string {
					return fmt.Sprintf("%s holds the effects of events %s and %s, which are one business act asked for again under a new event id", t.Name, first, again)
				})
				c.a.findings.alsoOf(findingKey{anomaly: DuplicateEffect}, first)
			}
		}
	}
	return nil
}
