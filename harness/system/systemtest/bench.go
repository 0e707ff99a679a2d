package systemtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"conform/harness/ledger"
	"conform/harness/system"
)

// Bench is what the checks work on: one running cluster, used by one check after the other.
type Bench struct {
	Cluster system.Cluster
	Clients system.Clients
	Seed    uint64
	// Safe are destination settings under which a confirm survives the loss of any one node, and Alone those under which
	// a leader confirms alone.
	Safe, Alone map[string]string
	// Resending are client settings of a producer that sends again without a broker that knows the first attempt.
	Resending map[string]string
	// Draining says that reading the store empties it, and NoOffsets that confirms name no position.
	Draining, NoOffsets bool
	// Patient are client settings of a producer that tries until it is confirmed, by sending again without a broker that
	// knows; empty = the usual one does, and makes no second copy.
	Patient map[string]string
	// OneLeader says that one node leads all destinations, whichever they ask for.
	OneLeader bool
	// Confirm is the kind of frame that confirms a send and can be dropped, where the clients are not idempotent and only
	// those with Resending send again; empty = responses to "produce", and clients that are.
	Confirm string
	// Left lists what is left of the cluster on the machine. Called after Close.
	Left func(ctx context.Context) ([]string, error)
}

// Check is one item of the battery.
type Check struct {
	Name string
	What string // one line
	// Run returns nil, what is wrong, or an error wrapping system.ErrNotApplicable if the cluster lacks the capability.
	Run func(ctx context.Context, b Bench) error
}

// within bounds one wait of a check.
const within = 45 * time.Second

// need returns the cluster as a capability.
func need[T any](b Bench) (T, error) {
	c, ok := b.Cluster.(T)
	if !ok {
		return c, fmt.Errorf("no %T: %w", new(T), system.ErrNotApplicable)
	}
	return c, nil
}

// until repeats check until it returns nil.
func until(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w (last: %w)", what, ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// destination creates one and returns its removal.
func (b Bench) destination(ctx context.Context, name string, leader system.Node, settings map[string]string) (remove func() error, err error) {
	err = b.Cluster.Create(ctx, system.DestinationSpec{Name: name, Partitions: 1, Leader: leader, Settings: settings})
	if err != nil {
		return nil, err
	}
	return func() error { return b.Cluster.Delete(context.WithoutCancel(ctx), name) }, nil
}

// endpoint returns the address of a node's link.
func (b Bench) endpoint(n system.Node) string {
	for i, node := range b.Cluster.Nodes() {
		if node == n {
			return b.Cluster.Endpoints()[i]
		}
	}
	return ""
}

// tag marks the records of the battery.
func (b Bench) tag(name string) uint32 { return ledger.Tag("battery", "systemtest", name, "", 0) }

// load is a producer and what became of what it sent.
type load struct {
	bench    Bench
	producer system.Producer
	name     string
	stream   uint32

	mu       sync.Mutex
	next     uint64
	receipts map[uint64]system.Receipt
	twice    []uint64 // sends whose done was called again
	changed  chan struct{}
}

func (b Bench) produce(ctx context.Context, name, client string, stream uint32, settings map[string]string) (*load, error) {
	p, err := b.Clients.OpenProducer(ctx, system.ClientConfig{
		System: b.Cluster.System(), Endpoints: b.Cluster.Endpoints(), ClientID: client,
		Destination: name, Partitions: 1, Settings: settings, DSN: b.dsn(client),
	})
	if err != nil {
		return nil, err
	}
	return &load{
		bench: b, producer: p, name: name, stream: stream,
		receipts: map[uint64]system.Receipt{}, changed: make(chan struct{}, 1),
	}, nil
}

// dsn is what a client needs beside the addresses, if the cluster tells it.
func (b Bench) dsn(client string) string {
	if c, ok := b.Cluster.(system.Connector); ok {
		return c.DSN(client, false)
	}
	return ""
}

// message is the next one to send.
func (l *load) message() system.Message {
	l.mu.Lock()
	id := ledger.MessageID{Stream: l.stream, Seq: l.next}
	l.next++
	l.mu.Unlock()
	return system.Message{
		ID:      id,
		Key:     []byte(ledger.KeyName(ledger.KeyOf(l.bench.Seed, id, 4))),
		Payload: ledger.AppendPayload(nil, l.bench.Seed, l.bench.tag(l.name), id, 0, 200),
	}
}

// send hands n more messages to the client.
func (l *load) send(ctx context.Context, n int) {
	for range n {
		m := l.message()
		seq := m.ID.Seq
		l.producer.Send(ctx, m, func(r system.Receipt) {
			l.mu.Lock()
			if _, again := l.receipts[seq]; again {
				l.twice = append(l.twice, seq)
			}
			l.receipts[seq] = r
			l.mu.Unlock()
			select {
			case l.changed <- struct{}{}:
			default:
			}
		})
	}
}

// counts returns how many sends ended with each outcome, and one error text.
func (l *load) counts() (ok, failed, doubt int, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.receipts {
		switch r.Outcome {
		case ledger.OK:
			ok++
		case ledger.Failed:
			failed++
		default:
			doubt++
		}
		if r.Err != "" {
			text = r.Err
		}
	}
	return ok, failed, doubt, text
}

// confirmed waits until n sends are confirmed.
func (l *load) confirmed(ctx context.Context, n int) error {
	return until(ctx, fmt.Sprintf("%d sends are confirmed", n), func(context.Context) error {
		if ok, failed, doubt, text := l.counts(); ok < n {
			return fmt.Errorf("%d confirmed, %d refused, %d in doubt %s", ok, failed, doubt, text)
		}
		return nil
	})
}

// again checks that the client works after a fault: what was sent up to now ends and none of it is refused, though what was on
// its way when the connection broke may be in doubt; and what is sent from now on is confirmed.
func (l *load) again(ctx context.Context) error {
	if err := until(ctx, "all sends end", func(context.Context) error {
		if ok, failed, doubt, text := l.counts(); ok+doubt < int(l.next) {
			return fmt.Errorf("%d confirmed, %d refused, %d in doubt, %d in all %s", ok, failed, doubt, l.next, text)
		}
		return nil
	}); err != nil {
		return err
	}
	ok, _, _, _ := l.counts()
	l.send(ctx, sent)
	return l.confirmed(ctx, ok+sent)
}

// close flushes and closes the producer and checks that each send ended exactly once.
func (l *load) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	errs := []error{l.producer.Flush(ctx), l.producer.Close(ctx)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.receipts) != int(l.next) {
		errs = append(errs, fmt.Errorf("%d of %d sends ended", len(l.receipts), l.next))
	}
	if len(l.twice) > 0 {
		errs = append(errs, fmt.Errorf("sends %v ended twice", l.twice))
	}
	return errors.Join(errs...)
}

