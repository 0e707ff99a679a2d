package chain

import (
	"context"
	"fmt"
)

// Consume fetches one batch and handles it, delivery by delivery. It stops at the first that fails: that one and all after
// it come again. Whatever is settled has had its effect; what has had its effect may come again, so handle needs an inbox.
func Consume(ctx context.Context, s *Service, sub Subscriber, handle Handler) error {
	b := s.fetch(ctx, sub)
	defer b.release(ctx)
	for i := range b.deliveries {
		failed := b.handle(ctx, i, handle) // safe: it has ended when this returns
		b.stop(failed)                     // safe: nothing behind a failed delivery is settled
		b.settle(ctx, i)                   // safe: settled only after the business transaction is committed
	}
	return b.err
}

// ConsumeSettleFirst is Consume, but settles what it has fetched before it works.
func ConsumeSettleFirst(ctx context.Context, s *Service, sub Subscriber, handle Handler) error {
	b := s.fetch(ctx, sub)
	defer b.release(ctx)
	for i := range b.deliveries {
		b.settle(ctx, i)                   // unsafe: a crash after this line, and the work is not done and will never be
		failed := b.handle(ctx, i, handle) // safe: it has ended when this returns
		b.stop(failed)                     // safe: nothing behind a failed delivery is settled
	}
	return b.err
}

// ConsumeAndGoOn is Consume, but goes on after a failure. It is ConsumeParking without the parking, too.
func ConsumeAndGoOn(ctx context.Context, s *Service, sub Subscriber, handle Handler) error {
	b := s.fetch(ctx, sub)
	defer b.release(ctx)
	for i := range b.deliveries {
		failed := b.handle(ctx, i, handle) // safe: it has ended when this returns
		b.logOnly(ctx, i, failed)          // unsafe: the delivery is settled with the next one, and its work never done
		b.settle(ctx, i)                   // safe: settled only after the business transaction is committed
	}
	return b.err
}

// ConsumeHandingOver is Consume, but hands the work to a goroutine and takes that for done.
func ConsumeHandingOver(ctx context.Context, s *Service, sub Subscriber, handle Handler) error {
	b := s.fetch(ctx, sub)
	defer b.release(ctx)
	for i := range b.deliveries {
		failed := b.handOver(ctx, i, handle) // unsafe: what is taken is settled, and when the process ends its work was never done
		b.stop(failed)                       // safe: nothing behind a failed delivery is settled
		b.settle(ctx, i)                     // safe: settled only after the business transaction is committed
	}
	return b.err
}

// ConsumeParking is Consume, but puts aside what fails and goes on. Combine it with Retry.
func ConsumeParking(ctx context.Context, s *Service, sub Subscriber, handle Handler) error {
	b := s.fetch(ctx, sub)
	defer b.release(ctx)
	for i := range b.deliveries {
		failed := b.handle(ctx, i, handle) // safe: it has ended when this returns
		b.park(ctx, i, failed)             // safe: kept as a dead letter before it is settled
		b.settle(ctx, i)                   // safe: settled only after the business transaction is committed
	}
	return b.err
}

// RunConsumer consumes until ctx ends, with one of the loops above. After an error it waits and fetches again.
func RunConsumer(ctx context.Context, s *Service, sub Subscriber, handle Handler, consume Loop) error {
	for failures := 0; ctx.Err() == nil; {
		if err := consume(ctx, s, sub, handle); err != nil && ctx.Err() == nil {
			failures++
			s.log().WarnContext(ctx, "consumer failed", "failures", failures, "error", Redact(err))
			s.pause(ctx, Event{}, failures)
			continue
		}
		failures = 0
	}
	return nil
}

// Loop is one way to consume a batch.
type Loop func(ctx context.Context, s *Service, sub Subscriber, handle Handler) error

// batch is a number of deliveries that were fetched together. As with work, after an error its methods do nothing more.
type batch struct {
	s          *Service
	sub        Subscriber
	deliveries []Delivery
	settled    int          // how many of them
	alone      map[int]bool // those that are settled or given back apart
	half       int          // the one that is moved, from 1
	err        error
}

func (s *Service) fetch(ctx context.Context, sub Subscriber) *batch {
	b := &batch{s: s, sub: sub}
	deliveries, err := sub.Fetch(ctx)
	if err != nil {
		b.err = fmt.Errorf("fetch: %w", err)
	}
	b.deliveries = deliveries
	return b
}

func (b *batch) at(ctx context.Context, point string, i int) {
	if b.err == nil {
		b.err = b.s.at(ctx, point, b.deliveries[i].Event)
	}
}

// handle returns the handler's error: what becomes of the delivery is for the loop to say.
func (b *batch) handle(ctx context.Context, i int, handle Handler) error {
	b.at(ctx, AfterFetch, i)
	if b.err != nil {
		return nil
	}
	_, err := handle(ctx, b.s, b.deliveries[i].Event)
	return err
}

// handOver begins the work on a delivery, and never knows how it ends.
func (b *batch) handOver(ctx context.Context, i int, handle Handler) error {
	if b.err != nil {
		return nil
	}
	ev := b.deliveries[i].Event
	ctx = context.WithoutCancel(ctx)
	go func() {
		if _, err := handle(ctx, b.s, ev); err != nil {
			b.s.log().ErrorContext(ctx, "event failed", "event", ev.ID, "error", Redact(err))
		}
	}()
	return nil
}

func (b *batch) stop(failed error) {
	if b.err == nil && failed != nil {
		b.err = fmt.Errorf("handle: %w", failed)
	}
}

func (b *batch) park(ctx context.Context, i int, failed error) {
	if b.err != nil || failed == nil {
		return
	}
	if b.err = b.s.deadLetter(ctx, b.deliveries[i].Event, Failure{}.and(failed)); b.err == nil {
		b.at(ctx, AfterPark, i)
	}
}

func (b *batch) logOnly(ctx context.Context, i int, failed error) {
	if b.err == nil && failed != nil {
		b.s.log().ErrorContext(ctx, "event failed", "event", b.deliveries[i].Event.ID, "error", Redact(failed))
	}
}

func (b *batch) settle(ctx context.Context, i int) {
	b.at(ctx, BeforeSettle, i)
	if b.err != nil {
		return
	}
	if err := b.sub.Settle(ctx, b.deliveries[i]); err != nil {
		b.err = fmt.Errorf("settle: %w", err)
		return
	}
	b.settled = i + 1
	b.at(ctx, AfterSettle, i)
}

// release gives back what is not settled.
func (b *batch) release(ctx context.Context) {
	var rest []Delivery
	for i := b.settled; i < len(b.deliveries); i++ {
		if !b.alone[i] {
			rest = append(rest, b.deliveries[i])
		}
	}
	if len(rest) == 0 {
		return
	}
	if err := b.sub.Release(context.WithoutCancel(ctx), rest); err != nil {
		b.s.log().WarnContext(ctx, "deliveries not given back: they come again when the broker misses us", "error", Redact(err))
	}
}
