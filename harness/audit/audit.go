package audit

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"conform/harness/ledger"
)

// Audit judges one arm by its recorded promise and evidence. The error is about us: a segment that
// cannot be opened or read, or is of another schema. Damage is no error but a reason in the Verdict.
//
// A forbidden finding that is proven breaks the promise, whatever evidence about the fault is
// missing; held, reproduced and missed need all of the evidence.
func Audit(h ledger.Header, open Open) (Verdict, error) {
	v, err := takeSurvey(open)
	if err != nil {
		return Verdict{}, fmt.Errorf("audit %s: %w", armName(h), err)
	}
	a := newAuditor(h, open, v)
	if err := a.run(); err != nil {
		return Verdict{}, fmt.Errorf("audit %s: %w", armName(h), err)
	}
	verdict := a.judge()
	if err := tellSamples(h, open, v, a.dropped, &verdict); err != nil {
		return Verdict{}, err
	}
	return verdict, nil
}

func armName(h ledger.Header) string { return h.Suite + "/" + h.Scenario + "/" + h.Arm }

// Compare says where the caller's promise and check versions differ from the recorded ones, in
// words. The audit judges by the recorded promise all the same.
func Compare(h ledger.Header, promise ledger.Promise, checks map[string]int) []string {
	var out []string
	if h.Promise.Start != promise.Start || h.Promise.End != promise.End {
		out = append(out, fmt.Sprintf("the recorded promise reaches from %q to %q, this binary's from %q to %q", h.Promise.Start, h.Promise.End, promise.Start, promise.End))
	}
	if !slices.Equal(slices.Sorted(slices.Values(h.Promise.Places)), slices.Sorted(slices.Values(promise.Places))) {
		out = append(out, fmt.Sprintf("the recorded promise is judged at %v, this binary's at %v", h.Promise.Places, promise.Places))
	}
	if h.Promise.MaxUnavailable != promise.MaxUnavailable {
		out = append(out, fmt.Sprintf("the recorded promise bounds a gap by %s, this binary's by %s", h.Promise.MaxUnavailable, promise.MaxUnavailable))
	}
	if h.Promise.MaxStall != promise.MaxStall || h.Promise.MaxRTO != promise.MaxRTO {
		out = append(out, fmt.Sprintf("the recorded promise bounds a stall by %s and the recovery by %s, this binary's by %s and %s", h.Promise.MaxStall, h.Promise.MaxRTO, promise.MaxStall, promise.MaxRTO))
	}
	if h.Promise.Drain != promise.Drain {
		out = append(out, fmt.Sprintf("the recorded promise of a backlog is %+v, this binary's %+v", h.Promise.Drain, promise.Drain))
	}
	for _, name := range union(h.Promise.Rules, promise.Rules) {
		if was, is := h.Promise.Rules[name], promise.Rules[name]; was != is {
			out = append(out, fmt.Sprintf("%s is recorded as %s, in this binary as %s", name, ruleWords(was), ruleWords(is)))
		}
	}
	return append(out, compareChecks(h.Checks, checks)...)
}

func compareChecks(recorded, own map[string]int) []string {
	var out []string
	for _, name := range union(recorded, own) {
		was, recordedToo := recorded[name]
		is, known := own[name]
		if name == EvidenceRules && known {
			if was = max(was, 1); was != is {
				out = append(out, fmt.Sprintf("this binary judges the evidence by other rules (version %d) than the one that recorded it (version %d)", is, was))
			}
			continue
		}
		switch {
		case !known:
			out = append(out, fmt.Sprintf("check %s (version %d) is recorded, this binary has none", name, was))
		case !recordedToo:
			out = append(out, fmt.Sprintf("check %s (version %d) is new in this binary", name, is))
		case was != is:
			out = append(out, fmt.Sprintf("check %s is recorded in version %d, this binary has %d", name, was, is))
		}
	}
	return out
}

func union[V any](a, b map[string]V) []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(names)
	return slices.Compact(names)
}

