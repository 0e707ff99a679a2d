package chain

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Progress tells how far a consumer has come on the broker.
type Progress interface {
	// Mark stands for all that the broker holds for the consumer now.
	Mark(ctx context.Context) (any, error)
	// Passed says whether the consumer is done with all that a mark stands for.
	Passed(ctx context.Context, mark any) (bool, error)
}

// Reconcile compares orders and effects, and repairs what they do not agree on. It returns how much that was. What no table and
// no book tells it cannot find: an event that came under an id already used, and was dropped without a word, is nowhere. What looks lost
// may be on its way for as long as the consumer is behind, and no age tells the two apart: so it waits for the consumer, not for
// a time. While the consumer is away it waits, and says nothing; the alarm of that is the lag.
func Reconcile(ctx context.Context, s *Service) (int, error) {
	c := s.compare()
	c.suspect(ctx)
	c.awaitConsumer(ctx) // safe: all that the broker had by then is handled now: what still lacks its effect is lost, and not late
	c.confirm(ctx)
	c.repair(ctx) // safe: under the same event ids, so that a repair too many changes nothing
	return c.repaired, c.err
}

// ReportOnly is Reconcile, but leaves everything as it is.
func ReportOnly(ctx context.Context, s *Service) (int, error) {
	c := s.compare()
	c.suspect(ctx)
	c.awaitConsumer(ctx) // safe: all that the broker had by then is handled now: what still lacks its effect is lost, and not late
	c.confirm(ctx)
	// unsafe: a list that nobody works off
	return c.repaired, c.err
}

// ReconcileByAge is Reconcile, but goes by the clock.
func ReconcileByAge(ctx context.Context, s *Service) (int, error) {
	c := s.compare()
	c.suspect(ctx)
	c.awaitAge(ctx) // unsafe: a consumer that is behind by more than that has lost nothing, and yet is called a loss
	c.confirm(ctx)
	c.repair(ctx) // safe: under the same event ids, so that a repair too many changes nothing
	return c.repaired, c.err
}

// Discrepancy is one thing that both ends of the chain do not agree on.
type Discrepancy struct {
	Kind  string // one of Discrepancies
	Event uint64
}

// discrepancy is how one kind is found and repaired. $1 is the consumer in both. find returns event ids; $2 is how long the
// orders service may be at work on one order, in seconds. repair repairs those of $2.
type discrepancy struct {
	kind   string
	find   string
	late   bool   // it may be only late: the consumer has not come to it
	proof  string // the condition on row d of discrepancy without which it is not confirmed
	repair string
}

var discrepancies = []discrepancy{
	{kind: "order without an event", late: true, find: neverWritten, repair: publishAgain},
	{kind: "published event without an effect", late: true, find: withoutEffect, repair: publishAgain},
	{kind: "row of the outbox that was given up", find: `SELECT event_id FROM outbox WHERE status = 'given up' AND $1::text <> ''`, repair: publishAgain},
	{kind: "row of the outbox that was passed over", find: passedOver, proof: overtakenSince, repair: publishAgain},
	{
		kind: "effect that happened twice",
		find: `SELECT event_id FROM notifications WHERE consumer = $1 GROUP BY event_id HAVING count(*) > 1`,
		// Here the surplus is taken back. What cannot be, a mail that was sent, is a case for a person.
		repair: `DELETE FROM notifications n USING notifications first WHERE n.consumer = $1 AND n.event_id = ANY($2)
			AND (first.consumer, first.event_id) = (n.consumer, n.event_id) AND first.id < n.id`,
	},
	{
		kind:   "effect without an order",
		find:   `SELECT DISTINCT event_id FROM notifications n WHERE consumer = $1 AND NOT EXISTS (SELECT FROM orders WHERE event_id = n.event_id)`,
		repair: `DELETE FROM notifications WHERE consumer = $1 AND event_id = ANY($2)`,
	},
	{kind: notClosed, find: openThoughSettled, repair: closeOrder},
	{kind: "second order of one wish", find: askedAgain, repair: cancelOrder},
	{kind: "state behind its newest order", late: true, find: behindNewest, repair: bringUpToDate},
	{kind: paidTwice, find: surplusPayments, repair: wantRefunds},
}

// paidTwice is of orders for which the payment service has more than one payment in its book.
const paidTwice = "order that was paid twice"

