package audit

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"conform/harness/ledger"
)

// judge weighs the findings against the evidence.
func (a *auditor) judge() Verdict {
	v := Verdict{
		Findings: a.findings.sorted(), Totals: a.totals, Liveness: a.liveness, Checks: a.ran,
		Differs: compareChecks(a.header.Checks, Checks()),
	}
	for _, s := range a.survey.segments {
		for _, d := range s.damage {
			v.Damage = append(v.Damage, d.Error())
		}
	}
	v.Proofs = a.proofs()
	complete := true
	for _, p := range causesFirst(v.Proofs) {
		if !p.OK {
			complete = false
			v.Reasons = append(v.Reasons, fmt.Sprintf("%s: want %s, got %s", p.Name, p.Want, p.Got))
		}
	}

	switch a.header.Role {
	case roleGuarded, roleObservation:
		for _, f := range v.Findings {
			if !f.Forbidden {
				continue
			}
			if missing := a.unproven(f); missing != "" {
				complete = false
				v.Reasons = append(v.Reasons, fmt.Sprintf("%s (%d) is not proven: %s", f.Name(), f.Count, missing))
				continue
			}
			v.Arm = Broke
		}
		if v.Arm == Broke {
			break
		}
		if complete {
			v.Arm = Held
		}
	case roleControl:
		switch {
		case a.header.Expect == nil:
			v.Reasons = append(v.Reasons, "the control names no anomaly that it must reproduce")
		case !complete:
		case slices.ContainsFunc(v.Findings, func(f Finding) bool { return expected(*a.header.Expect, f) }):
			if v.Reasons = a.otherwise(v.Findings); len(v.Reasons) == 0 {
				v.Arm = Reproduced
			}
		default:
			v.Arm = Missed
			v.Reasons = append(v.Reasons, fmt.Sprintf("the control did not show %s: found %s", expectName(*a.header.Expect), findingNames(v.Findings)))
		}
	default:
		v.Reasons = append(v.Reasons, fmt.Sprintf("the recorded role %q is unknown", a.header.Role))
	}
	if v.Arm == Held || v.Arm == Reproduced {
		v.Reasons = nil
	}
	return v
}

// causesFirst puts the proofs first whose lack explains that of others: a worker that was killed has written no more.
func causesFirst(proofs []Proof) []Proof {
	rank := func(p Proof) int {
		if i := slices.Index([]string{"nodes", "workers"}, p.Name); i >= 0 {
			return i
		}
		return 2
	}
	return slices.SortedStableFunc(slices.Values(proofs), func(a, b Proof) int { return rank(a) - rank(b) })
}

// expected says whether a finding is the anomaly that a control must reproduce.
func expected(e ledger.Expect, f Finding) bool {
	return f.Anomaly == e.Anomaly && (e.Attribution == "" || e.Attribution == f.Attribution)
}

// otherwise says why findings are not what the control's knob does under the fault, though the expected one is
// among them: all of it happened before the fault, or there is more than the knob is known to cause.
func (a *auditor) otherwise(fs []Finding) []string {
	var out []string
	struck := false
	for _, f := range fs {
		rule, judged := ruleFor(a.header.Promise, f)
		switch {
		case expected(*a.header.Expect, f):
			struck = struck || a.struck(f)
		case judged && rule.Allowed:
		case slices.Contains(neverByKnob, f.Anomaly) && f.Anomaly != a.header.Expect.Anomaly:
			out = append(out, fmt.Sprintf("the control shows %s (%d), which no setting causes", f.Name(), f.Count))
		case !f.Forbidden || inAlso(a.header.Expect.Also, f):
		case f.Anomaly != a.header.Expect.Anomaly && !elsewhere(a.header.Expect.Anomaly, f.Anomaly):
			out = append(out, fmt.Sprintf("the control shows %s (%d), which its knob is not known to cause", f.Name(), f.Count))
		case f.Anomaly == Lost && f.Qualifier == "confirmed" && f.Attribution == Broker:
			out = append(out, fmt.Sprintf("the control shows %s (%d), which its knob is not known to cause: the broker has let go of it", f.Name(), f.Count))
		case a.chained() && !sameCause(*a.header.Expect, f):
			if n := a.unexplained(f, a.mishap); n > 0 {
				out = append(out, fmt.Sprintf("the control shows %s (%d), of which %d are of events that have not met %s", f.Name(), f.Count, n, expectName(*a.header.Expect)))
			}
		}
	}
	if !struck {
		out = append(out, fmt.Sprintf("the control showed %s only of messages that were done with before the fault", expectName(*a.header.Expect)))
	}
	return out
}

