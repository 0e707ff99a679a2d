package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Send publishes an event that has no outbox. If it returns nil, the event is the producer's responsibility: confirmed by
// the broker, or kept for the resend job. With an asynchronous client, what stands in the if is its error callback.
func Send(ctx context.Context, s *Service, ev Event) error {
	err := s.publishOne(ctx, ev)
	if err != nil {
		err = s.keep(ctx, ev, err) // safe: a row of the retry table; ResendDue goes on from there
	}
	return err
}

// SendOrLog is Send, but the error ends in a log.
func SendOrLog(ctx context.Context, s *Service, ev Event) error {
	err := s.publishOne(ctx, ev)
	if err != nil {
		err = s.swallow(ctx, ev, err) // unsafe: the caller believes that the event was sent, and nobody sends it
	}
	return err
}

// SendInTime is Send for a request that somebody waits for: it tries again, but not for ever, and not for any number of
// callers at once.
func SendInTime(ctx context.Context, s *Service, ev Event) error {
	attempt, cancel := context.WithTimeout(ctx, s.deadline()) // safe: then the event goes to the retry table, and the caller on
	defer cancel()
	err := s.enter(attempt)
	if err == nil {
		err = s.publishUntilDone(attempt, ev)
		s.leave()
	}
	if err != nil {
		err = s.keep(ctx, ev, err)
	}
	return err
}

// SendWhateverItTakes is SendInTime without a deadline.
func SendWhateverItTakes(ctx context.Context, s *Service, ev Event) error {
	attempt, cancel := context.WithCancel(ctx) // unsafe: when the broker is away every caller hangs here, and soon the whole service
	defer cancel()
	err := s.enter(attempt)
	if err == nil {
		err = s.publishUntilDone(attempt, ev)
		s.leave()
	}
	if err != nil {
		err = s.keep(ctx, ev, err)
	}
	return err
}

// SendUntilConfirmed sends an event again as long as its fate is unknown.
func SendUntilConfirmed(ctx context.Context, s *Service, ev Event) error {
	err := s.publishOne(ctx, ev)
	for attempt := 1; isUnconfirmed(err) && s.pause(ctx, ev, attempt); attempt++ {
		err = stillInDoubt(s.publishOne(ctx, ev)) // safe: the same event id: if both arrive, they are one event
	}
	return err
}

// SendAgainAsNew is SendUntilConfirmed, but takes a timeout for a failure.
func SendAgainAsNew(ctx context.Context, s *Service, ev Event) error {
	err := s.publishOne(ctx, ev)
	for attempt := 1; isUnconfirmed(err) && s.pause(ctx, ev, attempt); attempt++ {
		err = stillInDoubt(s.publishOne(ctx, s.asNew(ev))) // unsafe: if the first did arrive, this is a second event
	}
	return err
}

// resendTries and resendBackoff: 1, 2, 4 s and so on, five tries in all; then the event is a dead letter.
const resendTries = 5

var resendBackoff = Backoff{First: time.Second, Max: 16 * time.Second}

// ResendDue sends what is due of the retry table, under the same event ids, and returns how many events it took up. Many may
// run. The order of a key is not kept: use an outbox where it matters.
func ResendDue(ctx context.Context, s *Service) (int, error) {
	w := s.begin(ctx, Event{})
	defer w.end(ctx)
	due := w.read(ctx, `SELECT event_id, key, version, amount, body FROM retry_queue
		WHERE next_at <= now() ORDER BY next_at, event_id LIMIT $1 FOR UPDATE SKIP LOCKED`)
	for _, ev := range due {
		if err := s.publishOne(ctx, ev); err != nil {
			w.postpone(ctx, ev, err)
		} else {
			w.resent(ctx, ev)
		}
	}
	w.commit(ctx)
	return len(due), w.err
}

func (s *Service) publishOne(ctx context.Context, ev Event) error {
	if err := s.at(ctx, BeforePublish, ev); err != nil {
		return err
	}
	if err := s.Publisher.Publish(ctx, ev); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return s.at(ctx, AfterConfirm, ev)
}

func (s *Service) publishUntilDone(ctx context.Context, ev Event) error {
	err := s.publishOne(ctx, ev)
	for attempt := 1; err != nil && s.pause(ctx, ev, attempt); attempt++ {
		err = s.publishOne(ctx, ev)
	}
	return err
}

// isUnconfirmed says whether the broker may have the event.
func isUnconfirmed(err error) bool { return err != nil && !errors.Is(err, ErrRefused) }

// keep writes an event that could not be published into the retry table. The request may have used up its time by then.
func (s *Service) keep(ctx context.Context, ev Event, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.deadline())
	defer cancel()
	_, err := s.DB.Exec(ctx, `INSERT INTO retry_queue (event_id, key, version, amount, body, next_at, first_failed_at, last_failed_at, error)
		VALUES ($1, $2, $3, $4, $5, now() + make_interval(secs => $6), now(), now(), $7) ON CONFLICT (event_id) DO NOTHING`,
		int64(ev.ID), int64(ev.Key), ev.Version, ev.Amount, ev.Body, resendBackoff.Delay(ev.ID, 1).Seconds(), Redact(cause))
	if err != nil {
		return fmt.Errorf("keep event for resending: %w; %w", err, cause)
	}
	return nil
}

// swallow is an error callback as it is often written.
func (s *Service) swallow(ctx context.Context, ev Event, cause error) error {
	s.log().ErrorContext(ctx, "publish failed", "event", ev.ID, "error", Redact(cause))
	return nil
}

// enter waits for a place among the callers that may wait for the broker.
func (s *Service) enter(ctx context.Context) error {
	if s.Callers == nil {
		return nil
	}
	select {
	case s.Callers <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("too many callers wait for the broker: %w", ctx.Err())
	}
}

func (s *Service) leave() {
	if s.Callers != nil {
		<-s.Callers
	}
}

func (s *Service) deadline() time.Duration { return cmp.Or(s.Deadline, 5*time.Second) }

func (w *work) resent(ctx context.Context, ev Event) {
	w.do(ctx, func(ctx context.Context, tx pgx.Tx, _ *Service, _ Event) error {
		_, err := tx.Exec(ctx, "DELETE FROM retry_queue WHERE event_id = $1", int64(ev.ID))
		return err
	})
}

// postpone counts a failed attempt. After the last one the event moves to the dead letters.
func (w *work) postpone(ctx context.Context, ev Event, cause error) {
	w.do(ctx, func(ctx context.Context, tx pgx.Tx, s *Service, _ Event) error {
		f := Failure{}.and(cause)
		err := tx.QueryRow(ctx, `UPDATE retry_queue SET attempts = attempts + 1, last_failed_at = now(), error = $2
			WHERE event_id = $1 RETURNING attempts, first_failed_at`, int64(ev.ID), Redact(cause)).Scan(&f.Attempts, &f.First)
		switch {
		case err != nil:
			return fmt.Errorf("postpone event: %w", err)
		case f.Attempts < resendTries:
			_, err = tx.Exec(ctx, "UPDATE retry_queue SET next_at = now() + make_interval(secs => $2) WHERE event_id = $1",
				int64(ev.ID), resendBackoff.Delay(ev.ID, f.Attempts+1).Seconds())
			return err
		default:
			if err := insertLetter(ctx, tx, s.letter(ev, f)); err != nil {
				return fmt.Errorf("keep dead letter: %w", err)
			}
			_, err = tx.Exec(ctx, "DELETE FROM retry_queue WHERE event_id = $1", int64(ev.ID))
			return err
		}
	})
}
