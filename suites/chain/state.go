package chain

import "context"

// ApplyState sets the state of a key to what the event says, unless a newer event was first. It needs no inbox.
func ApplyState(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.change(ctx, ifNewer, Stale) // safe: the versions are compared by the update itself
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// OverwriteState is ApplyState, but takes the order of arrival for the order of business.
func OverwriteState(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.change(ctx, always, Stale) // unsafe: an old event that comes late undoes a newer one
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// PayOrder moves an order from new to paid, and says so. A command that comes again finds it paid.
func PayOrder(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.change(ctx, fromNew, Duplicate) // safe: only an order that is new becomes paid; else there is nothing more to do
	w.do(ctx, notify)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// PayOrderAnyway is PayOrder, but does not look at the state.
func PayOrderAnyway(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.change(ctx, fromAny, Duplicate) // unsafe: a paid order becomes paid again, and all that follows happens again
	w.do(ctx, notify)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.done()
}

// The changes of a state. $1 is the event id, $2 the key, $3 the version, $4 the amount.
const (
	ifNewer = `INSERT INTO balances AS b (event_id, key, version, amount) VALUES ($1, $2, $3, $4)
		ON CONFLICT (key) DO UPDATE SET (event_id, version, amount) = (excluded.event_id, excluded.version, excluded.amount)
		WHERE b.version < excluded.version`
	always = `INSERT INTO balances AS b (event_id, key, version, amount) VALUES ($1, $2, $3, $4)
		ON CONFLICT (key) DO UPDATE SET (event_id, version, amount) = (excluded.event_id, excluded.version, excluded.amount)`

	fromNew = "UPDATE orders SET state = 'paid' WHERE (event_id, key, version, amount) = ($1, $2, $3, $4) AND state = 'new'"
	fromAny = "UPDATE orders SET state = 'paid' WHERE (event_id, key, version, amount) = ($1, $2, $3, $4)"
)

// change runs an update. If it changed nothing, the work is over with the given result.
func (w *work) change(ctx context.Context, update string, otherwise Result) {
	if w.over() {
		return
	}
	tag, err := w.tx.Exec(ctx, update, int64(w.ev.ID), int64(w.ev.Key), w.ev.Version, w.ev.Amount)
	w.err = err
	if tag.RowsAffected() == 0 {
		w.result = otherwise
	}
}
