package audit

import (
	"fmt"

	"conform/harness/ledger"
)

func init() {
	register(check{name: ReorderedDelivery, version: 2, reports: []string{ReorderedDelivery}, start: func(a *auditor) any {
		c := &reorderedDeliveryCheck{a: a, keys: map[lane]bool{}}
		for _, d := range a.header.Destinations {
			c.grown = c.grown || len(d.Grown) > 0
		}
		return c
	}})
}

// reorderedDeliveryCheck finds business events that a group is first delivered after a later event of
// the same writer and key. As in the store, keys are looked at in a pass of their own, and only those of
// events that come late in their partition; if partitions were added, those of all.
type reorderedDeliveryCheck struct {
	a     *auditor
	keys  map[lane]bool
	grown bool
}

// lane is what is in order: the events of one writer and key, as one group has them.
type lane struct {
	group *group
	streamKey
}

func (c *reorderedDeliveryCheck) lane(d *delivery, stream uint32) lane {
	return lane{d.group, streamKey{stream, ledger.KeyOfEvent(c.a.header.Seed, d.event, c.a.header.Workload.Keys)}}
}

func (c *reorderedDeliveryCheck) receivedNext(d *delivery) {
	p := d.lane()
	if p == nil || !d.first || d.event == 0 {
		return
	}
	if d.facts != nil && d.facts.any(delivered) && len(c.a.deliveries.groups) == 1 {
		return // another record of an event that came before
	}
	stream, seq := ledger.SplitEventID(d.event)
	if seq < p.newest[stream] {
		c.keys[c.lane(d, stream)] = true
		return
	}
	p.newest[stream] = seq
}

func (c *reorderedDeliveryCheck) conclude() error {
	if len(c.keys) == 0 && !c.grown {
		return nil
	}
	type first struct {
		seq uint64
		who string
		at  int64
		pos ledger.Position
	}
	versions, err := c.a.versions(func(stream, key uint32) bool {
		for _, g := range c.a.deliveries.groups {
			if c.grown || c.keys[lane{g, streamKey{stream, key}}] {
				return true
			}
		}
		return false
	})
	if err != nil {
		return err
	}
	newest, seen := map[lane]first{}, map[*group]map[uint64]bool{}
	x := c.a.deliveries
	return merge(c.a.open, c.a.survey.segments, func(s *segment, e *ledger.Event) {
		if e.Kind != ledger.Received || e.Stream == 0 && e.EventID == 0 {
			return
		}
		d := &delivery{s: s, e: e, group: x.groupOf(s), event: ledger.EventOf(e.ID(), e.EventID)}
		stream, seq := ledger.SplitEventID(d.event)
		l := c.lane(d, stream)
		if !c.grown && !c.keys[l] || seen[d.group][d.event] {
			return
		}
		if seen[d.group] == nil {
			seen[d.group] = map[uint64]bool{}
		}
		seen[d.group][d.event] = true
		ahead, ok := newest[l]
		if !ok || !versions.less(d.event, ledger.EventID(stream, ahead.seq)) {
			newest[l] = first{seq, s.title(), e.At, e.Pos}
			return
		}
		id, at, pos := e.ID(), e.At, e.Pos
		key := findingKey{anomaly: ReorderedDelivery}
		c.a.findings.add(key, id, "", func() string {
			return fmt.Sprintf("%s: event %s was first delivered at %s, from %s, after event %s, delivered to %s at %s from %s; both are of %s", s.title(), identity(d.event), c.a.survey.since(at), place(pos), ledger.MessageID{Stream: stream, Seq: ahead.seq}, ahead.who, c.a.survey.since(ahead.at), place(ahead.pos), ledger.KeyName(l.key))
		})
		c.a.findings.during(key, ahead.at, at)
	})
}

// versions are the recorded versions of some events.
type versions map[uint64]int64

// versions gathers the versions of the events of some writers and keys.
func (a *auditor) versions(of func(stream, key uint32) bool) (versions, error) {
	out := versions{}
	if !a.header.Chain.Ordered {
		return out, nil
	}
	_, err := scan(a.open, func(_ *segment, e *ledger.Event) {
		if e.Kind != ledger.Ordered || e.N == 0 {
			return
		}
		stream, _ := ledger.SplitEventID(e.EventID)
		if of(stream, ledger.KeyOfEvent(a.header.Seed, e.EventID, a.header.Workload.Keys)) {
			out[e.EventID] = e.N
		}
	}, ledger.Ordered)
	return out, err
}

// less says whether event a of a writer and key makes an older state than b. Where one of the versions
// is not recorded, the order in which the writer numbered them counts.
func (v versions) less(a, b uint64) bool {
	x, okA := v[a]
	y, okB := v[b]
	if okA && okB {
		return x < y
	}
	return ledger.VersionOf(a) < ledger.VersionOf(b)
}
