package audit

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"conform/harness/ledger"
)

// chainTeller is what a story knows of its business event.
type chainTeller struct {
	event     uint64
	facts     facts
	calledOff bool
	effects   map[string]int // table -> how often applied
	held      []held
	handed    []handed
	workers   []string  // that had to do with it
	effectsIn *business // only its tables
}

// handed is a line that tells of a delivery.
type handed struct {
	group string
	at    int64
	line  int
}

// held is a delivery until it is settled.
type held struct {
	s    *segment
	pos  ledger.Position
	done bool // its work has ended well
	fail bool
	over bool // settled
	// ackAt is when it was, if that was for itself.
	ackAt int64
}

func newChainTeller(h ledger.Header, event uint64) *chainTeller {
	return &chainTeller{event: event, effects: map[string]int{}, effectsIn: newBusiness(h)}
}

// resolve finds the business events that messages carry, and the acts that were asked for again. Those
// of events are left out.
func resolve(open Open, ids []ledger.MessageID, events map[ledger.MessageID]bool, acts *business) (map[ledger.MessageID]uint64, error) {
	out, want := map[ledger.MessageID]uint64{}, map[ledger.MessageID]bool{}
	for _, id := range ids {
		if !events[id] {
			want[id] = true
		}
	}
	kinds := []ledger.Kind{ledger.Resent}
	if len(want) > 0 {
		kinds = append(kinds, ledger.Invoke)
	}
	_, err := scan(open, func(_ *segment, e *ledger.Event) {
		switch {
		case e.Kind == ledger.Resent:
			acts.again(e.EventID, e.To)
		case e.Kind == ledger.Invoke && e.EventID != 0 && want[e.ID()]:
			out[e.ID()] = e.EventID
		}
	}, kinds...)
	return out, err
}

// isOfEvents says whether the samples of a finding are business events.
func isOfEvents(f Finding) bool {
	return f.Place == "effect" || f.Place == "outbox" || f.Anomaly == DeadLetterLost || f.Anomaly == DeadLetterWrong
}

// dateByStories says when the business events of a finding happened, by the stories of its samples.
func dateByStories(v *survey, f *Finding, stories []Story) {
	if f.From != 0 || !isOfEvents(*f) {
		return
	}
	from, to := int64(math.MaxInt64), int64(math.MinInt64)
	for _, s := range stories {
		if !slices.Contains(f.Sample, s.ID) {
			continue
		}
		for _, l := range s.Lines {
			switch l.Place {
			case "fault", "stored", "applied", "verdict":
			default:
				from, to = min(from, l.At), max(to, l.At)
			}
		}
	}
	if from <= to {
		f.From, f.To, f.Window = from, to, v.window(from, to)
	}
}

func (t *teller) key() uint32 {
	if t.chain != nil {
		return ledger.KeyOfEvent(t.header.Seed, t.chain.event, t.header.Workload.Keys)
	}
	return ledger.KeyOf(t.header.Seed, t.id, t.header.Workload.Keys)
}

// message is the identity of the message that an Invoke is about.
func (t *teller) message(e *ledger.Event) ledger.MessageID {
	if e.EventID != 0 {
		return e.ID()
	}
	return t.origin()
}

// tables are those in which the consumer of a segment has its effects.
func (t *teller) tables(s *segment) tables {
	return t.chain.effectsIn.tablesOf(process(s.Worker), s.Group)
}

func (t *teller) met(s *segment) {
	if !slices.Contains(t.chain.workers, s.Worker) && s.Worker != "" {
		t.chain.workers = append(t.chain.workers, s.Worker)
	}
}

