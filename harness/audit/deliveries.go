package audit

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"strings"

	"conform/harness/ledger"
)

// deliveries is what the pass over the consumers' events, in the order of time, knows.
type deliveries struct {
	a         *auditor
	groups    []*group // those of the header first
	consumers map[consumerKey]*consumer
	last      *consumer
	next      delivery
}

// A consumer is known by its number and by the segment, that is, the process, that wrote it.
type consumerKey struct {
	s  *segment
	id uint32
}

type group struct {
	ledger.Group
	listed   bool // in the header
	parts    map[partitionKey]*groupPart
	queues   map[uint16]*queue
	handled  int // deliveries whose work has an end in the ledger
	placed   int // of those, with a position
	received int
}

// deliveredPage holds pageSize positions of one group.
type deliveredPage struct {
	received  [pageSize / 64]uint64
	processed [pageSize / 64]uint64
}

// groupPart is one partition as one group reads it.
type groupPart struct {
	partitionKey
	group    *group
	pages    map[int64]*deliveredPage
	last     *deliveredPage
	lastPage int64

	committed bool
	position  int64 // lowest that may be current by the confirmed commits
	since     int64 // when the last of them was confirmed
	doubt     int64 // lowest commit in doubt: it may take effect at any time; MaxInt64 = none

	delivered int64 // position behind the last one delivered
	waiting   int64 // since when deliveries wait for an end to the work on any; 0 = none do
	claimants []*holding
	newest    map[uint32]uint64 // stream of events -> newest event first delivered
}

// queue is a destination without positions, as one group has it. Only its waiting and newest are used of groupPart.
type queue struct {
	groupPart
	had    map[ledger.MessageID]int  // how often
	inHand map[ledger.MessageID]bool // delivered, and neither processed nor settled
}

// holding is one partition as one consumer owns it, from one assignment to the next.
type holding struct {
	c          *consumer
	part       *groupPart
	assigned   bool // its assignment is in the ledger
	assignedAt int64
	floor      int64 // the group's position when it was assigned; 0 = none was known
	next       int64 // position behind the last one received since
	ever       int64 // the same, over all assignments
	licence    int64 // it may read again from here, since work there failed; MaxInt64 = it may not
	settledAt  int64 // when its last confirmed settle was asked for
	settledTo  int64 // position behind what it has settled itself
	pending    []pending
	head       int // of pending
}

// pending is a delivery whose work has not ended, in the order of positions.
type pending struct {
	offset int64
	event  uint64
	done   bool
}

type consumer struct {
	key       consumerKey
	group     *group
	parts     map[partitionKey]*holding
	lastPart  *holding
	settledAt int64  // when its last settle was answered
	tables    tables // those in which it has its effects
	owes      uint64 // the event whose work failed, and that it has settled as the last thing it did; 0 = none
}

// delivery is one event of a consumer with what is known before it.
type delivery struct {
	s      *segment
	e      *ledger.Event
	group  *group
	part   *groupPart // nil where the event has no position
	queue  *queue     // where a delivery has none
	hold   *holding
	event  uint64 // the business event, 0 if unreadable
	facts  *facts // of it
	tables tables // those in which the consumer has its effects
	// first: the group has not had this position before, or this message where there are none.
	first bool
	// asked is when a settle was asked for, as late as can be said for certain; MinInt64 if not at all.
	asked int64
}

// What start returns may implement these too. They are called in the order of time, before the event
// has changed what is known.
type (
	receiver interface{ receivedNext(d *delivery) }
	settler  interface{ settledNext(d *delivery) }
	handler  interface{ handledNext(d *delivery) }
)

func newDeliveries(a *auditor) *deliveries {
	x := &deliveries{a: a, consumers: map[consumerKey]*consumer{}}
	for _, g := range a.header.Groups {
		x.groups = append(x.groups, &group{Group: g, listed: true, parts: map[partitionKey]*groupPart{}})
	}
	return x
}

