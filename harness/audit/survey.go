package audit

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"conform/harness/ledger"
)

// injection is one strike with its evidence and its end.
type injection struct {
	id, detail string
	at         int64
	bitten     bool
	proof      string // or what was missing
	healed     bool
	healFailed bool
	healedAt   int64
}

// txn is one ended transaction.
type txn struct {
	from, to uint64
	sent     int64  // when its end was asked for
	seen     uint32 // messages of it in the committed view, once the main pass is over
	outcome  ledger.Outcome
}

type storeEnd struct {
	ledger.Event
	moved  bool // two ends of one view differ
	worker bool // a worker has read it, and not the engine
}

// groupKey names one partition as one group reads it.
type groupKey struct {
	partitionKey
	group string
}

type viewKey struct {
	partitionKey
	view ledger.View
}

// survey is what a first pass over the rare events knows: the times that the main pass needs to sort
// sends into before, during and after, and the evidence.
type survey struct {
	segments   []*segment
	injections []*injection
	ends       map[viewKey]*storeEnd
	txns       map[uint32][]txn // by stream, sorted by from
	workers    []ledger.Event   // WorkerEnd
	steps      []ledger.Event
	deaths     []ledger.Event         // NodeDied
	drops      []ledger.Event         // Dropped
	quiet      *ledger.Event          // the last one
	loadAt     int64                  // start of the load, or the first event's time
	healPhase  int64                  // when the engine ended the load; MaxInt64 if it did not say
	committed  bool                   // the committed view was read
	tables     map[string]*storeEnd   // SnapshotEnd, by table
	groupEnds  map[groupKey]*storeEnd // GroupEnd
	// endsAtRest are the end positions at quiescence, the last ones told.
	endsAtRest map[partitionKey]int64

	firstStrike, lastStrike int64 // MaxInt64 if nothing struck
	lastHeal                int64 // the last heal of the plan; MaxInt64 if nothing was healed while the load ran
	boundaries              []int64
}

// stretch is a part of the plan: from a strike, or a step after it, to what the plan did next, strike or
// heal. Only sends made since that strike count. What was sent later, or answered later, met another state:
// a new leader may have confirmed it.
type stretch struct {
	name     string
	since    int64 // the strike
	from, to int64 // to is MaxInt64 if nothing followed
	known    bool
}

// stretch returns the one that begins at an injection or a reached step; "" = the first strike.
func (v *survey) stretch(at string) stretch {
	s := stretch{name: at, since: math.MaxInt64, from: math.MaxInt64, to: math.MaxInt64}
	if at == "" && len(v.injections) > 0 {
		s.from, s.known = v.firstStrike, true
	}
	for _, e := range v.steps {
		if e.Text == at && e.Outcome == ledger.OK {
			s.from, s.known = e.At, true
		}
	}
	if i := v.injection(at); i != nil {
		s.from, s.known = i.at, true
	}
	if !s.known {
		return s
	}
	s.since = s.from
	for _, i := range v.injections {
		if i.at <= s.from {
			s.since = i.at // they are in order
		}
		for _, t := range []int64{i.at, i.healedAt} {
			if t > s.from && (t == i.at || i.healed) {
				s.to = min(s.to, t)
			}
		}
	}
	return s
}

// measure finds segments that are shorter than their writer left them. A writer that was killed leaves no last
// event, so nothing else would show that what it recorded last is gone.
func (v *survey) measure() {
	for _, w := range v.workers {
		for _, s := range v.segments {
			if s.of(w.Text) && s.length < w.Count {
				s.damage = append(s.damage, &ledger.DamageError{
					File: s.file, Offset: s.length, Reason: fmt.Sprintf("it was %d bytes long when its worker ended", w.Count),
				})
			}
		}
	}
}

// surveyed lists the kinds that the first pass needs.
var surveyed = []ledger.Kind{
	ledger.Inject, ledger.Bite, ledger.Heal, ledger.Step, ledger.Phase, ledger.Quiet, ledger.StoreEnd,
	ledger.WorkerEnd, ledger.SegmentEnd, ledger.TxnEnd, ledger.SnapshotEnd, ledger.GroupEnd, ledger.NodeDied, ledger.EndPosition,
	ledger.Dropped,
}

func takeSurvey(open Open) (*survey, error) {
	v := &survey{
		tables: map[string]*storeEnd{}, groupEnds: map[groupKey]*storeEnd{}, endsAtRest: map[partitionKey]int64{},
		ends: map[viewKey]*storeEnd{}, txns: map[uint32][]txn{}, loadAt: math.MaxInt64, healPhase: math.MaxInt64,
		firstStrike: math.MaxInt64, lastStrike: math.MaxInt64, lastHeal: math.MaxInt64,
	}
	segments, err := scan(open, v.see, surveyed...)
	if err != nil {
		return nil, err
	}
	v.segments = segments
	v.settle()
	v.measure()
	return v, nil
}

func (v *survey) injection(id string) *injection {
	for _, i := range v.injections {
		if i.id == id {
			return i
		}
	}
	return nil
}

// struck returns the injection that a Bite or a Heal is about: what strikes several times under one name, as a process that
// crashes again, is proven and healed each time.
func (v *survey) struck(e ledger.Event) *injection {
	var latest *injection
	for _, i := range v.injections {
		if i.id == e.Text && i.at <= e.At && (latest == nil || i.at > latest.at) {
			latest = i
		}
	}
	if latest == nil {
		return v.injection(e.Text)
	}
	return latest
}