// seeChain takes what only a chain has, and says whether that was all.
func (t *teller) seeChain(s *segment, e *ledger.Event) bool {
	c := t.chain
	name := identity(c.event)
	switch e.Kind {
	case ledger.Ordered:
		t.own(e.At)
		t.met(s)
		how := map[ledger.Outcome]string{ledger.OK: "committed", ledger.Failed: "rolled back", ledger.InDoubt: "in doubt: the COMMIT was not answered"}[e.Outcome]
		c.facts |= map[ledger.Outcome]facts{ledger.OK: ordered, ledger.Failed: rolledBack}[e.Outcome]
		what := e.Text
		if what == "" {
			what = "order"
		}
		version := ""
		if e.N != 0 {
			version = fmt.Sprintf(", version %d", e.N)
		}
		t.line(e.At, "committed", "%s: %s %s, %s%s, %s", s.title(), what, name, ledger.KeyName(e.Key), version, how)
	case ledger.Resent:
		t.own(e.At)
		t.line(e.At, "sent", "%s asked for the business act of event %s again", s.title(), identity(e.To))
	case ledger.Invoke:
		t.met(s)
		if e.EventID == 0 && t.header.Chain.Ordered {
			t.own(e.At)
			t.line(e.At, "begun", "%s was about to commit it", s.title())
			return true
		}
		c.facts |= published
		return false
	case ledger.Complete:
		c.facts |= map[ledger.Outcome]facts{ledger.OK: accepted, ledger.Failed: unaccepted}[e.Outcome]
		if e.Claim == ledger.ClaimSent {
			c.facts |= told
		}
		if e.Outcome == ledger.OK && e.Pos.Offset >= 0 {
			if end := t.survey.ends[viewKey{partitionKey{e.Pos.Destination, e.Pos.Partition}, ledger.ViewRaw}]; end != nil && e.Pos.Offset < end.Low {
				c.facts |= gone
			}
		}
		return false
	case ledger.Claimed:
		switch {
		case e.Claim == ledger.ClaimSent:
			c.facts |= told
		case e.Claim == ledger.ClaimFailed && e.Stream == 0:
			c.facts |= toldFailed
			c.calledOff = c.calledOff || e.Text == ledger.CalledOff
		}
		return false
	case ledger.Stored:
		c.facts |= inStore
		for key, end := range t.survey.groupEnds {
			if key.partitionKey == (partitionKey{e.Pos.Destination, e.Pos.Partition}) && e.Pos.Offset < end.Pos.Offset {
				c.facts |= settledAway * t.chain.effectsIn.tablesOf(key.group)
			}
		}
		return false
	case ledger.Received:
		t.own(e.At)
		t.met(s)
		c.facts |= delivered * t.tables(s)
		if e.Pos.Offset < 0 {
			c.facts |= fromQueue
		}
		c.held = append(c.held, held{s: s, pos: e.Pos})
		c.handed = append(c.handed, handed{group: s.Group, at: e.At, line: len(t.lines)})
		t.line(e.At, "delivered", "delivered to %s, from %s%s", s.title(), place(e.Pos), attempt(e.Attempt))
	case ledger.Handled:
		t.handled(s, e)
	case ledger.Settled:
		t.own(e.At)
		t.line(e.At, "settled", "%s settled it: %s, %s%s", s.title(), e.Text, e.Outcome, t.single(s, e))
	case ledger.OutboxRow:
		if orders := t.header.Chain.Orders; orders == "" || orders == ledger.TableOutbox {
			c.facts |= rowFound
		}
		t.line(e.At, "committed", "the final read found its outbox row: %s", e.Text)
	case ledger.InboxRow:
		c.facts |= seenBefore * t.chain.effectsIn.tablesOf(e.Text)
		t.line(e.At, "applied", "the final read found it in the inbox of %s", e.Text)
	case ledger.Effect:
		if tableOf(e.Text) == ledger.TableDeadLetter {
			_, consumer, _ := strings.Cut(e.Text, "/")
			c.facts |= deadLetter * t.chain.effectsIn.tablesOf(consumer)
			t.line(e.At, "applied", "the final read found it among the dead letters")
			break
		}
		if orders := t.header.Chain.Orders; e.Text == orders || tableOf(e.Text) == orders {
			c.facts |= rowFound
			t.line(e.At, "committed", "the final read found its row in %s", e.Text)
			break
		}
		c.effects[e.Text] += int(max(1, e.Count))
		t.line(e.At, "applied", "the final read found its effect in %s", e.Text)
	default:
		return false
	}
	return true
}