// groupOf returns the group that a segment's consumers belong to: the one it names, or the only one.
func (x *deliveries) groupOf(s *segment) *group {
	if s.Group == "" && len(x.a.header.Groups) == 1 {
		return x.groups[0]
	}
	i := slices.IndexFunc(x.groups, func(g *group) bool { return g.Name == s.Group })
	if i < 0 {
		if s.Group == "" && len(x.a.header.Groups) > 1 {
			x.a.contradiction("%s: it does not name the group of its consumers", s.title())
		}
		i = len(x.groups)
		x.groups = append(x.groups, &group{Group: ledger.Group{Name: s.Group}, parts: map[partitionKey]*groupPart{}})
	}
	return x.groups[i]
}

func (x *deliveries) consumer(s *segment, id uint32) *consumer {
	key := consumerKey{s, id}
	if x.last != nil && x.last.key == key {
		return x.last
	}
	c := x.consumers[key]
	if c == nil {
		c = &consumer{key: key, group: x.groupOf(s), parts: map[partitionKey]*holding{}, settledAt: math.MinInt64, tables: allTables}
		if x.a.chained() {
			c.tables = x.a.business.tablesOf(process(s.Worker), c.group.Name)
		}
		x.consumers[key] = c
	}
	x.last = c
	return c
}

func (g *group) part(key partitionKey) *groupPart {
	p := g.parts[key]
	if p == nil {
		p = &groupPart{partitionKey: key, group: g, pages: map[int64]*deliveredPage{}, doubt: math.MaxInt64, newest: map[uint32]uint64{}}
		g.parts[key] = p
	}
	return p
}

func (g *group) queue(destination uint16) *queue {
	q := g.queues[destination]
	if q == nil {
		if g.queues == nil {
			g.queues = map[uint16]*queue{}
		}
		q = &queue{
			groupPart: groupPart{partitionKey: partitionKey{destination: destination}, group: g, newest: map[uint32]uint64{}},
			had:       map[ledger.MessageID]int{}, inHand: map[ledger.MessageID]bool{},
		}
		g.queues[destination] = q
	}
	return q
}

// queued says whether a message was delivered from a destination without positions: it is gone from there once it is settled.
func (x *deliveries) queued(id ledger.MessageID) bool {
	for _, g := range x.groups {
		for _, q := range g.queues {
			if q.had[id] > 0 {
				return true
			}
		}
	}
	return false
}

// times says how often a message was delivered from a destination without positions.
func (x *deliveries) times(id ledger.MessageID) (n int) {
	for _, g := range x.groups {
		for _, q := range g.queues {
			n += q.had[id]
		}
	}
	return n
}

// lane is where a delivery stands in order: its partition, or its queue.
func (d *delivery) lane() *groupPart {
	if d.part == nil && d.queue != nil {
		return &d.queue.groupPart
	}
	return d.part
}

func (c *consumer) holding(pos ledger.Position) *holding {
	key := partitionKey{pos.Destination, pos.Partition}
	if h := c.lastPart; h != nil && h.part.partitionKey == key {
		return h
	}
	h := c.parts[key]
	if h == nil {
		h = &holding{c: c, part: c.group.part(key), assignedAt: math.MinInt64, licence: math.MaxInt64, settledAt: math.MinInt64}
		c.parts[key] = h
	}
	c.lastPart = h
	return h
}

// page returns the page of a position >= 0, or nil if there is none and it is not to be made.
func (p *groupPart) page(offset int64, make bool) *deliveredPage {
	n := offset / pageSize
	if p.last == nil || p.lastPage != n {
		page := p.pages[n]
		if page == nil {
			if !make {
				return nil
			}
			page = new(deliveredPage)
			p.pages[n] = page
		}
		p.last, p.lastPage = page, n
	}
	return p.last
}

func bit(offset int64) (word int64, mask uint64) {
	i := offset % pageSize
	return i / 64, 1 << (i % 64)
}

// received says whether the group has had a position.
func (p *groupPart) received(offset int64) bool {
	page := p.page(offset, false)
	if page == nil {
		return false
	}
	w, m := bit(offset)
	return page.received[w]&m != 0
}

