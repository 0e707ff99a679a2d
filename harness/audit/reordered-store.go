package audit

import (
	"fmt"

	"conform/harness/ledger"
)

func init() {
	register(check{name: ReorderedStore, version: 1, reports: []string{ReorderedStore}, start: func(a *auditor) any {
		return &reorderedCheck{a: a, keys: map[streamKey]bool{}}
	}})
}

// reorderedCheck finds first occurrences that stand behind a later message of the same producer and
// key in the same partition. While each producer's messages of a partition come in order, so do its
// keys: nothing is kept a key. Only if one comes late, its key is looked at in a pass of its own.
type reorderedCheck struct {
	a    *auditor
	keys map[streamKey]bool // (stream, key) of messages that came late
}

type streamKey struct{ stream, key uint32 }

func (c *reorderedCheck) key(id ledger.MessageID) uint32 {
	return ledger.KeyOf(c.a.header.Seed, id, c.a.header.Workload.Keys)
}

func (c *reorderedCheck) stored(_ *segment, e *ledger.Event, seen sighting, m *flags) {
	if m == nil || e.View != c.a.primary || seen == again || *m&c.a.primaryFlag != 0 {
		return
	}
	newest := c.a.index.partition(e.Pos).newest
	if e.Seq < newest[e.Stream] {
		c.keys[streamKey{e.Stream, c.key(e.ID())}] = true
		return
	}
	newest[e.Stream] = e.Seq
}

func (c *reorderedCheck) conclude() error {
	if len(c.keys) == 0 {
		return nil
	}
	type lane struct {
		partitionKey
		streamKey
	}
	newest := map[lane]ledger.Event{}
	_, err := scan(c.a.open, func(s *segment, e *ledger.Event) {
		if e.Kind != ledger.Stored || e.Stream == 0 || e.View != c.a.primary || !c.a.known(e) {
			return
		}
		k := streamKey{e.Stream, c.key(e.ID())}
		if !c.keys[k] {
			return
		}
		m := c.a.index.stream(e.Stream).flagsOf(e.Seq)
		if *m&passed != 0 {
			return
		}
		*m |= passed
		l := lane{partitionKey{e.Pos.Destination, e.Pos.Partition}, k}
		ahead, ok := newest[l]
		if !ok || e.Seq > ahead.Seq {
			newest[l] = *e
			return
		}
		*m |= reordered
		id, pos := e.ID(), e.Pos
		c.a.findings.add(findingKey{anomaly: ReorderedStore}, id, "", func() string {
			return fmt.Sprintf("%s: %s stands at %s, behind %s at %s; both are of %s", s.title(), id, place(pos), ahead.ID(), place(ahead.Pos), ledger.KeyName(k.key))
		})
	}, ledger.Stored)
	return err
}