// single takes an ack or the like of this one delivery, and says whether it came early.
func (t *teller) single(s *segment, e *ledger.Event) (early string) {
	c := t.chain
	if e.Outcome == ledger.Failed {
		return ""
	}
	switch e.Text {
	case "reject":
		c.facts |= givenUp * t.tables(s)
	case "ack", "accept":
		c.facts |= settledAway * t.tables(s)
		for i := range c.held {
			h := &c.held[i]
			if h.s == s && !h.over && !h.done && !h.fail {
				early = ", before its work had ended"
				c.facts |= settledEarly * t.tables(s)
			}
			if h.s == s && !h.over {
				h.over, h.ackAt = true, e.At
			}
		}
	}
	return early
}

func (t *teller) handled(s *segment, e *ledger.Event) {
	c := t.chain
	t.own(e.At)
	t.met(s)
	why := ""
	if e.Detail != "" {
		why = ": " + e.Detail
	}
	word, _, _ := strings.Cut(e.Text, ":")
	good := e.Outcome == ledger.OK && word != "retried"
	switch {
	case !good:
		c.facts |= failed * t.tables(s)
	case word == "applied":
		c.facts |= applied * t.tables(s)
	case e.Text == "skipped: duplicate":
		c.facts |= seenBefore * t.tables(s)
	case word == "parked" || word == "dead-lettered" || word == "quarantined":
		c.facts |= givenUp * t.tables(s)
	}
	for i := range c.held {
		if c.held[i].s == s {
			c.held[i].done = c.held[i].done || good
			c.held[i].fail = c.held[i].fail || e.Outcome == ledger.Failed
		}
	}
	how := map[ledger.Outcome]string{ledger.OK: "", ledger.Failed: ", which failed", ledger.InDoubt: ", which ended in doubt"}[e.Outcome]
	t.line(e.At, "applied", "%s ended its work on it: %s%s%s", s.title(), e.Text, how, why)
}

// committed takes a commit by the consumer of a segment that had it delivered, and says whether nothing
// is left there to be settled.
func (t *teller) committed(s *segment, e *ledger.Event) bool {
	all := true
	for i := range t.chain.heldOrNone() {
		h := &t.chain.held[i]
		if h.s != s || h.over {
			continue
		}
		if h.pos.Destination != e.Pos.Destination || h.pos.Partition != e.Pos.Partition || h.pos.Offset >= e.Pos.Offset {
			all = false
			continue
		}
		h.over = e.Outcome == ledger.OK
		all = all && h.over
		early := ""
		if !h.done && !h.fail {
			early = ", before its work had ended"
			if e.Outcome != ledger.Failed {
				t.chain.facts |= settledEarly * t.tables(s)
			}
		}
		t.own(e.At)
		t.line(e.At, "settled", "%s settled it: committed position %d, %s%s", s.title(), e.Pos.Offset, e.Outcome, early)
	}
	return all
}

// heldOrNone is for stories of stores, of which nothing is held.
func (c *chainTeller) heldOrNone() []held {
	if c == nil {
		return nil
	}
	return c.held
}

// killed adds how the workers ended that had to do with it, if they were killed.
func (t *teller) killed() {
	c := t.chain
	for _, w := range t.survey.workers {
		if !slices.Contains(c.workers, w.Text) || !strings.HasPrefix(w.Detail, "killed") && w.Outcome == ledger.OK {
			continue
		}
		t.line(w.At, "fault", "%s: %s", w.Text, w.Detail)
		for _, h := range c.held {
			if h.s.Worker == w.Text && !h.done && !h.over && !h.fail && c.facts.any(settledAway) {
				c.facts |= settledEarly * t.tables(h.s)
			}
			if h.s.Worker == w.Text && !h.done && h.over && h.fail && w.At-h.ackAt < int64(time.Second) {
				c.facts |= settledEarly * t.tables(h.s) // it did not live to do what a failure asks for
			}
		}
	}
}