// mishap says whether a finding is what the control must reproduce, or what its knob is known to cause beside it.
func (a *auditor) mishap(k findingKey) bool {
	f := Finding{Anomaly: k.anomaly, Qualifier: k.qualifier, Attribution: k.attribution}
	if a.rules() < 3 && f.Anomaly == a.header.Expect.Anomaly && f.Attribution != Broker {
		return true // Also did not name attributions
	}
	return expected(*a.header.Expect, f) || inAlso(a.header.Expect.Also, f)
}

// sameCause says whether a finding died of the very cause that the control must show, by the broker's own word: of what expired
// some was read before, and has its effect.
func sameCause(e ledger.Expect, f Finding) bool {
	return f.Attribution == e.Attribution && slices.Contains([]string{Expired, Unroutable, Overflowed, DeadLetterDropped}, f.Attribution)
}

// inAlso says whether a finding is named among others: by its anomaly, or more precisely.
func inAlso(also []string, f Finding) bool {
	return slices.ContainsFunc([]string{f.Anomaly, f.Anomaly + "/" + f.Attribution, f.Name()}, func(name string) bool { return slices.Contains(also, name) })
}

// sights lists what one and the same mishap of a message is called at the places of the chain.
var sights = [][]string{
	{Lost, Unpublished, Undelivered, CommitGap, MissingEffect},
	{PublishedUncommitted, PhantomEffect},
	{DuplicateStore, DuplicateDelivery, DuplicateEffect},
	{ReorderedStore, ReorderedDelivery, StaleEffect},
}

// elsewhere says whether two anomalies are one mishap seen at two places.
func elsewhere(a, b string) bool {
	x, _ := Lookup(a)
	y, _ := Lookup(b)
	return x.Place != y.Place && slices.ContainsFunc(sights, func(s []string) bool { return slices.Contains(s, a) && slices.Contains(s, b) })
}

// neverByKnob lists anomalies that are a fault of the broker, or of ours, whatever the settings.
var neverByKnob = []string{Corrupted, Phantom, Conflict, Misrouted, AbortedRead}

// struck says whether a finding of a control can be the fault's work: something of it happened after the first
// strike, or the first planned end, or was on its way then. What was lost of what had been confirmed before
// counts too if nothing of its partition that was confirmed later, and still before the strike, is left: so
// does a disk or a page cache go. What lies below the start of a log says so by its position. Of business events see takeSubjects.
func (a *auditor) struck(f Finding) bool {
	if met, known := a.subjects.struck[findingKey{f.Anomaly, f.Qualifier, f.Attribution}]; met || known && f.To == 0 {
		return met
	}
	switch {
	case f.To >= a.faultAt(), a.unfinished[findingKey{f.Anomaly, f.Qualifier, f.Attribution}], f.Attribution == Expired:
		return true
	case f.Anomaly == Lost && slices.ContainsFunc(a.survey.drops, func(d ledger.Event) bool { return d.Text == f.Attribution && d.At >= a.faultAt() }):
		return true // by the broker's word; a full queue, say, lets go of its oldest messages
	case f.To == 0:
		return f.Place != "store" || a.chained()
	case f.Anomaly != Lost:
		return false
	}
	for _, last := range a.confirms {
		if last.lost > last.kept {
			return true
		}
	}
	return false
}

