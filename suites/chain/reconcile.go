package chain

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Discrepancy is one thing that both ends of the chain do not agree on.
type Discrepancy struct {
	Kind  string // one of Discrepancies
	Event uint64
}

// discrepancy is how one kind is found and repaired. Both statements take $1, how old it must be in seconds, and $2, the
// consumer; what is younger may still be on its way.
type discrepancy struct {
	kind   string
	find   string // returns event ids
	repair string // repairs all that find returns
}

// discrepancies are what Reconcile looks for, in the order of the repairs: what is published again may come twice.
var discrepancies = []discrepancy{
	{
		// Whatever lost it: never published, given up by a relay, dropped by a consumer, or taken for a duplicate. It is
		// published again, under its own event id, and the consumer forgets that it has seen it.
		kind: "order without an effect",
		find: withoutEffect,
		repair: `WITH lost AS (` + withoutEffect + `), forgotten AS (DELETE FROM inbox WHERE consumer = $2 AND event_id IN (SELECT event_id FROM lost))
			INSERT INTO outbox (event_id, key, version, amount, body)
				SELECT event_id, key, version, amount, '' FROM orders WHERE event_id IN (SELECT event_id FROM lost)
			ON CONFLICT (event_id) DO UPDATE SET status = 'pending', published_at = NULL`,
	},
	{
		// A relay that reads on from the last id will never come back to it. It gets a new place, at the end.
		kind:   "row of the outbox that was passed over",
		find:   passedOver,
		repair: `UPDATE outbox SET seq = DEFAULT WHERE $2::text <> '' AND event_id IN (` + passedOver + `)`,
	},
	{
		kind: "effect that happened twice",
		find: `SELECT event_id FROM notifications WHERE consumer = $2 AND $1::float8 >= 0 GROUP BY event_id HAVING count(*) > 1`,
		// Here the surplus is taken back. What cannot be, a mail that was sent, is a case for a person.
		repair: `DELETE FROM notifications n USING notifications first
			WHERE n.consumer = $2 AND $1::float8 >= 0 AND (first.consumer, first.event_id) = (n.consumer, n.event_id) AND first.id < n.id`,
	},
	{
		kind:   "effect without an order",
		find:   withoutOrder,
		repair: `DELETE FROM notifications WHERE consumer = $2 AND event_id IN (` + withoutOrder + `)`,
	},
	{
		kind: "order that is not closed though its payment is",
		find: notClosed,
		repair: `UPDATE orders SET state = CASE i.status WHEN 'paid' THEN 'paid' ELSE 'cancelled' END
			FROM payment_intents i WHERE i.event_id = orders.event_id AND orders.event_id IN (` + notClosed + `)`,
	},
}

const (
	withoutEffect = `SELECT o.event_id FROM orders o WHERE o.created_at < now() - make_interval(secs => $1)
		AND NOT EXISTS (SELECT FROM notifications n WHERE n.event_id = o.event_id AND n.consumer = $2)
		AND NOT EXISTS (SELECT FROM dead_letter d WHERE d.event_id = o.event_id)
		AND NOT EXISTS (SELECT FROM outbox x WHERE x.event_id = o.event_id
			AND (x.status = 'pending' OR x.published_at > now() - make_interval(secs => $1)))`

	passedOver = `SELECT event_id FROM outbox o WHERE status = 'pending' AND $2::text <> '' AND created_at < now() - make_interval(secs => $1)
		AND seq < (SELECT max(seq) FROM outbox p WHERE p.lane = o.lane AND p.status = 'published')`

	withoutOrder = `SELECT event_id FROM notifications n WHERE consumer = $2 AND created_at < now() - make_interval(secs => $1)
		AND NOT EXISTS (SELECT FROM orders o WHERE o.event_id = n.event_id)`

	notClosed = `SELECT i.event_id FROM payment_intents i JOIN orders o USING (event_id) WHERE $2::text <> ''
		AND i.updated_at < now() - make_interval(secs => $1)
		AND o.state <> CASE i.status WHEN 'paid' THEN 'paid' WHEN 'refused' THEN 'cancelled' ELSE o.state END`
)

// Discrepancies lists the kinds.
func Discrepancies() []string {
	kinds := make([]string, len(discrepancies))
	for i, d := range discrepancies {
		kinds[i] = d.kind
	}
	return kinds
}

// Compare returns what orders and effects do not agree on and had Redeliver (0 = 1 min) to come to agree on.
func Compare(ctx context.Context, s *Service) ([]Discrepancy, error) {
	var found []Discrepancy
	err := pgx.BeginFunc(ctx, s.DB, func(tx pgx.Tx) error {
		for _, d := range discrepancies {
			of, err := s.find(ctx, tx, d)
			if err != nil {
				return err
			}
			found = append(found, of...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("compare orders and effects: %w", err)
	}
	return found, nil
}

// Reconcile repairs what Compare finds, and returns how much that was. Each kind is found and repaired in one transaction, and
// what is repaired is found again if that was in vain.
func Reconcile(ctx context.Context, s *Service) (int, error) {
	n := 0
	for _, d := range discrepancies {
		err := pgx.BeginFunc(ctx, s.DB, func(tx pgx.Tx) error {
			found, err := s.find(ctx, tx, d)
			if err != nil || len(found) == 0 {
				return err
			}
			for _, f := range found {
				s.log().WarnContext(ctx, "discrepancy", "kind", f.Kind, "event", f.Event)
			}
			n += len(found)
			_, err = tx.Exec(ctx, d.repair, s.grace().Seconds(), s.Name)
			return err
		})
		if err != nil {
			return n, fmt.Errorf("repair %s: %w", d.kind, err)
		}
	}
	return n, nil
}

// ReportOnly finds and repairs nothing.
func ReportOnly(ctx context.Context, s *Service) (int, error) {
	found, err := Compare(ctx, s)
	for _, f := range found {
		s.log().WarnContext(ctx, "discrepancy", "kind", f.Kind, "event", f.Event)
	}
	return len(found), err
}

func (s *Service) find(ctx context.Context, tx pgx.Tx, d discrepancy) ([]Discrepancy, error) {
	rows, err := tx.Query(ctx, d.find, s.grace().Seconds(), s.Name)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	found := make([]Discrepancy, len(ids))
	for i, id := range ids {
		found[i] = Discrepancy{d.kind, uint64(id)}
	}
	return found, err
}

// grace is how long an order may take to its effect before its absence is one.
func (s *Service) grace() time.Duration { return cmp.Or(s.Redeliver, time.Minute) }
