package audit

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"conform/harness/ledger"
)

// legalChain returns a random chain in which no promise is broken: orders committed, rolled back and in
// doubt; a relay that is killed between confirm and mark, and another that publishes again; consumers that
// are killed at any point, frozen until another has taken over, rebalanced in mid-batch, whose work fails
// or ends in doubt and whose commits are refused or in doubt; an inbox, dead letters, and states that are
// compared before they are written. Without a database, producers send the events themselves. Where the relays are
// known to be in the background, one of their sends takes longer than any caller may wait.
func legalChain(r *rand.Rand) (ledger.Header, []journal) {
	h := chainHeader()
	h.Seed = r.Uint64()
	h.Destinations[0].Partitions = 1 + r.IntN(3)
	h.Workload.Keys = uint32(1 + r.IntN(6))
	h.Promise.Places = append(h.Promise.Places, "liveness")
	h.Promise.MaxStall, h.Promise.MaxRTO, h.Promise.MaxUnavailable = time.Hour, time.Hour, time.Hour
	h.Tables = append(h.Tables, "balances")
	h.Chain.Effects = append(h.Chain.Effects, ledger.EffectTable{Name: "balances", State: true})
	h.Chain.Ordered = r.IntN(4) > 0
	if !h.Chain.Ordered {
		h.Chain.Orders = ""
		h.Tables = h.Tables[1:]
		h.Promise.Places = []string{"store", "delivery", "effect", "liveness"}
	}
	if h.Chain.Ordered && r.IntN(2) == 0 { // as the suites have it
		h.Chain.Orders, h.Chain.Outbox, h.Chain.Published = "orders", true, "published"
		h.Tables = append(h.Tables, "orders")
	}
	if r.IntN(2) == 0 {
		h.Space = "conform_1"
	}
	g := &chainMaker{r: r, h: &h, logs: make([][]made, h.Destinations[0].Partitions), effects: map[uint64]bool{}, letters: map[uint64]bool{}, states: map[uint32]uint64{}}
	if h.Chain.Ordered && r.IntN(3) == 0 {
		h.Background, h.Promise.MaxUnavailable = []string{"relay-1"}, 0
	}
	g.journal("engine", "engine")
	g.add("engine", ledger.Event{Kind: ledger.Phase, Text: "load", At: g.tick()})
	g.publish(g.commit())
	g.consume()
	return h, g.finish()
}

type made struct {
	id    ledger.MessageID
	event uint64
}

type chainMaker struct {
	r       *rand.Rand
	h       *ledger.Header
	now     int64
	js      []journal
	rows    []uint64
	logs    [][]made
	effects map[uint64]bool
	letters map[uint64]bool
	states  map[uint32]uint64
	ends    []int64 // committed positions, -1 = none
	dead    []string
}

func (g *chainMaker) tick() int64 { g.now += 1000 + g.r.Int64N(ms); return g.now }

func (g *chainMaker) chance(n int) bool { return g.r.IntN(n) == 0 }

func (g *chainMaker) journal(name, role string) {
	j := journal{Segment: ledger.Segment{Name: name, Role: role, Worker: name}}
	if role == "engine" {
		j.Segment.Worker = ""
	}
	if role == "consumer" {
		j.Segment.Group = "g"
	}
	g.js = append(g.js, j)
}

func (g *chainMaker) add(name string, e ledger.Event) {
	i := slices.IndexFunc(g.js, func(j journal) bool { return j.Segment.Name == name })
	g.js[i].Events = append(g.js[i].Events, e)
}

func (g *chainMaker) key(event uint64) uint32 {
	return ledger.KeyOfEvent(g.h.Seed, event, g.h.Workload.Keys)
}

// kill ends a worker at a crash point, which is a strike.
func (g *chainMaker) kill(name string) {
	at := g.tick()
	id := "crash-" + name
	g.add("engine", ledger.Event{Kind: ledger.Inject, Text: id, Detail: "crash point", At: at})
	g.add("engine", ledger.Event{Kind: ledger.Bite, Text: id, Outcome: ledger.OK, Detail: "pid gone", N: 1, At: at})
	g.add("engine", ledger.Event{Kind: ledger.WorkerEnd, Text: name, Outcome: ledger.OK, Detail: "killed at a crash point", At: at})
	g.add("engine", ledger.Event{Kind: ledger.Heal, Text: id, Outcome: ledger.OK, At: at})
	g.dead = append(g.dead, name)
	g.h.Evidence.Bites = append(g.h.Evidence.Bites, id)
}

