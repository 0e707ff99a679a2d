package chain

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A Job does a piece of work and returns how many events it was about.
type Job func(ctx context.Context, s *Service) (int, error)

// Relay publishes a batch of the outbox, and returns its size. Any number of relays may run. An event is published at least
// once, and those of one key in their order.
func Relay(ctx context.Context, s *Service) (int, error) {
	w := s.begin(ctx, Event{})
	defer w.end(ctx)
	lanes := w.lockLane(ctx)               // safe: a key belongs to one lane, and a lane to one relay at a time
	events := w.read(ctx, byStatus, lanes) // safe: a row is pending until it is marked, however late it became visible
	w.publish(ctx, events...)              // safe: marked only once the broker has confirmed; a crash between sends it again
	w.at(ctx, BeforeMark)
	w.mark(ctx, events)
	w.commit(ctx)
	w.at(ctx, AfterMark)
	return len(events), w.err
}

// RelayMarkFirst is Relay, but marks first and publishes later.
func RelayMarkFirst(ctx context.Context, s *Service) (int, error) {
	w := s.begin(ctx, Event{})
	defer w.end(ctx)
	lanes := w.lockLane(ctx)               // safe: a key belongs to one lane, and a lane to one relay at a time
	events := w.read(ctx, byStatus, lanes) // safe: a row is pending until it is marked, however late it became visible
	w.at(ctx, BeforeMark)
	w.mark(ctx, events)
	w.commit(ctx)
	w.at(ctx, AfterMark)
	w.publish(ctx, events...) // unsafe: a crash before this line, or an error of it, and nobody will try again
	return len(events), w.err
}

// RelayPastLast is Relay, but remembers the last id and reads on from there.
func RelayPastLast(ctx context.Context, s *Service) (int, error) {
	w := s.begin(ctx, Event{})
	defer w.end(ctx)
	lanes := w.lockLane(ctx)               // safe: a key belongs to one lane, and a lane to one relay at a time
	events := w.read(ctx, pastLast, lanes) // unsafe: ids are drawn before the commit; a lower one that commits later is never read
	w.publish(ctx, events...)              // safe: marked only once the broker has confirmed; a crash between sends it again
	w.at(ctx, BeforeMark)
	w.mark(ctx, events)
	w.commit(ctx)
	w.at(ctx, AfterMark)
	return len(events), w.err
}

// RelayWithoutLanes is Relay, but relies on SKIP LOCKED alone to keep relays apart.
func RelayWithoutLanes(ctx context.Context, s *Service) (int, error) {
	w := s.begin(ctx, Event{})
	defer w.end(ctx)
	lanes := allLanes                      // unsafe: while one relay holds a key's first event, another skips it and publishes the second
	events := w.read(ctx, byStatus, lanes) // safe: a row is pending until it is marked, however late it became visible
	w.publish(ctx, events...)              // safe: marked only once the broker has confirmed; a crash between sends it again
	w.at(ctx, BeforeMark)
	w.mark(ctx, events)
	w.commit(ctx)
	w.at(ctx, AfterMark)
	return len(events), w.err
}

// RelayBelowHorizon is a relay that keeps a position and writes nothing to the outbox, which may so be append-only. One runs
// at a time. A transaction that stays open, in any database of the server, holds it up, and that is the point. The events of a
// key keep their order only if its writers take the key's lock before they write anything else: a transaction has its place
// from its first write on, not from its commit.
func RelayBelowHorizon(ctx context.Context, s *Service) (int, error) {
	w := s.begin(ctx, Event{})
	defer w.end(ctx)
	w.do(ctx, lockCursor)
	events := w.read(ctx, belowHorizon) // safe: reads only what no open transaction can still come before
	w.publish(ctx, events...)
	w.at(ctx, BeforeMark)
	w.moveCursor(ctx, events)
	w.commit(ctx)
	w.at(ctx, AfterMark)
	return len(events), w.err
}

// RelayPastCursor is RelayBelowHorizon without the horizon.
func RelayPastCursor(ctx context.Context, s *Service) (int, error) {
	w := s.begin(ctx, Event{})
	defer w.end(ctx)
	w.do(ctx, lockCursor)
	events := w.read(ctx, pastCursor) // unsafe: a transaction that is still open may commit rows before this position
	w.publish(ctx, events...)
	w.at(ctx, BeforeMark)
	w.moveCursor(ctx, events)
	w.commit(ctx)
	w.at(ctx, AfterMark)
	return len(events), w.err
}

// RunRelay relays until ctx ends. While the broker or the database is away it tries again and again, ever more slowly.
func RunRelay(ctx context.Context, s *Service, relay Job) error {
	for failures := 0; ctx.Err() == nil; {
		n, err := relay(ctx, s)
		if err == nil {
			failures = 0
			s.idle(ctx, n)
			continue
		}
		failures++
		s.log().WarnContext(ctx, "relay failed", "failures", failures, "error", Redact(err))
		s.pause(ctx, Event{}, failures) // safe: the rows stay pending for as long as it takes; the wait is bounded and jittered
	}
	return nil
}

// RunRelayGivingUp is RunRelay, but loses patience.
func RunRelayGivingUp(ctx context.Context, s *Service, relay Job) error {
	for failures := 0; ctx.Err() == nil; {
		n, err := relay(ctx, s)
		if err == nil {
			failures = 0
			s.idle(ctx, n)
			continue
		}
		failures++
		s.log().WarnContext(ctx, "relay failed", "failures", failures, "error", Redact(err))
		s.giveUp(ctx, failures) // unsafe: an outage that lasts longer than this loses what waits, though nothing is wrong with it
	}
	return nil
}

