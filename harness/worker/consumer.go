package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"conform/harness/internal/clock"
	"conform/harness/ledger"
	"conform/harness/system"
)

// pollWait bounds one poll, so that a stop is noticed.
const pollWait = 250 * time.Millisecond

// ConsumerRole returns the role of a consumer: it polls, records what it was handed, and settles
// it. Its crash points are after-fetch, before-settle and after-settle. process, if not nil, is
// called between after-fetch and before-settle with each batch.
func ConsumerRole(clients system.Clients, process func(ctx context.Context, s *Session, ds []system.Delivery) error) Role {
	return func(ctx context.Context, s *Session) error {
		c, err := clients.OpenConsumer(ctx, s.Config.Client)
		if err != nil {
			return fmt.Errorf("open consumer: %w", err)
		}
		defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
		if err := s.Ready(ctx); err != nil {
			return err
		}
		for {
			select {
			case <-s.Stopping():
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			default:
			}
			if err := consume(ctx, s, c, process); err != nil {
				return err
			}
		}
	}
}

func consume(ctx context.Context, s *Session, c system.Consumer, process func(context.Context, *Session, []system.Delivery) error) error {
	pollCtx, cancel := context.WithTimeout(ctx, pollWait)
	ds, err := c.Poll(pollCtx)
	cancel()
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("poll: %w", err)
	}
	if len(ds) == 0 {
		return nil
	}
	now := clock.Now()
	for _, d := range ds {
		s.Record(received(s.Config, d, now))
	}
	s.received.Add(int64(len(ds)))
	if err := s.Point(PointAfterFetch); err != nil {
		return err
	}
	if process != nil {
		if err := process(ctx, s, ds); err != nil {
			return fmt.Errorf("process deliveries: %w", err)
		}
	}
	if err := s.Point(PointBeforeSettle); err != nil {
		return err
	}
	err = c.Settle(ctx, ds)
	u, ok := c.(system.Unconfirmed)
	settled(s, ds, err, ok && u.SettlesUnconfirmed())
	if err != nil {
		// Whether the broker took it is unknown; it will deliver again or not, and the audit allows both.
		s.Log.Warn("settle failed", "error", err)
		return nil
	}
	return s.Point(PointAfterSettle)
}

func received(c Config, d system.Delivery, now int64) ledger.Event {
	e := ledger.Event{
		Kind: ledger.Received, Consumer: c.Consumer, At: now, Digest: ledger.Digest(d.Payload), Attempt: uint32(d.Attempt),
		Pos: ledger.Position{Destination: c.Destination, Partition: d.Partition, Offset: d.Offset},
	}
	if k, ok := ledger.ParseKey(string(d.Key)); ok {
		e.Key = k
	} else {
		e.Key = ledger.NoKey
	}
	if h, ok := ledger.ParsePayload(d.Payload); ok {
		e.Stream, e.Seq, e.EventID = h.ID.Stream, h.ID.Seq, h.EventID
	}
	return e
}

// settled records a settle as one commit per partition: the position after its last delivery. Where there are no positions
// each delivery is acked for itself, which stays in doubt if nothing confirms it.
func settled(s *Session, ds []system.Delivery, err error, unconfirmed bool) {
	ds = slices.DeleteFunc(slices.Clone(ds), func(d system.Delivery) bool {
		if d.Offset >= 0 {
			return false
		}
		e := received(s.Config, d, clock.Now())
		e.Kind, e.Text, e.Digest, e.Attempt = ledger.Settled, "ack", 0, 0
		switch {
		case err != nil:
			e.Detail = err.Error()
		case !unconfirmed:
			e.Outcome = ledger.OK
			fallthrough
		default:
			s.settled.Add(1)
		}
		s.Record(e)
		return true
	})
	next := map[int32]int64{}
	var order []int32
	for _, d := range ds {
		if _, ok := next[d.Partition]; !ok {
			order = append(order, d.Partition)
		}
		next[d.Partition] = max(next[d.Partition], d.Offset+1)
	}
	e := ledger.Event{Kind: ledger.Settled, Consumer: s.Config.Consumer, At: clock.Now(), Text: "commit"}
	if err == nil {
		e.Outcome = ledger.OK
		s.settled.Add(int64(len(ds)))
	} else {
		e.Detail = err.Error()
	}
	for _, p := range order {
		e.Pos = ledger.Position{Destination: s.Config.Destination, Partition: p, Offset: next[p]}
		s.Record(e)
	}
}
