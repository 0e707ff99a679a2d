package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"conform/harness/ledger"
	"conform/harness/system"
)

const (
	// listening is the room of the channels on which the library hands confirms and returns over. It waits 5 s for room and
	// then drops them.
	listening = 1 << 14
	// resendPause is how long a nacked publish waits before it is sent again.
	resendPause = 100 * time.Millisecond
)

// OpenProducer opens a producer for c.Destination and waits, as long as ctx does, for its first connection. Unknown settings
// and combinations that cannot work are ErrUsage.
func (Clients) OpenProducer(ctx context.Context, c system.ClientConfig) (system.Producer, error) {
	s := newSettings("client setting", c.Settings, ProducerSettings())
	p := &producer{
		exchange:    c.Destination,
		confirms:    s.flag("confirms", true),
		mandatory:   s.flag("mandatory", false),
		resend:      s.choice("unconfirmed", "in-doubt", "in-doubt", "resend") == "resend",
		resendNacks: s.choice("nacked", "fail", "fail", "resend") == "resend",
		failFast:    s.choice("disconnected", "wait", "wait", "fail") == "fail",
		mode:        amqp.Persistent,
		room:        make(chan struct{}, s.number("max.buffered", 10000, 1)),
		wake:        make(chan struct{}, 1),
		ended:       make(chan struct{}),
	}
	if !s.flag("persistent", true) {
		p.mode = amqp.Transient
	}
	if ms := s.number("expiration", -1, 0); ms >= 0 {
		p.expiration = strconv.Itoa(ms)
	}
	p.delay = s.choice("delay.by", "none", "none", "queue", "message")
	p.delayMS = strconv.Itoa(s.number("delay.ms", 1000, 1))
	p.priority = s.number("priority", 0, 0)
	p.later, p.after = s.number("priority.later", p.priority, 0), s.number("priority.after", 0, 0)
	leader := s.choice("connect", "leader", "leader", "any") == "leader"
	heartbeat := time.Duration(s.number("heartbeat.s", 10, 1)) * time.Second
	if !p.confirms && (p.resend || p.resendNacks) {
		s.fail("client settings: without confirms nothing can be resent")
	}
	if s.err != nil {
		return nil, fmt.Errorf("open producer %s: %w", c.ClientID, s.err)
	}
	var err error
	if p.target, err = newTarget(c, leader, heartbeat); err != nil {
		return nil, fmt.Errorf("open producer %s: %w", c.ClientID, err)
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	p.end = end
	first, err := p.open(ctx)
	for err != nil {
		select {
		case <-ctx.Done():
			end()
			return nil, fmt.Errorf("open producer %s: %w", c.ClientID, errors.Join(context.Cause(ctx), err))
		case <-time.After(reconnectEvery):
			first, err = p.open(ctx)
		}
	}
	p.wg.Go(func() { p.run(life, first) })
	return p, nil
}

// send is one message in the client.
type send struct {
	m      system.Message
	done   func(system.Receipt)
	doubt  bool // an earlier attempt may have been stored: a refusal of a later one proves nothing
	behind time.Time
}

// producer publishes from one goroutine, on one channel at a time. Messages are identified by the id in their properties;
// tags mean something on their channel only.
type producer struct {
	target      *target
	exchange    string
	confirms    bool
	mandatory   bool
	resend      bool
	resendNacks bool
	failFast    bool // what cannot be published now is refused, as by the library's own Publish
	mode        uint8
	expiration  string
	delay       string
	delayMS     string
	priority    int
	later       int
	after       int

	room  chan struct{} // one token for each message in the client
	wake  chan struct{} // capacity 1: there is something to publish
	end   context.CancelFunc
	ended chan struct{} // closed when run has ended
	wg    sync.WaitGroup

	mu      sync.Mutex
	queue   []*send // not on the wire
	closed  bool
	away    bool   // there is no connection
	blocked string // why the node does not read, "" if it does
	notices int    // how often it has said that it does not
}

// lane is one channel with what is on it.
type lane struct {
	p        *producer
	conn     *connection
	ch       *amqp.Channel
	confirms chan amqp.Confirmation
	returns  chan amqp.Return
	blocked  chan amqp.Blocking
	gone     chan struct{} // closed when all that was on it is resolved

	mu          sync.Mutex
	unconfirmed map[uint64]*pending
	returned    map[string]bool // by message id
	next        uint64
}

type pending struct {
	*send
	deferred *amqp.DeferredConfirmation
}

// Send hands the message to the client. ctx bounds the waiting for room only: a message that was taken stays taken.
func (p *producer) Send(ctx context.Context, m system.Message, done func(system.Receipt)) {
	select {
	case p.room <- struct{}{}:
	case <-ctx.Done():
		done(receipt(errNotTaken))
		return
	}
	s := &send{m: m, done: done}
	p.mu.Lock()
	closed, away := p.closed, p.away && p.failFast
	if !closed && !away {
		p.queue = append(p.queue, s)
	}
	p.mu.Unlock()
	switch {
	case closed:
		p.finish(s, errNotTaken)
	case away:
		p.finish(s, errNotConnected)
	default:
		p.nudge()
	}
}

func (p *producer) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func receipt(err error) system.Receipt {
	if err == nil {
		return system.Receipt{Outcome: ledger.OK, Offset: -1}
	}
	v, class := judge(err)
	return system.Receipt{Outcome: outcomeOf(v), Offset: -1, Err: class}
}

// finish ends a send. A refusal proves nothing about an earlier attempt.
func (p *producer) finish(s *send, err error) {
	<-p.room
	r := receipt(err)
	if s.doubt && r.Outcome == ledger.Failed {
		r.Outcome = ledger.InDoubt
	}
	s.done(r)
}

// open connects and opens a channel.
func (p *producer) open(ctx context.Context) (*lane, error) {
	conn, err := p.target.connect(ctx)
	if err != nil {
		return nil, err
	}
	l := &lane{
		p: p, conn: conn, gone: make(chan struct{}), unconfirmed: map[uint64]*pending{}, returned: map[string]bool{},
		blocked: conn.NotifyBlocked(make(chan amqp.Blocking, 16)),
	}
	defer conn.within(ctx, clientDial)()
	if l.ch, err = conn.Channel(); err != nil {
		conn.abort()
		return nil, fmt.Errorf("open channel: %w", err)
	}
	l.returns = l.ch.NotifyReturn(make(chan amqp.Return, listening))
	if p.confirms {
		if err := l.ch.Confirm(false); err != nil {
			conn.abort()
			return nil, fmt.Errorf("select confirms: %w", err)
		}
		l.confirms = l.ch.NotifyPublish(make(chan amqp.Confirmation, listening))
	}
	p.wg.Go(l.listen)
	return l, nil
}

// run publishes until the client is closed.
func (p *producer) run(life context.Context, l *lane) {
	defer close(p.ended)
	for {
		if l != nil {
			stop := context.AfterFunc(life, l.conn.abort)
			p.publish(life, l)
			stop()
			l.conn.abort()
			<-l.gone
			l = nil
			p.lost()
		}
		if life.Err() != nil {
			p.giveUp()
			return
		}
		next, err := p.open(life)
		if err != nil {
			p.target.log.Debug("not connected", "client", p.target.name, "error", err)
			select {
			case <-life.Done():
			case <-time.After(reconnectEvery):
			}
			continue
		}
		p.mu.Lock()
		p.away = false
		p.mu.Unlock()
		l = next
	}
}

// lost notes that there is no connection. Whoever does not want to wait for the next one is told of what is not on the wire.
func (p *producer) lost() {
	p.mu.Lock()
	p.away = true
	var left []*send
	if p.failFast {
		p.queue = slices.DeleteFunc(p.queue, func(s *send) bool {
			if !s.doubt {
				left = append(left, s)
			}
			return !s.doubt
		})
	}
	p.mu.Unlock()
	for _, s := range left {
		p.finish(s, errNotConnected)
	}
}

// giveUp ends all that is left when the client is closed. What never was on the wire is not in doubt.
func (p *producer) giveUp() {
	p.mu.Lock()
	p.closed = true
	left := p.queue
	p.queue = nil
	p.mu.Unlock()
	for _, s := range left {
		if s.doubt {
			p.finish(s, errClosed)
		} else {
			p.finish(s, errNotTaken)
		}
	}
}

// publish hands messages to the channel until that is closed, or the client.
func (p *producer) publish(life context.Context, l *lane) {
	for {
		s, wait := p.take()
		if s == nil {
			var later <-chan time.Time
			if wait > 0 {
				later = time.After(wait)
			}
			select {
			case <-p.wake:
			case <-later:
			case <-l.gone:
				return
			case <-life.Done():
				return
			}
			continue
		}
		if !l.publish(s) {
			return
		}
	}
}

// take removes the first message that may be published now, or says how long until one may.
func (p *producer) take() (*send, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := time.Duration(0)
	for i, s := range p.queue {
		if !s.behind.IsZero() {
			if w := time.Until(s.behind); w > 0 {
				wait = w
				continue
			}
		}
		if i == 0 {
			p.queue[0] = nil
			p.queue = p.queue[1:]
		} else {
			p.queue = slices.Delete(p.queue, i, i+1)
		}
		return s, 0
	}
	return nil, wait
}

// back puts messages in front of those that wait.
func (p *producer) back(front ...*send) {
	p.mu.Lock()
	p.queue = append(front, p.queue...)
	p.mu.Unlock()
	p.nudge()
}

// route says by which key and with which expiration messages are published.
func (p *producer) route() (key, expiration string) {
	if p.delay == "none" {
		return routingKey(p.exchange), p.expiration
	}
	if p.delay == "queue" {
		return delayKey(p.delayMS), p.expiration
	}
	return delayKey(""), p.delayMS
}

func (p *producer) priorityOf(seq uint64) uint8 {
	if seq >= uint64(p.after) {
		return uint8(min(p.later, math.MaxUint8))
	}
	return uint8(min(p.priority, math.MaxUint8))
}

// publish puts one message on the wire. It returns false when the channel is no use any more.
func (l *lane) publish(s *send) bool {
	p := l.p
	l.mu.Lock()
	l.next++
	tag := l.next
	entry := &pending{send: s}
	l.unconfirmed[tag] = entry // before the publish: the confirm may be faster than its return
	l.mu.Unlock()
	key, expiration := p.route()
	deferred, err := l.ch.PublishWithDeferredConfirm(p.exchange, key, p.mandatory, false, amqp.Publishing{
		MessageId: s.m.ID.String(), DeliveryMode: p.mode, Expiration: expiration, Priority: p.priorityOf(s.m.ID.Seq), Body: s.m.Payload,
		Headers: amqp.Table{headerKey: string(s.m.Key)},
	})
	if err == nil {
		if p.confirms {
			l.mu.Lock()
			entry.deferred = deferred
			l.mu.Unlock()
			return true
		}
		if l.remove(tag) != nil {
			p.finish(s, errUnconfirmed)
		}
		return true
	}
	if l.remove(tag) == nil {
		return false // resolved by listen meanwhile
	}
	switch v, _ := judge(err); {
	case v == NotSent:
		p.back(s)
	case p.resend:
		s.doubt = true
		p.back(s)
	default:
		p.finish(s, err)
	}
	return false
}

func (l *lane) remove(tag uint64) *pending {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.unconfirmed[tag]
	delete(l.unconfirmed, tag)
	return e
}

// listen resolves what the node says until the channel is closed, and then what it has not said. It never waits for
// anything else, since the library drops what it cannot hand over.
func (l *lane) listen() {
	defer close(l.gone)
	confirms, returns, blocked := l.confirms, l.returns, l.blocked
	for confirms != nil || returns != nil { // a channel that is closed by an exception leaves the connection open
		select {
		case r, ok := <-returns:
			if !ok {
				returns = nil
				continue
			}
			l.noteReturn(r)
		case c, ok := <-confirms:
			if !ok {
				confirms = nil
				continue
			}
			l.drainReturns() // a return comes before its confirm
			l.confirmed(c)
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
				continue
			}
			l.p.noteBlocked(b)
		}
	}
	l.p.noteBlocked(amqp.Blocking{})
	l.resolve()
}

