package audit

import (
	"fmt"
	"slices"
	"strings"

	"conform/harness/ledger"
)

func init() {
	register(check{name: MissingEffect, version: 5, reports: []string{MissingEffect}, start: func(a *auditor) any { return &missingCheck{a} }})
}

// missingCheck finds business events that happened and have no effect. A dead letter is an end like an
// effect, unless nobody reads dead letters; so is the effect of the same act under another event id.
type missingCheck struct{ a *auditor }

// missingAs says where a business event without its effect died. The first line that holds counts:
//
//	dead-lettered, and nobody reads those               dead-letter-dropped
//	given up by a consumer, and not a dead letter       dead-letter-dropped
//	taken for a repetition (inbox row, or skipped)      deduplicated-wrongly
//	its work is committed, and the effect is gone       broker: the database's
//	settled before its work had ended, or after it had  settled-early
//	failed, as the last thing its consumer lived to do
//	settled, or passed by the group's position          skipped
//	let go of by the broker after it had failed         dead-letter-dropped
//	in the store, or delivered; its record still there  pending
//	confirmed as unroutable                             unroutable
//	confirmed, dropped by a full queue                  overflowed
//	confirmed, below the start of the log               expired
//	delivered (and deleted since)                       pending; of a queue, which holds what is not settled, broker
//	confirmed                                           broker
//	never handed to a client, or refused                never-published
//	handed over                                         client-buffer
//
// An inbox row is written with its work: that it is there, and the work's effect is not, is a wrong
// deduplication even where nobody lived to skip the event.
func missingAs(f facts) string {
	switch {
	case f&(deadLetter|givenUp) != 0:
		return DeadLetterDropped
	case f&seenBefore != 0:
		return DeduplicatedWrongly
	case f&applied != 0:
		return Broker
	case f&settledEarly != 0:
		return SettledEarly
	case f&settledAway != 0:
		return Skipped
	case f&droppedDead != 0:
		return DeadLetterDropped
	case f&inStore != 0:
		return Pending
	case f&unroutable != 0:
		return Unroutable
	case f&overflowed != 0:
		return Overflowed
	case f&gone != 0:
		return Expired
	case f&delivered != 0 && f&fromQueue == 0:
		return Pending
	case f&accepted != 0:
		return Broker
	case f&published == 0, f&unaccepted != 0:
		return NeverPublished
	default:
		return ClientBuffer
	}
}

func (c *missingCheck) conclude() error {
	a := c.a
	if !a.chained() || len(a.business.effects) == 0 {
		return nil
	}
	found := false
	lacks := func(event uint64, f *facts, i int) bool {
		return a.tableRead(a.business.effects[i].Name) && a.committed(*f) && *f&(effectBit<<i) == 0 && !a.ended(event, f.of(i)) && !a.elsewhere(event, i)
	}
	a.business.walk(func(event uint64, f *facts) {
		for i, t := range a.business.effects {
			if !t.State && lacks(event, f, i) {
				*f |= missing << i
				found = true
			}
		}
	})
	behind, err := a.behind()
	newest := map[statePlace]state{} // of those that were applied, where nothing stands
	for _, x := range behind {
		f := a.business.of(x.event)
		switch {
		case !lacks(x.event, f, x.table):
		case f.of(x.table)&applied == 0:
			*f |= missing << x.table
			found = true
		case !x.there && x.version > newest[statePlace{x.table, x.key}].version:
			newest[statePlace{x.table, x.key}] = x
		}
	}
	for _, x := range newest {
		*a.business.of(x.event) |= missing << x.table
		found = true
	}
	if err != nil || !found {
		return err
	}
	if err := c.passed(); err != nil {
		return err
	}
	for _, c := range a.deliveries.consumers {
		if c.owes != 0 && c.key.s.killed {
			*a.business.of(c.owes) |= settledEarly * c.tables
		}
	}
	dropped := a.survey.droppedDead()
	a.business.walk(func(event uint64, f *facts) {
		if !f.any(missing) {
			return
		}
		if f.any(failed) && *f&inStore == 0 && dropped > 0 {
			*f |= droppedDead
			dropped--
		}
		id := identity(event)
		var told []string // an event that is missing in several tables for one reason is one occurrence
		for i, t := range a.business.effects {
			if f.of(i)&missing == 0 {
				continue
			}
			where := missingAs(f.of(i))
			if slices.Contains(told, where) {
				continue
			}
			told = append(told, where)
			a.findings.add(findingKey{anomaly: MissingEffect, attribution: where}, id, "", func() string {
				if strings.Contains(t.Name, "/") {
					return fmt.Sprintf("event %s has no effect in %s: it %s", id, t.Name, MeaningOf(where))
				}
				return fmt.Sprintf("event %s has no effect: it %s", id, MeaningOf(where))
			})
		}
	})
	return nil
}

// droppedDead is how many messages the broker says, at most, that it has let go of instead of dead-lettering them.
func (v *survey) droppedDead() (n int64) {
	for _, d := range v.drops {
		if d.Text == DeadLetterDropped {
			n = max(n, d.Count)
		}
	}
	return n
}

// ended says whether a business event has come, in one table, to an end that is none of its effects.
func (a *auditor) ended(event uint64, f facts) bool {
	if f&deadLetter == 0 || a.header.Chain.Unread {
		return false
	}
	_, ends := a.letterOf(event, f)
	return ends
}

// elsewhere says whether the same act has its effect under another event id.
func (a *auditor) elsewhere(event uint64, i int) bool {
	if len(a.business.acts) == 0 {
		return false
	}
	if a.business.byAct == nil {
		a.business.byAct = a.business.siblings()
	}
	for _, other := range a.business.byAct[a.business.act(event)] {
		if *a.business.of(other)&(effectBit<<i) != 0 {
			return true
		}
	}
	return false
}

// passed marks the missing events of which a record is below the final position of a group.
func (c *missingCheck) passed() error {
	a := c.a
	if len(a.survey.groupEnds) == 0 {
		return nil
	}
	died := a.diedHolding()
	_, err := scan(a.open, func(_ *segment, e *ledger.Event) {
		if e.Kind != ledger.Stored || e.Stream == 0 {
			return
		}
		f := a.facts(e)
		if !f.any(missing) {
			return
		}
		for _, g := range a.deliveries.groups {
			end := a.survey.groupEnds[groupKey{partitionKey{e.Pos.Destination, e.Pos.Partition}, g.Name}]
			if end == nil || e.Pos.Offset >= end.Pos.Offset {
				continue
			}
			*f |= settledAway * a.servedBy(g)
			if died[groupKey{partitionKey{e.Pos.Destination, e.Pos.Partition}, g.Name}][e.Pos.Offset] && !f.any(failed) {
				*f |= settledEarly * a.servedBy(g) // its consumer died with it in hand, and did not live to say that it settled
			}
		}
	}, ledger.Stored)
	return err
}

// diedHolding lists the deliveries whose work had not ended when the ledger of their consumer ends.
func (a *auditor) diedHolding() map[groupKey]map[int64]bool {
	out := map[groupKey]map[int64]bool{}
	for _, c := range a.deliveries.consumers {
		for _, h := range c.parts {
			for _, p := range h.pending[h.head:] {
				if p.done {
					continue
				}
				key := groupKey{h.part.partitionKey, c.group.Name}
				if out[key] == nil {
					out[key] = map[int64]bool{}
				}
				out[key][p.offset] = true
			}
		}
	}
	return out
}
