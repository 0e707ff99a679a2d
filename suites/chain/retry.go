package chain

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Retry handles an event until it succeeds, is known to have succeeded, or is given up and kept as a dead letter. It holds
// up its lane meanwhile, so that the order of a key is kept.
func Retry(ctx context.Context, s *Service, handle Handler, ev Event) (Result, error) {
	for f := (Failure{}); ; {
		result, err := handle(ctx, s, ev)
		if err == nil || ctx.Err() != nil {
			return result, err
		}
		f = f.and(err)
		if f.Class == Unknown {
			done, err := s.applied(ctx, ev) // safe: the work may be done: find out before doing it again
			if done || err != nil {
				return Applied, err
			}
		}
		next := f.next(s.tries()) // safe: what cannot succeed is kept at once, all else after the last try
		if next != again {
			return s.giveUpOn(ctx, ev, f, next)
		}
		if !s.pause(ctx, ev, f.Attempts) {
			return "", ctx.Err()
		}
	}
}

// RetryForever is Retry without an end.
func RetryForever(ctx context.Context, s *Service, handle Handler, ev Event) (Result, error) {
	for f := (Failure{}); ; {
		result, err := handle(ctx, s, ev)
		if err == nil || ctx.Err() != nil {
			return result, err
		}
		f = f.and(err)
		if f.Class == Unknown {
			done, err := s.applied(ctx, ev) // safe: the work may be done: find out before doing it again
			if done || err != nil {
				return Applied, err
			}
		}
		next := again // unsafe: an event that can never succeed holds up all that come after it
		if next != again {
			return s.giveUpOn(ctx, ev, f, next)
		}
		if !s.pause(ctx, ev, f.Attempts) {
			return "", ctx.Err()
		}
	}
}

// RetryNever is Retry without a second try and without a dead letter.
func RetryNever(ctx context.Context, s *Service, handle Handler, ev Event) (Result, error) {
	for f := (Failure{}); ; {
		result, err := handle(ctx, s, ev)
		if err == nil || ctx.Err() != nil {
			return result, err
		}
		f = f.and(err)
		if f.Class == Unknown {
			done, err := s.applied(ctx, ev) // safe: the work may be done: find out before doing it again
			if done || err != nil {
				return Applied, err
			}
		}
		next := drop // unsafe: a failure that would have passed by itself costs the event, and nobody has it
		if next != again {
			return s.giveUpOn(ctx, ev, f, next)
		}
		if !s.pause(ctx, ev, f.Attempts) {
			return "", ctx.Err()
		}
	}
}

// RetryAsNew is Retry, but takes an unknown outcome for a failure.
func RetryAsNew(ctx context.Context, s *Service, handle Handler, ev Event) (Result, error) {
	for f := (Failure{}); ; {
		result, err := handle(ctx, s, ev)
		if err == nil || ctx.Err() != nil {
			return result, err
		}
		f = f.and(err)
		if f.Class == Unknown {
			done, err := s.renew(&ev) // unsafe: under another id the work is done again, if it was done
			if done || err != nil {
				return Applied, err
			}
		}
		next := f.next(s.tries()) // safe: what cannot succeed is kept at once, all else after the last try
		if next != again {
			return s.giveUpOn(ctx, ev, f, next)
		}
		if !s.pause(ctx, ev, f.Attempts) {
			return "", ctx.Err()
		}
	}
}

// NewLetter is all that a person needs to decide what becomes of an event.
func NewLetter(s *Service, ev Event, f Failure) Letter {
	return Letter{
		Event:       ev,
		Consumer:    s.Name,
		Destination: s.Destination,
		Class:       f.Class,
		Failed:      f.Span,        // safe: since when, until when, how often
		Error:       Redact(f.Err), // safe: whoever may read dead letters need not know passwords
	}
}

// NewLetterWithSecrets is NewLetter with the error as it came.
func NewLetterWithSecrets(s *Service, ev Event, f Failure) Letter {
	return Letter{
		Event:       ev,
		Consumer:    s.Name,
		Destination: s.Destination,
		Class:       f.Class,
		Failed:      f.Span,        // safe: since when, until when, how often
		Error:       f.Err.Error(), // unsafe: errors quote requests, and requests carry tokens
	}
}