func ruleWords(r ledger.Rule) string {
	switch {
	case r.Allowed:
		return "allowed"
	case r.Bound > 0:
		return fmt.Sprintf("bounded by %d", r.Bound)
	default:
		return "forbidden"
	}
}

// tally is what the main pass counts for the evidence.
type tally struct {
	beforeConfirmed, afterConfirmed int
	beforeClaimed, afterClaimed     int
	// Within the stretch that the evidence is asked of.
	duringConfirmed, duringRefused, silent int
	inFlight                               []int // per injection
	received, effects                      int
	beforeHandled, afterHandled            int
	redelivered                            int // since the first strike
	open                                   int // sends that never completed
}

// auditor is one audit at work.
type auditor struct {
	header   ledger.Header
	open     Open
	survey   *survey
	index    *index
	findings findings
	pulse    *pulse
	stretch  stretch // of Evidence.During
	tally    tally
	totals   Totals
	liveness Liveness

	times      *delayCheck // nil if the arm has no delay
	stall      *stallCheck
	drain      *drainCheck // nil if the promise says nothing of a backlog
	business   *business   // nil if the arm is about stores alone
	deliveries *deliveries
	handles    bool // work on deliveries is in the ledger

	primary       ledger.View // the view in which places and order are judged: raw, if it was read
	primaryFlag   flags
	anyStartMoved bool
	finalReadOK   bool

	observers struct {
		stored    []storedObserver
		received  []receivedObserver
		business  []businessObserver
		received2 []receiver
		handled   []handler
		settled   []settler
		conclude  []concluder
	}
	ran map[string]int

	dropped    map[ledger.MessageID]*ledger.Event // what the broker says of its letting go of what is lost
	unfinished map[findingKey]bool                // findings of messages of which some never completed
	confirms   map[partitionKey]*confirms

	contradictions []string // a ledger that contradicts itself proves nothing: at most SampleSize
	contradicted   int
	mayHaveExpired int

	subjects     subjects // of a control of a chain
	otherLetters int      // dead letters of events that the header does not name; -1 = not counted yet
}

// confirms are those of a partition before the first strike: when the last one was whose message is there, and whose is lost.
type confirms struct{ kept, lost int64 }

func newAuditor(h ledger.Header, open Open, v *survey) *auditor {
	a := &auditor{
		header: h, open: open, survey: v, index: newIndex(), pulse: newPulse(v), primaryFlag: storedRaw,
		findings: findings{byKey: map[findingKey]*Finding{}}, ran: map[string]int{},
		otherLetters: -1, unfinished: map[findingKey]bool{}, confirms: map[partitionKey]*confirms{},
	}
	raw := false
	for key, end := range v.ends {
		raw = raw || key.view == ledger.ViewRaw
		a.anyStartMoved = a.anyStartMoved || end.Low > 0
	}
	if v.committed && !raw {
		a.primary, a.primaryFlag = ledger.ViewCommitted, storedCommitted
	}
	if isChain(h) {
		a.business = newBusiness(h)
		if h.Role == roleControl {
			a.findings.subjects = map[findingKey][]ledger.MessageID{}
		}
	}
	if len(h.Chain.Effects) > maxEffects {
		a.contradiction("the header names %d tables of effects, at most %d can be judged", len(h.Chain.Effects), maxEffects)
	}
	a.deliveries = newDeliveries(a)
	a.tally.inFlight = make([]int, len(v.injections))
	a.stretch = v.stretch(h.Evidence.During.At)
	for _, c := range checks {
		o := c.start(a)
		if s, ok := o.(storedObserver); ok {
			a.observers.stored = append(a.observers.stored, s)
		}
		if r, ok := o.(receivedObserver); ok {
			a.observers.received = append(a.observers.received, r)
		}
		if b, ok := o.(businessObserver); ok && a.chained() {
			a.observers.business = append(a.observers.business, b)
		}
		if r, ok := o.(receiver); ok {
			a.observers.received2 = append(a.observers.received2, r)
		}
		if h, ok := o.(handler); ok {
			a.observers.handled = append(a.observers.handled, h)
		}
		if s, ok := o.(settler); ok {
			a.observers.settled = append(a.observers.settled, s)
		}
		if s, ok := o.(concluder); ok {
			a.observers.conclude = append(a.observers.conclude, s)
		}
		a.ran[c.name] = c.version
	}
	a.ran[EvidenceRules] = evidenceVersion
	return a
}