func (v *survey) see(s *segment, e *ledger.Event) {
	switch e.Kind {
	case ledger.Inject:
		v.injections = append(v.injections, &injection{id: e.Text, detail: e.Detail, at: e.At})
	case ledger.Bite, ledger.Heal, ledger.Step, ledger.WorkerEnd:
		v.steps = append(v.steps, *e) // sorted out in settle: another segment may hold the Inject
	case ledger.Dropped:
		v.drops = append(v.drops, *e)
	case ledger.NodeDied:
		v.deaths = append(v.deaths, *e)
	case ledger.Phase:
		switch e.Text {
		case "load":
			v.loadAt = min(v.loadAt, e.At)
		case "heal":
			v.healPhase = min(v.healPhase, e.At)
		}
	case ledger.Quiet:
		q := *e
		if v.quiet == nil || q.At >= v.quiet.At {
			v.quiet = &q
		}
	case ledger.StoreEnd:
		key := viewKey{partitionKey{e.Pos.Destination, e.Pos.Partition}, e.View}
		if old := v.ends[key]; old != nil {
			old.moved = old.moved || old.N != e.N || old.Pos.Offset != e.Pos.Offset || old.Low != e.Low || old.Count != e.Count
		} else {
			v.ends[key] = &storeEnd{Event: *e}
		}
		v.committed = v.committed || e.View == ledger.ViewCommitted
	case ledger.SnapshotEnd:
		if old := v.tables[e.Text]; old != nil {
			old.moved = true // of two reads nobody knows which rows belong to which
		} else {
			v.tables[e.Text] = &storeEnd{Event: *e, worker: s.Worker != ""}
		}
	case ledger.GroupEnd:
		key := groupKey{partitionKey{e.Pos.Destination, e.Pos.Partition}, e.Text}
		if old := v.groupEnds[key]; old != nil {
			old.moved = old.moved || old.Pos.Offset != e.Pos.Offset
		} else {
			v.groupEnds[key] = &storeEnd{Event: *e}
		}
	case ledger.EndPosition:
		v.endsAtRest[partitionKey{e.Pos.Destination, e.Pos.Partition}] = e.Pos.Offset
	case ledger.TxnEnd:
		v.txns[e.Stream] = append(v.txns[e.Stream], txn{from: e.Seq, to: e.To, outcome: e.Outcome, sent: e.Sent})
	}
}

// restedAt is the earliest time at which a table can have been read to its end: once the arm was quiet, or by a worker, which ends
// before that, once the load had ended.
func (v *survey) restedAt(worker bool) int64 {
	switch {
	case worker && v.healPhase != math.MaxInt64:
		return v.healPhase
	case !worker && v.quiet != nil:
		return v.quiet.At
	}
	return math.MinInt64
}

func (v *survey) settle() {
	rare := v.steps
	v.steps = nil
	for _, e := range rare {
		i := v.struck(e)
		switch {
		case e.Kind == ledger.Step:
			v.steps = append(v.steps, e)
		case e.Kind == ledger.WorkerEnd:
			v.workers = append(v.workers, e)
		case i == nil: // proof or end of a strike that is not recorded proves nothing
		case e.Kind == ledger.Bite && e.Outcome == ledger.OK:
			i.bitten, i.proof = true, e.Detail
		case e.Kind == ledger.Bite && !i.bitten:
			i.proof = e.Detail
		case e.Kind == ledger.Heal && e.Outcome != ledger.OK:
			i.healFailed = !i.healed // a heal may run again
		case e.Kind == ledger.Heal && (!i.healed || e.At < i.healedAt):
			i.healed, i.healFailed, i.healedAt = true, false, e.At
		}
	}
	for _, w := range v.workers {
		if w.Outcome == ledger.OK && strings.HasPrefix(w.Detail, "killed") {
			for _, s := range v.segments {
				s.killed = s.killed || s.of(w.Text)
			}
		}
	}
	for id, ts := range v.txns {
		slices.SortFunc(ts, func(a, b txn) int { return cmp.Compare(a.from, b.from) })
		v.txns[id] = ts
	}
	slices.SortStableFunc(v.injections, func(a, b *injection) int { return cmp.Compare(a.at, b.at) })
	for n, i := range v.injections {
		if n == 0 {
			v.firstStrike = i.at
		}
		v.lastStrike = i.at
		v.boundaries = append(v.boundaries, i.at)
		// A heal after the load was ended is cleaning up: there is nothing left to recover.
		if i.healed && i.healedAt < v.healPhase && (v.lastHeal == math.MaxInt64 || i.healedAt > v.lastHeal) {
			v.lastHeal = i.healedAt
		}
	}
	for _, i := range v.injections {
		if i.healed {
			v.boundaries = append(v.boundaries, i.healedAt)
		}
	}
	slices.Sort(v.boundaries)
	v.boundaries = slices.Compact(v.boundaries)
}

// epoch is the number of boundaries at or before t.
func (v *survey) epoch(t int64) int {
	n := 0
	for n < len(v.boundaries) && v.boundaries[n] <= t {
		n++
	}
	return n
}

// epochsBefore is the number of epochs that lie before boundary t.
func (v *survey) epochsBefore(t int64) int {
	n, _ := slices.BinarySearch(v.boundaries, t)
	return n + 1
}

// txnOf returns the transaction of a message, or nil.
func (v *survey) txnOf(id ledger.MessageID) *txn {
	ts := v.txns[id.Stream]
	i, found := slices.BinarySearchFunc(ts, id.Seq, func(t txn, seq uint64) int {
		switch {
		case t.to <= seq:
			return -1
		case t.from > seq:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return &ts[i]
}

// damaged lists the segments that are not whole, for one of which sel holds, in words.
func (v *survey) damaged(sel func(*segment) bool) []string {
	var out []string
	for _, s := range v.segments {
		if !sel(s) {
			continue
		}
		for _, d := range s.damage {
			if !d.Tail || !s.killed {
				out = append(out, d.Error())
			}
		}
	}
	return out
}