func (l *lane) drainReturns() {
	for {
		select {
		case r, ok := <-l.returns:
			if !ok {
				return
			}
			l.noteReturn(r)
		default:
			return
		}
	}
}

func (l *lane) noteReturn(r amqp.Return) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.returned[r.MessageId] = true
}

// confirmed resolves one publish by the confirm of its tag on this channel.
func (l *lane) confirmed(c amqp.Confirmation) {
	e := l.remove(c.DeliveryTag)
	if e == nil {
		return
	}
	l.settle(e, c.Ack)
}

func (l *lane) settle(e *pending, ack bool) {
	id := e.m.ID.String()
	l.mu.Lock()
	returned := l.returned[id]
	delete(l.returned, id)
	l.mu.Unlock()
	switch {
	case returned:
		l.p.finish(e.send, errReturned)
	case ack:
		l.p.finish(e.send, nil)
	case l.p.resendNacks:
		e.behind = time.Now().Add(resendPause)
		l.p.back(e.send)
	default:
		l.p.finish(e.send, errNacked)
	}
}

// resolve ends what was on the channel when it was closed. The library hands confirms over in the order of their tags, so
// one may have come and be held behind another: its deferred confirmation knows.
func (l *lane) resolve() {
	l.drainReturns()
	l.mu.Lock()
	left := l.unconfirmed
	l.unconfirmed = map[uint64]*pending{}
	acked := map[uint64]bool{}
	for tag, e := range left {
		acked[tag] = e.deferred != nil && e.deferred.Acked()
	}
	l.mu.Unlock()
	var again []*send
	for _, tag := range slices.Sorted(maps.Keys(left)) {
		e := left[tag]
		switch {
		case acked[tag]:
			l.settle(e, true)
		case l.p.resend:
			e.doubt = true
			again = append(again, e.send)
		default:
			l.p.finish(e.send, errConnection)
		}
	}
	if len(again) > 0 {
		l.p.back(again...)
	}
}

func (p *producer) noteBlocked(b amqp.Blocking) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked = ""
	if b.Active {
		p.blocked = b.Reason
		p.notices++
		p.target.log.Warn("the node has blocked the connection", "client", p.target.name, "reason", b.Reason)
	}
}

// Blocked tells why the node does not take publishes just now ("low on memory", ...), "" if it does, and how often it has
// said that it does not.
func (p *producer) Blocked() (reason string, times int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.blocked, p.notices
}

// Flush waits until all messages that were handed over are done.
func (p *producer) Flush(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if len(p.room) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			reason, _ := p.Blocked()
			if reason != "" {
				reason = ", the node has blocked the connection: " + reason
			}
			return fmt.Errorf("flush producer: %d messages are not done%s: %w", len(p.room), strings.TrimSpace(reason), context.Cause(ctx))
		}
	}
}

// Close ends the client. What is on the wire and not confirmed is in doubt, what is not on the wire was not taken.
func (p *producer) Close(context.Context) error {
	p.end()
	<-p.ended
	p.wg.Wait()
	return nil
}