func (a *auditor) contradiction(format string, args ...any) {
	a.contradicted++
	if len(a.contradictions) < SampleSize {
		a.contradictions = append(a.contradictions, fmt.Sprintf(format, args...))
	}
}

// run makes the main pass, then lets the checks conclude, then looks up when it all happened.
func (a *auditor) run() error {
	segments, err := scan(a.open, a.see, apart()...)
	if err != nil {
		return err
	}
	for i, s := range segments { // the main pass has seen all damage, the survey not that within skipped batches
		if i < len(a.survey.segments) {
			s.killed = s.killed || a.survey.segments[i].killed
		}
	}
	a.survey.segments = segments
	a.survey.measure()
	for _, s := range a.index.streams {
		s.settleSpans()
	}
	a.sum()
	for _, s := range a.survey.segments {
		a.handles = a.handles || s.handles
	}
	if err := merge(a.open, a.survey.segments, a.consumed); err != nil {
		return err
	}
	a.totals.Received = a.tally.received
	a.finalReadOK = a.finalRead().OK
	for _, c := range a.observers.conclude {
		if err := c.conclude(); err != nil {
			return err
		}
	}
	a.findings.forbid(a.header.Promise, a.alwaysJudged)
	a.stuckInstead()
	if err := a.takeSubjects(); err != nil {
		return err
	}
	return a.date()
}

func (a *auditor) see(s *segment, e *ledger.Event) {
	switch e.Kind {
	case ledger.Invoke:
		if e.To > e.Seq && e.Stream != 0 {
			st := a.index.stream(e.Stream)
			st.invoke(span{from: e.Seq, to: e.To, epoch: a.survey.epoch(e.At)})
			if e.EventID != 0 {
				st.publishes = true
				if a.chained() {
					*a.business.of(e.EventID) |= published
				}
			}
			if e.EventID != 0 || !a.header.Chain.Ordered {
				a.pulse.send(e.At)
			}
		} else {
			a.contradiction("%s: an invoke covers %d/%d..%d", s.title(), e.Stream, e.Seq, e.To)
		}
	case ledger.Complete:
		a.complete(s, e)
	case ledger.Claimed:
		if e.Sent != 0 {
			a.stall.wait(s, e.ID(), e.Sent, e.At)
		}
		if e.Claim == ledger.ClaimSent && e.Stream != 0 {
			a.claim(a.index.stream(e.Stream).flagsOf(e.Seq), e.At)
		}
		if a.chained() && (e.Stream != 0 || e.EventID != 0) {
			f := a.facts(e)
			switch {
			case e.Claim == ledger.ClaimSent:
				*f |= told
			case e.Claim == ledger.ClaimFailed && e.Stream == 0:
				*f |= toldFailed
				if e.Text == ledger.CalledOff {
					a.business.calledOff[e.EventID] = true
				}
			case e.Claim == ledger.ClaimFailed:
				*f |= answeredNo
			}
		}
	case ledger.Stored:
		a.stored(s, e)
	case ledger.Effect:
		if tableOf(e.Text) != ledger.TableDeadLetter {
			a.tally.effects++
		}
	}
	if a.chained() {
		switch e.Kind {
		case ledger.Ordered:
			a.order(s, e)
			if a.times != nil {
				a.times.ordered(e)
			}
		case ledger.Resent:
			a.business.again(e.EventID, e.To)
		case ledger.Effect, ledger.OutboxRow, ledger.InboxRow:
			for _, o := range a.observers.business {
				o.row(s, e)
			}
			a.row(s, e)
		}
	}
}

