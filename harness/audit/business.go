package audit

import (
	"maps"
	"slices"
	"strings"

	"conform/harness/ledger"
)

// facts is all that the audit keeps of one business event: 8 bytes.
type facts uint64

const (
	ordered     facts = 1 << iota // its transaction is committed
	rolledBack                    // its transaction is rolled back for certain
	rowFound                      // its row is in the table of orders
	outboxFound                   // its row is in the outbox
	unmarked                      // which does not say that it was published
	published                     // a producer or relay was about to hand it to its client
	accepted                      // the broker confirmed a message of it
	unaccepted                    // the broker refused a message of it
	told                          // the caller, or a relay's outbox, was told that it was sent
	toldFailed                    // the application's last word was that it failed
	answeredNo                    // a caller was told that it was not sent
	inStore                       // a message of it is in the store
	gone                          // a message of it was confirmed below the start of the log
	unroutable                    // the broker said so
	overflowed                    // the broker said so
	outOfOrder                    // met by the pass of a check of order
	droppedDead                   // the broker let go of it instead of dead-lettering it
	byBroker                      // the broker put it among its dead letters
	fromQueue                     // it was delivered from a queue, which holds what is not settled
	perTable                      // the first of those that follow
)

// What is known for each table of effects, or its consumer: each of these stands for four bits, that of the first table.
const (
	delivered    = perTable << (maxEffects * iota) // to some consumer
	applied                                        // its work is committed
	failed                                         // its work failed, or its end is not known
	seenBefore                                     // it was taken for a repetition
	givenUp                                        // a consumer parked or dead-lettered it
	deadLetter                                     // it is among the dead letters
	settledEarly                                   // it was settled before its work had ended
	settledAway                                    // the group's position passed it, or it was settled otherwise
	missing                                        // it has no effect, and should have one
	effectBit                                      // it has its effect
	twiceBit                                       // it has more than one
)

const (
	maxEffects = 4
	allTables  = 1<<maxEffects - 1
	allTwice   = twiceBit * allTables
)

// any says whether one of the bits is set for any table.
func (f facts) any(bits facts) bool { return f&(bits*allTables) != 0 }

// of is what is known for one table, as if it were the first.
func (f facts) of(table int) facts {
	const whole = perTable - 1
	return f&whole | (f&^whole)>>table&^whole
}

// tables are some of the tables of effects, a bit each.
type tables = facts

// tablesOf returns the tables in which a consumer has its effects, by its name in the inbox, that of its process, or that of its
// group: the one that is named "table/consumer", or else all.
func (b *business) tablesOf(names ...string) tables {
	var out tables
	for i, t := range b.effects {
		_, consumer, apart := strings.Cut(t.Name, "/")
		for _, name := range names {
			if apart && (name == consumer || strings.HasSuffix(name, "."+consumer)) {
				out |= 1 << i
			}
		}
	}
	if out == 0 {
		return allTables
	}
	return out
}

// servedBy returns the tables in which the consumers of a group have their effects.
func (a *auditor) servedBy(g *group) tables {
	var out tables
	for _, s := range a.survey.segments {
		if s.Group == g.Name && s.Group != "" {
			out |= a.business.tablesOf(process(s.Worker), g.Name)
		}
	}
	if out == 0 {
		return a.business.tablesOf(g.Name)
	}
	return out
}

// process is the name of the process that a worker belongs to.
func process(worker string) string {
	if name, number, again := strings.Cut(worker, "-r"); again && strings.Trim(number, "0123456789") == "" {
		return name
	}
	return worker
}

type factPage [pageSize]facts

// eventStream holds the business events of one order-writing incarnation.
type eventStream struct {
	id       uint32
	pages    map[uint64]*factPage
	last     *factPage
	lastPage uint64
}

