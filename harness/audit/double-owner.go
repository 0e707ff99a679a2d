package audit

import (
	"fmt"

	"conform/harness/ledger"
)

func init() {
	register(check{name: DoubleOwner, version: 1, reports: []string{DoubleOwner}, start: func(a *auditor) any {
		return &ownerCheck{a: a, found: map[[2]*holding]bool{}}
	}})
}

// ownerCheck finds two consumers that own a partition at once. A consumer that is frozen cannot know
// that it was revoked, and its work goes on for a while when it thaws; and one whose assignment was late
// in being written down seems to own what it has lost. So nobody's word counts, but the broker's: two
// owners are two consumers, neither of which has been revoked, each of which had a settle confirmed that
// it had asked for after both were assigned.
type ownerCheck struct {
	a     *auditor
	found map[[2]*holding]bool // once a pair
}

func (c *ownerCheck) settledNext(d *delivery) {
	e, h := d.e, d.hold
	if !isCommit(e) || e.Outcome != ledger.OK || !h.assigned {
		return
	}
	for _, other := range d.part.claimants {
		both := max(h.assignedAt, other.assignedAt)
		if other == h || d.asked <= both || other.settledAt <= both || c.found[[2]*holding{other, h}] || c.found[[2]*holding{h, other}] {
			continue
		}
		c.found[[2]*holding{h, other}] = true
		key := findingKey{anomaly: DoubleOwner}
		at, from := e.At, other.settledAt
		c.a.findings.add(key, ledger.MessageID{}, "", func() string {
			return fmt.Sprintf("%s and %s both own partition %d of group %q: the one settled at %s, the other at %s, both after both were assigned", other.c.key.s.title(), d.who(), d.part.number, d.group.Name, c.a.survey.since(from), c.a.survey.since(at))
		})
		c.a.findings.during(key, from, at)
	}
}