// faultAt is the time of the first strike, or else of the first planned end that the evidence names.
func (a *auditor) faultAt() int64 {
	at := a.survey.firstStrike
	if at == math.MaxInt64 {
		for _, w := range a.survey.workers {
			if slices.Contains(a.header.Evidence.Ends, w.Text) {
				at = min(at, w.At)
			}
		}
	}
	return at
}

func expectName(e ledger.Expect) string {
	return Finding{Anomaly: e.Anomaly, Attribution: e.Attribution}.Name()
}

func findingNames(fs []Finding) string {
	if len(fs) == 0 {
		return "nothing"
	}
	names := make([]string, len(fs))
	for i, f := range fs {
		names[i] = f.Name()
	}
	return strings.Join(names, ", ")
}

// waits says whether a finding is of what may still come, if somebody goes on: what no consumer has had or ended, and what no
// relay has published.
func (a *auditor) waits(f Finding) bool {
	switch f.Anomaly {
	case Undelivered:
		return true
	case MissingEffect:
		return f.Attribution == Pending || f.Attribution == NeverPublished && a.header.Chain.Ordered
	case Unpublished:
		return true
	}
	return false
}

// unwell lists the consumers, relays and jobs that did not end as planned, in words.
func (a *auditor) unwell() []string {
	var out []string
	for _, w := range a.survey.workers {
		background := a.header.InBackground(w.Text) || len(a.header.Background) == 0 && !strings.HasPrefix(w.Text, "producer-")
		if w.Outcome != ledger.OK && background {
			out = append(out, fmt.Sprintf("worker %s: %s", w.Text, w.Detail))
		}
	}
	return out
}

// stuckInstead makes the standstill of an arm the broken promise where the promise forbids what came of it: that is no loss.
func (a *auditor) stuckInstead() {
	stuck := a.findings.byKey[findingKey{anomaly: Stuck}]
	if stuck == nil || a.header.Role == roleControl {
		return
	}
	for _, f := range a.findings.byKey {
		stuck.Forbidden = stuck.Forbidden || f.Forbidden && a.waits(*f)
	}
}

// unproven says what is missing for a finding to be proven, or nothing.
func (a *auditor) unproven(f Finding) string {
	if died := a.died(ledger.Failed); len(died) > 0 { // who knows how many of them the promise is for
		return died[0]
	}
	if waits := a.waits(f); waits || f.Anomaly == Stuck {
		if hung := a.unwell(); len(hung) > 0 { // whose work it was, it is that which ended, or hangs
			return hung[0]
		}
		if q := a.survey.quiet; waits && q != nil && q.Outcome == ledger.Failed {
			return "it is stuck, which is not lost: " + q.Detail
		}
	}
	row, _ := Lookup(f.Anomaly)
	if row.rests&onAbsence != 0 {
		if p := a.finalRead(); !p.OK {
			return p.Name + ": " + p.Got
		}
		if p := a.quiet(); !p.OK {
			return p.Name + ": " + p.Got
		}
	}
	if row.rests&onSnapshot != 0 {
		if p := a.snapshot(); !p.OK {
			return p.Name + ": " + p.Got
		}
	}
	if row.rests&onGroups != 0 {
		if p := a.groupEnds(); !p.OK {
			return p.Name + ": " + p.Got
		}
	}
	if row.rests&onConsumers != 0 {
		if d := a.survey.damaged(func(s *segment) bool { return s.consumes || !s.stores && !s.sends }); len(d) > 0 {
			return d[0]
		}
	}
	if row.rests&(onAbsence|onFirst) != 0 {
		// A segment of unknown content may have held stored records.
		if d := a.survey.damaged(func(s *segment) bool { return s.stores || !s.sends }); len(d) > 0 {
			return d[0]
		}
	}
	if row.rests&onInvokes != 0 {
		if d := a.survey.damaged(func(s *segment) bool { return s.sends || !s.stores }); len(d) > 0 {
			return d[0]
		}
		if p := a.segmentsEnded(); !p.OK {
			return p.Name + ": " + p.Got
		}
	}
	return ""
}

