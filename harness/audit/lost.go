package audit

import (
	"fmt"
	"slices"

	"conform/harness/ledger"
)

func init() {
	register(check{name: "lost", version: 5, reports: []string{Lost}, start: func(a *auditor) any { return &lostCheck{a} }})
}

// lostCheck finds messages that are not in the store though somebody was promised that they were.
type lostCheck struct{ a *auditor }

// lostAs says whether a message that is absent from the store is lost, by whose word, and where it
// died:
//
//	outcome      claim   otherwise                      lost
//	ok           any     its position is below the
//	                     start of the log               (confirmed)/expired
//	ok           any     the broker says that it has
//	                     dropped it, and why            (confirmed)/unroutable, expired, overflowed, ...
//	ok           any                                    (confirmed)/broker
//	in doubt     sent    invoked                        (claimed)/client-buffer: no confirm is in the ledger
//	in doubt     sent    never invoked                  (claimed)/never-published: it never reached the client
//	failed       sent                                   (claimed)/never-published: refused, and the caller was told "sent"
//	in doubt     none    or failed                      not lost: nobody said that it would be there
//	failed       none    or failed                      not lost
//	ok           any     never invoked, or refused too  not judged: such a ledger contradicts itself
//
// A broker's confirm outweighs the claim: the loss is then the broker's, whatever the caller heard.
func lostAs(f flags, invoked bool) (findingKey, bool) {
	switch {
	case f&stored != 0:
		return findingKey{}, false
	case f&confirmed != 0 && (!invoked || f&refused != 0):
		return findingKey{}, false
	case f&confirmed != 0 && f&belowStart != 0:
		return findingKey{Lost, "confirmed", Expired}, true
	case f&confirmed != 0:
		return findingKey{Lost, "confirmed", Broker}, true
	case f&claimed == 0:
		return findingKey{}, false
	case f&refused != 0 || !invoked:
		return findingKey{Lost, "claimed", NeverPublished}, true
	default:
		return findingKey{Lost, "claimed", ClientBuffer}, true
	}
}

// lost says the same of a message of this ledger. Where the start of the log has moved, a message
// without a known position may have expired: that is unknown, so it is no finding.
func (a *auditor) lost(s *stream, seq uint64, f flags) (key findingKey, lost, unknown bool) {
	key, lost = lostAs(f, s.invoked(seq))
	if !lost || !a.storeRead() {
		return key, false, false
	}
	id := ledger.MessageID{Stream: s.id, Seq: seq}
	if a.deliveries.queued(id) {
		return key, false, false // it was handed to a consumer: what became of it there is told at the other places
	}
	if key.qualifier == "claimed" && a.chained() {
		if f := *a.business.of(ledger.EventID(s.id, seq)); f&inStore != 0 || f.any(deadLetter) {
			return key, false, false // another attempt at what was claimed is there, or it waits for a person
		}
	}
	if a.primary == ledger.ViewCommitted {
		if t := a.survey.txnOf(id); t != nil && t.outcome != ledger.OK {
			return key, false, false // only the view that shows no aborted transactions was read
		}
	}
	if f&placed == 0 && key.attribution != NeverPublished && a.startMoved(id) {
		return key, false, true
	}
	return key, true, false
}

// storeRead says whether the final read of the store has come to the end of any partition: of what nobody has looked at
// nothing is missing. That there is no such read makes the arm inconclusive.
func (a *auditor) storeRead() bool {
	for key := range a.survey.ends {
		if key.view == a.primary {
			return true
		}
	}
	return false
}

// tableRead says the same of a table.
func (a *auditor) tableRead(table string) bool { return a.survey.tables[tableOf(table)] != nil }

// startMoved says whether the log that a message belongs to no longer begins at 0, in any
// destination.
func (a *auditor) startMoved(id ledger.MessageID) bool {
	if !a.anyStartMoved {
		return false
	}
	if s := a.index.streams[id.Stream]; s != nil && s.publishes {
		return true // its key, and so its partition, are its business event's
	}
	for d, dest := range a.header.Destinations {
		n := ledger.PartitionOf(ledger.KeyOf(a.header.Seed, id, a.header.Workload.Keys), dest.Partitions)
		if end := a.survey.ends[viewKey{partitionKey{uint16(d), n}, a.primary}]; end != nil && end.Low > 0 {
			return true
		}
	}
	return false
}

// orders finds committed business transactions whose row is gone from the table that has them all. Their
// broker is the database.
func (c *lostCheck) orders() {
	if c.a.header.Chain.Orders == "" || !c.a.tableRead(c.a.header.Chain.Orders) {
		return
	}
	c.a.business.walk(func(event uint64, f *facts) {
		if *f&(ordered|rowFound) != ordered {
			return
		}
		id := identity(event)
		c.a.findings.add(findingKey{Lost, "confirmed", Broker}, id, "", func() string {
			return fmt.Sprintf("event %s was committed, and %s has no row of it", id, c.a.header.Chain.Orders)
		})
	})
}