// redelivered marks the deliveries that are not the first to their group: events come in the order of segments, not of time.
func (t *teller) redelivered() {
	first := map[string]handed{}
	for _, h := range t.chain.handed {
		if f, there := first[h.group]; !there || h.at < f.at {
			first[h.group] = h
		}
	}
	for _, h := range t.chain.handed {
		if h.line != first[h.group].line {
			l := &t.lines[h.line]
			l.Text = strings.Replace(l.Text, "delivered ", "delivered again ", 1)
		}
	}
}

// chainVerdict sums up what became of the business event; it is empty where only its messages have a
// story.
func (t *teller) chainVerdict() (title, text string) {
	c, chain := t.chain, t.header.Chain
	f := c.facts
	happened := f&(accepted|told) != 0
	if chain.Ordered {
		happened = f&(ordered|rowFound) != 0
	}
	times, lacks := 0, -1 // the first table without its effect, and without another end
	for i, e := range chain.Effects[:min(len(chain.Effects), maxEffects)] {
		if e.State {
			continue
		}
		times = max(times, c.effects[e.Name])
		if lacks < 0 && c.effects[e.Name] == 0 && (f.of(i)&deadLetter == 0 || chain.Unread || !lettersEnd(chain.Letters, c.event)) {
			lacks = i
		}
	}
	switch {
	case chain.Orders != "" && f&(ordered|rowFound) == ordered:
		lost := Finding{Anomaly: Lost, Qualifier: "confirmed", Attribution: Broker}.Name()
		return lost, fmt.Sprintf("%s: it was committed, and %s has no row of it", lost, chain.Orders)
	case times > 1:
		return DuplicateEffect, fmt.Sprintf("%s: it was applied %s", DuplicateEffect, manyTimes(times))
	case times == 1 && c.calledOff:
		return StaleEffect, StaleEffect + ": it has its effect, and had been called off"
	case times == 1 && f&toldFailed != 0 && f&told == 0:
		return PhantomEffect, PhantomEffect + ": it has its effect, and the application took it for failed"
	case times == 1 && f&rolledBack != 0 && f&rowFound == 0:
		return PhantomEffect, PhantomEffect + ": it has an effect, and its transaction was rolled back"
	case f&rolledBack != 0 && f&rowFound == 0 && (f&(accepted|inStore) != 0 || f.any(delivered)):
		return PublishedUncommitted, PublishedUncommitted + ": it was published, and its transaction was rolled back"
	case lacks >= 0 && happened && !(f&toldFailed != 0 && f&told == 0):
		if f.any(failed) && f&inStore == 0 && t.survey.droppedDead() > 0 {
			f |= droppedDead
		}
		where := missingAs(f.of(lacks))
		name := Finding{Anomaly: MissingEffect, Attribution: where}.Name()
		return name, name + ": it " + MeaningOf(where)
	case chain.Ordered && happened && f&(accepted|inStore) == 0 && !f.any(delivered|deadLetter):
		return Unpublished, Unpublished + ": it is committed, and was never published"
	case times == 1:
		return "applied once", "it has its effect, once"
	case f.any(deadLetter):
		return "dead-lettered", "it is among the dead letters"
	case chain.Ordered && !happened:
		return "not committed", "it was not committed, and nothing came of it"
	}
	return "", ""
}

// lettersEnd says whether a dead letter of an event may be an end like its effect, as far as its story knows.
func lettersEnd(l *ledger.Letters, event uint64) bool {
	return l == nil || slices.Contains(l.Events, event) || l.Others > 0 && !slices.Contains(l.Passing, event)
}

func manyTimes(n int) string {
	if n == 2 {
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}