// proofs lists all that must have been seen for the arm's verdict to count.
func (a *auditor) proofs() []Proof {
	ev, t, v := a.header.Evidence, a.tally, a.survey
	var out []Proof
	least := func(name, what string, want, got int) {
		if want > 0 {
			out = append(out, Proof{Name: name, Want: fmt.Sprintf(">= %d %s", want, what), Got: fmt.Sprint(got), OK: got >= want})
		}
	}
	what, before, after := "confirmed", t.beforeConfirmed, t.afterConfirmed
	if a.totals.Confirmed == 0 && a.totals.Claimed > 0 {
		what, before, after = "claimed sent (nothing in this arm is ever confirmed)", t.beforeClaimed, t.afterClaimed
	}
	least("before the strike", what, ev.Before, before)
	inFlight, at := 0, "no such strike is recorded"
	for i, n := range t.inFlight {
		if id := v.injections[i].id; ev.InFlightAt == "" || id == ev.InFlightAt {
			inFlight, at = n, fmt.Sprintf("%d at %q", n, id)
			break
		}
	}
	if ev.InFlight > 0 {
		out = append(out, Proof{Name: "in flight at the strike", Want: fmt.Sprintf(">= %d", ev.InFlight), Got: at, OK: inFlight >= ev.InFlight})
	}
	during := "between strike and heal"
	if ev.During.At != "" {
		during = fmt.Sprintf("from %q to the next strike or heal", ev.During.At)
	}
	least(during, "confirmed", ev.During.Confirmed, t.duringConfirmed)
	least(during, "refused", ev.During.Refused, t.duringRefused)
	least(during, "silent", ev.During.Silent, t.silent)
	least(during, "refused or silent", ev.During.RefusedOrSilent, t.duringRefused+t.silent)
	if most := ev.During.MaxConfirmed; most != nil {
		p := Proof{Name: during, Want: fmt.Sprintf("<= %d confirmed", *most), Got: fmt.Sprint(t.duringConfirmed), OK: a.stretch.known && t.duringConfirmed <= *most}
		if !a.stretch.known {
			p.Got = "no such strike or step is recorded"
		}
		out = append(out, p)
	}
	least("after the heal", what, ev.After, after)
	least("orders", "committed", ev.Ordered, a.totals.Ordered)
	least("before the strike", "handled", ev.HandledBefore, t.beforeHandled)
	least("after the heal", "handled", ev.HandledAfter, t.afterHandled)
	least("redelivery", "delivered again", ev.Redelivered, t.redelivered)
	for _, id := range ev.Bites {
		p := Proof{Name: "bite of " + id, Want: "proof that it bit", Got: "no such strike is recorded"}
		n := 0
		for _, i := range v.injections { // what strikes several times under one name must bite each time
			if i.id != id {
				continue
			}
			if n++; n > 1 && !p.OK {
				continue
			}
			p.OK, p.Got = i.bitten, i.proof
			if p.Got == "" && !i.bitten {
				p.Got = "no proof is recorded"
			}
		}
		if least := ev.Times[id]; least > 1 {
			p.Want += fmt.Sprintf(", %d times", least)
			if p.OK = p.OK && n >= least; n < least {
				p.Got = fmt.Sprintf("%d strikes", n)
			}
		}
		out = append(out, p)
	}
	for _, name := range ev.Ends {
		p := Proof{Name: "end of " + name, Want: "ended as planned", Got: "its end is not recorded"}
		if ev.EndsBuffered > 0 {
			p.Want += fmt.Sprintf(", >= %d sends buffered", ev.EndsBuffered)
		}
		for _, w := range v.workers {
			if w.Text == name {
				p.OK, p.Got = w.Outcome == ledger.OK && w.N >= int64(ev.EndsBuffered), w.Detail
				if point := ev.EndsAt[name]; point != "" {
					p.Want = "killed at crash point " + point
					p.OK = p.OK && strings.HasPrefix(w.Detail, "killed") && slices.Contains(strings.Fields(w.Detail), point)
				}
				if ev.EndsBuffered > 0 {
					p.Got += fmt.Sprintf(", %d buffered", w.N)
				}
			}
		}
		out = append(out, p)
	}
	if len(ev.Bites) == 0 && len(ev.Ends) == 0 && a.header.Role != roleObservation {
		out = append(out, Proof{Name: "fault", Want: "a strike or a planned end of which there must be proof", Got: "the arm names none"})
	}
	if len(a.header.Tables) > 0 {
		out = append(out, a.snapshot())
	}
	if len(a.header.Groups) > 0 {
		out = append(out, a.groupEnds())
	}
	if a.drain != nil {
		out = append(out, a.drain.proof())
	}
	return append(out, a.stepsReached(), a.nodesLived(), a.workersEnded(), a.healed(), a.quiet(), a.finalRead(), a.segmentsEnded(), a.undamaged(), a.consistent(), a.allChecks())
}

