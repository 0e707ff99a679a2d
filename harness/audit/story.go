package audit

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"conform/harness/ledger"
)

// tellSamples adds the stories of all samples to a verdict. The first sample of the worst finding is
// the one to be told first.
func tellSamples(h ledger.Header, open Open, v *survey, dropped map[ledger.MessageID]*ledger.Event, verdict *Verdict) error {
	var ids []ledger.MessageID
	seen := map[ledger.MessageID]bool{}
	events := map[ledger.MessageID]bool{}
	for _, f := range verdict.Findings {
		for _, id := range f.Sample {
			if isOfEvents(f) {
				events[id] = true
			}
			if !seen[id] {
				seen[id] = true
				ids = append(ids, id)
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	stories, err := tell(h, open, v, dropped, ids, events)
	if err != nil {
		return err
	}
	verdict.Stories = stories
	for i := range verdict.Findings {
		dateByStories(v, &verdict.Findings[i], stories)
	}
	verdict.StoryOf, verdict.Story = &stories[0].ID, &stories[0]
	return nil
}

// around is how far from a message's own events a strike or heal still belongs to its story.
const around = 30 * time.Second

// Tell returns the whole story of one message, or of one order, with the injections and heals around it and what
// stands at its position now. The error is about us, as Audit's.
func Tell(h ledger.Header, open Open, id ledger.MessageID) (Story, error) {
	v, err := takeSurvey(open)
	if err != nil {
		return Story{}, fmt.Errorf("tell the story of %s in %s: %w", id, armName(h), err)
	}
	var dropped map[ledger.MessageID]*ledger.Event
	if len(v.drops) > 0 { // what the broker let go of is known of all that is lost together only
		a := newAuditor(h, open, v)
		if err := a.run(); err != nil {
			return Story{}, fmt.Errorf("tell the story of %s in %s: %w", id, armName(h), err)
		}
		dropped = a.dropped
	}
	stories, err := tell(h, open, v, dropped, []ledger.MessageID{id}, nil)
	if err != nil {
		return Story{}, err
	}
	return stories[0], nil
}

// sieve tells most events from the few of a set, in less time than a map needs.
type sieve [64]uint64

func (s *sieve) add(event uint64) {
	h := s.place(event)
	s[h/64] |= 1 << (h % 64)
}

func (s *sieve) mayHold(event uint64) bool {
	h := s.place(event)
	return s[h/64]>>(h%64)&1 == 1
}

// place spreads events, whose low bits are consecutive numbers, over the bits (Fibonacci hashing).
func (*sieve) place(event uint64) uint64 { return event * 0x9e3779b97f4a7c15 >> 52 }

// tell makes one pass for the stories of any number of messages, and one more if what stands at the
// position of a lost one is to be found. In a chain the story of a message is that of its business event,
// with all messages that carried it; events lists those ids that are a business event's own.
func tell(
	h ledger.Header, open Open, v *survey, dropped map[ledger.MessageID]*ledger.Event, ids []ledger.MessageID, events map[ledger.MessageID]bool,
) ([]Story, error) {
	tellers := make([]*teller, len(ids))
	byStream := map[uint32][]*teller{} // by seq
	byEvent := map[uint64][]*teller{}
	carried := map[ledger.MessageID]uint64{}
	acts := newBusiness(h)
	if isChain(h) {
		var err error
		if carried, err = resolve(open, ids, events, acts); err != nil {
			return nil, fmt.Errorf("tell stories of %s: %w", armName(h), err)
		}
	}
	for i, id := range ids {
		t := &teller{header: h, id: id, survey: v, dropped: dropped[id]}
		tellers[i] = t
		if isChain(h) {
			t.chain = newChainTeller(h, ledger.EventOf(id, carried[id]))
			byEvent[t.chain.event] = append(byEvent[t.chain.event], t)
			for _, other := range acts.siblings()[acts.act(t.chain.event)] {
				if other != t.chain.event {
					byEvent[other] = append(byEvent[other], t)
				}
			}
		}
		if own := t.origin(); own.Stream != 0 {
			byStream[own.Stream] = append(byStream[own.Stream], t)
		}
	}
	for _, ts := range byStream {
		slices.SortFunc(ts, func(a, b *teller) int { return cmp.Compare(a.origin().Seq, b.origin().Seq) })
	}
	var wanted sieve
	for event := range byEvent {
		wanted.add(event)
	}
	firstSend := int64(math.MaxInt64)
	holding := map[*segment][]*teller{} // those with a delivery that is not settled
	_, err := scan(open, func(s *segment, e *ledger.Event) {
		if e.Kind == ledger.Invoke {
			firstSend = min(firstSend, e.At)
		}
		if e.Kind == ledger.Settled && isCommit(e) {
			if held := holding[s]; len(held) > 0 {
				holding[s] = slices.DeleteFunc(held, func(t *teller) bool { return t.committed(s, e) })
			}
			return
		}
		if e.EventID != 0 && len(byEvent) > 0 {
			if !wanted.mayHold(e.EventID) {
				return
			}
			for _, t := range byEvent[e.EventID] {
				if t.as = ""; e.EventID != t.chain.event {
					t.as = fmt.Sprintf("as event %s: ", identity(e.EventID))
				}
				t.see(s, e)
				t.as = ""
				if e.Kind == ledger.Received && !slices.Contains(holding[s], t) {
					holding[s] = append(holding[s], t)
				}
			}
			return
		}
		ts := byStream[e.Stream]
		if len(ts) == 0 {
			return
		}
		to := e.Seq + 1
		if e.Kind == ledger.Invoke || e.Kind == ledger.TxnEnd {
			to = e.To
		}
		i, _ := slices.BinarySearchFunc(ts, e.Seq, func(t *teller, seq uint64) int { return cmp.Compare(t.origin().Seq, seq) })
		for ; i < len(ts) && ts[i].origin().Seq < to; i++ {
			ts[i].see(s, e)
			if e.Kind == ledger.Received && !slices.Contains(holding[s], ts[i]) {
				holding[s] = append(holding[s], ts[i])
			}
		}
	})
	byPlace := map[ledger.Position][]*teller{}
	for _, t := range tellers {
		if t.flags&placed != 0 && !slices.Contains(t.seenAt, t.place) {
			byPlace[t.place] = append(byPlace[t.place], t)
		}
	}
	if err == nil && len(byPlace) > 0 {
		_, err = scan(open, func(_ *segment, e *ledger.Event) {
			if e.Kind == ledger.Stored {
				for _, t := range byPlace[e.Pos] {
					t.seeOccupant(e)
				}
			}
		}, ledger.Stored)
	}
	if err != nil {
		return nil, fmt.Errorf("tell stories of %s: %w", armName(h), err)
	}
	if v.loadAt == math.MaxInt64 && firstSend != math.MaxInt64 {
		v.loadAt = firstSend
	}
	stories := make([]Story, len(tellers))
	for i, t := range tellers {
		stories[i] = t.story()
	}
	return stories, nil
}

// origin is the identity under which events without a business event are about the story.
func (t *teller) origin() ledger.MessageID {
	if t.chain != nil {
		return identity(t.chain.event)
	}
	return t.id
}

// teller gathers one story.
type teller struct {
	header    ledger.Header
	id        ledger.MessageID
	survey    *survey
	dropped   *ledger.Event // what the broker says of its letting go of it
	lines     []StoryLine
	flags     flags
	invoked   bool
	writer    string
	sent      int64 // when it was handed to the client, 0 = unknown
	from, to  int64 // of its own events before the final read
	place     ledger.Position
	seenAt    []ledger.Position // in any view
	raw       []ledger.Position // where it was found in the primary view
	occupants []occupant
	wrong     []string     // what is wrong with a stored copy
	as        string       // what lines begin with: another event id of the same act
	chain     *chainTeller // nil if the arm is about stores alone
}

// occupant is what stands at the message's position, and in which views.
type occupant struct {
	who   string
	views []string
}

func (t *teller) line(at int64, place, format string, args ...any) {
	t.lines = append(t.lines, StoryLine{At: at, Place: place, Text: t.as + fmt.Sprintf(format, args...)})
}

func (t *teller) own(at int64) {
	if t.from == 0 || at < t.from {
		t.from = at
	}
	t.to = max(t.to, at)
}

// see takes an event that is about the message, or covers it.
func (t *teller) see(s *segment, e *ledger.Event) {
	if t.chain != nil && t.seeChain(s, e) {
		return
	}
	switch e.Kind {
	case ledger.TxnEnd:
		t.own(e.At)
		t.line(e.At, "committed", "its transaction (messages %d..%d) ended: %s", e.Seq, e.To-1, map[ledger.Outcome]string{ledger.OK: "committed", ledger.Failed: "aborted", ledger.InDoubt: "in doubt"}[e.Outcome])
	case ledger.Invoke:
		t.invoked, t.writer = true, s.title()
		t.own(e.At)
		key := t.key()
		to := ""
		if len(t.header.Destinations) > 0 {
			d := t.header.Destinations[0]
			to = fmt.Sprintf(" for %s partition %d", d.Name, ledger.PartitionOf(key, d.Partitions))
		}
		t.line(e.At, "sent", "%s was about to hand it to its client: message %d of stream %d, %s%s", s.title(), t.message(e).Seq, t.message(e).Stream, ledger.KeyName(key), to)
	case ledger.Complete:
		t.complete(s, e)
	case ledger.Claimed:
		t.own(e.At)
		if e.Claim == ledger.ClaimSent {
			t.flags |= claimed
		}
		t.line(e.At, "claimed", "%s told its caller: %s%s", s.title(), e.Claim, t.elapsed(e.At))
	case ledger.Stored:
		if e.View > ledger.ViewDeadLetter {
			return
		}
		t.flags |= storedRaw << e.View
		t.seenAt = append(t.seenAt, e.Pos)
		if e.View == ledger.ViewRaw && !slices.Contains(t.raw, e.Pos) {
			t.raw = append(t.raw, e.Pos)
		}
		t.line(e.At, "stored", "the final read found it in the %s view: %s%s", e.View, place(e.Pos), t.defects(e))
	case ledger.Received:
		t.line(e.At, "delivered", "consumer %d received it from %s%s", e.Consumer, place(e.Pos), attempt(e.Attempt))
	case ledger.Settled:
		t.line(e.At, "settled", "consumer %d settled it: %s, %s", e.Consumer, e.Text, e.Outcome)
	}
}

func attempt(n uint32) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", attempt %d", n)
}

func (t *teller) complete(s *segment, e *ledger.Event) {
	t.own(e.At)
	t.flags |= completed
	if e.Sent != 0 {
		t.sent = e.Sent
		t.own(e.Sent)
		t.line(e.Sent, "sent", "handed to the client of %s", s.title())
	}
	why := ""
	if e.Text != "" {
		why = ": " + e.Text
	}
	switch e.Outcome {
	case ledger.OK:
		t.flags |= confirmed
		where := ""
		if e.Pos.Offset >= 0 {
			t.flags |= placed
			t.place = e.Pos
			where = ", as " + place(e.Pos)
			if end := t.survey.ends[viewKey{partitionKey{e.Pos.Destination, e.Pos.Partition}, ledger.ViewRaw}]; end != nil && e.Pos.Offset < end.Low {
				t.flags |= belowStart
			}
		}
		t.line(e.At, "confirmed", "confirmed by the broker%s%s%s", where, t.elapsed(e.At), t.struck(e.At))
	case ledger.Failed:
		t.flags |= refused
		t.line(e.At, "confirmed", "refused%s%s%s", why, t.elapsed(e.At), t.struck(e.At))
	default:
		t.line(e.At, "confirmed", "neither confirmed nor refused%s%s%s", why, t.elapsed(e.At), t.struck(e.At))
	}
	if e.Claim != ledger.ClaimNone {
		if e.Claim == ledger.ClaimSent {
			t.flags |= claimed
		}
		t.line(e.At, "claimed", "%s told its caller: %s", s.title(), e.Claim)
	}
}

// elapsed says how long after the send something was.
func (t *teller) elapsed(at int64) string {
	if t.sent == 0 || at < t.sent {
		return ""
	}
	return fmt.Sprintf(" (%s after it was sent)", short(at-t.sent))
}

// struck relates a time to the strike or heal before it.
func (t *teller) struck(at int64) string {
	what, last := "", int64(math.MinInt64)
	for _, i := range t.survey.injections {
		if i.at <= at && i.at > last {
			what, last = fmt.Sprintf("the strike %q", i.id), i.at
		}
		if i.healed && i.healedAt <= at && i.healedAt > last {
			what, last = fmt.Sprintf("the heal of %q", i.id), i.healedAt
		}
	}
	if what == "" {
		return ""
	}
	return fmt.Sprintf(", %s after %s", short(at-last), what)
}

func short(ns int64) string {
	d := time.Duration(ns)
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	default:
		return d.Round(time.Microsecond).String()
	}
}