func (g *chainMaker) exit(name string) {
	if slices.Contains(g.dead, name) {
		return
	}
	g.add(name, ledger.Event{Kind: ledger.SegmentEnd})
	g.add("engine", ledger.Event{Kind: ledger.WorkerEnd, Text: name, Outcome: ledger.OK, Detail: "exited", At: g.tick()})
}

// commit writes orders and returns those that are committed, in order. Without a database it returns
// what is to be sent.
func (g *chainMaker) commit() []uint64 {
	var out []uint64
	n := 20 + g.r.IntN(60)
	if !g.h.Chain.Ordered {
		for i := range n {
			out = append(out, ledger.EventID(2, uint64(i)))
		}
		return out
	}
	g.journal("orders-1", "orders")
	for i := range n {
		g.add("orders-1", ledger.Event{Kind: ledger.Invoke, Stream: 1, Seq: uint64(i), To: uint64(i) + 1, At: g.tick()})
		e := ledger.Event{Kind: ledger.Ordered, EventID: orderID(i), Key: g.key(orderID(i)), N: int64(i) + 1, Text: "order", Sent: g.tick(), At: g.tick()}
		kept := true
		switch p := g.r.IntN(10); {
		case p < 7:
			e.Outcome = ledger.OK
		case p < 8:
			e.Outcome, kept = ledger.Failed, false
		default:
			kept = g.chance(2)
		}
		if e.Outcome != ledger.InDoubt || g.chance(2) {
			g.add("orders-1", e)
		}
		if kept {
			out = append(out, orderID(i))
			g.rows = append(g.rows, orderID(i))
		}
	}
	g.exit("orders-1")
	return out
}

// publish hands events to the broker, in order. In doubt ones are published again before anything later.
func (g *chainMaker) publish(events []uint64) {
	name, stream, seq := "relay-1", uint32(2), uint64(0)
	g.journal(name, "relay")
	for i := 0; i < len(events); i++ {
		id, event := ledger.MessageID{Stream: stream, Seq: seq}, events[i]
		sent := event
		if !g.h.Chain.Ordered && event == ledger.EventID(stream, seq) {
			sent = 0 // the message itself
		}
		seq++
		g.add(name, ledger.Event{Kind: ledger.Invoke, Stream: stream, Seq: id.Seq, To: id.Seq + 1, EventID: sent, At: g.tick()})
		e := ledger.Event{Kind: ledger.Complete, Stream: stream, Seq: id.Seq, EventID: sent, Sent: g.tick(), At: g.tick(), Pos: ledger.Position{Offset: -1}}
		if len(g.h.Background) > 0 && i == 3 {
			e.Sent -= 2 * int64(g.h.Promise.MaxStall)
		}
		stored := true
		switch p := g.r.IntN(12); {
		case !g.h.Chain.Ordered: // the identity is the message's, so nothing is sent again
			e.Outcome = []ledger.Outcome{ledger.OK, ledger.OK, ledger.OK, ledger.InDoubt}[g.r.IntN(4)]
			stored = e.Outcome == ledger.OK || g.chance(2)
		case p < 9:
			e.Outcome = ledger.OK
		case p < 10:
			e.Outcome, stored = ledger.Failed, false
		default:
			stored = g.chance(2)
		}
		if stored {
			p := ledger.PartitionOf(g.key(event), g.h.Destinations[0].Partitions)
			if e.Outcome == ledger.OK {
				e.Pos = ledger.Position{Partition: p, Offset: int64(len(g.logs[p]))}
			}
			g.logs[p] = append(g.logs[p], made{id, sent})
		}
		g.add(name, e)
		if !g.h.Chain.Ordered {
			continue
		}
		if stream == 2 && i > 5 && g.chance(20) { // killed before the mark: the next one begins a little earlier
			g.kill(name)
			name, stream, seq = "relay-1-r2", 3, 0
			g.journal(name, "relay")
			i -= 1 + g.r.IntN(4)
			continue
		}
		if e.Outcome != ledger.OK {
			i--
		}
	}
	g.exit(name)
}

// reader is a consumer of one partition.
type reader1 struct {
	name   string
	id     uint32
	next   int64
	batch  []int64
	settle int64 // position behind what it has handled
	alive  bool
}