// NewLetterWithoutTimes is NewLetter without a part.
func NewLetterWithoutTimes(s *Service, ev Event, f Failure) Letter {
	return Letter{
		Event:       ev,
		Consumer:    s.Name,
		Destination: s.Destination,
		Class:       f.Class,
		// unsafe: nobody can tell an outage from a bad event, or see what is old
		Error: Redact(f.Err), // safe: whoever may read dead letters need not know passwords
	}
}

// Replay publishes a dead letter again. It may be done twice.
func Replay(ctx context.Context, s *Service, event uint64) error {
	w := s.begin(ctx, Event{ID: event})
	defer w.end(ctx)
	ev := w.lockLetter(ctx)
	ev.ID = event // safe: the same event id: consumers that have applied it see a duplicate
	w.publish(ctx, ev)
	w.do(ctx, markReplayed)
	w.commit(ctx)
	return w.err
}

// ReplayAsNew is Replay, but makes another event of it.
func ReplayAsNew(ctx context.Context, s *Service, event uint64) error {
	w := s.begin(ctx, Event{ID: event})
	defer w.end(ctx)
	ev := w.lockLetter(ctx)
	ev.ID = s.NewID() // unsafe: every replay is applied
	w.publish(ctx, ev)
	w.do(ctx, markReplayed)
	w.commit(ctx)
	return w.err
}

// Class says whether trying again helps.
type Class string

// The classes of errors.
const (
	Temporary Class = "temporary" // nothing was done; it may succeed later
	Permanent Class = "permanent" // nothing was done; it will never succeed
	Unknown   Class = "unknown"   // it may have been done
)

// Errors by which a handler says what it knows. ErrInDoubt makes an error Unknown.
var (
	ErrTemporary = errors.New("temporary")
	ErrPermanent = errors.New("permanent")
)

// Classify says what an error means for the next attempt. What it does not know is Unknown.
func Classify(err error) Class {
	var server *pgconn.PgError
	var dial *net.OpError
	switch {
	case errors.Is(err, ErrInDoubt):
		return Unknown
	case errors.Is(err, ErrPermanent):
		return Permanent
	case errors.Is(err, ErrTemporary), errors.Is(err, ErrBusy), errors.Is(err, ErrRefused):
		return Temporary
	case errors.As(err, &server):
		return classOfState(server.Code)
	case pgconn.SafeToRetry(err), errors.As(err, &dial) && dial.Op == "dial":
		return Temporary // nothing was sent
	default: // a timeout, a connection that broke, an error that nobody has thought of
		return Unknown
	}
}

// classOfState classifies an error code of PostgreSQL (documentation, appendix A) by its class. It is not about COMMIT: that
// is in doubt, or failed like any statement.
func classOfState(code string) Class {
	switch code[:min(2, len(code))] {
	case "08", "40", "53", "55", "57": // connection, rollback, resources, lock not available, operator intervention
		return Temporary
	case "22", "23", "42": // data, constraint, syntax or access rule
		return Permanent
	default:
		return Unknown
	}
}

// Span is when and how often something failed.
type Span struct {
	Attempts    int
	First, Last time.Time
}

// Failure is the history of an event that failed.
type Failure struct {
	Span
	Class Class
	Err   error // the last one
}

// and adds an error.
func (f Failure) and(err error) Failure {
	f.Attempts++
	f.Last = time.Now()
	if f.Attempts == 1 {
		f.First = f.Last
	}
	f.Class, f.Err = Classify(err), err
	return f
}

// next says what to do after a failure.
func (f Failure) next(tries int) decision {
	if f.Class == Permanent || f.Attempts >= tries {
		return quarantine
	}
	return again
}

type decision string

const (
	again      decision = "again"
	quarantine decision = "quarantine"
	drop       decision = "drop" // unsafe
)

// giveUpOn ends the attempts at an event.
func (s *Service) giveUpOn(ctx context.Context, ev Event, f Failure, how decision) (Result, error) {
	if how == drop {
		s.log().WarnContext(ctx, "event dropped", "event", ev.ID, "error", Redact(f.Err))
		return Dropped, nil
	}
	return DeadLettered, s.deadLetter(ctx, ev, f)
}

// deadLetter keeps an event that was given up.
func (s *Service) deadLetter(ctx context.Context, ev Event, f Failure) error {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.do(ctx, func(ctx context.Context, tx pgx.Tx, s *Service, ev Event) error {
		return insertLetter(ctx, tx, s.letter(ev, f))
	})
	w.commit(ctx)
	if w.err != nil {
		return fmt.Errorf("keep dead letter: %w", w.err)
	}
	return nil
}

