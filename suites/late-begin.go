package suites

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"conform/suites/chain"
)

// lateBegin is a pool whose transactions send their BEGIN together with the first statement, if that is an Exec. Of the round trips
// of an order's or an effect's transaction, which are what a chain's throughput is made of, it saves one in four.
type lateBegin struct{ *pgxpool.Pool }

var _ chain.DB = lateBegin{}

// Begin takes a connection. The error is that of the pool.
func (p lateBegin) Begin(ctx context.Context) (pgx.Tx, error) {
	conn, err := p.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return &lateTx{conn: conn}, nil
}

// lateTx is a transaction of lateBegin. What it does not have itself, savepoints and large objects, it has not at all.
type lateTx struct {
	pgx.Tx // nil

	conn          *pgxpool.Conn
	begun, closed bool
}

// start begins, for what is no Exec.
func (t *lateTx) start(ctx context.Context) error {
	if t.closed {
		return pgx.ErrTxClosed
	}
	if t.begun {
		return nil
	}
	t.begun = true
	_, err := t.conn.Exec(ctx, "begin")
	return err
}

func (t *lateTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if t.begun || t.closed {
		if err := t.start(ctx); err != nil {
			return pgconn.CommandTag{}, err
		}
		return t.conn.Exec(ctx, sql, args...)
	}
	t.begun = true
	b := &pgx.Batch{}
	b.Queue("begin")
	b.Queue(sql, args...)
	results := t.conn.SendBatch(ctx, b)
	_, err := results.Exec()
	var tag pgconn.CommandTag
	if err == nil {
		tag, err = results.Exec()
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	return tag, err
}

func (t *lateTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.start(ctx); err != nil {
		return nil, err
	}
	return t.conn.Query(ctx, sql, args...)
}

func (t *lateTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.start(ctx); err != nil {
		return failedRow{err}
	}
	return t.conn.QueryRow(ctx, sql, args...)
}

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

func (t *lateTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if err := t.start(ctx); err != nil {
		return 0, err
	}
	return t.conn.CopyFrom(ctx, table, columns, source)
}

// Commit ends the transaction, and says so as pgx does: ErrTxCommitRollback if the server has rolled it back.
func (t *lateTx) Commit(ctx context.Context) error {
	tag, err := t.end(ctx, "commit")
	if err == nil && tag == "ROLLBACK" {
		return pgx.ErrTxCommitRollback
	}
	return err
}

func (t *lateTx) Rollback(ctx context.Context) error {
	_, err := t.end(ctx, "rollback")
	return err
}

// end ends the transaction and gives the connection back: one that is not idle by then is closed by the pool.
func (t *lateTx) end(ctx context.Context, how string) (tag string, err error) {
	if t.closed {
		return "", pgx.ErrTxClosed
	}
	t.closed = true
	defer t.conn.Release()
	if !t.begun {
		return "", nil
	}
	done, err := t.conn.Exec(ctx, how)
	return done.String(), err
}