func proof(name, want string, faults []string, good string) Proof {
	p := Proof{Name: name, Want: want, Got: good, OK: len(faults) == 0}
	if !p.OK {
		p.Got = strings.Join(faults[:min(len(faults), SampleSize)], "; ")
	}
	return p
}

func (a *auditor) stepsReached() Proof {
	var faults []string
	for _, s := range a.survey.steps {
		if s.Outcome != ledger.OK {
			faults = append(faults, fmt.Sprintf("step %q was not reached: %s", s.Text, s.Detail))
		}
	}
	if n, of := len(a.survey.steps), len(a.header.Plan); of > 0 && n != of {
		faults = append(faults, fmt.Sprintf("%d of its %d steps are recorded", n, of))
	}
	return proof("plan", "every step reached", faults, fmt.Sprintf("%d steps", len(a.survey.steps)))
}

// died lists the nodes that died outside the plan, or of which with InDoubt that is not known, in words.
func (a *auditor) died(o ledger.Outcome) []string {
	var out []string
	for _, e := range a.survey.deaths {
		switch {
		case e.Outcome != o:
		case o == ledger.Failed:
			out = append(out, fmt.Sprintf("a node died outside the plan: %s (%s)", e.Text, e.Detail))
		default:
			out = append(out, fmt.Sprintf("%s: %s", e.Text, e.Detail))
		}
	}
	return out
}

func (a *auditor) nodesLived() Proof {
	return proof("nodes", "none died outside the plan", append(a.died(ledger.Failed), a.died(ledger.InDoubt)...), "none did")
}

func (a *auditor) workersEnded() Proof {
	var faults []string
	for _, w := range a.survey.workers {
		if w.Outcome != ledger.OK {
			faults = append(faults, fmt.Sprintf("worker %s: %s", w.Text, w.Detail))
		}
	}
	for _, s := range a.survey.segments {
		if (s.sends || s.Worker != "") && !slices.ContainsFunc(a.survey.workers, func(w ledger.Event) bool { return s.of(w.Text) }) {
			faults = append(faults, fmt.Sprintf("the end of the worker that wrote %s is not recorded", s.file))
		}
	}
	return proof("workers", "ended as planned", faults, fmt.Sprintf("%d workers", len(a.survey.workers)))
}