// notClosed is of orders whose payment is settled, as the intent says or, where that does not know better, the payment service.
const notClosed = "order that ought to be closed and is not"

const (
	// An effect is a notification, a receipt or, where the order is to be paid, the wish to pay. Of a key that has a state only
	// the newest order counts, which is a matter of its own.
	lacksEffect = `o.state <> 'cancelled' AND NOT EXISTS (SELECT FROM balances b WHERE b.key = o.key) AND NOT EXISTS (SELECT FROM notifications n WHERE n.event_id = o.event_id AND n.consumer = $1)
		AND NOT EXISTS (SELECT FROM receipts r WHERE r.event_id = o.event_id AND r.consumer = $1)
		AND NOT EXISTS (SELECT FROM payment_intents i WHERE i.event_id = o.event_id)
		AND NOT EXISTS (SELECT FROM dead_letter d WHERE d.event_id = o.event_id AND d.replayed_at IS NULL)`

	// Where there is no outbox, an order's publish may be under way as long as its service is at work.
	neverWritten = `SELECT o.event_id FROM orders o WHERE ` + lacksEffect + ` AND o.created_at < now() - make_interval(secs => $2)
		AND NOT EXISTS (SELECT FROM outbox x WHERE x.event_id = o.event_id)`

	// A relay has published what it has marked, or what lies before its position.
	withoutEffect = `SELECT o.event_id FROM orders o JOIN outbox x USING (event_id), relay_cursor c WHERE ` + lacksEffect + `
		AND (x.status = 'published' OR (x.xid, x.seq) <= (c.xid, c.seq))`

	// The next batch of a relay by status begins with it; one that reads on from the last id will never come back to it.
	passedOver = `SELECT event_id FROM outbox o WHERE status = 'pending' AND $1::text <> ''
		AND seq < (SELECT max(seq) FROM outbox p WHERE p.lane = o.lane AND p.status = 'published')`

	// The relay has read that lane since, without the row: what was written when the row had long been seen is published, or
	// nothing was found there.
	overtakenSince = `EXISTS (SELECT FROM outbox o JOIN outbox p USING (lane) WHERE o.event_id = d.event_id
			AND p.status = 'published' AND p.seq > o.seq AND p.created_at > d.suspected_at)
		OR EXISTS (SELECT FROM outbox o JOIN relay_lane l USING (lane) WHERE o.event_id = d.event_id AND l.nothing_at > d.suspected_at)`

	openThoughSettled = `SELECT i.event_id FROM payment_intents i JOIN orders o USING (event_id) WHERE $1::text <> ''
		AND o.state <> CASE i.status WHEN 'paid' THEN 'paid' WHEN 'refused' THEN 'cancelled' ELSE o.state END`

	askedAgain = `SELECT event_id FROM orders o
		WHERE (o.state <> 'cancelled' OR EXISTS (SELECT FROM notifications n WHERE n.event_id = o.event_id AND n.consumer = $1))
		AND EXISTS (SELECT FROM orders f WHERE f.wish = o.wish
			AND (f.created_at, f.event_id) < (o.created_at, o.event_id) AND f.state <> 'cancelled')`

	behindNewest = `SELECT DISTINCT ON (key) o.event_id FROM orders o JOIN balances b USING (key)
		WHERE b.version < o.version AND o.state <> 'cancelled' AND $1::text <> '' ORDER BY key, o.version DESC`

	surplusPayments = `SELECT reference FROM payment_book WHERE $1::text <> '' GROUP BY reference HAVING count(*) > 1`

	// The effect of the second order is taken back, as that of one that happened twice.
	cancelOrder = `WITH taken_back AS (DELETE FROM notifications WHERE consumer = $1 AND event_id = ANY($2))
		UPDATE orders SET state = 'cancelled' WHERE event_id = ANY($2)`

	bringUpToDate = `UPDATE balances b SET (event_id, version, amount) = (o.event_id, o.version, o.amount)
		FROM orders o WHERE o.event_id = ANY($2) AND o.key = b.key AND b.version < o.version AND $1::text <> ''`

	wantRefunds = `UPDATE payment_book b SET refund = true WHERE reference = ANY($2) AND $1::text <> ''
		AND EXISTS (SELECT FROM payment_book f WHERE f.reference = b.reference AND f.id < b.id)`

	// The event is published again, under its own id and at the end, where every relay will come by, and the consumer forgets
	// that it has seen it.
	publishAgain = `WITH forgotten AS (DELETE FROM inbox i WHERE consumer = $1 AND event_id = ANY($2)
			AND NOT EXISTS (SELECT FROM notifications n WHERE (n.consumer, n.event_id) = (i.consumer, i.event_id)))
		INSERT INTO outbox (event_id, key, version, amount, body)
			SELECT event_id, key, version, amount, '' FROM orders WHERE event_id = ANY($2)
		ON CONFLICT (event_id) DO UPDATE SET status = 'pending', published_at = NULL, seq = DEFAULT, xid = pg_current_xact_id()`

	closeOrder = `UPDATE orders o SET state = CASE i.status WHEN 'paid' THEN 'paid' ELSE 'cancelled' END
		FROM payment_intents i WHERE i.event_id = o.event_id AND o.event_id = ANY($2) AND i.status IN ('paid', 'refused') AND $1::text <> ''`
)

