package chain

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// The patterns of this file are about brokers with queues, where each delivery is settled for itself.

// ConsumeInParallel fetches one batch and works on all of its deliveries at once. Each is settled when its work has ended,
// in whatever order that is.
func ConsumeInParallel(ctx context.Context, s *Service, sub Subscriber, handle Handler) error {
	b := s.fetch(ctx, sub)
	defer b.release(ctx)
	for i := range b.handleAll(ctx, handle) {
		b.settleOne(ctx, i) // safe: this delivery and no other
	}
	return b.err
}

// ConsumeInParallelUpTo is ConsumeInParallel, but settles with AMQP's multiple flag.
func ConsumeInParallelUpTo(ctx context.Context, s *Service, sub Subscriber, handle Handler) error {
	b := s.fetch(ctx, sub)
	defer b.release(ctx)
	for i := range b.handleAll(ctx, handle) {
		b.settleUpTo(ctx, i) // unsafe: all that came before it are settled too, and the work on them has not ended
	}
	return b.err
}

// ConsumeCounting fetches one batch and gives each delivery that fails back to the queue, until it has failed too often:
// then it is kept as a dead letter. The others are not held up by it.
func ConsumeCounting(ctx context.Context, s *Service, sub Subscriber, handle Handler) error {
	b := s.fetch(ctx, sub)
	defer b.release(ctx)
	for i := range b.deliveries {
		failed := b.handle(ctx, i, handle)
		back := b.countAndPark(ctx, i, failed) // safe: the attempts are counted where a crash does not lose them, and come to an end
		b.settleUnless(ctx, i, back)
	}
	return b.err
}

// ConsumeReturning is ConsumeCounting without the counting: that is left to the broker.
func ConsumeReturning(ctx context.Context, s *Service, sub Subscriber, handle Handler) error {
	b := s.fetch(ctx, sub)
	defer b.release(ctx)
	for i := range b.deliveries {
		failed := b.handle(ctx, i, handle)
		back := failed != nil // unsafe: what can never succeed comes back for as long as the broker does not count
		b.settleUnless(ctx, i, back)
	}
	return b.err
}

// ConsumeInKeyOrder fetches one batch and works on it in order. What fails goes to a queue from where it comes back later,
// behind what has come meanwhile; so the later events of its key go there too, until all of them have come back.
func ConsumeInKeyOrder(ctx context.Context, s *Service, sub Subscriber, handle Handler) error {
	b := s.fetch(ctx, sub)
	defer b.release(ctx)
	for i := range b.deliveries {
		waits := b.behindParked(ctx, i) // safe: an older event of its key is away: this one goes after it
		back := waits || b.handleOrPark(ctx, i, handle)
		b.settleUnless(ctx, i, back)
	}
	return b.err
}

// ConsumeInTurn is ConsumeInKeyOrder, but sends away the one that fails and no other.
func ConsumeInTurn(ctx context.Context, s *Service, sub Subscriber, handle Handler) error {
	b := s.fetch(ctx, sub)
	defer b.release(ctx)
	for i := range b.deliveries {
		waits := false // unsafe: it overtakes an older event of its key
		back := waits || b.handleOrPark(ctx, i, handle)
		b.settleUnless(ctx, i, back)
	}
	return b.err
}

// ConsumeMoving fetches one batch, and moves what fails to where the Publisher leads.
func ConsumeMoving(ctx context.Context, s *Service, sub Subscriber, handle Handler) error {
	b := s.fetch(ctx, sub)
	defer b.release(ctx)
	for i := range b.deliveries {
		failed := b.handle(ctx, i, handle)
		b.republish(ctx, i, failed) // safe: confirmed there before it is settled here; after a crash it is there twice
		b.settleMoved(ctx, i, failed)
	}
	return b.err
}