// The ways to read the outbox. $1 is the batch size, $2 the lanes.
const (
	byStatus = `SELECT event_id, key, version, amount, body FROM outbox
		WHERE status = 'pending' AND lane = ANY($2) ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED`

	pastLast = `SELECT event_id, key, version, amount, body FROM outbox
		WHERE seq > (SELECT coalesce(max(seq), 0) FROM outbox WHERE status = 'published' AND lane = ANY($2)) AND lane = ANY($2)
		ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED`

	belowHorizon = `SELECT o.event_id, o.key, o.version, o.amount, o.body FROM outbox o, relay_cursor c
		WHERE (o.xid, o.seq) > (c.xid, c.seq) AND o.xid < pg_snapshot_xmin(pg_current_snapshot())
		ORDER BY o.xid, o.seq LIMIT $1`

	pastCursor = `SELECT o.event_id, o.key, o.version, o.amount, o.body FROM outbox o, relay_cursor c
		WHERE o.seq > c.seq ORDER BY o.seq LIMIT $1`
)

var allLanes = []int32{0, 1, 2, 3, 4, 5, 6, 7}

// lockLane takes one of the lanes that have something to publish and that no other relay has, until the transaction ends. Any
// one, so that an event that cannot be published holds up its own lane only. A relay that dies loses the lane with its
// connection; one that is frozen keeps it, and its keys wait. Without one there is nothing to do.
func (w *work) lockLane(ctx context.Context) (lanes []int32) {
	w.do(ctx, func(ctx context.Context, tx pgx.Tx, _ *Service, _ Event) error {
		rows, err := tx.Query(ctx, `SELECT lane FROM relay_lane l
			WHERE EXISTS (SELECT FROM outbox WHERE lane = l.lane AND status = 'pending')
			ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED`)
		if err == nil {
			lanes, err = pgx.CollectRows(rows, pgx.RowTo[int32])
		}
		return err
	})
	return lanes
}

// read returns a batch. If there is none, the work is over.
func (w *work) read(ctx context.Context, query string, more ...any) (events []Event) {
	if w.over() {
		return nil
	}
	events, w.err = queryEvents(ctx, w.tx, query, append([]any{w.s.batch()}, more...)...)
	if len(events) == 0 {
		w.noteNothing(ctx, more...)
		w.result = Applied
		return nil
	}
	w.ev = events[0]
	return events
}

// noteNothing is for whoever looks for rows that no relay will come to: that none was found in these lanes, where some are pending.
func (w *work) noteNothing(ctx context.Context, lanes ...any) {
	if len(lanes) == 0 {
		return
	}
	w.do(ctx, func(ctx context.Context, tx pgx.Tx, _ *Service, _ Event) error {
		_, err := tx.Exec(ctx, `UPDATE relay_lane l SET nothing_at = now()
			WHERE lane = ANY($1) AND EXISTS (SELECT FROM outbox WHERE lane = l.lane AND status = 'pending')`, lanes...)
		return err
	})
}

// publish hands events to the broker and waits until all are confirmed.
func (w *work) publish(ctx context.Context, events ...Event) {
	w.at(ctx, BeforePublish)
	if w.over() {
		return
	}
	if err := w.s.Publisher.Publish(ctx, events...); err != nil {
		w.err = fmt.Errorf("publish: %w", err)
	}
	w.at(ctx, AfterConfirm)
}

func (w *work) mark(ctx context.Context, events []Event) {
	w.do(ctx, func(ctx context.Context, tx pgx.Tx, _ *Service, _ Event) error {
		_, err := tx.Exec(ctx, "UPDATE outbox SET status = 'published', published_at = statement_timestamp() WHERE event_id = ANY($1)", idsOf(events))
		return err
	})
}

func idsOf(events []Event) []int64 {
	ids := make([]int64, len(events))
	for i, ev := range events {
		ids[i] = int64(ev.ID)
	}
	return ids
}

var lockCursor step = func(ctx context.Context, tx pgx.Tx, _ *Service, _ Event) error {
	_, err := tx.Exec(ctx, "SELECT FROM relay_cursor FOR UPDATE")
	return err
}

func (w *work) moveCursor(ctx context.Context, events []Event) {
	w.do(ctx, func(ctx context.Context, tx pgx.Tx, _ *Service, _ Event) error {
		last := events[len(events)-1]
		_, err := tx.Exec(ctx, "UPDATE relay_cursor SET (xid, seq) = (SELECT xid, seq FROM outbox WHERE event_id = $1)", int64(last.ID))
		return err
	})
}

// idle waits a little if there was nothing to do.
func (s *Service) idle(ctx context.Context, n int) {
	if n == 0 {
		_ = s.sleep(ctx, s.poll()) // ctx ended: the caller sees it too
	}
}

// giveUp gives up all that waits once there were as many failures as tries.
func (s *Service) giveUp(ctx context.Context, failures int) {
	if failures < s.tries() {
		s.pause(ctx, Event{}, failures)
		return
	}
	if _, err := s.DB.Exec(ctx, "UPDATE outbox SET status = 'given up' WHERE status = 'pending'"); err != nil {
		s.log().WarnContext(ctx, "giving up failed", "error", Redact(err))
	}
}
