package audit

import (
	"fmt"
	"maps"
	"slices"

	"conform/harness/ledger"
)

func init() {
	register(check{name: CommitRewind, version: 1, reports: []string{CommitRewind}, start: func(a *auditor) any { return &rewindCheck{a} }})
}

// rewindCheck finds confirmed commits below the group's position, asked for after that was confirmed,
// and final positions below it. A commit in doubt may take effect at any time, so nothing at or above one
// has gone back for certain.
type rewindCheck struct{ a *auditor }

func (c *rewindCheck) settledNext(d *delivery) {
	e, p := d.e, d.part
	if !isCommit(e) || e.Outcome != ledger.OK || !p.committed || d.asked <= p.since || e.Pos.Offset >= p.floor() {
		return
	}
	was, at, to := p.position, e.At, e.Pos.Offset
	c.found(p, d.who(), was, to, at)
}

func (c *rewindCheck) found(p *groupPart, who string, was, to, at int64) {
	key := findingKey{anomaly: CommitRewind}
	c.a.findings.add(key, ledger.MessageID{}, "", func() string {
		return fmt.Sprintf("%s: the position of group %q in partition %d went back from %d to %d at %s", who, p.group.Name, p.number, was, to, c.a.survey.since(at))
	})
	c.a.findings.during(key, at, at)
}

func (c *rewindCheck) conclude() error {
	for _, g := range c.a.deliveries.groups {
		for _, key := range slices.SortedFunc(maps.Keys(g.parts), comparePartitions) {
			p, end := g.parts[key], c.a.survey.groupEnds[groupKey{key, g.Name}]
			if end != nil && !end.moved && p.committed && end.Pos.Offset < p.floor() {
				c.found(p, "the final read", p.position, end.Pos.Offset, end.At)
			}
		}
	}
	return nil
}

func comparePartitions(a, b partitionKey) int {
	return compareViews(viewKey{partitionKey: a}, viewKey{partitionKey: b})
}