// Discrepancies lists the kinds.
func Discrepancies() []string {
	kinds := make([]string, len(discrepancies))
	for i, d := range discrepancies {
		kinds[i] = d.kind
	}
	return kinds
}

// comparison is one run of a reconciliation. After an error its methods do nothing more.
type comparison struct {
	s        *Service
	late     int // suspects that may be only late
	found    []Discrepancy
	repaired int
	err      error
}

func (s *Service) compare() *comparison { return &comparison{s: s} }

// suspect notes what does not agree now, and since when, and forgets what has come to agree.
func (c *comparison) suspect(ctx context.Context) {
	c.askPayments(ctx)
	c.do(ctx, "suspect", func(tx pgx.Tx, d discrepancy) error {
		ids, err := c.find(ctx, tx, d)
		if err != nil {
			return err
		}
		if d.late {
			c.late += len(ids)
		}
		// The time is that of the statement: whatever began after it found all there that is suspected.
		_, err = tx.Exec(ctx, `WITH away AS (DELETE FROM discrepancy WHERE kind = $1 AND found_at IS NULL AND NOT event_id = ANY($2)),
				over AS (UPDATE discrepancy SET suspected_at = NULL WHERE kind = $1 AND found_at IS NOT NULL AND NOT event_id = ANY($2))
			INSERT INTO discrepancy (kind, event_id, suspected_at) SELECT $1::text, unnest($2::bigint[]), clock_timestamp()
			ON CONFLICT (kind, event_id) DO UPDATE SET suspected_at = clock_timestamp() WHERE discrepancy.suspected_at IS NULL`, d.kind, ids)
		return err
	})
}

// awaitConsumer waits until the consumer has handled all that the broker held when it was suspected that something is missing.
func (c *comparison) awaitConsumer(ctx context.Context) {
	if c.err != nil || c.late == 0 {
		return
	}
	if c.s.Progress == nil {
		c.err = errors.New("reconcile: nobody tells how far the consumer has come")
		return
	}
	mark, err := c.s.Progress.Mark(ctx)
	for passed := false; err == nil && !passed; {
		if passed, err = c.s.Progress.Passed(ctx, mark); err == nil && !passed {
			err = c.s.sleep(ctx, c.s.poll())
		}
	}
	if err != nil {
		c.err = fmt.Errorf("await consumer: %w", err)
	}
}

// awaitAge waits for as long as a delivery usually takes.
func (c *comparison) awaitAge(ctx context.Context) {
	if c.err == nil && c.late > 0 {
		c.err = c.s.sleep(ctx, c.s.Redeliver)
	}
}

// confirm notes as found what was suspected and still does not agree.
func (c *comparison) confirm(ctx context.Context) {
	c.do(ctx, "confirm", func(tx pgx.Tx, d discrepancy) error {
		ids, err := c.find(ctx, tx, d)
		if err != nil || len(ids) == 0 {
			return err
		}
		proof := d.proof
		if proof == "" {
			proof = "true"
		}
		rows, err := tx.Query(ctx, `UPDATE discrepancy d SET found_at = coalesce(found_at, clock_timestamp())
			WHERE kind = $1 AND suspected_at IS NOT NULL AND event_id = ANY($2) AND (`+proof+`) RETURNING event_id`, d.kind, ids)
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		for _, id := range ids {
			c.s.log().WarnContext(ctx, "discrepancy", "kind", d.kind, "event", id)
			c.found = append(c.found, Discrepancy{d.kind, uint64(id)})
		}
		return err
	})
	if c.err == nil {
		_, c.err = c.s.DB.Exec(ctx, "UPDATE reconciliation SET runs = runs + 1")
	}
}