// stored is a final read.
type stored struct {
	times map[ledger.MessageID]int // raw view
	order []ledger.MessageID       // raw view
	ends  []ledger.Event
}

func (b Bench) read(ctx context.Context, name string) (*stored, error) {
	r, err := need[system.StoreReader](b)
	if err != nil {
		return nil, err
	}
	s := &stored{times: map[ledger.MessageID]int{}}
	var wrong []error
	err = r.ReadStore(ctx, name, 7, b.tag(name), func(e ledger.Event) {
		switch e.Kind {
		case ledger.Stored:
			if e.Pos.Destination != 7 {
				wrong = append(wrong, fmt.Errorf("record at %v of another destination", e.Pos))
			}
			want := ledger.Digest(ledger.AppendPayload(nil, b.Seed, b.tag(name), e.ID(), e.EventID, 200))
			if e.Stream == 0 || e.Digest != want {
				wrong = append(wrong, fmt.Errorf("record at %v is not what was sent: %s", e.Pos, e.Text))
			}
			if e.View == ledger.ViewRaw {
				s.times[e.ID()]++
				s.order = append(s.order, e.ID())
			}
		case ledger.StoreEnd:
			s.ends = append(s.ends, e)
			if e.View == ledger.ViewRaw && e.Count >= 0 && e.Count != int64(len(s.order)) {
				wrong = append(wrong, fmt.Errorf("the store counts %d records, %d were read", e.Count, len(s.order)))
			}
			if e.Pos.Offset != e.N {
				wrong = append(wrong, fmt.Errorf("the end moved from %d to %d", e.Pos.Offset, e.N))
			}
		default:
			wrong = append(wrong, fmt.Errorf("event of kind %d in a final read", e.Kind))
		}
	})
	if len(s.ends) == 0 {
		wrong = append(wrong, errors.New("no view was closed"))
	}
	return s, errors.Join(append(wrong, err)...)
}

// whole checks that all confirmed sends of l are there, and how often: most = 0 allows any number.
func (s *stored) whole(l *load, most int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for seq, r := range l.receipts {
		id := ledger.MessageID{Stream: l.stream, Seq: seq}
		n := s.times[id]
		switch {
		case r.Outcome == ledger.OK && n == 0:
			return fmt.Errorf("message %s was confirmed and is not there", id)
		case r.Outcome == ledger.Failed && n > 0:
			return fmt.Errorf("message %s was refused (%s) and is there", id, r.Err)
		case most > 0 && n > most:
			return fmt.Errorf("message %s is there %d times", id, n)
		}
	}
	return nil
}

// leads waits until the leadership of the only partition is as wanted.
func leads(ctx context.Context, f system.LeaderFinder, name, what string, want func(system.Leadership) bool) (l system.Leadership, err error) {
	err = until(ctx, what, func(ctx context.Context) (err error) {
		if l, err = f.Leadership(ctx, name, 0); err != nil {
			return err
		}
		if !want(l) {
			return fmt.Errorf("leader %v, in sync %v", nameOf(l.Leader), namesOf(l.InSync))
		}
		return nil
	})
	return l, err
}

func nameOf(n system.Node) string {
	if n == nil {
		return "none"
	}
	return n.Name()
}

func namesOf(nodes []system.Node) []string {
	var names []string
	for _, n := range nodes {
		names = append(names, nameOf(n))
	}
	slices.Sort(names)
	return names
}

// bites waits until an injection has proof.
func bites(ctx context.Context, i system.Injection) error {
	return until(ctx, "the fault has bitten", func(ctx context.Context) error {
		e, err := i.Evidence(ctx)
		switch {
		case err != nil:
			return err
		case !e.Bit:
			return fmt.Errorf("not yet: %s", e.Detail)
		case e.Detail == "":
			return errors.New("evidence without words")
		}
		return nil
	})
}

// heals heals twice, and checks that the evidence outlives the heal.
func heals(ctx context.Context, i system.Injection) error {
	ctx = context.WithoutCancel(ctx)
	if err := errors.Join(i.Heal(ctx), i.Heal(ctx)); err != nil {
		return err
	}
	e, err := i.Evidence(ctx)
	if err == nil && !e.Bit {
		err = errors.New("the evidence is gone after the heal")
	}
	return err
}
