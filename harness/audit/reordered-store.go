package audit

import (
	"fmt"

	"conform/harness/ledger"
)

func init() {
	register(check{name: ReorderedStore, version: 2, reports: []string{ReorderedStore}, start: func(a *auditor) any {
		return &reorderedCheck{a: a, keys: map[streamKey]bool{}}
	}})
}

// reorderedCheck finds first occurrences that stand behind a later message of the same producer and
// key in the same partition. In a chain the producer is who wrote the business events, whichever relay
// published them. While each producer's messages of a partition come in order, so do its keys: nothing
// is kept a key. Only if one comes late, its key is looked at in a pass of its own.
type reorderedCheck struct {
	a    *auditor
	keys map[streamKey]bool // (stream, key) of messages that came late
}

type streamKey struct{ stream, key uint32 }

// origin is who sent a record, and as which.
func (c *reorderedCheck) origin(e *ledger.Event) ledger.MessageID {
	if c.a.chained() && e.EventID != 0 {
		if id := identity(e.EventID); id.Stream != 0 {
			return id
		}
	}
	return e.ID()
}

func (c *reorderedCheck) stored(_ *segment, e *ledger.Event, seen sighting, m *flags) {
	if m == nil || e.View != c.a.primary || seen == again || *m&c.a.primaryFlag != 0 {
		return
	}
	if c.a.chained() && *c.a.facts(e)&inStore != 0 {
		return
	}
	newest, id := c.a.index.partition(e.Pos).newest, c.origin(e)
	if id.Seq < newest[id.Stream] {
		c.keys[streamKey{id.Stream, c.a.keyOf(e)}] = true
		return
	}
	newest[id.Stream] = id.Seq
}

func (c *reorderedCheck) conclude() error {
	if len(c.keys) == 0 {
		return nil
	}
	type lane struct {
		partitionKey
		streamKey
	}
	type first struct {
		id, origin ledger.MessageID
		pos        ledger.Position
	}
	versions, err := c.a.versions(func(stream, key uint32) bool { return c.keys[streamKey{stream, key}] })
	if err != nil {
		return err
	}
	newest := map[lane]first{}
	_, err = scan(c.a.open, func(s *segment, e *ledger.Event) {
		if e.Kind != ledger.Stored || e.Stream == 0 || e.View != c.a.primary || !c.a.known(e) {
			return
		}
		origin := c.origin(e)
		k := streamKey{origin.Stream, c.a.keyOf(e)}
		if !c.keys[k] {
			return
		}
		m := c.a.index.stream(e.Stream).flagsOf(e.Seq)
		if *m&passed != 0 {
			return
		}
		*m |= passed
		if c.a.chained() {
			f := c.a.facts(e)
			if *f&outOfOrder != 0 {
				return
			}
			*f |= outOfOrder
		}
		l := lane{partitionKey{e.Pos.Destination, e.Pos.Partition}, k}
		ahead, ok := newest[l]
		if !ok || !versions.less(ledger.EventID(origin.Stream, origin.Seq), ledger.EventID(ahead.origin.Stream, ahead.origin.Seq)) {
			newest[l] = first{e.ID(), origin, e.Pos}
			return
		}
		*m |= reordered
		id, pos := e.ID(), e.Pos
		c.a.findings.add(findingKey{anomaly: ReorderedStore}, id, "", func() string {
			return fmt.Sprintf("%s: %s stands at %s, behind %s at %s; both are of %s", s.title(), id, place(pos), ahead.id, place(ahead.pos), ledger.KeyName(k.key))
		})
	}, ledger.Stored)
	return err
}
