package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"conform/harness/ledger"
)

func init() {
	register(check{name: CommitAhead, version: 1, reports: []string{CommitAhead}, start: func(a *auditor) any {
		return &aheadCheck{a: a, ahead: map[*holding]ahead{}}
	}})
}

// aheadCheck finds commits beyond all that the group had been delivered. Since a client that commits in
// the background may be answered before the application has written down what it was handed, only what
// the consumer was not handed later either counts; and offsets without a record are no gap.
type aheadCheck struct {
	a     *auditor
	ahead map[*holding]ahead // the furthest one of each
}

type ahead struct {
	who                 string
	at                  int64
	position, delivered int64
}

func (c *aheadCheck) settledNext(d *delivery) {
	e := d.e
	if !isCommit(e) || e.Outcome != ledger.OK || e.Pos.Offset <= d.part.delivered {
		return
	}
	if old, ok := c.ahead[d.hold]; !ok || e.Pos.Offset > old.position {
		c.ahead[d.hold] = ahead{d.who(), e.At, e.Pos.Offset, d.part.delivered}
	}
}

func (c *aheadCheck) conclude() error {
	holds := slices.SortedFunc(maps.Keys(c.ahead), func(a, b *holding) int {
		return cmp.Or(
			compareViews(viewKey{partitionKey: a.part.partitionKey}, viewKey{partitionKey: b.part.partitionKey}),
			cmp.Compare(c.ahead[a].at, c.ahead[b].at), cmp.Compare(c.ahead[a].who, c.ahead[b].who),
		)
	})
	for _, h := range holds {
		x := c.ahead[h]
		low, jumped := max(x.delivered, h.ever), false
		if stored := c.a.index.partitions[h.part.partitionKey]; stored != nil {
			c.a.due(stored, func(offset int64) { jumped = jumped || low <= offset && offset < x.position })
		}
		if !jumped {
			continue
		}
		key := findingKey{anomaly: CommitAhead}
		c.a.findings.add(key, ledger.MessageID{}, "", func() string {
			return fmt.Sprintf("%s: committed position %d of partition %d for group %q at %s, the group had been delivered what lies below %d", x.who, x.position, h.part.number, h.part.group.Name, c.a.survey.since(x.at), low)
		})
		c.a.findings.during(key, x.at, x.at)
	}
	return nil
}
