package memory

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"conform/harness/ledger"
	"conform/harness/system"
)

// Clients opens clients of the broker in memory. It implements system.Clients.
type Clients struct{}

type settings struct {
	silent     bool // acks=0
	idempotent bool
	linger     time.Duration
	inFlight   int
	deadline   time.Duration
	hangAfter  int
}

func parse(m map[string]string) (settings, error) {
	s := settings{idempotent: true, inFlight: 5, deadline: 2 * time.Minute}
	for name, v := range m {
		n, err := strconv.Atoi(v)
		switch name {
		case "acks":
			s.silent, err = v == "0", nil
		case "idempotence":
			s.idempotent, err = v == "true", nil
		case "linger.ms":
			s.linger = time.Duration(n) * time.Millisecond
		case "in.flight":
			s.inFlight = max(1, n)
		case "delivery.timeout.ms":
			s.deadline = time.Duration(n) * time.Millisecond
		case "hang.after":
			s.hangAfter = n
		default:
			err = errors.New("no such setting")
		}
		if err != nil {
			return s, fmt.Errorf("read client setting %s=%s: %w: %w", name, v, err, system.ErrUsage)
		}
	}
	return s, nil
}

// sending is one message on its way.
type sending struct {
	m     system.Message
	order uint64 // of Send
	seq   uint64 // within its partition
	until time.Time
	done  func(system.Receipt)
}

type producer struct {
	c      system.ClientConfig
	s      settings
	ctx    context.Context // ends with Close, not with a call
	cancel context.CancelFunc
	wg     sync.WaitGroup
	wake   chan struct{} // capacity 1

	mu     sync.Mutex
	queue  []*sending // not on the wire, in order
	open   int        // not done
	order  uint64
	seqs   map[int32]uint64
	quiet  chan struct{} // closed when nothing is open; nil = nobody waits
	urgent bool          // a flush does not wait for the linger
	sent   int
}

// OpenProducer implements system.Clients.
func (Clients) OpenProducer(_ context.Context, c system.ClientConfig) (system.Producer, error) {
	s, err := parse(c.Settings)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &producer{c: c, s: s, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), seqs: map[int32]uint64{}}
	p.wg.Go(p.run)
	return p, nil
}

// Send implements system.Producer. It never blocks: the worker's window bounds the queue.
func (p *producer) Send(_ context.Context, m system.Message, done func(system.Receipt)) {
	p.mu.Lock()
	p.sent++
	if p.s.hangAfter > 0 && p.sent > p.s.hangAfter {
		p.open++ // taken, and never seen again
		p.mu.Unlock()
		return
	}
	x := &sending{m: m, order: p.order, seq: p.seqs[m.Partition], until: time.Now().Add(p.s.deadline), done: done}
	p.order++
	p.seqs[m.Partition]++
	p.open++
	p.queue = append(p.queue, x)
	p.mu.Unlock()
	p.nudge()
}

func (p *producer) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// finish ends sends; the callbacks run without the lock.
func (p *producer) finish(xs []*sending, receipt func(i int) system.Receipt) {
	for i, x := range xs {
		x.done(receipt(i))
	}
	p.mu.Lock()
	p.open -= len(xs)
	if p.open == 0 && p.quiet != nil {
		close(p.quiet)
		p.quiet = nil
	}
	p.mu.Unlock()
}