// consume lets consumers work through each partition, with all that can happen to them.
func (g *chainMaker) consume() {
	members := uint32(0)
	seen := map[uint64]bool{}
	for p, log := range g.logs {
		committed, end := int64(0), int64(-1)
		pos := func(offset int64) ledger.Position { return ledger.Position{Partition: int32(p), Offset: offset} }
		join := func() *reader1 {
			members++
			c := &reader1{name: fmt.Sprintf("consumer-%d", members), id: members, next: committed, settle: committed, alive: true}
			g.journal(c.name, "consumer")
			g.add(c.name, ledger.Event{Kind: ledger.Assigned, Consumer: c.id, Pos: pos(0), At: g.tick()})
			return c
		}
		about := func(kind ledger.Kind, c *reader1, offset int64) ledger.Event {
			m := log[offset]
			return ledger.Event{Kind: kind, Consumer: c.id, Stream: m.id.Stream, Seq: m.id.Seq, EventID: m.event, Key: g.key(ledger.EventOf(m.id, m.event)), Pos: pos(offset), At: g.tick()}
		}
		// work ends the work on one delivery and says whether it may be settled.
		work := func(c *reader1, offset int64) bool {
			event := ledger.EventOf(log[offset].id, log[offset].event)
			e := about(ledger.Handled, c, offset)
			e.Outcome = ledger.OK
			apply := func() {
				seen[event] = true
				g.effects[event] = true
				if old, ok := g.states[g.key(event)]; !ok || ledger.VersionOf(event) > ledger.VersionOf(old) {
					g.states[g.key(event)] = event
				}
			}
			switch q := g.r.IntN(20); {
			case seen[event]:
				e.Text = "skipped: duplicate"
			case q < 15:
				e.Text = "applied"
				apply()
			case q < 16:
				e.Outcome, e.Text = ledger.Failed, "retried"
			case q < 18:
				e.Outcome, e.Text = ledger.InDoubt, "applied"
				if g.chance(2) {
					apply()
				}
			default:
				e.Text = "dead-lettered"
				seen[event] = true
				g.letters[event] = true
			}
			if e.Text == "applied" && g.chance(15) {
				return false // killed before it is written down, see below
			}
			g.add(c.name, e)
			return e.Outcome == ledger.OK
		}
		commit := func(c *reader1, fenced bool) {
			e := ledger.Event{Kind: ledger.Settled, Consumer: c.id, Text: "commit", Pos: pos(c.settle), Sent: g.tick(), At: g.tick()}
			switch q := g.r.IntN(10); {
			case fenced:
				e.Outcome = []ledger.Outcome{ledger.Failed, ledger.InDoubt}[g.r.IntN(2)]
			case q < 8:
				e.Outcome = ledger.OK
				committed, end = c.settle, c.settle
			case q < 9:
				e.Outcome = ledger.Failed
			default:
				if g.chance(2) {
					committed, end = c.settle, c.settle
				}
			}
			g.add(c.name, e)
		}
		c := join()
		var frozen []*reader1
		for round := 0; committed < int64(len(log)) && round < 10_000; round++ {
			switch q := g.r.IntN(100); {
			case q < 40 && c.next < int64(len(log)): // fetch
				for range 1 + g.r.IntN(4) {
					if c.next < int64(len(log)) {
						g.add(c.name, about(ledger.Received, c, c.next))
						c.batch = append(c.batch, c.next)
						c.next++
					}
				}
			case q < 80 && len(c.batch) > 0: // work
				offset := c.batch[0]
				before := len(g.js[slices.IndexFunc(g.js, func(j journal) bool { return j.Segment.Name == c.name })].Events)
				if work(c, offset) {
					c.batch, c.settle = c.batch[1:], offset+1
					break
				}
				after := len(g.js[slices.IndexFunc(g.js, func(j journal) bool { return j.Segment.Name == c.name })].Events)
				if before == after {
					g.kill(c.name)
					c = join()
					break
				}
				c.next, c.batch = offset, nil // it goes back to what failed
			case q < 92:
				if c.settle > committed {
					commit(c, false)
				}
			case q < 94: // handed over
				if c.settle > committed {
					commit(c, false)
				}
				g.add(c.name, ledger.Event{Kind: ledger.Revoked, Consumer: c.id, Pos: pos(0), At: g.tick()})
				g.exit(c.name)
				c = join()
			case q < 96 && members < 30: // killed at some point
				g.kill(c.name)
				c = join()
			case q < 98 && members < 30: // frozen, and another takes over
				frozen = append(frozen, c)
				c = join()
			default:
				if len(frozen) == 0 {
					break
				}
				z := frozen[0] // it thaws: works on, is refused, and learns that it lost the partition
				frozen = frozen[1:]
				for _, offset := range z.batch {
					if g.chance(2) {
						g.add(z.name, func() ledger.Event {
							e := about(ledger.Handled, z, offset)
							e.Outcome, e.Text = ledger.OK, "skipped: duplicate"
							event := ledger.EventOf(log[offset].id, log[offset].event)
							if !seen[event] {
								e.Outcome, e.Text = ledger.Failed, "retried"
							}
							return e
						}())
					}
				}
				commit(z, true)
				g.add(z.name, ledger.Event{Kind: ledger.Revoked, Consumer: z.id, Pos: pos(0), At: g.tick()})
				g.exit(z.name)
			}
		}
		for _, z := range append(frozen, c) {
			g.exit(z.name)
		}
		g.ends = append(g.ends, end)
	}
}