// consumed takes the events of consumers, in the order of time.
func (a *auditor) consumed(s *segment, e *ledger.Event) {
	if e.Kind == ledger.Received {
		a.tally.received++
		if e.Stream != 0 && !a.invoked(e.ID()) {
			a.contradiction("%s: %s was delivered, and no invoke covers it", s.title(), e.ID())
		}
		for _, o := range a.observers.received {
			o.received(s, e)
		}
	}
	a.deliveries.see(s, e)
}

func (a *auditor) claim(m *flags, at int64) {
	if *m&claimed != 0 {
		return
	}
	*m |= claimed
	if at < a.survey.firstStrike {
		a.tally.beforeClaimed++
	}
	if at > a.survey.lastHeal {
		a.tally.afterClaimed++
	}
}

// complete sorts a Complete into before, in flight, during and after. A send is in flight at a
// strike if it was handed over before it and completed at or after it, or never. During is the stretch
// that the evidence is asked of. It counts confirms within it of sends made since its strike: one that
// was on its way before the strike says nothing about the time after it. Silent are sends made since its
// strike of which nobody had heard, or only of a timeout, at its end.
func (a *auditor) complete(s *segment, e *ledger.Event) {
	if e.Stream == 0 {
		a.contradiction("%s: a complete names no message", s.title())
		return
	}
	v := a.survey
	m := a.index.stream(e.Stream).flagsOf(e.Seq)
	first := *m&completed == 0
	*m |= completed
	if a.times != nil {
		a.times.answer(e)
	}
	answered := *m&claimed != 0 || a.chained() && e.EventID != 0 && *a.facts(e)&(told|answeredNo) != 0
	if first && e.Sent != 0 && !answered {
		a.stall.wait(s, e.ID(), e.Sent, e.At)
	}
	if e.Sent != 0 {
		a.pulse.send(e.Sent)
	}
	during := &a.stretch
	within := e.At >= during.from && e.At < during.to
	if first {
		if e.Sent != 0 {
			for i, inj := range v.injections {
				if e.Sent < inj.at && inj.at <= e.At {
					a.tally.inFlight[i]++
				}
			}
		}
		if during.since <= e.Sent && e.Sent < during.to && (e.At >= during.to || e.Outcome == ledger.InDoubt) {
			a.tally.silent++
		}
	}
	if first && e.Outcome != ledger.OK {
		a.pulse.unconfirmed(e.Outcome, e.At)
	}
	switch e.Outcome {
	case ledger.OK:
		if *m&refused != 0 {
			a.contradiction("%s: %s was refused and is confirmed too", s.title(), e.ID())
		}
		if e.Pos.Offset >= 0 && *m&confirmed == 0 {
			*m |= placed
			if end := v.ends[viewKey{partitionKey{e.Pos.Destination, e.Pos.Partition}, a.primary}]; end != nil && e.Pos.Offset < end.Low {
				*m |= belowStart
			}
		}
		if *m&confirmed == 0 {
			*m |= confirmed
			a.pulse.confirm(v, e.Sent, e.At)
			if e.At < v.firstStrike {
				a.tally.beforeConfirmed++
			}
			if e.At > v.lastHeal {
				a.tally.afterConfirmed++
			}
			if within && e.Sent >= during.since {
				a.tally.duringConfirmed++
			}
		}
	case ledger.Failed:
		if *m&confirmed != 0 {
			a.contradiction("%s: %s was confirmed and is refused too", s.title(), e.ID())
		}
		if *m&refused == 0 && within {
			a.tally.duringRefused++
		}
		*m |= refused
	}
	if e.Claim == ledger.ClaimSent {
		a.claim(m, e.At)
	}
	if a.chained() {
		a.answered(e, *m)
	}
}

// answered notes what a Complete says of the business event.
func (a *auditor) answered(e *ledger.Event, m flags) {
	f := a.facts(e)
	*f |= published
	switch e.Outcome {
	case ledger.OK:
		*f |= accepted
		if m&belowStart != 0 {
			*f |= gone
		}
		switch e.Text {
		case Unroutable:
			*f |= unroutable
		case Overflowed:
			*f |= overflowed
		}
	case ledger.Failed:
		*f |= unaccepted
	}
	if e.Claim == ledger.ClaimSent {
		*f |= told
	}
}