// Flush implements system.Producer. A client that hangs does not listen to ctx either.
func (p *producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	p.urgent = true
	if p.open == 0 {
		p.mu.Unlock()
		return nil
	}
	if p.quiet == nil {
		p.quiet = make(chan struct{})
	}
	quiet := p.quiet
	hang := p.s.hangAfter > 0 && p.sent > p.s.hangAfter
	p.mu.Unlock()
	p.nudge()
	if hang {
		<-quiet
		return nil
	}
	select {
	case <-quiet:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close implements system.Producer: what is not done is in doubt.
func (p *producer) Close(context.Context) error {
	p.cancel()
	p.wg.Wait()
	p.mu.Lock()
	left := p.queue
	p.queue = nil
	p.mu.Unlock()
	p.finish(left, func(int) system.Receipt { return system.Receipt{Offset: -1, Err: "client closed"} })
	return nil
}

// run keeps a connection to the leader and sends over it, until Close.
func (p *producer) run() {
	for p.ctx.Err() == nil {
		conn, r, err := connect(p.ctx, p.c)
		if err != nil {
			p.expire()
			select {
			case <-p.ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		p.converse(conn, r)
	}
}

// connect finds the leader of the client's destination and connects to it.
func connect(ctx context.Context, c system.ClientConfig) (net.Conn, *bufio.Reader, error) {
	var last error
	for _, first := range c.Endpoints {
		conn, r, leader, err := hello(ctx, c, first)
		if err != nil {
			last = err
			continue
		}
		if leader >= 0 && int(leader) < len(c.Endpoints) && c.Endpoints[leader] == first {
			return conn, r, nil
		}
		_ = conn.Close()
		if leader < 0 || int(leader) >= len(c.Endpoints) {
			last = errors.New("nobody leads")
			continue
		}
		conn, r, leader, err = hello(ctx, c, c.Endpoints[leader])
		if err == nil && leader >= 0 {
			return conn, r, nil
		}
		if err == nil {
			_ = conn.Close()
			err = errors.New("nobody leads")
		}
		last = err
	}
	return nil, nil, last
}

func hello(ctx context.Context, c system.ClientConfig, address string) (net.Conn, *bufio.Reader, int64, error) {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, nil, 0, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	f := newFrame(kindHello)
	f.bytes([]byte(c.ClientID))
	f.bytes([]byte(c.Destination))
	r := bufio.NewReaderSize(conn, 64<<10)
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err = conn.Write(f.sealed()); err == nil {
		var kind byte
		var b *body
		if kind, b, err = readFrame(r); err == nil && kind == kindHello {
			leader := b.int()
			_ = conn.SetDeadline(time.Time{})
			return conn, r, leader, b.err()
		}
	}
	_ = conn.Close()
	if err == nil {
		err = errFrame
	}
	return nil, nil, 0, err
}

// converse sends batches over one connection and reads their answers, until it fails or the client
// closes. What was not answered goes back to the queue; with acks=0 it was done when written.
func (p *producer) converse(conn net.Conn, r *bufio.Reader) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { reset(conn) })
	defer stop()
	batches := make(chan []*sending, p.s.inFlight)
	var readers sync.WaitGroup
	readers.Go(func() {
		defer cancel()
		for xs := range batches {
			if ctx.Err() != nil {
				p.requeue(xs)
			} else if left, ok := p.answered(r, xs); !ok {
				cancel()
				p.requeue(left)
			}
		}
	})
	p.write(ctx, conn, batches)
	cancel()
	close(batches)
	readers.Wait()
	_ = conn.Close()
}

func (p *producer) write(ctx context.Context, conn net.Conn, batches chan<- []*sending) {
	for ctx.Err() == nil {
		p.expire()
		xs := p.take()
		if len(xs) == 0 {
			select {
			case <-p.wake:
				p.linger(ctx)
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		f := newFrame(kindProduce)
		var flags byte
		if p.s.idempotent && !p.s.silent {
			flags |= 1
		}
		if p.s.silent {
			flags |= 2
		}
		f.byte(flags)
		f.uint(uint64(len(xs)))
		for _, x := range xs {
			f.int(int64(x.m.Partition))
			f.uint(x.seq)
			f.bytes(x.m.Key)
			f.bytes(x.m.Payload)
		}
		if !p.s.silent {
			// Registered before it is written, so that whatever becomes of the write it is accounted for.
			select {
			case batches <- xs:
			case <-ctx.Done():
				p.requeue(xs)
				return
			}
		}
		_, err := conn.Write(f.sealed())
		if p.s.silent {
			text := ""
			if err != nil {
				text = "write failed"
			}
			p.finish(xs, func(int) system.Receipt { return system.Receipt{Offset: -1, Err: text} })
		}
		if err != nil {
			return
		}
	}
}

func (p *producer) linger(ctx context.Context) {
	p.mu.Lock()
	urgent := p.urgent
	p.mu.Unlock()
	if p.s.linger == 0 || urgent {
		return
	}
	after := time.After(p.s.linger)
	for {
		select {
		case <-after:
			return
		case <-ctx.Done():
			return
		case <-p.wake:
			p.mu.Lock()
			urgent := p.urgent
			p.mu.Unlock()
			if urgent {
				return
			}
		}
	}
}

func (p *producer) take() []*sending {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(p.queue), produceBatch)
	xs := slices.Clone(p.queue[:n])
	p.queue = p.queue[n:]
	return xs
}

// requeue puts sends back where they came from: an idempotent client in their order, the others
// in front, in the order of their return.
func (p *producer) requeue(xs []*sending) {
	if len(xs) == 0 {
		return
	}
	p.mu.Lock()
	p.queue = append(slices.Clone(xs), p.queue...)
	if p.s.idempotent {
		slices.SortStableFunc(p.queue, func(a, b *sending) int { return cmp.Compare(a.order, b.order) })
	}
	p.mu.Unlock()
	p.nudge()
}

// expire ends sends that are past their deadline: in doubt, for they may have been stored.
func (p *producer) expire() {
	now := time.Now()
	p.mu.Lock()
	var old []*sending
	for len(p.queue) > 0 && p.queue[0].until.Before(now) {
		old = append(old, p.queue[0])
		p.queue = p.queue[1:]
	}
	p.mu.Unlock()
	if len(old) > 0 {
		p.finish(old, func(int) system.Receipt { return system.Receipt{Offset: -1, Err: "delivery timeout"} })
	}
}

// answered reads the answer to one batch; false = the connection is of no more use, and left is
// what has to be sent again over another.
func (p *producer) answered(r *bufio.Reader, xs []*sending) (left []*sending, ok bool) {
	kind, b, err := readFrame(r)
	if err != nil || kind != kindProduce || b.uint() != uint64(len(xs)) {
		return xs, false
	}
	var ended, again []*sending
	var receipts []system.Receipt
	moved := false
	for _, x := range xs {
		status, offset := b.byte(), b.int()
		if b.bad {
			return xs, false
		}
		switch status {
		case statusOK:
			ended = append(ended, x)
			receipts = append(receipts, system.Receipt{Outcome: ledger.OK, Offset: offset})
		case statusAborted:
			ended = append(ended, x)
			receipts = append(receipts, system.Receipt{Outcome: ledger.Failed, Offset: -1, Err: "aborted"})
		default:
			moved = moved || status == statusNotLeader
			again = append(again, x)
		}
	}
	p.finish(ended, func(i int) system.Receipt { return receipts[i] })
	if moved {
		return again, false
	}
	p.requeue(again)
	return nil, true
}

type consumer struct {
	c    system.ClientConfig
	conn net.Conn
	r    *bufio.Reader
	next []int64
	part int
}

// OpenConsumer implements system.Clients. A consumer reads all partitions, from its group's
// committed positions.
func (Clients) OpenConsumer(ctx context.Context, c system.ClientConfig) (system.Consumer, error) {
	if _, err := parse(c.Settings); err != nil {
		return nil, err
	}
	conn, r, err := connect(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("connect consumer: %w", err)
	}
	k := &consumer{c: c, conn: conn, r: r}
	for range max(1, c.Partitions) {
		k.next = append(k.next, -1)
	}
	return k, nil
}

// Poll implements system.Consumer.
func (k *consumer) Poll(ctx context.Context) ([]system.Delivery, error) {
	for {
		for range k.next {
			part := k.part
			k.part = (k.part + 1) % len(k.next)
			ds, err := k.fetch(part)
			if err != nil || len(ds) > 0 {
				return ds, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (k *consumer) fetch(part int) ([]system.Delivery, error) {
	f := newFrame(kindFetch)
	f.bytes([]byte(k.c.Group))
	f.int(int64(part))
	f.int(k.next[part])
	b, err := k.ask(f)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	offset := b.int()
	ds := make([]system.Delivery, b.uint())
	for i := range ds {
		ds[i] = system.Delivery{Key: b.bytes(), Payload: b.bytes(), Partition: int32(part), Offset: offset + int64(i), Attempt: 1}
	}
	k.next[part] = offset + int64(len(ds))
	return ds, b.err()
}

// Settle implements system.Consumer.
func (k *consumer) Settle(_ context.Context, ds []system.Delivery) error {
	next := map[int32]int64{}
	for _, d := range ds {
		next[d.Partition] = max(next[d.Partition], d.Offset+1)
	}
	for part, offset := range next {
		f := newFrame(kindCommit)
		f.bytes([]byte(k.c.Group))
		f.int(int64(part))
		f.int(offset)
		if _, err := k.ask(f); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
	}
	return nil
}

func (k *consumer) ask(f *frame) (*body, error) {
	if _, err := k.conn.Write(f.sealed()); err != nil {
		return nil, err
	}
	_, b, err := readFrame(k.r)
	return b, err
}

// Close implements system.Consumer.
func (k *consumer) Close(context.Context) error { return k.conn.Close() }

var _ system.PositionClients = Clients{}

// OpenPositions implements system.PositionClients. It connects anew for each question.
func (Clients) OpenPositions(_ context.Context, c system.ClientConfig) (system.GroupAsker, error) {
	return asker{c}, nil
}

type asker struct{ c system.ClientConfig }

// GroupPositions implements system.GroupPositions.
func (a asker) GroupPositions(ctx context.Context, destination, group string) ([]system.GroupPosition, error) {
	c := a.c
	c.Destination = destination
	conn, r, err := connect(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close() }()
	k := &consumer{c: c, conn: conn, r: r}
	var ps []system.GroupPosition
	for part := range max(1, c.Partitions) {
		f := newFrame(kindPosition)
		f.bytes([]byte(group))
		f.int(int64(part))
		b, err := k.ask(f)
		if err != nil {
			return nil, fmt.Errorf("find positions: %w", err)
		}
		p := system.GroupPosition{Partition: int32(part), Committed: b.int(), End: b.int()}
		if err := b.err(); err != nil {
			return nil, fmt.Errorf("find positions: %w", err)
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// Close implements system.GroupAsker.
func (asker) Close(context.Context) error { return nil }
