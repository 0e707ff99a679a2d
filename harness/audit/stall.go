package audit

import (
	"fmt"
	"math"
	"time"

	"conform/harness/ledger"
)

func init() {
	register(check{name: Stall, version: 4, reports: []string{Stall}, start: func(a *auditor) any {
		a.stall = &stallCheck{a: a}
		return a.stall
	}})
}

// stallCheck measures how long callers waited for an answer, and how long consumers held deliveries of a
// partition without an end to the work on any; it judges both where the promise bounds them. A caller
// waits from the send to its Complete or Claimed, or for ever; a call that died with its process is over. What
// a process in the background sends has no caller, and attempts that go on behind a caller's back after it was
// answered have none any more.
type stallCheck struct {
	a                  *auditor
	hold               int64
	holdFrom           int64
	holder             string
	waited, waitedFrom int64
	waiter             ledger.MessageID
}

// wait takes a call that ended, as a worker has written it down.
func (c *stallCheck) wait(s *segment, id ledger.MessageID, from, to int64) {
	if to-from > c.waited && !c.inBackground(s) {
		c.waited, c.waitedFrom, c.waiter = to-from, from, id
	}
}

func (c *stallCheck) inBackground(s *segment) bool {
	worker := s.Worker
	if worker == "" {
		worker = s.Name
	}
	return c.a.header.InBackground(worker)
}

func (c *stallCheck) handledNext(d *delivery) {
	if p := d.lane(); p != nil && p.waiting != 0 && d.e.Outcome == ledger.OK {
		c.held(p, d.e.At)
	}
}

func (c *stallCheck) held(p *groupPart, to int64) {
	if to-p.waiting > c.hold {
		c.hold, c.holdFrom = to-p.waiting, p.waiting
		c.holder = fmt.Sprintf("partition %d of group %q", p.number, p.group.Name)
	}
}

func (c *stallCheck) conclude() error {
	a := c.a
	bound := int64(a.header.Promise.MaxStall)
	if q := a.survey.quiet; q != nil && a.handles {
		for _, g := range a.deliveries.groups {
			for _, p := range g.parts {
				if g.placed > 0 && p.waiting != 0 && c.unfinished(p) {
					c.held(p, q.At)
				}
			}
			for _, p := range g.queues {
				if g.handled > 0 && p.waiting != 0 {
					c.held(&p.groupPart, q.At)
				}
			}
		}
	}
	if bound > 0 {
		if err := c.open(); err != nil {
			return err
		}
	}
	a.liveness.LongestWait, a.liveness.LongestHold = time.Duration(c.waited), time.Duration(c.hold)
	if bound <= 0 {
		return nil
	}
	found := func(id ledger.MessageID, from, took int64, who string) {
		key := findingKey{anomaly: Stall}
		a.findings.add(key, id, "", func() string {
			return fmt.Sprintf("%s for %s from %s on, the promise bounds it by %s", who, time.Duration(took).Round(time.Millisecond), a.survey.since(from), a.header.Promise.MaxStall)
		})
		a.findings.during(key, from, from+took)
	}
	if c.waited > bound {
		found(c.waiter, c.waitedFrom, c.waited, fmt.Sprintf("the caller of %s waited for an answer", c.waiter))
	}
	if c.hold > bound {
		found(ledger.MessageID{}, c.holdFrom, c.hold, "no work ended well on deliveries of "+c.holder)
	}
	return nil
}

// unfinished says whether a delivery of the partition is in hand at the end.
func (c *stallCheck) unfinished(p *groupPart) bool {
	for _, page := range p.pages {
		for w := range page.received {
			if page.received[w]&^page.processed[w] != 0 {
				return true
			}
		}
	}
	return false
}

// open looks for the calls that never ended. They waited until the load was over, or their process was.
func (c *stallCheck) open() error {
	a := c.a
	if a.survey.healPhase == math.MaxInt64 || a.tally.open == 0 {
		return nil
	}
	ends := map[string]int64{}
	for _, w := range a.survey.workers {
		ends[w.Text] = w.At
	}
	_, err := scan(a.open, func(s *segment, e *ledger.Event) {
		if e.Kind != ledger.Invoke || e.To <= e.Seq {
			return
		}
		to := a.survey.healPhase
		if end, ok := ends[s.Worker]; ok {
			to = min(to, end)
		}
		st := a.index.stream(e.Stream)
		if to-e.At <= c.waited || c.inBackground(s) || a.header.Chain.Ordered && !st.publishes && len(st.pages) == 0 {
			return
		}
		if e.EventID != 0 && a.chained() && *a.facts(e)&answeredNo != 0 {
			return
		}
		for seq := e.Seq; seq < e.To; seq++ {
			if *st.flagsOf(seq)&(completed|claimed) == 0 {
				c.wait(s, ledger.MessageID{Stream: e.Stream, Seq: seq}, e.At, to)
				break
			}
		}
	}, ledger.Invoke)
	return err
}