// compacted marks, as expired, the absent messages of compacted destinations whose key has a record
// behind the position at which they were confirmed.
func (c *lostCheck) compacted() error {
	h := c.a.header
	if !slices.ContainsFunc(h.Destinations, func(d ledger.Destination) bool { return d.Compacted }) {
		return nil
	}
	type keyed struct {
		partitionKey
		key uint32
	}
	newest := map[keyed]int64{}
	of := func(e *ledger.Event) keyed {
		return keyed{partitionKey{e.Pos.Destination, e.Pos.Partition}, c.a.keyOf(e)}
	}
	is := func(e *ledger.Event) bool {
		return e.Stream != 0 && int(e.Pos.Destination) < len(h.Destinations) && h.Destinations[e.Pos.Destination].Compacted
	}
	_, err := scan(c.a.open, func(_ *segment, e *ledger.Event) {
		if e.Kind == ledger.Stored && e.View == c.a.primary && is(e) {
			newest[of(e)] = max(newest[of(e)], e.Pos.Offset)
		}
	}, ledger.Stored)
	if err != nil {
		return err
	}
	_, err = scan(c.a.open, func(_ *segment, e *ledger.Event) {
		if e.Kind != ledger.Complete || e.Outcome != ledger.OK || !is(e) || e.Pos.Offset < 0 {
			return
		}
		m := c.a.index.stream(e.Stream).flagsOf(e.Seq)
		if *m&stored == 0 && e.Pos.Offset < newest[of(e)] {
			*m |= belowStart
			if c.a.chained() {
				*c.a.facts(e) |= gone
			}
		}
	}, ledger.Complete)
	return err
}

// dropped finds, for the messages that are confirmed and absent, the reason for which the broker says that it has let go of
// so many of them. What goes beyond its count is its loss.
func (c *lostCheck) dropped() (map[ledger.MessageID]*ledger.Event, error) {
	drops := c.a.survey.drops
	if len(drops) == 0 {
		return nil, nil
	}
	left := map[string]int64{} // several spans of one reason share the broker's count
	for _, d := range drops {
		left[d.Text] = max(left[d.Text], d.Count)
	}
	reasons := map[ledger.MessageID]*ledger.Event{}
	_, err := scan(c.a.open, func(_ *segment, e *ledger.Event) {
		if e.Kind != ledger.Complete || e.Outcome != ledger.OK || e.Stream == 0 {
			return
		}
		if reasons[e.ID()] != nil || c.a.deliveries.queued(e.ID()) || *c.a.index.stream(e.Stream).flagsOf(e.Seq)&(stored|belowStart) != 0 {
			return
		}
		for i := range drops {
			d := &drops[i]
			if d.Pos.Destination == e.Pos.Destination && e.Sent <= d.At && e.At >= d.Sent && left[d.Text] > 0 {
				left[d.Text]--
				reasons[e.ID()] = d
				return
			}
		}
	}, ledger.Complete)
	return reasons, err
}

// droppedAs is the finding of a message of which the broker says that it has let go, if it says so.
func (k findingKey) droppedAs(d *ledger.Event) findingKey {
	if d != nil && k.anomaly == Lost && k.attribution == Broker {
		k.attribution = d.Text
	}
	return k
}

func (c *lostCheck) conclude() error {
	if err := c.compacted(); err != nil {
		return err
	}
	c.orders()
	var err error
	if c.a.dropped, err = c.dropped(); err != nil {
		return err
	}
	for _, s := range c.a.index.ordered() {
		first, last, found := uint64(0), uint64(0), false
		s.walk(func(seq uint64, f flags) {
			if f&stored != 0 {
				if !found {
					first, found = seq, true
				}
				last = seq
			}
		})
		s.walk(func(seq uint64, f flags) {
			key, lost, unknown := c.a.lost(s, seq, f)
			if unknown {
				c.a.mayHaveExpired++
			}
			if !lost {
				return
			}
			key = key.droppedAs(c.a.dropped[ledger.MessageID{Stream: s.id, Seq: seq}])
			region := Middle
			switch {
			case !found || seq > last:
				region = Suffix
			case seq < first:
				region = Prefix
			}
			c.a.findings.add(key, ledger.MessageID{Stream: s.id, Seq: seq}, region, nil)
			if f&completed == 0 && s.invoked(seq) {
				c.a.unfinished[key] = true
			}
			if key.attribution == Expired {
				c.a.totals.Expired++
			}
		})
	}
	return nil
}

// absence is the witness that a message is nowhere, from the final read.
func (a *auditor) absence(id ledger.MessageID) string {
	n := int32(0)
	if len(a.header.Destinations) > 0 {
		n = ledger.PartitionOf(ledger.KeyOf(a.header.Seed, id, a.header.Workload.Keys), a.header.Destinations[0].Partitions)
	}
	end := a.survey.ends[viewKey{partitionKey{0, n}, a.primary}]
	if end == nil {
		return fmt.Sprintf("%s is not in the store", id)
	}
	return fmt.Sprintf("%s is not in the store: partition %d was read from %d to its end %d, %d records", id, n, end.Low, end.N, a.index.partition(ledger.Position{Partition: n}).views[a.primary].count)
}
