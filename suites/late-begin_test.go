package suites

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"conform/fixtures"
	"conform/harness/host"
	"conform/harness/system"
	"conform/harness/system/postgres"
)

func TestLateBegin(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL: not with -short")
	}
	version := fixtures.Versions(postgres.Name)[0]
	images, err := host.Prepare(t.Context(), host.Options{Systems: []fixtures.Version{version}})
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("needs a container engine and images: %v", err)
		}
		t.Skipf("needs a container engine and images: %v", err)
	}
	cluster, err := postgres.System{}.Start(t.Context(), system.Spec{
		Run: "late" + time.Now().Format("-150405"), Version: postgres.System{}.Versions()[0], Image: images[version.String()].Ref,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Close(context.Background()) })
	if err := cluster.(*postgres.Cluster).CreateSchema(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), cluster.(*postgres.Cluster).DSN("late", false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db := lateBegin{pool}
	if _, err := db.Exec(t.Context(), "CREATE TABLE late.t (id int PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	const insert = "INSERT INTO late.t VALUES ($1)"
	begin := func() pgx.Tx {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	rows := func() (n int) {
		if err := db.QueryRow(t.Context(), "SELECT count(*) FROM late.t").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	exec := func(tx pgx.Tx, id int) error {
		_, err := tx.Exec(t.Context(), insert, id)
		return err
	}

	tx := begin()
	if err := errors.Join(exec(tx, 1), exec(tx, 2)); err != nil {
		t.Fatal(err)
	}
	if n := rows(); n != 0 {
		t.Errorf("%d rows are visible before the commit", n)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("rollback after the commit: %v", err)
	}

	tx = begin()
	if err := errors.Join(exec(tx, 3), tx.Rollback(t.Context())); err != nil {
		t.Fatal(err)
	}
	var n int
	tx = begin() // a query first
	err = errors.Join(tx.QueryRow(t.Context(), "SELECT 7").Scan(&n), exec(tx, 4), tx.Rollback(t.Context()))
	if err != nil || n != 7 {
		t.Error(n, err)
	}
	if n := rows(); n != 2 {
		t.Errorf("%d rows after rollbacks, want 2", n)
	}

	tx = begin() // a first statement that fails
	var server *pgconn.PgError
	if err := exec(tx, 1); !errors.As(err, &server) || server.Code != "23505" {
		t.Errorf("a duplicate key: %v", err)
	}
	if err := exec(tx, 5); err == nil {
		t.Error("a transaction that failed goes on")
	}
	if err := tx.Commit(t.Context()); !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Errorf("commit of a transaction that failed: %v", err)
	}
	if err := begin().Commit(t.Context()); err != nil { // nothing was done
		t.Error(err)
	}
	if n := rows(); n != 2 {
		t.Errorf("%d rows in the end, want 2", n)
	}
	if s := pool.Stat(); s.AcquiredConns() != 0 {
		t.Errorf("%d connections are not given back", s.AcquiredConns())
	}
}
