package audit

import "conform/harness/ledger"

// state is what an event makes of a key, and what stands there at the end.
type state struct {
	event   uint64
	table   int
	key     uint32
	version int64
	row     stateRow
	there   bool
}

// statePlace is where the state of a key stands.
type statePlace struct {
	table int
	key   uint32
}

// behind returns what each event that happened makes of its key, for each table of states that holds
// nothing, or an older state, of that key. Where no database numbers the states, only those of one writer
// can be compared: of another's row it is unknown, which counts as newer.
func (a *auditor) behind() ([]state, error) {
	if a.business.behindKnown {
		return a.business.behind, nil
	}
	var out []state
	look := func(event uint64, f *facts, key uint32, version int64, comparable func(other uint64) bool) {
		if !a.committed(*f) {
			return
		}
		for i, t := range a.business.effects {
			if !t.State {
				continue
			}
			row, there := a.business.states[i][key]
			if !there || row.version < version && comparable(row.event) {
				out = append(out, state{event: event, table: i, key: key, version: version, row: row, there: there})
			}
		}
	}
	states := false
	for _, t := range a.business.effects {
		states = states || t.State
	}
	done := func(err error) ([]state, error) {
		a.business.behind, a.business.behindKnown = out, err == nil
		return out, err
	}
	if !states {
		return done(nil)
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
		return done(err)
	}
	a.business.walk(func(event uint64, f *facts) {
		stream, _ := ledger.SplitEventID(event)
		key := ledger.KeyOfEvent(a.header.Seed, event, a.header.Workload.Keys)
		look(event, f, key, ledger.VersionOf(event), func(other uint64) bool {
			s, _ := ledger.SplitEventID(other)
			return s == stream
		})
	})
	return done(nil)
}
