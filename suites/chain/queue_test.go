package chain

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// queue is a queue in memory with one consumer and one channel at a time.
type queue struct {
	ready   []Event
	unacked []Delivery // of the channel that is open, in the order of their tags
	channel int
	tag     int
}

type tagged struct{ channel, tag int }

func (q *queue) Fetch(context.Context) ([]Delivery, error) {
	var ds []Delivery
	for _, ev := range q.ready {
		q.tag++
		ds = append(ds, Delivery{Event: ev, Position: tagged{q.channel, q.tag}})
	}
	q.ready = nil
	q.unacked = append(q.unacked, ds...)
	return slices.Clone(ds), nil
}

func (q *queue) Settle(ctx context.Context, d Delivery) error { return q.Ack(ctx, d) }

func (q *queue) SettleUpTo(_ context.Context, d Delivery) error {
	q.unacked = slices.DeleteFunc(q.unacked, func(x Delivery) bool { return x.Position.(tagged).tag <= d.Position.(tagged).tag })
	return nil
}

func (q *queue) Release(_ context.Context, ds []Delivery) error {
	for _, d := range ds {
		q.take(d)
	}
	for i := range ds {
		q.ready = slices.Insert(q.ready, i, ds[i].Event)
	}
	return nil
}

func (q *queue) take(d Delivery) {
	q.unacked = slices.DeleteFunc(q.unacked, func(x Delivery) bool { return x.Position.(tagged).tag == d.Position.(tagged).tag })
}

func (q *queue) Holds(d Delivery) bool { return d.Position.(tagged).channel == q.channel }

func (q *queue) Ack(_ context.Context, d Delivery) error {
	q.take(d)
	return nil
}

// reopen is what becomes of a channel that is closed: what is not settled is delivered again on the next.
func (q *queue) reopen() {
	for i, d := range q.unacked {
		q.ready = slices.Insert(q.ready, i, d.Event)
	}
	q.unacked, q.tag = nil, 0
	q.channel++
}

var second, third = event(2, 2, 1), event(3, 3, 1)

func init() {
	faults["rabbitmq-acks/multiple-flag"] = func(t *testing.T, e *env, function string) string {
		q := &queue{ready: []Event{first, second}}
		settled := make(chan struct{})
		e.Point = func(_ context.Context, name string, ev Event) error {
			switch {
			case name == AfterFetch && ev.ID == first.ID:
				<-settled // the later one's work ends first
				return errCrash
			case name == AfterSettle:
				close(settled)
			}
			return nil
		}
		must(t, get[Loop](t, function)(t.Context(), e.Service, unreleased{q}, ApplyOnce))
		q.reopen()
		e.Point = nil
		must(t, get[Loop](t, function)(t.Context(), e.Service, q, ApplyOnce))
		return e.effectAnomaly(t, "settled-early", mailer, first, second)
	}

	faults["rabbitmq-acks/stale-tag"] = func(t *testing.T, e *env, function string) string {
		q := &queue{ready: []Event{first, second, third}}
		ds, _ := q.Fetch(t.Context())
		must(t, q.Ack(t.Context(), ds[0]))
		e.deliver(t, ApplyOnce, first, second)
		q.reopen()
		_, _ = q.Fetch(t.Context()) // the second has tag 1 now, and the third tag 2
		if err := get[Settler](t, function)(t.Context(), q, ds[1]); err != nil && !errors.Is(err, ErrGone) {
			t.Fatal(err)
		}
		q.reopen() // the process dies
		must(t, Consume(t.Context(), e.Service, q, ApplyOnce))
		return e.effectAnomaly(t, "settled-early", mailer, first, second, third)
	}

	faults["rabbitmq-acks/nack-loop"] = func(t *testing.T, e *env, function string) string {
		q := &queue{ready: []Event{first, second}}
		handle := func(ctx context.Context, s *Service, ev Event) (Result, error) {
			if ev.ID == first.ID {
				return "", ErrTemporary
			}
			return ApplyOnce(ctx, s, ev)
		}
		for range 20 {
			must(t, get[Loop](t, function)(t.Context(), e.Service, q, handle))
		}
		if len(q.ready) > 0 {
			return "stall"
		}
		if got := scan[string](t, e, "SELECT class || attempts FROM dead_letter"); got != "temporary3" {
			t.Errorf("dead letter %s", got)
		}
		return e.effectAnomaly(t, "", mailer, first, second)
	}
}

func init() {
	faults["rabbitmq-ordering/dead-letter-and-return"] = func(t *testing.T, e *env, function string) string {
		older, newer := event(1, 1, 1), event(2, 1, 2)
		must(t, PlaceOrder(t.Context(), e.Service, older))
		must(t, PlaceOrder(t.Context(), e.Service, newer))
		q := &queue{ready: []Event{older, newer}}
		tries := 0
		flaky := func(ctx context.Context, s *Service, ev Event) (Result, error) {
			if tries++; tries == 1 {
				return "", ErrTemporary
			}
			return SetStateOnce(ctx, s, ev)
		}
		for range 5 {
			must(t, get[Loop](t, function)(t.Context(), e.Service, toTail{q}, flaky))
		}
		if n := scan[int](t, e, "SELECT count(*) FROM parked"); n != 0 || len(q.ready) > 0 {
			t.Errorf("%d parked, %d left", n, len(q.ready))
		}
		if scan[int64](t, e, "SELECT version FROM balances WHERE key = 1") != newer.Version {
			return "stale-effect"
		}
		return ""
	}

	faults["rabbitmq-deadletter/ack-then-republish"] = func(t *testing.T, e *env, function string) string {
		q := &queue{ready: []Event{first}}
		failing := func(context.Context, *Service, Event) (Result, error) { return "", ErrTemporary }
		e.crashAt(HalfMoved)
		must(t, get[Loop](t, function)(t.Context(), e.Service, unreleased{q}, failing))
		q.reopen()
		must(t, get[Loop](t, function)(t.Context(), e.Service, q, failing))
		e.deliver(t, ApplyOnce, e.broker.published()...) // who takes care of what was moved
		return e.effectAnomaly(t, "settled-early", mailer, first)
	}
}

// toTail is a queue to whose tail comes what is given back.
type toTail struct{ *queue }

func (q toTail) Release(_ context.Context, ds []Delivery) error {
	for _, d := range ds {
		q.take(d)
		q.ready = append(q.ready, d.Event)
	}
	return nil
}

// unreleased is a queue whose consumer dies before it gives anything back.
type unreleased struct{ *queue }

func (unreleased) Release(context.Context, []Delivery) error { return nil }