// business is what is known of business events, if the arm has a chain.
type business struct {
	streams     map[uint32]*eventStream
	last        *eventStream
	acts        map[uint64]uint64   // an event that is another's act again -> that one
	byAct       map[uint64][]uint64 // siblings, once it was asked for
	calledOff   map[uint64]bool     // events of which nothing more was to come
	behind      []state             // once it was asked for
	behindKnown bool
	states      []map[uint32]stateRow
	rows        map[string]*int64 // table -> rows read
	counted     string            // the table of the last one
	counter     *int64            // and its count
	odd         []oddRow
	oddKnown    bool // those that fit after all are gone
	effects     []ledger.EffectTable
	// The table of the last row, so that it need not be searched for.
	lastText  string
	lastTable int
}

// stateRow is what a table of states holds of one key.
type stateRow struct {
	version int64
	event   uint64
}

func newBusiness(h ledger.Header) *business {
	b := &business{streams: map[uint32]*eventStream{}, acts: map[uint64]uint64{}, calledOff: map[uint64]bool{}, rows: map[string]*int64{}, lastTable: -1}
	b.effects = h.Chain.Effects[:min(len(h.Chain.Effects), maxEffects)]
	b.states = make([]map[uint32]stateRow, len(b.effects))
	for i, t := range b.effects {
		if t.State {
			b.states[i] = map[uint32]stateRow{}
		}
	}
	return b
}

// of returns the facts of an event, to be changed in place; what EventID cannot have made has none that
// last.
func (b *business) of(event uint64) *facts {
	id, seq := ledger.SplitEventID(event)
	if id == 0 {
		return new(facts)
	}
	s := b.last
	if s == nil || s.id != id {
		if s = b.streams[id]; s == nil {
			s = &eventStream{id: id, pages: map[uint64]*factPage{}}
			b.streams[id] = s
		}
		b.last = s
	}
	n := seq / pageSize
	if s.last == nil || s.lastPage != n {
		p := s.pages[n]
		if p == nil {
			p = new(factPage)
			s.pages[n] = p
		}
		s.last, s.lastPage = p, n
	}
	return &s.last[seq%pageSize]
}

// walk visits every event of which something is known, in order of identity.
func (b *business) walk(visit func(event uint64, f *facts)) {
	for _, id := range slices.Sorted(maps.Keys(b.streams)) {
		s := b.streams[id]
		for _, n := range slices.Sorted(maps.Keys(s.pages)) {
			p := s.pages[n]
			for i := range p {
				if p[i] != 0 {
					visit(ledger.EventID(id, n*pageSize+uint64(i)), &p[i])
				}
			}
		}
	}
}

// act returns the event under which the business act of an event was first asked for.
func (b *business) act(event uint64) uint64 {
	for range len(b.acts) {
		first, ok := b.acts[event]
		if !ok {
			break
		}
		event = first
	}
	return event
}

// again notes that an event is another's act again.
func (b *business) again(event, first uint64) {
	if first != 0 && first != event && b.act(first) != event {
		b.acts[event] = first
	}
}

// siblings returns the events of each act that was asked for more than once, by act.
func (b *business) siblings() map[uint64][]uint64 {
	out := map[uint64][]uint64{}
	for _, event := range slices.Sorted(maps.Keys(b.acts)) {
		first := b.act(event)
		if len(out[first]) == 0 {
			out[first] = append(out[first], first)
		}
		out[first] = append(out[first], event)
	}
	return out
}

// table returns the number of the effect table that a row belongs to, or -1.
func (b *business) table(text string) int {
	if text != b.lastText {
		b.lastText = text
		b.lastTable = slices.IndexFunc(b.effects, func(t ledger.EffectTable) bool { return t.Name == text })
	}
	return b.lastTable
}

// tableOf is the table of a row's Text: what stands before the consumer's name.
func tableOf(text string) string {
	table, _, _ := strings.Cut(text, "/")
	return table
}

// identity is the event's identity as that of an order: the message of the incarnation that wrote it.
func identity(event uint64) ledger.MessageID {
	stream, seq := ledger.SplitEventID(event)
	return ledger.MessageID{Stream: stream, Seq: seq}
}