// processed says whether the work on a position has ended well. Where the ledger has no work of the
// group, what was received counts.
func (p *groupPart) processed(offset int64) bool {
	if p.group.placed == 0 {
		return p.received(offset)
	}
	page := p.page(offset, false)
	if page == nil {
		return false
	}
	w, m := bit(offset)
	return page.processed[w]&m != 0
}

// floor is the lowest position of the group that may be current, 0 if none is known.
func (p *groupPart) floor() int64 {
	if !p.committed {
		return 0
	}
	return min(p.position, p.doubt)
}

// see takes the next event in the order of time.
func (x *deliveries) see(s *segment, e *ledger.Event) {
	c := x.consumer(s, e.Consumer)
	c.owes = 0
	d := &x.next
	*d = delivery{s: s, e: e, group: c.group, tables: c.tables, asked: math.MinInt64}
	whole := e.Kind == ledger.Assigned || e.Kind == ledger.Revoked || e.Kind == ledger.Settled && isCommit(e)
	if whole || e.Pos.Offset >= 0 && (e.Kind == ledger.Received || e.Stream != 0) {
		d.hold = c.holding(e.Pos)
		d.part = d.hold.part
	} else if e.Stream != 0 {
		d.queue = c.group.queue(e.Pos.Destination)
	}
	if e.Stream != 0 || e.EventID != 0 {
		d.event = ledger.EventOf(e.ID(), e.EventID)
		if x.a.chained() {
			d.facts = x.a.business.of(d.event)
		}
	}
	switch e.Kind {
	case ledger.Received:
		x.received(d)
	case ledger.Handled:
		x.handled(d)
	case ledger.Settled:
		x.settled(c, d)
	case ledger.Assigned:
		d.hold.assign(e.At)
	case ledger.Revoked:
		d.hold.revoke()
	}
}

func isCommit(e *ledger.Event) bool { return e.Text == "commit" }

func (h *holding) assign(at int64) {
	*h = holding{c: h.c, part: h.part, ever: h.ever, assigned: true, assignedAt: at, floor: h.part.floor(), licence: math.MaxInt64, settledAt: math.MinInt64, pending: h.pending[:0]}
	if !slices.Contains(h.part.claimants, h) {
		h.part.claimants = append(h.part.claimants, h)
	}
}

// revoke ends an assignment. What is still in work goes on, and nothing that is read before the next
// assignment is judged.
func (h *holding) revoke() {
	h.assigned = false
	h.part.claimants = slices.DeleteFunc(h.part.claimants, func(x *holding) bool { return x == h })
}

func (x *deliveries) received(d *delivery) {
	d.group.received++
	if d.part != nil {
		d.first = !d.part.received(d.e.Pos.Offset)
	} else if d.queue != nil {
		d.first = d.queue.had[d.e.ID()] == 0
	}
	if !d.first && (d.part != nil || d.queue != nil) {
		x.a.totals.Redelivered++
		if at := x.a.faultAt(); d.e.At >= at || at == math.MaxInt64 {
			x.a.tally.redelivered++
		}
	}
	for _, o := range x.a.observers.received2 {
		o.receivedNext(d)
	}
	if d.facts != nil {
		*d.facts |= delivered * d.tables
	}
	if q := d.queue; q != nil {
		q.had[d.e.ID()]++
		q.inHand[d.e.ID()] = true
		if q.waiting == 0 {
			q.waiting = d.e.At
		}
		if d.facts != nil {
			*d.facts |= fromQueue
		}
	}
	if d.part == nil {
		return
	}
	p, h, offset := d.part, d.hold, d.e.Pos.Offset
	page := p.page(offset, true)
	w, m := bit(offset)
	page.received[w] |= m
	p.delivered = max(p.delivered, offset+1)
	if p.waiting == 0 {
		p.waiting = d.e.At
	}
	h.next, h.ever = max(h.next, offset+1), max(h.ever, offset+1)
	if !x.a.handles {
		return // nothing would take it out again
	}
	for len(h.pending) > h.head && h.pending[len(h.pending)-1].offset >= offset { // read again
		h.pending = h.pending[:len(h.pending)-1]
	}
	if h.head > len(h.pending)/2 {
		h.pending = h.pending[:copy(h.pending, h.pending[h.head:])]
		h.head = 0
	}
	h.pending = append(h.pending, pending{offset: offset, event: d.event})
}