// defects says what is wrong with one stored copy.
func (t *teller) defects(e *ledger.Event) string {
	var out []string
	key := t.key()
	if e.Key != key {
		out = append(out, fmt.Sprintf("under %s instead of %s", ledger.KeyName(e.Key), ledger.KeyName(key)))
	}
	if int(e.Pos.Destination) < len(t.header.Destinations) {
		if want := ledger.PartitionOf(key, t.header.Destinations[e.Pos.Destination].Partitions); want != e.Pos.Partition && e.View != ledger.ViewDeadLetter {
			out = append(out, fmt.Sprintf("in the wrong partition, %d was meant", want))
		}
	}
	sent := ledger.AppendPayload(nil, t.header.Seed, t.header.Tag(), e.ID(), e.EventID, t.header.Workload.PayloadSize)
	if ledger.Digest(sent) != e.Digest {
		out = append(out, "with another content than was sent")
	}
	if len(out) == 0 {
		return ""
	}
	t.wrong = append(t.wrong, out...)
	return " — " + strings.Join(out, ", ")
}

// seeOccupant looks for what stands where the message was confirmed to be.
func (t *teller) seeOccupant(e *ledger.Event) {
	who := "an unreadable record"
	switch {
	case e.Stream != 0:
		who = "message " + e.ID().String()
	case e.Text == ledger.TextForeign:
		who = "a record of another arm or run"
	}
	i := slices.IndexFunc(t.occupants, func(o occupant) bool { return o.who == who })
	if i < 0 {
		i = len(t.occupants)
		t.occupants = append(t.occupants, occupant{who: who})
	}
	if v := e.View.String(); !slices.Contains(t.occupants[i].views, v) {
		t.occupants[i].views = append(t.occupants[i].views, v)
	}
}