// known says whether an event names a view and a destination that exist.
func (a *auditor) known(e *ledger.Event) bool {
	return e.View <= ledger.ViewDeadLetter && int(e.Pos.Destination) < len(a.header.Destinations)
}

func (a *auditor) stored(s *segment, e *ledger.Event) {
	if !a.known(e) {
		a.contradiction("%s: a record was read from destination %d in view %d, of which the header knows nothing", s.title(), e.Pos.Destination, e.View)
		return
	}
	seen := a.index.partition(e.Pos).see(e)
	var m *flags
	if e.Stream != 0 {
		m = a.index.stream(e.Stream).flagsOf(e.Seq)
	}
	for _, o := range a.observers.stored {
		o.stored(s, e, seen, m)
	}
	if m == nil {
		return
	}
	*m |= storedRaw << e.View
	if a.chained() {
		f := a.facts(e)
		*f |= inStore
		if e.View == ledger.ViewDeadLetter || a.header.Destinations[e.Pos.Destination].DeadLetter {
			*f |= byBroker | deadLetter*allTables
		}
	}
}

// sum counts messages by what became of them, and the sends that never completed.
func (a *auditor) sum() {
	t := &a.totals
	v := a.survey
	for _, s := range a.index.streams {
		if a.header.Chain.Ordered && !s.publishes && len(s.pages) == 0 {
			continue // what it was about to do are business transactions
		}
		done := make([]uint64, len(s.spans)) // completed messages of each span
		i := 0
		s.walk(func(seq uint64, f flags) {
			for i < len(s.spans) && s.spans[i].to <= seq {
				i++
			}
			invoked := i < len(s.spans) && s.spans[i].from <= seq
			if invoked && f&completed != 0 {
				done[i]++
			}
			if f&confirmed != 0 {
				t.Confirmed++
				if !invoked {
					a.contradiction("%d/%d is confirmed, and no invoke covers it", s.id, seq)
				}
			} else if f&refused != 0 {
				t.Refused++
			}
			if f&claimed != 0 {
				t.Claimed++
			}
			if f&stored != 0 {
				t.Stored++
				if invoked && f&(confirmed|refused) == 0 {
					t.Recovered++
				}
			}
			if txn := v.txnOf(ledger.MessageID{Stream: s.id, Seq: seq}); txn != nil && f&storedCommitted != 0 {
				txn.seen++
			}
		})
		for i, sp := range s.spans {
			n := sp.to - sp.from
			t.Invoked += int(n)
			open := int(n - done[i])
			a.tally.open += open
			for j, inj := range v.injections {
				if sp.epoch < v.epochsBefore(inj.at) {
					a.tally.inFlight[j] += open
				}
			}
			if d := a.stretch; d.known && sp.epoch >= v.epochsBefore(d.since) && (d.to == math.MaxInt64 || sp.epoch < v.epochsBefore(d.to)) {
				a.tally.silent += open
			}
		}
	}
	t.InDoubt = max(0, t.Invoked-t.Confirmed-t.Refused)
	t.Effects = a.tally.effects
	if v.loadAt == math.MaxInt64 {
		v.loadAt = 0
		if a.pulse.firstSend != math.MaxInt64 {
			v.loadAt = a.pulse.firstSend
		}
	}
}

// flagged lists the anomalies that have a flag of their own.
var flagged = [...]struct {
	flag    flags
	anomaly string
}{
	{duplicated, DuplicateStore},
	{corrupted, Corrupted},
	{misrouted, Misrouted},
	{reordered, ReorderedStore},
	{conflicting, Conflict},
}

