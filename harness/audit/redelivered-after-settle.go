package audit

import (
	"fmt"
)

func init() {
	register(check{name: RedeliveredAfterSettle, version: 1, reports: []string{RedeliveredAfterSettle}, start: func(a *auditor) any { return &redeliveredCheck{a} }})
}

// redeliveredCheck finds deliveries of what the group had had and had settled:
//
//	below the position that was confirmed before the consumer was assigned, and still is
//	below the group's position, to a consumer that has settled it itself since it was assigned
//
// Everything else may be a delivery that was on its way, or in a client's buffer, when the settle was
// confirmed.
type redeliveredCheck struct{ a *auditor }

func (c *redeliveredCheck) receivedNext(d *delivery) {
	if d.part == nil || d.first || !d.hold.assigned || !d.redelivered() {
		return
	}
	id, pos, at := d.e.ID(), d.e.Pos, d.e.At
	position := d.part.floor()
	key := findingKey{anomaly: RedeliveredAfterSettle}
	c.a.findings.add(key, id, "", func() string {
		return fmt.Sprintf("%s: %s at %s was delivered again at %s, group %q had settled what lies below %d", d.who(), id, place(pos), c.a.survey.since(at), d.group.Name, position)
	})
	c.a.findings.during(key, at, at)
}

// redelivered says whether a confirmed settle covers the delivery.
func (d *delivery) redelivered() bool {
	offset, floor := d.e.Pos.Offset, d.part.floor()
	return offset < floor && (offset < d.hold.floor || offset < min(d.hold.next, d.hold.settledTo))
}