func (t *teller) story() Story {
	s := Story{ID: t.id}
	if t.chain != nil {
		t.redelivered()
		t.killed()
	}
	if len(t.lines) == 0 {
		s.Title = fmt.Sprintf("message %s: nothing in this ledger is about it", t.id)
		return s
	}
	if t.from != 0 {
		near := func(at int64) bool {
			return at >= t.from-int64(around) && at <= t.to+int64(around)
		}
		for _, i := range t.survey.injections {
			if near(i.at) {
				bit := ""
				if i.bitten {
					bit = "; it bit: " + i.proof
				}
				t.line(i.at, "fault", "strike %q: %s%s", i.id, i.detail, bit)
			}
			if i.healed && i.healedAt != i.at && near(i.healedAt) {
				t.line(i.healedAt, "fault", "heal of %q", i.id)
			}
		}
	}
	slices.SortStableFunc(t.lines, func(a, b StoryLine) int { return cmp.Compare(a.At, b.At) })
	end := t.lines[len(t.lines)-1].At
	if t.flags&stored == 0 && (t.chain == nil || t.chain.facts&published != 0) {
		t.absent(&end)
	}
	what, name := "message", t.id
	title, text := t.verdict()
	if t.chain != nil {
		if t.header.Chain.Ordered {
			what, name = "order", t.origin()
		}
		if ct, cx := t.chainVerdict(); ct != "" {
			title, text = ct, cx
		}
	}
	t.line(end, "verdict", "%s", text)
	s.Title = fmt.Sprintf("%s %s: %s", what, name, title)
	first := t.lines[0].At
	for i := range t.lines {
		t.lines[i].Since = time.Duration(t.lines[i].At - first)
	}
	s.Lines = t.lines
	return s
}