func (a *auditor) healed() Proof {
	var faults []string
	for _, i := range a.survey.injections {
		switch {
		case i.healFailed:
			faults = append(faults, fmt.Sprintf("%q could not be healed", i.id))
		case !i.healed:
			faults = append(faults, fmt.Sprintf("no heal of %q is recorded", i.id))
		}
	}
	return proof("heals", "every strike healed", faults, fmt.Sprintf("%d healed", len(a.survey.injections)))
}

func (a *auditor) quiet() Proof {
	p := Proof{Name: "quiescence", Want: "nothing moved before the final read", Got: "it is not recorded that the store was quiet"}
	if q := a.survey.quiet; q != nil {
		p.OK, p.Got = q.Outcome != ledger.InDoubt, q.Detail // what is stuck does not move either
		if p.Got == "" && p.OK {
			p.Got = "quiet"
		}
	}
	return p
}

// finalRead says whether every partition of every destination was read to its end in each view that
// is needed: the raw one (the dead-letter one for such a destination), and the committed one for all
// if it was read for any.
func (a *auditor) finalRead() Proof {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	needed := map[viewKey]bool{}
	for d, dest := range a.header.Destinations {
		for n := range max(1, dest.Partitions) {
			key := partitionKey{uint16(d), int32(n)}
			switch {
			case dest.DeadLetter && !needed[viewKey{key, ledger.ViewRaw}]:
				needed[viewKey{key, ledger.ViewDeadLetter}] = true
			default:
				needed[viewKey{key, a.primary}] = true
			}
			if a.survey.committed && !dest.DeadLetter {
				needed[viewKey{key, ledger.ViewCommitted}] = true
			}
		}
	}
	if len(needed) == 0 && len(a.header.Tables) == 0 {
		fault("the header names no destination")
	}
	for key, p := range a.index.partitions { // whatever was read must have been read to its end
		for view, read := range p.views {
			if read.count > 0 {
				needed[viewKey{key, ledger.View(view)}] = true
			}
		}
	}
	records := 0
	for _, key := range slices.SortedFunc(maps.Keys(needed), compareViews) {
		name := fmt.Sprintf("partition %d, %s view", key.number, key.view)
		if int(key.destination) < len(a.header.Destinations) && len(a.header.Destinations) > 1 {
			name = a.header.Destinations[key.destination].Name + " " + name
		}
		end := a.survey.ends[key]
		if end == nil {
			fault("%s was not read to its end", name)
			continue
		}
		var read viewRead
		if p := a.index.partitions[key.partitionKey]; p != nil {
			read = p.views[key.view]
		}
		records += read.count
		raw := a.survey.ends[viewKey{key.partitionKey, ledger.ViewRaw}]
		switch {
		case end.moved:
			fault("%s was read twice with different ends", name)
		case end.N != end.Pos.Offset:
			fault("the end of %s moved from %d to %d while it was read", name, end.Pos.Offset, end.N)
		case end.Count >= 0 && end.Count != int64(read.count):
			fault("%s: the broker counts %d records, %d were read", name, end.Count, read.count)
		case read.count > 0 && (read.high >= end.N || read.low < end.Low):
			fault("%s: records were read at %d..%d, outside of %d..%d", name, read.low, read.high, end.Low, end.N)
		case key.view == ledger.ViewCommitted && raw != nil && raw.N != end.N:
			fault("%s ends at %d, the raw view at %d", name, end.N, raw.N)
		case a.rules() >= 2:
			switch rest, told := a.survey.endsAtRest[key.partitionKey]; {
			case !told:
				fault("the end of %s at quiescence is not recorded", name)
			case rest != end.N && (end.Count < 0 || rest != end.N-end.Low):
				fault("%s was read to %d, its end at quiescence was %d", name, end.N, rest)
			}
		}
	}
	return proof(ProofFinalRead, "the whole store, to an end that did not move", faults, fmt.Sprintf("%d records in %d reads", records, len(needed)))
}