// applied asks whether the event has had its effect.
func (s *Service) applied(ctx context.Context, ev Event) (done bool, err error) {
	if s.Applied != nil {
		done, err = s.Applied(ctx, ev)
	} else {
		err = s.DB.QueryRow(ctx, "SELECT EXISTS (SELECT FROM inbox WHERE event_id = $1 AND consumer = $2)", int64(ev.ID), s.Name).Scan(&done)
	}
	if err != nil {
		return false, fmt.Errorf("look up effect: %w", err)
	}
	return done, nil
}

// renew has nothing to find out.
func (s *Service) renew(ev *Event) (done bool, err error) {
	*ev = s.asNew(*ev)
	return false, nil
}

// Letter is the record of an event that was given up.
type Letter struct {
	Event       Event
	Consumer    string
	Destination string
	Class       Class
	Failed      Span
	Error       string
}

func (s *Service) letter(ev Event, f Failure) Letter {
	if s.Letter != nil {
		return s.Letter(s, ev, f)
	}
	return NewLetter(s, ev, f)
}

func insertLetter(ctx context.Context, tx pgx.Tx, l Letter) error {
	_, err := tx.Exec(ctx, `INSERT INTO dead_letter AS d (consumer, event_id, digest, key, version, amount, body, destination, class,
			attempts, first_failed_at, last_failed_at, error)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
		ON CONFLICT (consumer, event_id, digest) DO UPDATE SET class = excluded.class, attempts = d.attempts + excluded.attempts,
			last_failed_at = excluded.last_failed_at, error = excluded.error, replayed_at = NULL`,
		l.Consumer, int64(l.Event.ID), l.Event.Digest(), int64(l.Event.Key), l.Event.Version, l.Event.Amount, l.Event.Body, l.Destination,
		string(l.Class), l.Failed.Attempts, orNull(l.Failed.First), orNull(l.Failed.Last), l.Error)
	return err
}

func orNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

// lockLetter returns the event of the letter that has waited longest under the id of w's event.
func (w *work) lockLetter(ctx context.Context) (ev Event) {
	w.do(ctx, func(ctx context.Context, tx pgx.Tx, s *Service, of Event) error {
		letters, err := queryEvents(ctx, tx, `SELECT event_id, key, version, amount, body FROM dead_letter
			WHERE event_id = $1 AND consumer = $2 ORDER BY quarantined_at LIMIT 1 FOR UPDATE`, int64(of.ID), s.Name)
		if err != nil {
			return fmt.Errorf("read dead letter: %w", err)
		}
		if len(letters) == 0 {
			return fmt.Errorf("read dead letter: none for event %d of %s", of.ID, s.Name)
		}
		ev = letters[0]
		return nil
	})
	return ev
}

var markReplayed step = func(ctx context.Context, tx pgx.Tx, s *Service, ev Event) error {
	_, err := tx.Exec(ctx, "UPDATE dead_letter SET replayed_at = now() WHERE event_id = $1 AND consumer = $2", int64(ev.ID), s.Name)
	return err
}

// OldestLetter is the alarm: it returns how many dead letters nobody has taken care of, and the age of the oldest in
// seconds. Raise it when the age passes what the business can wait.
const OldestLetter = `SELECT count(*), coalesce(extract(epoch FROM now() - min(quarantined_at)), 0)::bigint
FROM dead_letter WHERE replayed_at IS NULL`

// secrets finds what looks like one: a password in a URL, and what follows a telling name.
var secrets = []*regexp.Regexp{
	regexp.MustCompile(`(://[^:/@\s]*:)[^@\s]+(@)`),
	regexp.MustCompile(`(?i)((?:password|passwd|pwd|secret|token|api[-_]?key|authorization)["']?\s*[:=]\s*["']?(?:(?:bearer|basic)\s+)?)[^\s"',;&]+()`),
	regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{8,}()`),
}

// Redact returns the text of an error without what looks like a secret. Better still is an error that has none.
func Redact(err error) string {
	text := err.Error()
	for _, secret := range secrets {
		text = secret.ReplaceAllString(text, "${1}***${2}")
	}
	return strings.ToValidUTF8(text, "?")
}