// absent adds the lines that say where it was looked for, and what stands at its place.
func (t *teller) absent(end *int64) {
	n := int32(0)
	if len(t.header.Destinations) > 0 {
		n = ledger.PartitionOf(t.key(), t.header.Destinations[0].Partitions)
	}
	var views []string
	var low, high int64
	for _, view := range []ledger.View{ledger.ViewRaw, ledger.ViewCommitted} {
		if e := t.survey.ends[viewKey{partitionKey{0, n}, view}]; e != nil {
			views = append(views, view.String())
			low, high = e.Low, e.N
			*end = max(*end, e.At)
		}
	}
	read := len(views) > 0
	if read {
		t.line(*end, "stored", "found nowhere: partition %d was read from %d to its end %d (%s view)", n, low, high, strings.Join(views, " and "))
	} else {
		t.line(*end, "stored", "not found, but partition %d was not read to its end", n)
	}
	for _, o := range t.occupants {
		t.line(*end, "stored", "%s now holds %s (%s view)", place(t.place), o.who, strings.Join(o.views, " and "))
	}
	if t.flags&placed != 0 && len(t.occupants) == 0 && read {
		t.line(*end, "stored", "nothing stands at %s now", place(t.place))
	}
	if t.dropped != nil {
		t.line(*end, "stored", "the broker says of that time: %s", t.dropped.Detail)
	}
}