// done takes a delivery off those whose work has not ended.
func (h *holding) done(offset int64) {
	rest := h.pending[h.head:]
	i, found := slices.BinarySearchFunc(rest, offset, func(p pending, offset int64) int { return cmp.Compare(p.offset, offset) })
	if found {
		rest[i].done = true
	}
	for h.head < len(h.pending) && h.pending[h.head].done {
		h.head++
	}
}

func (x *deliveries) handled(d *delivery) {
	d.group.handled++
	for _, o := range x.a.observers.handled {
		o.handledNext(d)
	}
	e := d.e
	ok := e.Outcome == ledger.OK
	word, _, _ := strings.Cut(e.Text, ":")
	if ok {
		x.a.totals.Handled++
	}
	if ok && (word == "applied" || word == "skipped") { // what was given up is no sign of health
		if e.At < x.a.survey.firstStrike {
			x.a.tally.beforeHandled++
		}
		if e.At > x.a.survey.lastHeal {
			x.a.tally.afterHandled++
		}
	}
	if f := d.facts; f != nil {
		switch {
		case !ok || word == "retried":
			*f |= failed * d.tables
		case word == "applied":
			*f |= applied * d.tables
		case e.Text == "skipped: duplicate":
			*f |= seenBefore * d.tables
		case word == "parked" || word == "dead-lettered" || word == "quarantined":
			*f |= givenUp * d.tables
		}
	}
	if d.queue != nil && ok && word != "retried" {
		d.queue.done(e)
	}
	if d.part == nil {
		return
	}
	p, h, offset := d.part, d.hold, e.Pos.Offset
	d.group.placed++
	if !ok || word == "retried" {
		h.licence = min(h.licence, offset)
		if e.Outcome == ledger.Failed || word == "retried" {
			h.done(offset) // in doubt it stays: a settle would come too early
		}
		return
	}
	page := p.page(offset, true)
	w, m := bit(offset)
	page.processed[w] |= m
	h.done(offset)
	p.waiting = 0
	if h.head < len(h.pending) {
		p.waiting = e.At
	}
}

// done takes a delivery out of a consumer's hands. The others go on waiting from now.
func (q *queue) done(e *ledger.Event) {
	delete(q.inHand, e.ID())
	q.waiting = 0
	if len(q.inHand) > 0 {
		q.waiting = e.At
	}
}

func (x *deliveries) settled(c *consumer, d *delivery) {
	e := d.e
	d.asked = c.settledAt // a client settles one after the other
	if e.Sent != 0 {
		d.asked = e.Sent
	}
	for _, o := range x.a.observers.settled {
		o.settledNext(d)
	}
	c.settledAt = e.At
	if !isCommit(e) {
		x.single(c, d)
		return
	}
	p, h := d.part, d.hold
	if e.Outcome != ledger.Failed {
		for h.head < len(h.pending) && h.pending[h.head].offset < e.Pos.Offset {
			if q := h.pending[h.head]; !q.done && q.event != 0 && x.a.chained() {
				*x.a.business.of(q.event) |= settledEarly * c.tables
			}
			h.head++
		}
	}
	switch e.Outcome {
	case ledger.OK:
		if !p.committed || d.asked > p.since {
			p.position = e.Pos.Offset
		} else { // at the same time as another: nobody knows which came last
			p.position = min(p.position, e.Pos.Offset)
		}
		p.committed, p.since = true, max(p.since, e.At)
		h.settledAt, h.settledTo = d.asked, max(h.settledTo, e.Pos.Offset)
	case ledger.InDoubt:
		p.doubt = min(p.doubt, e.Pos.Offset)
		h.licence = 0
	case ledger.Failed:
		h.licence = 0
	}
}