// repair repairs what was found. It is suspected again if that was in vain.
func (c *comparison) repair(ctx context.Context) {
	c.do(ctx, "repair", func(tx pgx.Tx, d discrepancy) error {
		var ids []int64
		for _, f := range c.found {
			if f.Kind == d.kind {
				ids = append(ids, int64(f.Event))
			}
		}
		if len(ids) == 0 {
			return nil
		}
		if _, err := tx.Exec(ctx, d.repair, c.s.Name, ids); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE discrepancy SET suspected_at = NULL, repaired_at = clock_timestamp() WHERE kind = $1 AND event_id = ANY($2)", d.kind, ids)
		c.repaired += len(ids)
		return err
	})
	c.refund(ctx)
}

// refund gives back what was paid twice. A refund whose answer is lost is asked for again: the book tells.
func (c *comparison) refund(ctx context.Context) {
	if c.err != nil || c.s.Payments == nil {
		return
	}
	c.err = pgx.BeginFunc(ctx, c.s.DB, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT id FROM payment_book WHERE refund ORDER BY id")
		if err != nil {
			return fmt.Errorf("find refunds: %w", err)
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		for _, id := range ids {
			if err == nil {
				err = c.s.Payments.Refund(ctx, int(id))
			}
		}
		return err
	})
}

// do does something about each kind, in one transaction.
func (c *comparison) do(ctx context.Context, what string, f func(pgx.Tx, discrepancy) error) {
	if c.err != nil {
		return
	}
	c.err = pgx.BeginFunc(ctx, c.s.DB, func(tx pgx.Tx) error {
		for _, d := range discrepancies {
			if err := f(tx, d); err != nil {
				return fmt.Errorf("%s %s: %w", what, d.kind, err)
			}
		}
		return nil
	})
}

func (c *comparison) find(ctx context.Context, tx pgx.Tx, d discrepancy) ([]int64, error) {
	args := []any{c.s.Name}
	if d.find == neverWritten {
		args = append(args, c.s.deadline().Seconds())
	}
	rows, err := tx.Query(ctx, d.find, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// askPayments looks the payments up of which the intents say that they were not made, or do not know. The service's book has
// the last word: a timeout that was taken for a refusal left the money with us and the order cancelled.
func (c *comparison) askPayments(ctx context.Context) {
	if c.err != nil || c.s.Payments == nil {
		return
	}
	c.err = pgx.BeginFunc(ctx, c.s.DB, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT event_id FROM payment_intents WHERE status IN ('refused', 'in doubt') ORDER BY updated_at DESC LIMIT $1", c.s.batch())
		if err != nil {
			return fmt.Errorf("find payments: %w", err)
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		for _, id := range ids {
			if c.s.Payments.LookUp(ctx, idempotencyKey(Event{ID: uint64(id)})) != PaymentMade {
				continue
			}
			if _, err := tx.Exec(ctx, "UPDATE payment_intents SET status = 'paid', updated_at = now() WHERE event_id = $1", id); err != nil {
				return fmt.Errorf("correct payment: %w", err)
			}
		}
		if err != nil {
			return fmt.Errorf("find payments: %w", err)
		}
		return c.copyBook(ctx, tx)
	})
}

// copyBook copies the service's book, as a provider's statement is read in: a payment that was made twice stands nowhere else.
func (c *comparison) copyBook(ctx context.Context, tx pgx.Tx) error {
	book, err := c.s.Payments.Book(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "DELETE FROM payment_book"); err != nil {
		return fmt.Errorf("copy book: %w", err)
	}
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"payment_book"}, []string{"id", "reference"}, pgx.CopyFromSlice(len(book), func(i int) ([]any, error) {
		return []any{int64(book[i].ID), int64(book[i].Reference)}, nil
	}))
	if err != nil {
		return fmt.Errorf("copy book: %w", err)
	}
	return nil
}
