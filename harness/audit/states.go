package audit

import "conform/harness/ledger"

// state is what an event makes of a key, and what stands there at the end.
type state struct {
	table   int
	key     uint32
	version int64
	row     stateRow
	there   bool
	newer   bool // or the same
}

// walkStates visits each event that happened, for each table of states, with the row of its key and
// whether that makes a newer or the same state. Where no database numbers the states, only those of one
// writer can be compared: of another's row it is unknown, which counts as newer.
func (a *auditor) walkStates(visit func(event uint64, f *facts, x state)) error {
	look := func(event uint64, f *facts, key uint32, version int64, comparable func(other uint64) bool) {
		if !a.committed(*f) {
			return
		}
		for i, t := range a.business.effects {
			if !t.State {
				continue
			}
			row, there := a.business.states[i][key]
			visit(event, f, state{table: i, key: key, version: version, row: row, there: there, newer: there && (row.version >= version || !comparable(row.event))})
		}
	}
	states := false
	for _, t := range a.business.effects {
		states = states || t.State
	}
	if !states {
		return nil
	}
	if a.header.Chain.Ordered {
		_, err := scan(a.open, func(_ *segment, e *ledger.Event) {
			if e.Kind != ledger.Ordered || e.EventID == 0 {
				return
			}
			version := e.N
			if version == 0 {
				version = ledger.VersionOf(e.EventID)
			}
			look(e.EventID, a.business.of(e.EventID), e.Key, version, func(uint64) bool { return true })
		}, ledger.Ordered)
		return err
	}
	a.business.walk(func(event uint64, f *facts) {
		stream, _ := ledger.SplitEventID(event)
		key := ledger.KeyOfEvent(a.header.Seed, event, a.header.Workload.Keys)
		look(event, f, key, ledger.VersionOf(event), func(other uint64) bool {
			s, _ := ledger.SplitEventID(other)
			return s == stream
		})
	})
	return nil
}