// finish makes the final read.
func (g *chainMaker) finish() []journal {
	h := g.h
	at := g.tick()
	g.add("engine", ledger.Event{Kind: ledger.Step, Text: "drained", Outcome: ledger.OK, At: at})
	g.add("engine", ledger.Event{Kind: ledger.Phase, Text: "heal", At: at})
	g.add("engine", ledger.Event{Kind: ledger.Quiet, Outcome: ledger.OK, At: at})
	for p, log := range g.logs {
		g.add("engine", ledger.Event{Kind: ledger.EndPosition, Pos: ledger.Position{Partition: int32(p), Offset: int64(len(log))}, At: at})
	}
	g.add("engine", ledger.Event{Kind: ledger.SegmentEnd})
	each(g.js, func(e *ledger.Event) {
		if e.Kind == ledger.WorkerEnd {
			h.Evidence.Ends = []string{e.Text}
		}
	})
	rd := journal{Segment: ledger.Segment{Name: "reader", Role: "reader"}}
	add := func(e ledger.Event) { e.At = at; rd.Events = append(rd.Events, e) }
	for view := ledger.ViewRaw; view <= ledger.ViewCommitted; view++ {
		for p, log := range g.logs {
			for off, m := range log {
				payload := ledger.AppendPayload(nil, h.Seed, h.Tag(), m.id, m.event, h.Workload.PayloadSize)
				key := []byte(ledger.KeyName(g.key(ledger.EventOf(m.id, m.event))))
				add(ledger.StoredRecord(h.Tag(), view, ledger.Position{Partition: int32(p), Offset: int64(off)}, key, payload, at))
			}
			add(ledger.Event{Kind: ledger.StoreEnd, View: view, Pos: ledger.Position{Partition: int32(p), Offset: int64(len(log))}, N: int64(len(log)), Count: int64(len(log))})
		}
	}
	for p, end := range g.ends {
		add(ledger.Event{Kind: ledger.GroupEnd, Text: "g", Pos: ledger.Position{Partition: int32(p), Offset: end}})
	}
	table := func(name string, n int) {
		add(ledger.Event{Kind: ledger.SnapshotEnd, Text: name, N: int64(n), Detail: h.Space})
	}
	if h.Chain.Ordered {
		for _, event := range g.rows {
			add(ledger.Event{Kind: ledger.OutboxRow, EventID: event, Key: g.key(event), Text: "published"})
		}
		table(ledger.TableOutbox, len(g.rows))
	}
	if h.Chain.Orders == "orders" {
		for _, event := range g.rows {
			add(ledger.Event{Kind: ledger.Effect, EventID: event, Key: g.key(event), N: ledger.VersionOf(event), Text: "orders"})
		}
		table("orders", len(g.rows))
	}
	for _, event := range slices.Sorted(maps.Keys(g.effects)) {
		add(ledger.Event{Kind: ledger.InboxRow, EventID: event, Text: "g"})
	}
	table(ledger.TableInbox, len(g.effects))
	for _, event := range slices.Sorted(maps.Keys(g.effects)) {
		add(ledger.Event{Kind: ledger.Effect, EventID: event, Key: g.key(event), Text: "notifications"})
	}
	table("notifications", len(g.effects))
	if g.chance(2) {
		h.Chain.Letters = &ledger.Letters{Events: slices.Sorted(maps.Keys(g.letters))}
	}
	for _, event := range slices.Sorted(maps.Keys(g.letters)) {
		add(ledger.Event{Kind: ledger.Effect, EventID: event, Key: g.key(event), Text: ledger.TableDeadLetter, Detail: goodLetter(event)})
	}
	table(ledger.TableDeadLetter, len(g.letters))
	for _, key := range slices.Sorted(maps.Keys(g.states)) {
		event := g.states[key]
		add(ledger.Event{Kind: ledger.Effect, EventID: event, Key: key, N: ledger.VersionOf(event), Text: "balances"})
	}
	table("balances", len(g.states))
	add(ledger.Event{Kind: ledger.SegmentEnd})
	return append(g.js, rd)
}
