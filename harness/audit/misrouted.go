package audit

import (
	"fmt"
	"slices"

	"conform/harness/ledger"
)

func init() {
	register(check{name: Misrouted, version: 2, reports: []string{Misrouted}, start: func(a *auditor) any { return &misroutedCheck{a} }})
}

// misroutedCheck compares key and partition with those that the identity implies, and finds records
// of other arms.
type misroutedCheck struct{ a *auditor }

func (c *misroutedCheck) stored(s *segment, e *ledger.Event, seen sighting, m *flags) {
	if seen == otherway || seen == again {
		return
	}
	id, pos := e.ID(), e.Pos
	if m == nil {
		if e.Text == ledger.TextForeign {
			c.a.findings.add(findingKey{anomaly: Misrouted}, id, "", func() string {
				return fmt.Sprintf("%s: the record at %s belongs to another arm or run", s.title(), place(pos))
			})
		}
		return
	}
	key := c.a.keyOf(e)
	d := c.a.header.Destinations[e.Pos.Destination]
	want := ledger.PartitionOf(key, d.Partitions)
	here := e.Pos.Partition == want || e.View == ledger.ViewDeadLetter || slices.ContainsFunc(d.Grown, func(before int) bool {
		return e.Pos.Partition == ledger.PartitionOf(key, before)
	})
	if e.Key == key && here {
		return
	}
	*m |= misrouted
	got := e.Key
	c.a.findings.add(findingKey{anomaly: Misrouted}, id, "", func() string {
		if got != key {
			return fmt.Sprintf("%s: %s at %s has key %s, sent under %s", s.title(), id, place(pos), ledger.KeyName(got), ledger.KeyName(key))
		}
		return fmt.Sprintf("%s: %s stands at %s, sent to partition %d", s.title(), id, place(pos), want)
	})
}
