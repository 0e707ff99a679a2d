package suites

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/system/postgres"
	"conform/harness/worker"
	"conform/suites/chain"
)

// postgresSystem is PostgreSQL beside a broker. Its clients are inside of worker roles.
var postgresSystem = harness.System{System: postgres.System{}}

// Tables of effects.
const (
	// tableNotifications is the effect of most scenarios: nothing but the consumer keeps it from happening twice.
	tableNotifications = "notifications"
	// tableReceipts has a unique business key.
	tableReceipts = "receipts"
	// tableBalances holds the newest state of each key.
	tableBalances = "balances"
	// tableOrders holds every order.
	tableOrders = "orders"
	// perConsumer after the name of a table asks for each consumer's effects apart: their Text is "table/consumer".
	perConsumer = "/"
)

// database returns the arm's PostgreSQL.
func database(e harness.Env) (*postgres.Cluster, error) {
	db, ok := e.With[postgres.Name].(*postgres.Cluster)
	if !ok {
		return nil, fmt.Errorf("find database: the suite runs without PostgreSQL: %w", system.ErrUsage)
	}
	return db, nil
}

// makeTables makes the tables of suites/chain in the arm's schema.
func makeTables(ctx context.Context, e harness.ArmEnv) error {
	db, err := database(e.Env)
	if err != nil {
		return err
	}
	// As the clients' role, so that the tables are theirs.
	config, err := pgx.ParseConfig(db.DSN(e.Client+"setup", false))
	if err != nil {
		return fmt.Errorf("make tables: the connection string cannot be read: %w", system.ErrUsage)
	}
	config.RuntimeParams["search_path"] = e.Schema
	config.RuntimeParams["synchronous_commit"] = "on" // whatever the server is set to lose, the tables are there
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("make tables: %w: %w", err, system.ErrEnvironment)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return chain.Migrate(ctx, conn)
}

// snapshotTables reads tables of suites/chain as they stand at one moment: those of effects by their names, ledger.TableOutbox,
// ledger.TableInbox and ledger.TableDeadLetter.
func snapshotTables(tables ...string) func(context.Context, harness.ArmEnv, func(ledger.Event)) error {
	return func(ctx context.Context, e harness.ArmEnv, sink func(ledger.Event)) error {
		db, err := database(e.Env)
		if err != nil {
			return err
		}
		return db.Snapshot(ctx, func(tx pgx.Tx) error {
			for _, table := range tables {
				if err := readTable(ctx, tx, e.Schema, table, sink); err != nil {
					return fmt.Errorf("read %s: %w", table, err)
				}
			}
			return nil
		})
	}
}

// readTable records each row of a table, and that it was read to its end.
func readTable(ctx context.Context, tx pgx.Tx, schema, table string, sink func(ledger.Event)) error {
	read, columns := readEffect, "event_id, key, version"
	table, apart := strings.CutSuffix(table, perConsumer)
	if apart {
		read, columns = readEffectOf(table), "event_id, key, version, consumer"
	}
	switch table {
	case ledger.TableOutbox:
		read, columns = readOutboxRow, "event_id, key, version, status"
	case ledger.TableInbox:
		read, columns = readInboxRow, "event_id, consumer"
	case ledger.TableDeadLetter:
		read, columns = readDeadLetter, "event_id, key, version, consumer, body, destination, class, attempts, first_failed_at, last_failed_at, error"
	}
	rows, err := tx.Query(ctx, "SELECT "+columns+" FROM "+pgx.Identifier{schema, table}.Sanitize())
	if err != nil {
		return err
	}
	defer rows.Close()
	end := ledger.Event{Kind: ledger.SnapshotEnd, Text: table, Detail: schema}
	for rows.Next() {
		event, err := read(rows)
		if err != nil {
			return err
		}
		if event.Text == "" {
			event.Text = table
		}
		event.At = worker.Now()
		sink(event)
		end.N++
	}
	if err := rows.Err(); err != nil {
		return err
	}
	end.At = worker.Now()
	sink(end)
	return nil
}

func readEffect(row pgx.CollectableRow) (ledger.Event, error) {
	var event, key, version int64
	err := row.Scan(&event, &key, &version)
	return ledger.Event{Kind: ledger.Effect, EventID: uint64(event), Key: uint32(key), N: version}, err
}

func readEffectOf(table string) func(pgx.CollectableRow) (ledger.Event, error) {
	return func(row pgx.CollectableRow) (ledger.Event, error) {
		var event, key, version int64
		var consumer string
		err := row.Scan(&event, &key, &version, &consumer)
		return ledger.Event{Kind: ledger.Effect, EventID: uint64(event), Key: uint32(key), N: version, Text: table + "/" + consumer}, err
	}
}

func readOutboxRow(row pgx.CollectableRow) (ledger.Event, error) {
	var event, key, version int64
	var status string
	err := row.Scan(&event, &key, &version, &status)
	return ledger.Event{Kind: ledger.OutboxRow, EventID: uint64(event), Key: uint32(key), N: version, Text: status}, err
}

func readInboxRow(row pgx.CollectableRow) (ledger.Event, error) {
	var event int64
	var consumer string
	err := row.Scan(&event, &consumer)
	return ledger.Event{Kind: ledger.InboxRow, EventID: uint64(event), Text: consumer}, err
}

func readDeadLetter(row pgx.CollectableRow) (ledger.Event, error) {
	var event, key, version int64
	var consumer string
	var body []byte
	var first, last *time.Time
	var r ledger.FailureRecord
	if err := row.Scan(&event, &key, &version, &consumer, &body, &r.Destination, &r.Class, &r.Attempts, &first, &last, &r.Error); err != nil {
		return ledger.Event{}, err
	}
	r.EventID = strconv.FormatUint(uint64(event), 10)
	for _, t := range []struct {
		text *string
		at   *time.Time
	}{{&r.FirstFailed, first}, {&r.LastFailed, last}} {
		if t.at != nil {
			*t.text = t.at.UTC().Format(time.RFC3339Nano)
		}
	}
	// The ledger must not have it even if the letter does.
	if redacted := chain.Redact(errors.New(r.Error)); redacted != r.Error {
		r.Error, r.Secret = redacted, true
	}
	// Of a content under a wrong id, the body says which event it is really.
	var id ledger.MessageID
	if n, _ := fmt.Sscanf(string(body), "%d/%d", &id.Stream, &id.Seq); n == 2 {
		event = int64(ledger.EventID(id.Stream, id.Seq))
	}
	detail, err := json.Marshal(r)
	return ledger.Event{
		Kind: ledger.Effect, EventID: uint64(event), Key: uint32(key), N: version, Text: ledger.TableDeadLetter + "/" + consumer, Detail: string(detail),
	}, err
}