// ConsumeMovingLate is ConsumeMoving in the other order.
func ConsumeMovingLate(ctx context.Context, s *Service, sub Subscriber, handle Handler) error {
	b := s.fetch(ctx, sub)
	defer b.release(ctx)
	for i := range b.deliveries {
		failed := b.handle(ctx, i, handle)
		b.settleMoved(ctx, i, failed)
		b.republish(ctx, i, failed) // unsafe: after a crash before this line it is neither here nor there
	}
	return b.err
}

// SetStateOnce sets the state of a key to what the event says, once for each event. It has its order from the queue.
func SetStateOnce(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.remember(ctx, perConsumer)
	w.change(ctx, always, Stale)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// Channel is what a delivery was received on. Delivery tags number the deliveries of one channel, from 1.
type Channel interface {
	// Holds says whether d came on the channel that is open now.
	Holds(d Delivery) bool
	// Ack settles the delivery that has d's tag on the channel that is open now.
	Ack(ctx context.Context, d Delivery) error
}

// ErrGone says that the channel of a delivery is closed. The broker delivers it again.
var ErrGone = errors.New("the delivery's channel is closed")

// A Settler settles a delivery whose work may have lasted longer than its channel.
type Settler func(ctx context.Context, ch Channel, d Delivery) error

// SettleHere settles a delivery on its own channel, or not at all.
func SettleHere(ctx context.Context, ch Channel, d Delivery) error {
	there := ch.Holds(d) // safe: on another channel its tag is another delivery's
	if !there {
		return ErrGone
	}
	return ch.Ack(ctx, d)
}

// SettleAnywhere is SettleHere, but takes the tag for the delivery's identity.
func SettleAnywhere(ctx context.Context, ch Channel, d Delivery) error {
	there := true // unsafe: after a reconnect the tag is that of a delivery whose work has not ended
	if !there {
		return ErrGone
	}
	return ch.Ack(ctx, d)
}

// UpTo is a Subscriber of a broker that can settle many deliveries by one word.
type UpTo interface {
	// SettleUpTo settles d and all that came before it on its channel.
	SettleUpTo(ctx context.Context, d Delivery) error
}

// handleAll works on all deliveries at once and returns those whose work has ended well, as it does.
func (b *batch) handleAll(ctx context.Context, handle Handler) iter.Seq[int] {
	return func(yield func(int) bool) {
		type end struct {
			i   int
			err error
		}
		ends := make(chan end, len(b.deliveries))
		for i, d := range b.deliveries {
			go func() {
				err := b.s.at(ctx, AfterFetch, d.Event)
				if err == nil {
					_, err = handle(ctx, b.s, d.Event)
				}
				ends <- end{i, err}
			}()
		}
		goOn := true
		for range b.deliveries {
			e := <-ends
			if e.err != nil {
				b.s.log().WarnContext(ctx, "event failed", "event", b.deliveries[e.i].Event.ID, "error", Redact(e.err))
				continue
			}
			goOn = goOn && yield(e.i)
		}
	}
}

// settleOne settles one delivery of a queue.
func (b *batch) settleOne(ctx context.Context, i int) {
	b.settleBy(ctx, i, b.sub.Settle)
}

func (b *batch) settleUpTo(ctx context.Context, i int) {
	b.settleBy(ctx, i, b.sub.(UpTo).SettleUpTo)
	for before := range i {
		b.done(before)
	}
}

func (b *batch) settleBy(ctx context.Context, i int, settle func(context.Context, Delivery) error) {
	b.at(ctx, BeforeSettle, i)
	if b.err != nil {
		return
	}
	if err := settle(ctx, b.deliveries[i]); err != nil {
		b.err = fmt.Errorf("settle: %w", err)
		return
	}
	b.done(i)
	b.at(ctx, AfterSettle, i)
}

// done notes that a delivery is no longer ours.
func (b *batch) done(i int) {
	if b.alone == nil {
		b.alone = map[int]bool{}
	}
	b.alone[i] = true
}

// settleUnless settles a delivery, or gives it back.
func (b *batch) settleUnless(ctx context.Context, i int, back bool) {
	if !back {
		b.settleOne(ctx, i)
		return
	}
	if b.err != nil {
		return
	}
	if err := b.sub.Release(ctx, b.deliveries[i:i+1]); err != nil {
		b.err = fmt.Errorf("give back: %w", err)
	}
	b.done(i)
}

// behindParked says whether an older event of the key is parked, and parks this one behind it.
func (b *batch) behindParked(ctx context.Context, i int) (waits bool) {
	if b.err != nil {
		return false
	}
	ev := b.deliveries[i].Event
	err := b.s.DB.QueryRow(ctx, "SELECT EXISTS (SELECT FROM parked WHERE consumer = $1 AND key = $2 AND version < $3)",
		b.s.Name, int64(ev.Key), ev.Version).Scan(&waits)
	if err != nil {
		b.err = fmt.Errorf("look for parked events: %w", err)
		return false
	}
	if waits {
		b.setAside(ctx, ev)
	}
	return waits
}

// handleOrPark does the work on a delivery. One that fails is parked, and has to come back.
func (b *batch) handleOrPark(ctx context.Context, i int, handle Handler) (back bool) {
	failed := b.handle(ctx, i, handle)
	if b.err != nil {
		return false
	}
	ev := b.deliveries[i].Event
	if failed != nil {
		b.setAside(ctx, ev)
		return true
	}
	if _, err := b.s.DB.Exec(ctx, "DELETE FROM parked WHERE consumer = $1 AND event_id = $2", b.s.Name, int64(ev.ID)); err != nil {
		b.err = fmt.Errorf("end parking: %w", err)
	}
	return false
}

// setAside notes that an event is parked.
func (b *batch) setAside(ctx context.Context, ev Event) {
	_, err := b.s.DB.Exec(ctx, "INSERT INTO parked (consumer, event_id, key, version) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
		b.s.Name, int64(ev.ID), int64(ev.Key), ev.Version)
	if err != nil {
		b.err = fmt.Errorf("park: %w", err)
	}
}

// republish publishes a delivery that failed, and waits for the confirm.
func (b *batch) republish(ctx context.Context, i int, failed error) {
	if b.err != nil || failed == nil {
		return
	}
	ev := b.deliveries[i].Event
	if err := b.s.Publisher.Publish(ctx, ev); err != nil {
		b.err = fmt.Errorf("republish: %w", err)
		return
	}
	b.at(ctx, AfterConfirm, i)
	b.moved(ctx, i)
}

// settleMoved settles a delivery that, if it failed, is published elsewhere.
func (b *batch) settleMoved(ctx context.Context, i int, failed error) {
	b.settleOne(ctx, i)
	if failed != nil {
		b.moved(ctx, i)
	}
}

// moved is called after each of the two steps of a move, and is a point after the first.
func (b *batch) moved(ctx context.Context, i int) {
	if b.half != i+1 {
		b.half = i + 1
		b.at(ctx, HalfMoved, i)
	}
}

// countAndPark counts a failure, and keeps the event as a dead letter after the last one. It says whether the event is to
// be tried again.
func (b *batch) countAndPark(ctx context.Context, i int, failed error) (back bool) {
	if b.err != nil || failed == nil {
		return false
	}
	ev := b.deliveries[i].Event
	f := Failure{}.and(failed)
	b.err = b.s.DB.QueryRow(ctx, `INSERT INTO failure AS f (consumer, event_id, attempts, first_failed_at) VALUES ($1, $2, 1, $3)
		ON CONFLICT (consumer, event_id) DO UPDATE SET attempts = f.attempts + 1 RETURNING attempts, first_failed_at`,
		b.s.Name, int64(ev.ID), f.First).Scan(&f.Attempts, &f.First)
	if b.err != nil {
		b.err = fmt.Errorf("count failure: %w", b.err)
		return true
	}
	if f.Attempts < b.s.tries() {
		return true
	}
	b.err = b.s.deadLetter(ctx, ev, f)
	return b.err != nil
}
