package audit

import (
	"fmt"

	"conform/harness/ledger"
)

func init() {
	register(check{name: Conflict, version: 1, reports: []string{Conflict}, start: func(a *auditor) any { return &conflictCheck{a} }})
}

// conflictCheck finds positions that hold two values, in two reads or two views, and records that one
// view has and the other lacks though no transaction explains it.
type conflictCheck struct{ a *auditor }

func (c *conflictCheck) stored(s *segment, e *ledger.Event, seen sighting, m *flags) {
	if seen != clash {
		return
	}
	id, pos, view := e.ID(), e.Pos, e.View
	if m != nil {
		*m |= conflicting
	}
	c.a.findings.add(findingKey{anomaly: Conflict}, id, "", func() string {
		return fmt.Sprintf("%s: %s holds %s in the %s view and held another record before", s.title(), place(pos), id, view)
	})
}

func (c *conflictCheck) conclude() error {
	if !c.a.survey.committed || c.a.primary != ledger.ViewRaw || !c.a.finalReadOK {
		return nil // with a read that stopped short, what is behind it is unknown and not in conflict
	}
	c.a.index.walk(func(s *stream, seq uint64, f flags) {
		in := f & (storedRaw | storedCommitted)
		if in == 0 || in == storedRaw|storedCommitted {
			return
		}
		id := ledger.MessageID{Stream: s.id, Seq: seq}
		if t := c.a.survey.txnOf(id); t != nil && (t.outcome != ledger.OK || t.seen > 0) {
			return // absent by right, or the torn-txn check's
		}
		*s.flagsOf(seq) |= conflicting
		has, lacks := ledger.ViewRaw, ledger.ViewCommitted
		if in == storedCommitted {
			has, lacks = lacks, has
		}
		c.a.findings.add(findingKey{anomaly: Conflict}, id, "", func() string {
			return fmt.Sprintf("%s is in the %s view of the store and not in the %s one", id, has, lacks)
		})
	})
	return nil
}