// holes says which positions of dense destinations hold no record. A record that is lost leaves none, so that nothing rests on it;
// what was deleted while it was read is not missed.
func (a *auditor) holes() []string {
	var out []string
	for _, key := range slices.SortedFunc(maps.Keys(a.survey.ends), compareViews) {
		end := a.survey.ends[key]
		if key.view != ledger.ViewRaw || int(key.destination) >= len(a.header.Destinations) || !a.header.Destinations[key.destination].Dense || len(a.survey.txns) > 0 {
			continue
		}
		var read viewRead
		if p := a.index.partitions[key.partitionKey]; p != nil {
			read = p.views[key.view]
		}
		low := end.Low
		if low > 0 && read.count > 0 {
			low = max(low, read.low)
		}
		if n := end.N - low - int64(read.count); n > 0 && (low == 0 || read.count > 0) {
			out = append(out, fmt.Sprintf("of the positions %d..%d of %s partition %d, %d hold no record", low, end.N-1, a.header.Destinations[key.destination].Name, key.number, n))
		}
	}
	return out
}

// snapshot says whether every table was read to its end, once.
func (a *auditor) snapshot() Proof {
	var faults []string
	rows := int64(0)
	for _, table := range a.header.Tables {
		end := a.survey.tables[table]
		switch {
		case end == nil:
			faults = append(faults, fmt.Sprintf("%s was not read to its end", table))
		case end.moved:
			faults = append(faults, fmt.Sprintf("%s was read twice", table))
		case a.header.Space != "" && end.Detail != a.header.Space:
			faults = append(faults, fmt.Sprintf("%s was read in %q, the arm's is %q", table, end.Detail, a.header.Space))
		case end.At < a.survey.restedAt(end.worker):
			faults = append(faults, fmt.Sprintf("%s was read %s before the arm was at rest", table, time.Duration(a.survey.restedAt(end.worker)-end.At)))
		case end.N != a.business.rowsOf(table):
			faults = append(faults, fmt.Sprintf("%s has %d rows, %d are recorded", table, end.N, a.business.rowsOf(table)))
		default:
			rows += end.N
		}
	}
	if orders := a.header.Chain.Orders; orders != "" && !slices.Contains(a.header.Tables, tableOf(orders)) {
		faults = append(faults, fmt.Sprintf("the header does not list %s among the tables", orders))
	}
	for _, t := range a.header.Chain.Effects {
		if !slices.Contains(a.header.Tables, tableOf(t.Name)) {
			faults = append(faults, fmt.Sprintf("the header does not list %s among the tables", t.Name))
		}
	}
	return proof("snapshot", "every table, to its end", faults, fmt.Sprintf("%d rows of %d tables", rows, len(a.header.Tables)))
}

// groupEnds says whether the final position of each group is known in every partition that it reads.
func (a *auditor) groupEnds() Proof {
	var faults []string
	n := 0
	for _, g := range a.deliveries.groups {
		if !g.listed {
			continue
		}
		for d, dest := range a.header.Destinations {
			if !a.reads(g, uint16(d)) || g.queues[uint16(d)] != nil { // queues have no positions
				continue
			}
			for p := range max(1, dest.Partitions) {
				end := a.survey.groupEnds[groupKey{partitionKey{uint16(d), int32(p)}, g.Name}]
				switch {
				case end == nil:
					faults = append(faults, fmt.Sprintf("the final position of group %s in %s partition %d is not known", g.Name, dest.Name, p))
				case end.moved:
					faults = append(faults, fmt.Sprintf("the final position of group %s in %s partition %d moved", g.Name, dest.Name, p))
				default:
					n++
				}
			}
		}
	}
	return proof("groups", "the final position of each", faults, fmt.Sprintf("%d positions", n))
}

func compareViews(a, b viewKey) int {
	return (int(a.destination)-int(b.destination))<<40 + (int(a.number)-int(b.number))<<2 + int(a.view) - int(b.view)
}

// rules is the version of the rules of evidence that the recorder followed.
func (a *auditor) rules() int { return max(a.header.Checks[EvidenceRules], 1) }