// chained says whether the arm is about more than stores.
func (a *auditor) chained() bool { return a.business != nil }

// isChain says whether the ledger of an arm tells of business events.
func isChain(h ledger.Header) bool {
	c := h.Chain
	return c.Ordered || c.Orders != "" || len(c.Effects) > 0 || len(h.Tables) > 0 || len(h.Groups) > 0
}

// facts returns what is known of the event of a message.
func (a *auditor) facts(e *ledger.Event) *facts {
	return a.business.of(ledger.EventOf(e.ID(), e.EventID))
}

// keyOf returns the key of a message: that of its business event.
func (a *auditor) keyOf(e *ledger.Event) uint32 {
	if e.EventID != 0 {
		return ledger.KeyOfEvent(a.header.Seed, e.EventID, a.header.Workload.Keys)
	}
	return ledger.KeyOf(a.header.Seed, e.ID(), a.header.Workload.Keys)
}

// transacted notes the end of a business transaction.
func (a *auditor) order(s *segment, e *ledger.Event) {
	if e.EventID == 0 {
		a.contradiction("%s: a business transaction names no event", s.title())
		return
	}
	f := a.business.of(e.EventID)
	switch e.Outcome {
	case ledger.OK:
		if *f&ordered == 0 {
			a.totals.Ordered++
		}
		*f |= ordered
	case ledger.Failed:
		*f |= rolledBack
	}
	if *f&(ordered|rolledBack) == ordered|rolledBack {
		a.contradiction("%s: event %s is both committed and rolled back", s.title(), identity(e.EventID))
	}
}

// row notes a row of the final snapshot.
func (a *auditor) row(s *segment, e *ledger.Event) {
	b := a.business
	switch e.Kind {
	case ledger.OutboxRow:
		b.count(ledger.TableOutbox)
		if !a.named(s, e, ledger.TableOutbox) {
			return
		}
		f, chain := b.of(e.EventID), a.header.Chain
		if chain.Outbox {
			a.compare(e, ledger.TableOutbox, false)
		}
		*f |= outboxFound
		if chain.Orders == "" || chain.Orders == ledger.TableOutbox { // else the outbox knows only what it was told
			*f |= rowFound
		}
		if chain.Published != "" && e.Text != chain.Published && e.Text != ledger.RowGivenUp {
			*f |= unmarked
		}
		return
	case ledger.InboxRow:
		b.count(ledger.TableInbox)
		if !a.named(s, e, ledger.TableInbox) {
			return
		}
		*b.of(e.EventID) |= seenBefore * b.tablesOf(e.Text)
		return
	}
	name := tableOf(e.Text)
	b.count(name)
	if !a.named(s, e, e.Text) {
		return
	}
	f := b.of(e.EventID)
	if e.Text == a.header.Chain.Orders || name == a.header.Chain.Orders {
		*f |= rowFound
		a.compare(e, a.header.Chain.Orders, e.N != 0)
	}
	if name == ledger.TableDeadLetter {
		_, consumer, _ := strings.Cut(e.Text, "/")
		*f |= deadLetter * b.tablesOf(consumer)
	}
	b.again(e.EventID, e.To)
	i := b.table(e.Text)
	if i < 0 {
		return
	}
	a.compare(e, e.Text, b.effects[i].State || b.effects[i].Versions)
	if b.effects[i].State {
		if old, ok := b.states[i][e.Key]; ok && old.event != e.EventID {
			a.contradiction("%s: %s holds two states of %s", s.title(), e.Text, ledger.KeyName(e.Key))
		}
		b.states[i][e.Key] = stateRow{version: e.N, event: e.EventID}
		*f |= effectBit << i
		return
	}
	if *f&(effectBit<<i) != 0 || e.Count > 1 {
		*f |= twiceBit << i
	}
	*f |= effectBit << i
}