// keysOf returns the findings that a message is part of.
func (a *auditor) keysOf(s *stream, seq uint64, f flags, dst []findingKey) []findingKey {
	if key, lost, _ := a.lost(s, seq, f); lost {
		key = key.droppedAs(a.dropped[ledger.MessageID{Stream: s.id, Seq: seq}])
		dst = append(dst, key)
	}
	if key, stray := strayAs(f, s.invoked(seq)); stray {
		dst = append(dst, key)
	}
	for _, x := range flagged {
		if f&x.flag != 0 {
			dst = append(dst, findingKey{anomaly: x.anomaly})
		}
	}
	if f&transacted != 0 {
		for _, name := range []string{AbortedRead, TornTxn, EarlyRead} {
			dst = append(dst, findingKey{anomaly: name})
		}
	}
	return dst
}

// date makes a pass to learn when the messages of each finding were sent, and what was said of the
// samples. Without findings there is nothing to do.
func (a *auditor) date() error {
	if len(a.findings.byKey) == 0 {
		return nil
	}
	var keys []findingKey
	var partition partitionKey
	var last *confirms // of partition
	const suspicious = duplicated | corrupted | misrouted | reordered | conflicting | transacted
	_, err := scan(a.open, func(s *segment, e *ledger.Event) {
		if e.Kind != ledger.Complete && e.Kind != ledger.Claimed || e.Stream == 0 {
			return
		}
		st := a.index.stream(e.Stream)
		f := *st.flagsOf(e.Seq)
		if e.Outcome == ledger.OK && e.At < a.survey.firstStrike {
			if p := (partitionKey{e.Pos.Destination, e.Pos.Partition}); last == nil || p != partition {
				if partition, last = p, a.confirms[p]; last == nil {
					last = &confirms{}
					a.confirms[p] = last
				}
			}
			if f&stored == 0 {
				last.lost = max(last.lost, e.At)
			} else {
				last.kept = max(last.kept, e.At)
			}
		}
		if f&stored != 0 && f&suspicious == 0 && f&refused == 0 {
			return
		}
		keys = a.keysOf(st, e.Seq, f, keys[:0])
		for _, k := range keys {
			x := a.findings.byKey[k]
			if x == nil {
				continue
			}
			from, to := e.At, e.At
			if e.Sent != 0 {
				from = e.Sent
			}
			if x.From == 0 || from < x.From {
				x.From = from
			}
			x.To = max(x.To, to)
			if slices.Contains(x.Sample, e.ID()) {
				x.witness(a.said(s, e))
			}
		}
	}, ledger.Complete, ledger.Claimed)
	if err != nil {
		return err
	}
	for _, x := range a.findings.byKey {
		x.Window = a.survey.window(x.From, x.To)
		if x.Anomaly == Lost && len(x.Sample) > 0 {
			x.Witnesses = append([]string{a.absence(x.Sample[0])}, x.Witnesses[:min(len(x.Witnesses), SampleSize-1)]...)
		}
	}
	return nil
}

// said puts a Complete or Claimed into one line.
func (a *auditor) said(s *segment, e *ledger.Event) string {
	at := a.survey.since(e.At)
	switch {
	case e.Kind == ledger.Claimed:
		return fmt.Sprintf("%s: the caller was told %q of %s at %s", s.title(), e.Claim, e.ID(), at)
	case e.Outcome == ledger.OK && e.Pos.Offset >= 0:
		return fmt.Sprintf("%s: %s was confirmed at %s, as %s", s.title(), e.ID(), at, place(e.Pos))
	case e.Outcome == ledger.OK:
		return fmt.Sprintf("%s: %s was confirmed at %s", s.title(), e.ID(), at)
	case e.Outcome == ledger.Failed:
		return fmt.Sprintf("%s: %s was refused at %s: %s", s.title(), e.ID(), at, e.Text)
	default:
		return fmt.Sprintf("%s: %s ended in doubt at %s %s", s.title(), e.ID(), at, e.Text)
	}
}

// place names a position.
func place(p ledger.Position) string {
	if p.Offset < 0 {
		return fmt.Sprintf("partition %d", p.Partition)
	}
	return fmt.Sprintf("partition %d offset %d", p.Partition, p.Offset)
}
