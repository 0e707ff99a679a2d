package audit

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"conform/harness/ledger"
)

func init() {
	register(check{name: "drain", version: 2, reports: []string{Stall}, start: func(a *auditor) any {
		if a.header.Promise.Drain == (ledger.Drain{}) {
			return nil
		}
		a.drain = &drainCheck{a: a}
		return a.drain
	}})
}

const (
	// drainPart is the part of the way whose speed predicts the rest.
	drainPart = 5
	// drainPatience is how long the first part may take before it is judged by what it has come to.
	drainPatience = 10 * time.Second
	// drainRest is how few messages are no backlog any more: those that are just under way.
	drainRest = 3
	// drainMargin is by how much a capacity must be above the incoming to be told from it by counting.
	drainMargin = 1.05
)

// drainCheck measures how a backlog drains: in each partition, capacity and incoming in the first fifth of the way, what they
// predict for the rest, and what the rest took. A message is in the backlog from its confirm to the first end of the work on
// it. A capacity that is not above the incoming never drains, which is a stall and said at once; so is a rest that takes
// longer or shorter than predicted. A row of the outbox is in the backlog from its commit to the first confirm of its event.
type drainCheck struct {
	a       *auditor
	since   int64
	parts   map[partitionKey]*drainPartition
	work    []drainWork
	missing []string // why it is not known
	words   []string
}

// drainWork is the work on one message: when it ended, how long it waited for the database, and in which attempt.
type drainWork struct {
	at, waited int64
	attempt    uint32
}

// drainPartition has the times, in order, of what came in, of what was fetched and of what was handled.
type drainPartition struct {
	in, got, out []int64
}

func (c *drainCheck) conclude() error {
	c.since, c.parts, c.work = 0, map[partitionKey]*drainPartition{}, nil
	type seen struct{ fetched, done bool }
	known := map[ledger.MessageID]seen{}
	published := map[uint64]bool{}
	rows := c.a.header.Promise.Drain.Outbox
	_, err := scan(c.a.open, func(_ *segment, e *ledger.Event) {
		switch {
		case e.Kind == ledger.Step:
			if e.Text == c.a.header.Promise.Drain.Since && e.Outcome == ledger.OK {
				c.since = e.At
			}
		case rows:
			one := c.part(ledger.Position{})
			switch {
			case e.Outcome != ledger.OK || e.EventID == 0:
			case e.Kind == ledger.Ordered:
				one.in = append(one.in, e.At)
			case e.Kind == ledger.Complete && !published[e.EventID]:
				published[e.EventID] = true
				one.got, one.out = append(one.got, e.At), append(one.out, e.At)
			}
		case e.Kind == ledger.Received:
			// Segments of several consumers come in any order: an early second delivery is as good.
			if k := known[e.ID()]; !k.fetched {
				known[e.ID()] = seen{true, k.done}
				c.part(e.Pos).got = append(c.part(e.Pos).got, e.At)
			}
		case e.Outcome != ledger.OK || e.Kind == ledger.Ordered:
		case e.Kind == ledger.Complete:
			c.part(e.Pos).in = append(c.part(e.Pos).in, e.At)
		default:
			if k := known[e.ID()]; !k.done {
				known[e.ID()] = seen{k.fetched, true}
				c.part(e.Pos).out = append(c.part(e.Pos).out, e.At)
				c.work = append(c.work, drainWork{e.At, e.N, e.Attempt})
			}
		}
	}, ledger.Step, ledger.Ordered, ledger.Complete, ledger.Received, ledger.Handled)
	if err != nil {
		return err
	}
	if c.since == 0 {
		c.missing = append(c.missing, fmt.Sprintf("step %q was not reached", c.a.header.Promise.Drain.Since))
		return nil
	}
	c.judge()
	return nil
}

func (c *drainCheck) part(p ledger.Position) *drainPartition {
	key := partitionKey{p.Destination, p.Partition}
	if c.parts[key] == nil {
		c.parts[key] = &drainPartition{}
	}
	return c.parts[key]
}

func (c *drainCheck) judge() {
	d := c.a.header.Promise.Drain
	keys := slices.SortedFunc(maps.Keys(c.parts), func(a, b partitionKey) int { return int(a.number) - int(b.number) })
	var off []float64
	never, until := 0, int64(0)
	for _, key := range keys {
		p := c.parts[key]
		slices.Sort(p.in)
		slices.Sort(p.got)
		slices.Sort(p.out)
		m := p.measure(c.since)
		until = max(until, m.until)
		c.words = append(c.words, fmt.Sprintf("partition %d: %s", key.number, m.words()))
		switch {
		case m.backlog < d.Least:
			c.missing = append(c.missing, fmt.Sprintf("only %d waited in partition %d", m.backlog, key.number))
		case m.never():
			never++
		default:
			off = append(off, math.Abs(m.off()))
		}
	}
	c.words = append(c.words, c.series(until))
	if !d.Outbox {
		c.words = append(c.words, c.database())
	}
	if len(keys) == 0 {
		c.missing = append(c.missing, "nothing was sent")
	}
	if len(c.missing) > 0 {
		return
	}
	slices.Sort(off)
	key := findingKey{anomaly: Stall}
	story := func() string { return strings.Join(c.words, "; ") }
	switch {
	case never > 0:
		c.a.findings.add(key, ledger.MessageID{}, "", story)
	case off[len(off)/2] > d.Tolerance:
		c.a.findings.add(key, ledger.MessageID{}, "", story)
	}
}

