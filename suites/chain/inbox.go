package chain

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Handler does the business work of one delivery. After an error the delivery must come again.
type Handler func(ctx context.Context, s *Service, ev Event) (Result, error)

// ApplyOnce has the effect of an event once for each consumer, however often and concurrently the event comes.
func ApplyOnce(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.remember(ctx, perConsumer) // safe: unique (consumer, event id): a second delivery waits here for the first, then ends
	w.compareDigests(ctx)        // safe: a known id with another content is an alarm, not a duplicate
	// safe: what was remembered and what is done are one transaction: both happen, or neither
	w.do(ctx, notify)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// ApplyAlways is ApplyOnce without an inbox.
func ApplyAlways(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	// unsafe: nothing is remembered; every delivery has its effect
	w.compareDigests(ctx) // safe: a known id with another content is an alarm, not a duplicate
	// safe: what was remembered and what is done are one transaction: both happen, or neither
	w.do(ctx, notify)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// ApplyUnlessSeen is ApplyOnce with a check in the code instead of a constraint in the table.
func ApplyUnlessSeen(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.checkThenRemember(ctx) // unsafe: two deliveries at the same time both find nothing
	w.compareDigests(ctx)    // safe: a known id with another content is an alarm, not a duplicate
	// safe: what was remembered and what is done are one transaction: both happen, or neither
	w.do(ctx, notify)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// ApplyForOneConsumer is ApplyOnce with an inbox that is unique by event id alone.
func ApplyForOneConsumer(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.remember(ctx, perEvent) // unsafe: unique (event id): the second consumer takes the event of the first for its own
	w.compareDigests(ctx)     // safe: a known id with another content is an alarm, not a duplicate
	// safe: what was remembered and what is done are one transaction: both happen, or neither
	w.do(ctx, notify)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// ApplyAnyContent is ApplyOnce, but does not look at what it drops.
func ApplyAnyContent(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.remember(ctx, perConsumer) // safe: unique (consumer, event id): a second delivery waits here for the first, then ends
	// unsafe: another event that came under a known id is dropped without a word
	// safe: what was remembered and what is done are one transaction: both happen, or neither
	w.do(ctx, notify)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// ApplyAfterMark is ApplyOnce in two transactions, the mark first.
func ApplyAfterMark(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.remember(ctx, perConsumer) // safe: unique (consumer, event id): a second delivery waits here for the first, then ends
	w.compareDigests(ctx)        // safe: a known id with another content is an alarm, not a duplicate
	w.nextTransaction(ctx)       // unsafe: if the work now fails, or the process dies, the event passes for done
	w.do(ctx, notify)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// ApplyThenRemember is ApplyOnce with the work first. Inside of one transaction the order does not matter.
func ApplyThenRemember(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.unlessSeen(ctx) // only to spare the work: remember has the last word
	w.do(ctx, notify)
	// safe: what is done and what is remembered are one transaction: both happen, or neither
	w.remember(ctx, perConsumer)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// ApplyBeforeMark is ApplyThenRemember in two transactions.
func ApplyBeforeMark(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.unlessSeen(ctx) // only to spare the work: remember has the last word
	w.do(ctx, notify)
	w.nextTransaction(ctx) // unsafe: if the process dies now, the work is done and will be done again
	w.remember(ctx, perConsumer)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// ApplyByBusinessKey needs no inbox: the effect itself has a unique key.
func ApplyByBusinessKey(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.do(ctx, writeReceipt) // safe: the table refuses a second receipt of the same event
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// ApplyWithoutKey is ApplyByBusinessKey with a table that takes anything.
func ApplyWithoutKey(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.do(ctx, notify) // unsafe: neither the consumer nor the table knows what was done
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// PurgeInbox forgets what cannot come again, and returns how many events that were.
func PurgeInbox(ctx context.Context, s *Service) (int, error) {
	keep := max(s.Redeliver, s.Replay) // safe: longer than the broker redelivers and than anybody replays
	return s.purge(ctx, keep)
}

// PurgeInboxEarly is PurgeInbox without a thought of replays.
func PurgeInboxEarly(ctx context.Context, s *Service) (int, error) {
	keep := s.Redeliver // unsafe: an event that is replayed from the log or a dead letter after that time is new
	return s.purge(ctx, keep)
}

// The ways to remember an event. $1 is the event id, $2 the consumer, $3 the digest.
const (
	perConsumer = "INSERT INTO inbox (event_id, consumer, digest) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
	perEvent    = "INSERT INTO inbox_by_event (event_id, consumer, digest) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
)

// The effects. $5 is the consumer.
var (
	notify = exec(`INSERT INTO notifications (event_id, key, version, amount, consumer) VALUES ($1, $2, $3, $4, $5)`, consumer)

	writeReceipt = exec(`INSERT INTO receipts (event_id, key, version, amount, consumer) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (consumer, event_id) DO NOTHING`, consumer)
)

// remember writes the event into the inbox. If it is there already, it is a duplicate; if another transaction is about to
// write it, the statement waits until that one has ended.
func (w *work) remember(ctx context.Context, insert string) {
	if w.over() {
		return
	}
	tag, err := w.tx.Exec(ctx, insert, int64(w.ev.ID), w.s.Name, w.ev.Digest())
	switch {
	case err != nil:
		w.err = fmt.Errorf("remember event: %w", err)
	case tag.RowsAffected() == 0:
		w.result = Duplicate
	}
	w.at(ctx, AfterMarkSeen)
}

// compareDigests makes an alarm of a duplicate whose content is another: two events have one id.
func (w *work) compareDigests(ctx context.Context) {
	if w.err != nil || w.result != Duplicate {
		return
	}
	var other bool
	w.err = w.tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM inbox WHERE event_id = $1 AND consumer = $2 AND digest <> $3)",
		int64(w.ev.ID), w.s.Name, w.ev.Digest()).Scan(&other)
	if w.err != nil || !other {
		return
	}
	w.s.log().ErrorContext(ctx, "event id used for two contents", "event", w.ev.ID, "consumer", w.s.Name)
	conflict := Failure{}.and(fmt.Errorf("%w: event id seen with another content", ErrPermanent))
	w.err = insertLetter(ctx, w.tx, NewLetter(w.s, w.ev, conflict))
	w.result = Quarantined
}

// unlessSeen ends the work on an event that the inbox has.
func (w *work) unlessSeen(ctx context.Context) {
	w.findSeen(ctx, "SELECT EXISTS (SELECT FROM inbox WHERE event_id = $1 AND consumer = $2)")
}

// checkThenRemember does in two statements what only one can do.
func (w *work) checkThenRemember(ctx context.Context) {
	w.findSeen(ctx, "SELECT EXISTS (SELECT FROM inbox_without_key WHERE event_id = $1 AND consumer = $2)")
	w.do(ctx, func(ctx context.Context, tx pgx.Tx, s *Service, ev Event) error {
		_, err := tx.Exec(ctx, "INSERT INTO inbox_without_key (event_id, consumer, digest) VALUES ($1, $2, $3)", int64(ev.ID), s.Name, ev.Digest())
		return err
	})
	w.at(ctx, AfterMarkSeen)
}

func (w *work) findSeen(ctx context.Context, query string) {
	if w.over() {
		return
	}
	var seen bool
	w.err = w.tx.QueryRow(ctx, query, int64(w.ev.ID), w.s.Name).Scan(&seen)
	if seen {
		w.result = Duplicate
	}
}

func (s *Service) purge(ctx context.Context, keep time.Duration) (int, error) {
	tag, err := s.DB.Exec(ctx, "DELETE FROM inbox WHERE received_at < now() - make_interval(secs => $1)", keep.Seconds())
	if err != nil {
		return 0, fmt.Errorf("purge inbox: %w", err)
	}
	return int(tag.RowsAffected()), nil
}