func (a *auditor) segmentsEnded() Proof {
	var faults []string
	known := map[string]bool{}
	for _, s := range a.survey.segments {
		known[s.Worker], known[s.Name] = true, true
		if !s.closed && !s.killed {
			faults = append(faults, fmt.Sprintf("segment %s was not closed, and its writer was not killed as planned", s.file))
		}
	}
	for _, w := range a.survey.workers {
		if !known[w.Text] {
			faults = append(faults, fmt.Sprintf("worker %s has no segment", w.Text))
		} else if a.rules() >= 2 && w.Count <= 0 && strings.HasPrefix(w.Detail, "killed") {
			faults = append(faults, fmt.Sprintf("how much worker %s had written when it was killed is not recorded", w.Text))
		}
	}
	if len(a.survey.segments) == 0 {
		faults = append(faults, "the ledger has no segment")
	}
	return proof("segments", "each closed, or its writer killed as planned", faults, fmt.Sprintf("%d segments", len(a.survey.segments)))
}

func (a *auditor) undamaged() Proof {
	return proof(ProofLedger, "no damage", a.survey.damaged(func(*segment) bool { return true }), "whole")
}

func (a *auditor) consistent() Proof {
	faults := slices.Clone(a.contradictions)
	if a.contradicted > len(faults) {
		faults = append(faults, fmt.Sprintf("and %d more", a.contradicted-len(faults)))
	}
	if a.mayHaveExpired > 0 {
		faults = append(faults, fmt.Sprintf("%d messages are absent, their positions are unknown and the start of their log has moved: lost or expired cannot be told", a.mayHaveExpired))
	}
	faults = append(faults, a.holes()...)
	if why := a.unmarked(); why != "" {
		faults = append(faults, why)
	}
	if a.totals.Invoked == 0 && a.totals.Ordered == 0 {
		faults = append(faults, "nothing was sent")
	}
	return proof("consistency", "a ledger that agrees with itself", faults, fmt.Sprintf("%d messages", a.totals.Invoked))
}

// allChecks says whether every check that the recording binary had was run here, and whether all
// that the promise is about was looked at.
func (a *auditor) allChecks() Proof {
	var faults []string
	for _, name := range slices.Sorted(maps.Keys(a.header.Checks)) {
		if _, ok := a.ran[name]; !ok {
			faults = append(faults, fmt.Sprintf("check %s did not run: this binary has none of that name", name))
		}
	}
	p := a.header.Promise
	if len(p.Places) == 0 && len(p.Rules) == 0 && p.MaxUnavailable == 0 && p.MaxStall == 0 && p.MaxRTO == 0 && p.Drain == (ledger.Drain{}) {
		faults = append(faults, "the promise names nothing to judge")
	}
	for _, place := range p.Places {
		covers := func(c check) bool {
			return slices.ContainsFunc(c.reports, func(name string) bool {
				row, _ := Lookup(name)
				return row.Place == place
			})
		}
		if !slices.ContainsFunc(checks, covers) {
			faults = append(faults, fmt.Sprintf("the promise is judged at %q, and no check looks there", place))
		}
		if why := a.blind(place); why != "" {
			faults = append(faults, fmt.Sprintf("the promise is judged at %q, and %s", place, why))
		}
	}
	return proof("checks", "every check ran", faults, fmt.Sprintf("%d checks", len(a.ran)))
}

// blind says why nothing can be seen at a place: the header must name what the ledger tells of it.
func (a *auditor) blind(place string) string {
	h := a.header
	switch {
	case place == "effect" && len(h.Chain.Effects) == 0:
		return "the header names no table of effects"
	case place == "outbox" && !h.Chain.Ordered:
		return "the header does not say that a database starts the chain"
	case place == "delivery" && a.tally.received == 0:
		return "nothing was delivered"
	}
	return ""
}