// single is the settle of one delivery: an ack, nack, reject or release.
func (x *deliveries) single(c *consumer, d *delivery) {
	e := d.e
	if f := d.facts; f != nil && e.Outcome != ledger.Failed && e.Text == "reject" {
		*f |= givenUp * d.tables
	}
	if f := d.facts; f != nil && e.Outcome != ledger.Failed && (e.Text == "ack" || e.Text == "accept") {
		*f |= settledAway * d.tables
		inWork := d.queue == nil || d.queue.inHand[e.ID()] // it may have ended well without any of these, as what is skipped
		done := *f & ((applied | failed | seenBefore | givenUp) * d.tables)
		if done == 0 && d.group.handled > 0 && inWork {
			*f |= settledEarly * d.tables
		}
		if done != 0 && done&^(failed*allTables) == 0 {
			c.owes = d.event
		}
	}
	if q := d.queue; q != nil && q.inHand[e.ID()] && (e.Text == "ack" || e.Text == "accept") {
		q.done(e)
	}
	if d.hold != nil && e.Text != "ack" && e.Text != "accept" {
		d.hold.licence = min(d.hold.licence, e.Pos.Offset)
	}
}

// who names the consumer of a delivery in witnesses.
func (d *delivery) who() string { return d.s.title() }

// reads says whether a group reads a destination.
func (a *auditor) reads(g *group, destination uint16) bool {
	if len(g.Destinations) > 0 {
		return slices.Contains(g.Destinations, destination)
	}
	return int(destination) < len(a.header.Destinations) && !a.header.Destinations[destination].DeadLetter
}

// due visits the stored positions of a partition that a group is to have: those of the committed view,
// if that was read.
func (a *auditor) due(p *partition, visit func(offset int64)) {
	view := a.primary
	if a.survey.committed {
		view = ledger.ViewCommitted
	}
	for n, page := range p.pages {
		for w, word := range page.views[view] {
			for ; word != 0; word &= word - 1 {
				visit(n*pageSize + int64(w*64+bits.TrailingZeros64(word)))
			}
		}
	}
}

// suspects gathers the due positions of the listed groups for which bad holds, and then looks up in one
// pass which messages they are.
func (a *auditor) suspects(bad func(p *groupPart, end *storeEnd, offset int64) bool, visit func(s *segment, e *ledger.Event, p *groupPart)) error {
	marked := map[partitionKey]map[int64]bool{}
	for _, g := range a.deliveries.groups {
		if !g.listed {
			continue
		}
		for key, stored := range a.index.partitions {
			if !a.reads(g, key.destination) {
				continue
			}
			p, end := g.part(key), a.survey.groupEnds[groupKey{key, g.Name}]
			a.due(stored, func(offset int64) {
				if bad(p, end, offset) {
					if marked[key] == nil {
						marked[key] = map[int64]bool{}
					}
					marked[key][offset] = true
				}
			})
		}
	}
	if len(marked) == 0 {
		return nil
	}
	_, err := scan(a.open, func(s *segment, e *ledger.Event) {
		key := partitionKey{e.Pos.Destination, e.Pos.Partition}
		if e.Kind != ledger.Stored || !marked[key][e.Pos.Offset] {
			return
		}
		delete(marked[key], e.Pos.Offset) // the other view, or a second read
		for _, g := range a.deliveries.groups {
			if !g.listed || !a.reads(g, key.destination) {
				continue
			}
			p := g.part(key)
			if bad(p, a.survey.groupEnds[groupKey{key, g.Name}], e.Pos.Offset) && !a.provenByEffect(e) {
				visit(s, e, p)
			}
		}
	}, ledger.Stored)
	return err
}

// provenByEffect says whether all effects of a record's event are there: then it was delivered and
// processed, though a consumer that was killed may not have said so.
func (a *auditor) provenByEffect(e *ledger.Event) bool {
	if !a.chained() || e.Stream == 0 {
		return false
	}
	f, each := *a.facts(e), 0
	for i, t := range a.business.effects {
		if t.State {
			continue
		}
		each++
		if f&(effectBit<<i) == 0 {
			return false
		}
	}
	return each > 0
}
