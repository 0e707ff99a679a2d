package audit

import (
	"fmt"
	"math"

	"conform/harness/ledger"
)

func init() {
	register(check{name: "delay", version: 3, reports: []string{Early, Late, ExpiredDelivered}, start: func(a *auditor) any {
		if a.header.Delay == (ledger.Delay{}) {
			return nil
		}
		c := &delayCheck{a: a, times: map[ledger.MessageID]times{}}
		a.times = c
		return c
	}})
}

// delayCheck compares deliveries with when they were due, without the broker's clock: a message cannot
// be there before it was sent, and was there when it was confirmed.
//
//	early              delivered before send + due
//	late               first delivered after confirm + due + allowance
//	expired-delivered  delivered after confirm + TTL + allowance
//
// Of a business event with a delay of its own, which the end of its transaction tells (Chain.Tasks), that transaction counts, and
// if it was moved, the last one.
//
// Only arms with a delay pay for the two times of each message.
type delayCheck struct {
	a     *auditor
	times map[ledger.MessageID]times
}

type times struct{ sent, confirmed int64 }

// answer takes the Complete of a message.
func (c *delayCheck) answer(e *ledger.Event) {
	if c.a.header.Chain.Tasks {
		return // the delay is the event's, and its message may be sent when that is over
	}
	t, ok := c.times[e.ID()]
	if !ok {
		t.sent = math.MaxInt64
	}
	if e.Sent != 0 {
		t.sent = min(t.sent, e.Sent)
	}
	if e.Outcome == ledger.OK && (t.confirmed == 0 || e.At < t.confirmed) {
		t.confirmed = e.At
	}
	c.times[e.ID()] = t
}

// ordered takes the end of the transaction with which a delay begins, or begins again.
func (c *delayCheck) ordered(e *ledger.Event) {
	if !c.a.header.Chain.Tasks || e.Sent == 0 || e.Outcome == ledger.Failed {
		return
	}
	id := identity(e.EventID)
	t, again := c.times[id]
	if again && e.Outcome != ledger.OK {
		return // it may not have been moved
	}
	t.sent = max(t.sent, e.Sent)
	if e.Outcome == ledger.OK {
		t.confirmed = max(t.confirmed, e.At)
	}
	c.times[id] = t
}

func (c *delayCheck) receivedNext(d *delivery) {
	of := d.e.ID()
	if c.a.header.Chain.Tasks {
		of = identity(d.event)
	}
	t, ok := c.times[of]
	if !ok || d.e.Stream == 0 {
		return
	}
	due, allowance, ttl := int64(c.a.header.Delay.DueOf(d.e.Stream)), int64(c.a.header.Delay.Allowance), int64(c.a.header.Delay.TTL)
	id, at := d.e.ID(), d.e.At
	found := func(anomaly, what string, than int64) {
		key := findingKey{anomaly: anomaly}
		c.a.findings.add(key, id, "", func() string {
			return fmt.Sprintf("%s: %s was delivered at %s, %s %s", d.who(), id, c.a.survey.since(at), short(max(at-than, than-at)), what)
		})
		c.a.findings.during(key, at, at)
	}
	if due > 0 && t.sent != math.MaxInt64 && at < t.sent+due {
		found(Early, "before it was due", t.sent+due)
	}
	if t.confirmed == 0 {
		return
	}
	if allowance > 0 && d.first && at > t.confirmed+due+allowance {
		found(Late, "after it was due and the allowance was over", t.confirmed+due+allowance)
	}
	if ttl > 0 && at > t.confirmed+ttl+allowance {
		found(ExpiredDelivered, "after its time to live", t.confirmed+ttl+allowance)
	}
}