// count counts a row of a table. One table is read after the other.
func (b *business) count(table string) {
	if b.counter == nil || table != b.counted {
		if b.rows[table] == nil {
			b.rows[table] = new(int64)
		}
		b.counted, b.counter = table, b.rows[table]
	}
	*b.counter++
}

// rowsOf is how many rows of a table were read.
func (b *business) rowsOf(table string) int64 {
	if n := b.rows[table]; n != nil {
		return *n
	}
	return 0
}

// named says whether a row is of an event that somebody can have written.
func (a *auditor) named(s *segment, e *ledger.Event, table string) bool {
	stream, _ := ledger.SplitEventID(e.EventID)
	if stream == 0 {
		a.contradiction("%s: a row of %s names no business event, but %d", s.title(), table, e.EventID)
	}
	return stream != 0
}

// oddRow is a row that does not say of its event what the event says itself.
type oddRow struct {
	event     uint64
	table     string
	key       uint32
	version   int64
	versioned bool // the version counts
}

// compare keeps a row whose key, or version, is not its event's as far as its identity tells.
func (a *auditor) compare(e *ledger.Event, table string, versioned bool) {
	x := oddRow{event: e.EventID, table: table, key: e.Key, version: e.N, versioned: versioned}
	if !a.fits(x, e.EventID, ledger.VersionOf(e.EventID)) {
		a.business.odd = append(a.business.odd, x)
	}
}

// fits says whether a row is of the key, and of the version, of an event.
func (a *auditor) fits(x oddRow, event uint64, version int64) bool {
	return (x.key == ledger.NoKey || x.key == ledger.KeyOfEvent(a.header.Seed, event, a.header.Workload.Keys)) && (!x.versioned || x.version == version)
}

// oddRows returns the rows that do not fit their event: neither itself, as the end of its transaction told of it, nor the one
// whose act it is again.
func (a *auditor) oddRows() ([]oddRow, error) {
	b := a.business
	if len(b.odd) == 0 || b.oddKnown {
		return b.odd, nil
	}
	version := map[uint64]int64{}
	for _, x := range b.odd {
		version[x.event], version[b.act(x.event)] = ledger.VersionOf(x.event), ledger.VersionOf(b.act(x.event))
	}
	_, err := scan(a.open, func(_ *segment, e *ledger.Event) {
		if _, asked := version[e.EventID]; asked && e.Kind == ledger.Ordered && e.N != 0 {
			version[e.EventID] = e.N
		}
	}, ledger.Ordered)
	if err != nil {
		return nil, err
	}
	b.odd = slices.DeleteFunc(b.odd, func(x oddRow) bool {
		first := b.act(x.event)
		return a.fits(x, x.event, version[x.event]) || a.fits(x, first, version[first])
	})
	b.oddKnown = true
	return b.odd, nil
}

// committed says whether a business event happened, as far as its origin knows, so that it must have
// its effect. What the application took for failed, as its last word, must not.
func (a *auditor) committed(f facts) bool {
	if f&toldFailed != 0 && f&told == 0 {
		return false
	}
	if a.header.Chain.Ordered {
		return f&(ordered|rowFound) != 0
	}
	return f&(accepted|told) != 0
}

// uncommitted says whether a business event did not happen, for certain: its transaction was rolled
// back, or its row is not where those of all committed ones are. Rows that a database lost are not that.
func (a *auditor) uncommitted(f facts) bool {
	switch {
	case !a.header.Chain.Ordered || f&(ordered|rowFound) != 0:
		return false
	case f&rolledBack != 0:
		return true
	default:
		return a.header.Chain.Orders != "" && a.snapshotOf(a.header.Chain.Orders)
	}
}

// snapshotOf says whether a table was read to its end.
func (a *auditor) snapshotOf(table string) bool {
	table = tableOf(table)
	end, ok := a.survey.tables[table]
	return ok && !end.moved && end.N == a.business.rowsOf(table)
}