// waiting is the backlog at a time.
func (p *drainPartition) waiting(at int64) int { return upTo(p.in, at) - upTo(p.out, at) }

// oldest is how long the message has waited, at a time, that has waited longest. Partitions are worked off in order.
func (p *drainPartition) oldest(at int64) time.Duration {
	if handled := upTo(p.out, at); handled < len(p.in) {
		return max(0, time.Duration(at-p.in[handled]))
	}
	return 0
}

// series says, at some points in time, how much waits in the broker, how much is fetched and not handled, and how old the
// oldest of both is.
func (c *drainCheck) series(until int64) string {
	const points = 5
	var b strings.Builder
	b.WriteString("over time")
	for i := range points {
		at := c.since + (until-c.since)*int64(i)/(points-1)
		stored, fetched, oldest := 0, 0, time.Duration(0)
		for _, p := range c.parts {
			stored += upTo(p.in, at) - upTo(p.got, at)
			fetched += upTo(p.got, at) - upTo(p.out, at)
			oldest = max(oldest, p.oldest(at))
		}
		if c.a.header.Promise.Drain.Outbox {
			fmt.Fprintf(&b, ", after %s %d in the outbox, the oldest %s old", short(at-c.since), max(0, stored), short(int64(oldest)))
			continue
		}
		fmt.Fprintf(&b, ", after %s %d in the broker, %d fetched, the oldest %s old", short(at-c.since), max(0, stored), fetched, short(int64(oldest)))
	}
	return b.String()
}

// database says how long the work since the consumers' return has waited for the database, and how often it was tried again.
func (c *drainCheck) database() string {
	var waits []int64
	sum, retries := int64(0), 0
	for _, w := range c.work {
		if w.at < c.since {
			continue
		}
		waits = append(waits, w.waited)
		sum += w.waited
		retries += max(0, int(w.attempt)-1)
	}
	if len(waits) == 0 {
		return "nothing was handled"
	}
	slices.Sort(waits)
	return fmt.Sprintf("waiting for the database %s at the median, %s at most, %s in all; %d retries", short(waits[len(waits)/2]), short(waits[len(waits)-1]), short(sum), retries)
}

func upTo(times []int64, at int64) int {
	n, _ := slices.BinarySearch(times, at+1)
	return n
}

// drained is how one partition drained.
type drained struct {
	backlog            int
	oldest             time.Duration // how long the oldest had waited when it began
	incoming, capacity float64       // per second, in the first part
	left               int           // after the first part
	until              int64         // when it was drained, or else the end of the first part
	rest               time.Duration // what it took from there; 0 = it was never drained
}

func (p *drainPartition) measure(since int64) drained {
	// A consumer that has only just come back has an assignment and a fetch to wait for: that is no part of its capacity.
	from := since
	if n := upTo(p.out, since); n < len(p.out) {
		from = min(p.out[n], since+int64(drainPatience))
	}
	m := drained{backlog: p.waiting(from)}
	m.oldest = p.oldest(from)
	first := from + int64(drainPatience)
	end := int64(0)
	for _, at := range p.out[upTo(p.out, from):] {
		left := p.waiting(at)
		if at < first && left <= m.backlog-m.backlog/drainPart {
			first = at
		}
		if at > first && left <= drainRest {
			end = at
			break
		}
	}
	span := time.Duration(first - from).Seconds()
	m.incoming = float64(upTo(p.in, first)-upTo(p.in, from)) / span
	m.capacity = float64(upTo(p.out, first)-upTo(p.out, from)) / span
	m.left, m.until = p.waiting(first), first
	if end > 0 {
		m.rest, m.until = time.Duration(end-first), end
	}
	return m
}

func (m drained) never() bool { return m.capacity <= drainMargin*m.incoming }

func (m drained) predicted() time.Duration {
	return time.Duration(float64(m.left-drainRest) / (m.capacity - m.incoming) * float64(time.Second))
}

// off is by which part of the prediction the rest took longer. A rest without an end is off by all.
func (m drained) off() float64 {
	if m.rest == 0 {
		return math.Inf(1)
	}
	return float64(m.rest)/float64(m.predicted()) - 1
}

func (m drained) words() string {
	w := fmt.Sprintf("backlog %d, the oldest %s old, incoming %.1f/s, capacity %.1f/s", m.backlog, short(int64(m.oldest)), m.incoming, m.capacity)
	switch {
	case m.never():
		return w + ": never drains"
	case m.rest == 0:
		return w + fmt.Sprintf(": the rest of %d predicted to take %s, and not drained", m.left, short(int64(m.predicted())))
	default:
		return w + fmt.Sprintf(": the rest of %d predicted to take %s, took %s (%+.0f %%)", m.left, short(int64(m.predicted())), short(int64(m.rest)), 100*m.off())
	}
}

// proof says what was measured.
func (c *drainCheck) proof() Proof {
	return proof("drain", fmt.Sprintf("a backlog of %d in each partition, measured", c.a.header.Promise.Drain.Least), c.missing, strings.Join(c.words, "; "))
}