// verdict sums the story up in a few words and in a sentence.
func (t *teller) verdict() (title, text string) {
	if key, lost := lostAs(t.flags, t.invoked); lost {
		key = key.droppedAs(t.dropped)
		f := Finding{Anomaly: key.anomaly, Qualifier: key.qualifier, Attribution: key.attribution}
		return f.Name(), fmt.Sprintf("%s: it %s", f.Name(), MeaningOf(key.attribution))
	}
	if key, stray := strayAs(t.flags, t.invoked); stray {
		row, _ := Lookup(key.anomaly)
		return key.anomaly, key.anomaly + ": " + row.Meaning
	}
	if len(t.wrong) > 0 {
		return "stored wrongly", "stored " + strings.Join(slices.Compact(t.wrong), ", ")
	}
	if len(t.raw) > 1 {
		return DuplicateStore, fmt.Sprintf("%s: it stands at %d positions", DuplicateStore, len(t.raw))
	}
	switch {
	case t.flags&stored != 0 && t.flags&confirmed != 0:
		return "confirmed and stored", "confirmed, and in the store"
	case t.flags&stored != 0:
		return "recovered", "nobody confirmed it, and it is in the store: recovered"
	case t.flags&refused != 0:
		return "refused", "refused, and not in the store: as it should be"
	case !t.invoked:
		return "never sent", "no invoke covers it"
	default:
		return "in doubt", "in doubt and not in the store: nobody was told that it would be"
	}
}
