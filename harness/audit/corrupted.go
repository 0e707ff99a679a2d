package audit

import (
	"fmt"

	"conform/harness/ledger"
)

func init() {
	register(check{name: Corrupted, version: 1, reports: []string{Corrupted}, start: func(a *auditor) any {
		return &corruptedCheck{a: a, tag: a.header.Tag()}
	}})
}

// corruptedCheck computes each payload again and compares digests.
type corruptedCheck struct {
	a   *auditor
	tag uint32
	buf []byte
}

func (c *corruptedCheck) stored(s *segment, e *ledger.Event, seen sighting, m *flags) {
	if seen == otherway || seen == again {
		return // its digest was compared when the position was first read
	}
	id, pos := e.ID(), e.Pos
	if m == nil {
		if e.Text != ledger.TextForeign {
			c.a.findings.add(findingKey{anomaly: Corrupted}, id, "", func() string {
				return fmt.Sprintf("%s: the record at %s is not one of ours: %s", s.title(), place(pos), e.Text)
			})
		}
		return
	}
	c.buf = ledger.AppendPayload(c.buf[:0], c.a.header.Seed, c.tag, id, e.EventID, c.a.header.Workload.PayloadSize)
	want := ledger.Digest(c.buf)
	if want == e.Digest {
		return
	}
	*m |= corrupted
	got := e.Digest
	c.a.findings.add(findingKey{anomaly: Corrupted}, id, "", func() string {
		return fmt.Sprintf("%s: %s at %s has digest %016x, sent was %016x", s.title(), id, place(pos), got, want)
	})
}
