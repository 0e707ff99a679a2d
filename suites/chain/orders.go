package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
)

// PlaceOrder writes an order and its event. It publishes nothing: a relay will. Placing the same event again changes nothing.
// An error that wraps ErrInDoubt says that COMMIT was not answered.
func PlaceOrder(ctx context.Context, s *Service, ev Event) error {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.do(ctx, insertOrder)
	w.do(ctx, insertEvent) // safe: the event is committed together with the order, or neither is
	w.at(ctx, BeforeOrderCommit)
	w.commit(ctx)
	w.at(ctx, AfterOrderCommit)
	return w.err
}

// PlaceOrderThenPublish is PlaceOrder without an outbox.
func PlaceOrderThenPublish(ctx context.Context, s *Service, ev Event) error {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.do(ctx, insertOrder)
	w.at(ctx, BeforeOrderCommit)
	w.commit(ctx)
	w.at(ctx, AfterOrderCommit)
	w.publish(ctx, ev) // unsafe: a crash before this line, or an error of it, and an order stands that nobody will hear of
	return w.err
}

// PublishThenPlaceOrder is PlaceOrder without an outbox, the other way round.
func PublishThenPlaceOrder(ctx context.Context, s *Service, ev Event) error {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.do(ctx, insertOrder)
	w.publish(ctx, ev) // unsafe: the transaction can still be rolled back, the event can not
	w.at(ctx, BeforeOrderCommit)
	w.commit(ctx)
	w.at(ctx, AfterOrderCommit)
	return w.err
}

// PlaceOrderSurely places an order and goes on until it is known whether it was placed.
func PlaceOrderSurely(ctx context.Context, s *Service, ev Event) error {
	err := PlaceOrder(ctx, s, ev)
	for attempt := 1; errors.Is(err, ErrInDoubt) && s.pause(ctx, ev, attempt); attempt++ {
		err = s.settleDoubt(ctx, ev) // safe: the event id tells what became of the COMMIT
	}
	return err
}

// PlaceOrderBlindly is PlaceOrderSurely, but takes a COMMIT without an answer for one that failed.
func PlaceOrderBlindly(ctx context.Context, s *Service, ev Event) error {
	err := PlaceOrder(ctx, s, ev)
	for attempt := 1; errors.Is(err, ErrInDoubt) && s.pause(ctx, ev, attempt); attempt++ {
		err = PlaceOrder(ctx, s, s.asNew(ev)) // unsafe: if it did commit, this is a second order
	}
	return err
}

var (
	insertOrder = exec(`INSERT INTO orders (event_id, key, version, amount, wish) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (event_id) DO NOTHING`, wish)
	insertEvent = exec(`INSERT INTO outbox (event_id, key, version, amount, body) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (event_id) DO NOTHING`, body)
)

// settleDoubt looks the event id up. If it is not there, the COMMIT may still be on its way: so the order is placed again
// under the same id, and the unique event id makes the second of the two wait for the first and do nothing.
func (s *Service) settleDoubt(ctx context.Context, ev Event) error {
	var placed bool
	err := s.DB.QueryRow(ctx, "SELECT EXISTS (SELECT FROM outbox WHERE event_id = $1)", int64(ev.ID)).Scan(&placed)
	switch {
	case err != nil:
		return fmt.Errorf("look up event: %w: %w", ErrInDoubt, err)
	case placed:
		return nil
	default:
		return stillInDoubt(PlaceOrder(ctx, s, ev))
	}
}

// stillInDoubt is the error of another attempt at what is in doubt: that one may have been refused for sure, the first not.
func stillInDoubt(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: an attempt before may have succeeded, the last did not: %s", ErrInDoubt, err.Error())
}

// pause waits before the next attempt. It is false when ctx ended meanwhile.
func (s *Service) pause(ctx context.Context, ev Event, attempt int) bool {
	return s.sleep(ctx, s.Backoff.Delay(ev.ID, attempt)) == nil
}

// asNew gives the event another id, and so makes another event of it.
func (s *Service) asNew(ev Event) Event {
	ev.Wish = cmp.Or(ev.Wish, ev.ID)
	ev.ID = s.NewID()
	return ev
}
