package audit

import (
	"slices"
	"time"

	"conform/harness/ledger"
)

// subjects are the business events, or where there is no chain the messages, that the findings of a control are about.
type subjects struct {
	events map[findingKey][]uint64
	struck map[findingKey]bool // something of it happened at or after the first strike, or was on its way then
}

// cameThrough is what had come through to a kind of event before the first strike.
type cameThrough struct {
	lanes   map[keyLane]uint64 // the latest one
	at      map[uint64]int64
	longest int64 // that one of them took since it began
}

func newCameThrough() *cameThrough {
	return &cameThrough{lanes: map[keyLane]uint64{}, at: map[uint64]int64{}}
}

// allowance is by how much something may take longer than all that had come through before. What takes longer was not on its
// way.
const allowance = 150 * time.Millisecond

// ofSubject is the business event of the identity that a finding was added for: of a relay's message, the one it carries.
func (a *auditor) ofSubject(id ledger.MessageID, carried map[ledger.MessageID]uint64) uint64 {
	if event := carried[id]; event != 0 {
		return event
	}
	return ledger.EventID(id.Stream, id.Seq)
}

// passing lists the anomalies of something that did not come through, and the event after which it would have.
var passing = map[string]ledger.Kind{
	Lost: ledger.Ordered, TornTxn: ledger.Ordered,
	Unpublished: ledger.Complete, PublishedUncommitted: ledger.Complete, PhantomEffect: ledger.Complete,
	MissingEffect: ledger.Handled, CommitGap: ledger.Handled, Undelivered: ledger.Handled, DeadLetterLost: ledger.Handled,
}

// lane is what comes in order: the events of one key and one writer.
type keyLane struct {
	stream uint32
	key    uint32
}

// takeSubjects learns which events a control's findings are about, and which findings the fault can have caused: something of
// one of its events happened at or after the first strike, or it was on its way then. An event that did not come through was on
// its way unless a later one of its key had come through before the strike, or it would have been slower than all others.
func (a *auditor) takeSubjects() error {
	if a.header.Role != roleControl || !a.chained() || len(a.findings.subjects) == 0 {
		return nil
	}
	carried := map[ledger.MessageID]uint64{}
	for _, ids := range a.findings.subjects {
		for _, id := range ids {
			if s := a.index.streams[id.Stream]; s != nil && s.publishes {
				carried[id] = 0
			}
		}
	}
	if len(carried) > 0 {
		_, err := scan(a.open, func(_ *segment, e *ledger.Event) {
			if _, asked := carried[e.ID()]; asked && e.EventID != 0 {
				carried[e.ID()] = e.EventID
			}
		}, ledger.Invoke)
		if err != nil {
			return err
		}
	}
	a.subjects = subjects{events: map[findingKey][]uint64{}, struck: map[findingKey]bool{}}
	of := map[uint64]bool{}
	for k, ids := range a.findings.subjects {
		for _, id := range ids {
			event := a.ofSubject(id, carried)
			a.subjects.events[k] = append(a.subjects.events[k], event)
			of[event] = true
		}
	}

	fault := a.faultAt()
	last := map[uint64]int64{}  // of the events that findings are about
	began := map[uint64]int64{} // of all
	came := map[ledger.Kind]*cameThrough{ledger.Ordered: newCameThrough(), ledger.Complete: newCameThrough(), ledger.Handled: newCameThrough()}
	_, err := scan(a.open, func(_ *segment, e *ledger.Event) {
		if e.Stream == 0 && e.EventID == 0 || e.Kind == ledger.Invoke && e.EventID == 0 && e.To != e.Seq+1 {
			return
		}
		event := ledger.EventOf(e.ID(), e.EventID)
		if at, known := began[event]; e.At < fault && (!known || e.At < at) {
			began[event] = e.At
		}
		if of[event] {
			last[event] = max(last[event], e.At)
			return
		}
		if c := came[e.Kind]; c != nil && e.Outcome == ledger.OK && e.At < fault {
			lane := a.laneOf(event)
			c.lanes[lane] = max(c.lanes[lane], event)
			c.at[event] = e.At
		}
	}, ledger.Invoke, ledger.Complete, ledger.Claimed, ledger.Ordered, ledger.Resent, ledger.Received, ledger.Handled, ledger.Settled)
	if err != nil {
		return err
	}
	for _, c := range came {
		for event, at := range c.at {
			c.longest = max(c.longest, at-began[event])
		}
	}
	for k, events := range a.subjects.events {
		a.subjects.struck[k] = slices.ContainsFunc(events, func(event uint64) bool {
			at, known := last[event]
			if at >= fault {
				return known
			}
			step, lacks := passing[k.anomaly]
			return known && lacks && came[step].lanes[a.laneOf(event)] < event && fault-began[event] <= came[step].longest+int64(allowance)
		})
	}
	return nil
}

func (a *auditor) laneOf(event uint64) keyLane {
	stream, _ := ledger.SplitEventID(event)
	return keyLane{stream, ledger.KeyOfEvent(a.header.Seed, event, a.header.Workload.Keys)}
}

// explained says how many of a finding's events the others do not explain: those of the anomaly that the control must show, and
// of those that its knob is known to cause beside it.
func (a *auditor) unexplained(f Finding, by func(k findingKey) bool) int {
	known := map[uint64]bool{}
	for k, events := range a.subjects.events {
		if by(k) {
			for _, event := range events {
				known[a.business.act(event)] = true
			}
		}
	}
	n := 0
	for _, event := range a.subjects.events[findingKey{f.Anomaly, f.Qualifier, f.Attribution}] {
		if !known[a.business.act(event)] {
			n++
		}
	}
	return n
}
