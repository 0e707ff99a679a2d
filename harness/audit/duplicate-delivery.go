package audit

import (
	"fmt"
)

func init() {
	register(check{name: DuplicateDelivery, version: 1, reports: []string{DuplicateDelivery}, start: func(a *auditor) any { return &againCheck{a} }})
}

// againCheck finds what one consumer is handed twice in one assignment although it had processed it, and
// all before it, and nothing had failed or been released there: no settle allows that. What was settled
// is the redelivered-after-settle check's.
type againCheck struct{ a *auditor }

func (c *againCheck) receivedNext(d *delivery) {
	if d.part == nil || d.first || !d.hold.assigned {
		return
	}
	h, offset := d.hold, d.e.Pos.Offset
	if offset >= h.next || offset >= h.licence || d.redelivered() || d.group.placed == 0 || !d.part.processed(offset) {
		return
	}
	if h.head < len(h.pending) && h.pending[h.head].offset <= offset {
		return // it goes back to work that has not ended
	}
	id, pos, at := d.e.ID(), d.e.Pos, d.e.At
	key := findingKey{anomaly: DuplicateDelivery}
	c.a.findings.add(key, id, "", func() string {
		return fmt.Sprintf("%s: %s at %s was delivered again at %s though its work had ended well and nothing before it had failed", d.who(), id, place(pos), c.a.survey.since(at))
	})
	c.a.findings.during(key, at, at)
}
