package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// work is one transaction on behalf of one event. After an error, and once the result is known, its methods do nothing more.
// So a pattern reads as the list of its steps, and what a step must come before or after is seen at a glance.
type work struct {
	s      *Service
	tx     pgx.Tx
	ev     Event
	result Result // "" until it is known that the event has no work left
	err    error
}

// Result says how the work on an event ended, if not with an error.
type Result string

// The results.
const (
	Applied      Result = "applied"
	Duplicate    Result = "skipped: duplicate"
	Stale        Result = "skipped: stale"
	Settled      Result = "skipped: settled meanwhile" // a task whose order needs it no more
	OutOfDate    Result = "skipped: out of date"       // a task that is of no use any more; its row says so
	Quarantined  Result = "parked"                     // kept for a person, work not done
	DeadLettered Result = "dead-lettered"              // given up after retries
	Dropped      Result = "dropped"                    // unsafe: given up without a trace
)

// step is one statement of a transaction, or a few.
type step func(ctx context.Context, tx pgx.Tx, s *Service, ev Event) error

func (s *Service) begin(ctx context.Context, ev Event) *work {
	w := &work{s: s, ev: ev}
	w.begin(ctx)
	return w
}

func (w *work) begin(ctx context.Context) {
	if w.over() {
		return
	}
	tx, err := w.s.DB.Begin(ctx)
	if err != nil {
		w.err = fmt.Errorf("begin: %w", err)
		return
	}
	w.tx = tx
}

func (w *work) over() bool { return w.err != nil || w.result != "" }

func (w *work) do(ctx context.Context, f step) {
	if !w.over() {
		w.err = f(ctx, w.tx, w.s, w.ev)
	}
}

// at is where a crash matters.
func (w *work) at(ctx context.Context, point string) {
	if !w.over() {
		w.err = w.s.at(ctx, point, w.ev)
	}
}

// commit ends the transaction. Without an answer the error is ErrInDoubt: it may be committed or not. What a duplicate or
// stale event has done so far is rolled back.
func (w *work) commit(ctx context.Context) {
	if w.err != nil || w.result == Duplicate || w.result == Stale {
		return
	}
	err := w.tx.Commit(ctx)
	switch {
	case inDoubt(err):
		w.err = fmt.Errorf("commit: %w: %w", ErrInDoubt, err)
	case err != nil:
		w.err = fmt.Errorf("commit: %w", err)
	}
}

// nextTransaction ends the transaction and begins another: what lies before and after is no longer all or nothing.
func (w *work) nextTransaction(ctx context.Context) {
	if w.over() {
		return
	}
	w.commit(ctx)
	w.at(ctx, BetweenTransactions)
	w.begin(ctx)
}

// end rolls back what is not committed.
func (w *work) end(ctx context.Context) {
	if w.tx == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = w.tx.Rollback(ctx) // committed already, or the server will find out when the connection is gone
}

func (w *work) done() (Result, error) {
	switch {
	case w.err != nil:
		return "", w.err
	case w.result == "":
		return Applied, nil
	default:
		return w.result, nil
	}
}

// inDoubt says whether a COMMIT that ended with err may have been done all the same. Only an explicit answer settles it:
// after a lost connection or a timeout, or from a server that shuts down, either may be true.
func inDoubt(err error) bool {
	var server *pgconn.PgError
	switch {
	case err == nil, errors.Is(err, pgx.ErrTxCommitRollback), pgconn.SafeToRetry(err):
		return false
	case errors.As(err, &server):
		answered := server.SeverityUnlocalized == "ERROR"
		unknown := server.Code == "40003" || strings.HasPrefix(server.Code, "08") || strings.HasPrefix(server.Code, "XX")
		return !answered || unknown
	default:
		return true
	}
}

// exec makes a step of a statement with the parameters $1 event id, $2 key, $3 version, $4 amount and, if more is not nil,
// those that it adds.
func exec(sql string, more func(*Service, Event) []any) step {
	return func(ctx context.Context, tx pgx.Tx, s *Service, ev Event) error {
		args := []any{int64(ev.ID), int64(ev.Key), ev.Version, ev.Amount}
		if more != nil {
			args = append(args, more(s, ev)...)
		}
		_, err := tx.Exec(ctx, sql, args...)
		return err
	}
}

func body(_ *Service, ev Event) []any    { return []any{ev.Body} }
func wish(_ *Service, ev Event) []any    { return []any{int64(cmp.Or(ev.Wish, ev.ID))} }
func consumer(s *Service, _ Event) []any { return []any{s.Name} }

// scanEvent reads the columns event_id, key, version, amount, body.
func scanEvent(row pgx.CollectableRow) (Event, error) {
	var ev Event
	var id, key int64
	err := row.Scan(&id, &key, &ev.Version, &ev.Amount, &ev.Body)
	ev.ID, ev.Key = uint64(id), uint32(key)
	return ev, err
}

// queryEvents runs a query that scanEvent can read.
func queryEvents(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]Event, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanEvent)
}
