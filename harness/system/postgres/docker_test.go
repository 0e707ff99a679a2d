package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"conform/fixtures"
	"conform/harness/host"
	"conform/harness/internal/container"
	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/system/systemtest"
)

func TestMain(m *testing.M) {
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	os.Exit(m.Run())
}

// startServer starts a server that is removed after the test, and checks that nothing of it is left then.
func startServer(t *testing.T, version string, settings map[string]string) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a container: not with -short")
	}
	v, err := fixtures.ParseVersion(Name + ":" + version)
	if err != nil {
		t.Fatal(err)
	}
	images, err := host.Prepare(t.Context(), host.Options{Systems: []fixtures.Version{v}})
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("needs a container engine and an image of %s: %v", v, err)
		}
		t.Skipf("needs a container engine and an image of %s: %v", v, err)
	}
	run := "test-" + strings.ToLower(regexp.MustCompile(`[^A-Za-z]+`).ReplaceAllString(t.Name(), "-")) + time.Now().Format("-150405.000")
	c, err := System{}.Start(t.Context(), system.Spec{Run: run, Version: version, Image: images[v.String()].Ref, Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for range 2 {
			if err := c.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		nothingLeft(ctx, t, run)
	})
	return c.(*Cluster)
}

func nothingLeft(ctx context.Context, t *testing.T, run string) {
	t.Helper()
	e, err := container.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := e.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.Owner.Run == run {
			t.Errorf("%s %s is left", o.Kind, o.Name)
		}
	}
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func mustExec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// newTable makes a schema of its own with a table t(id).
func newTable(t *testing.T, c *Cluster, schema string) {
	t.Helper()
	if err := c.CreateSchema(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, c.DSN("setup", false))
	mustExec(t, conn, "CREATE TABLE "+schema+".t (id bigint PRIMARY KEY)")
}

func ids(t *testing.T, c *Cluster, schema string) []int64 {
	t.Helper()
	var found []int64
	err := c.Snapshot(t.Context(), func(tx pgx.Tx) error {
		rows, err := tx.Query(t.Context(), "SELECT id FROM "+schema+".t ORDER BY id")
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func evidence(t *testing.T, i system.Injection) system.Evidence {
	t.Helper()
	e, err := i.Evidence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// The ways in which a client can commit.
var commits = map[string]func(ctx context.Context, conn *pgx.Conn, schema string, id int64) error{
	"simple": func(ctx context.Context, conn *pgx.Conn, schema string, id int64) error {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "INSERT INTO "+schema+".t VALUES ($1)", id); err != nil {
			return err
		}
		return tx.Commit(ctx)
	},
	"extended": func(ctx context.Context, conn *pgx.Conn, schema string, id int64) error {
		pg := conn.PgConn()
		for _, sql := range []string{"begin", fmt.Sprintf("INSERT INTO %s.t VALUES (%d)", schema, id), "/* now */ COMMIT"} {
			if r := pg.ExecParams(ctx, sql, nil, nil, nil, nil).Read(); r.Err != nil {
				return r.Err
			}
		}
		return nil
	},
	"prepared": func(ctx context.Context, conn *pgx.Conn, schema string, id int64) error {
		pg := conn.PgConn()
		if _, err := pg.Prepare(ctx, "the end", "commit", nil); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, fmt.Sprintf("begin; INSERT INTO %s.t VALUES (%d)", schema, id)); err != nil {
			return err
		}
		return pg.ExecPrepared(ctx, "the end", nil, nil, nil).Read().Err
	},
	"batch": func(ctx context.Context, conn *pgx.Conn, schema string, id int64) error {
		b := &pgx.Batch{}
		b.Queue("begin")
		b.Queue("INSERT INTO "+schema+".t VALUES ($1)", id)
		b.Queue("commit")
		return conn.SendBatch(ctx, b).Close()
	},
}

func TestServer(t *testing.T) {
	for _, version := range []string{"18", "17"} {
		t.Run(version, func(t *testing.T) {
			c := startServer(t, version, map[string]string{"max_connections": "25"})
			t.Logf("ready after %s", c.Startup())
			node := c.Nodes()[0]

			t.Run("settings", func(t *testing.T) {
				conn := connect(t, c.DSN("settings", false))
				var got, settings string
				if err := conn.QueryRow(t.Context(), "SELECT current_setting('server_version')").Scan(&got); err != nil {
					t.Fatal(err)
				}
				if !strings.HasPrefix(got, version) {
					t.Errorf("version %s, want %s", got, version)
				}
				if err := conn.QueryRow(t.Context(), "SHOW max_connections").Scan(&settings); err != nil || settings != "25" {
					t.Errorf("max_connections %q, %v", settings, err)
				}
				if c.Settings()["max_connections"] != "25" {
					t.Errorf("Settings() = %v", c.Settings())
				}
				mib, err := c.MemoryMiB(t.Context())
				t.Logf("memory %v MiB", mib)
				if err != nil || mib[nodeName] == 0 {
					t.Errorf("memory %v, %v", mib, err)
				}
			})
			t.Run("battery", func(t *testing.T) { testBattery(t, c) })
			t.Run("commit", func(t *testing.T) { testCommits(t, c) })
			t.Run("autocommit", func(t *testing.T) { testAutocommit(t, c) })
			t.Run("outcomes", func(t *testing.T) { testOutcomes(t, c) })
			t.Run("schema", func(t *testing.T) { testSchema(t, c) })
			t.Run("connections", func(t *testing.T) { testConnections(t, c) })
			t.Run("link", func(t *testing.T) { testLink(t, c) })
			t.Run("pause", func(t *testing.T) { testPause(t, c) })
			t.Run("kill", func(t *testing.T) { testKill(t, c) })
			t.Run("stop", func(t *testing.T) { testStop(t, c) })
			t.Run("disk", func(t *testing.T) { testDisk(t, c) })
			t.Run("log", func(t *testing.T) {
				var b bytes.Buffer
				if err := c.CollectLog(t.Context(), node, &b); err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(b.String(), "ready to accept connections") {
					t.Errorf("log says nothing of a start:\n%s", b.String())
				}
				if strings.Contains(b.String(), c.password) {
					t.Error("the password is in the log")
				}
			})
			if err := c.Baseline(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// testBattery runs the part of the battery of all adapters that needs no producer.
func testBattery(t *testing.T, c *Cluster) {
	for _, check := range systemtest.Checks() {
		if !slices.Contains([]string{"identity", "logs"}, check.Name) {
			continue
		}
		t.Run(check.Name, func(t *testing.T) {
			if err := check.Run(t.Context(), systemtest.Bench{Cluster: c}); err != nil {
				t.Error(err)
			}
		})
	}
}

func testCommits(t *testing.T, c *Cluster) {
	node := c.Nodes()[0]
	for name, commit := range commits {
		t.Run(name, func(t *testing.T) {
			newTable(t, c, "commits_"+name)
			before := c.WireCounts(node, name)
			if err := commit(t.Context(), connect(t, c.DSN(name, false)), "commits_"+name, 1); err != nil {
				t.Fatal(err)
			}
			answer, err := c.DropResponse(t.Context(), node, system.WireRule{Kind: KindCommit, Client: name})
			if err != nil {
				t.Fatal(err)
			}
			if e := evidence(t, answer); e.Bit {
				t.Errorf("bitten before anything came: %+v", e)
			}
			err = commit(t.Context(), connect(t, c.DSN(name, false)), "commits_"+name, 2)
			if CommitOutcome(err) != ledger.InDoubt {
				t.Errorf("answer lost: %v", err)
			}
			if e := evidence(t, answer); !e.Bit || e.Count != 1 {
				t.Errorf("answer lost: %+v", e)
			}
			request, err := c.DropRequest(t.Context(), node, system.WireRule{Kind: KindCommit, Client: name, Nth: 2})
			if err != nil {
				t.Fatal(err)
			}
			conn := connect(t, c.DSN(name, false))
			if err := commit(t.Context(), conn, "commits_"+name, 3); err != nil {
				t.Errorf("the first is not picked: %v", err)
			}
			if name == "prepared" {
				mustExec(t, conn, "DEALLOCATE ALL")
			}
			err = commit(t.Context(), conn, "commits_"+name, 4)
			if CommitOutcome(err) != ledger.InDoubt {
				t.Errorf("request lost: %v", err)
			}
			if e := evidence(t, request); !e.Bit || e.Count != 1 {
				t.Errorf("request lost: %+v", e)
			}
			other := connect(t, c.DSN("bystander", false))
			if err := commit(t.Context(), other, "commits_"+name, 5); err != nil {
				t.Errorf("another client: %v", err)
			}
			for _, i := range []system.Injection{answer, request, answer} {
				if err := i.Heal(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if e := evidence(t, answer); !e.Bit {
				t.Errorf("healed: %+v", e)
			}
			if err := c.Baseline(t.Context()); err != nil {
				t.Error(err)
			}
			if got, want := fmt.Sprint(ids(t, c, "commits_"+name)), "[1 2 3 5]"; got != want {
				t.Errorf("rows %s, want %s", got, want)
			}
			got := c.WireCounts(node, name)
			got.Sent -= before.Sent
			got.Confirmed -= before.Confirmed
			if got.Sent != 3 || got.Confirmed != 2 || got.Refused != 0 {
				t.Errorf("counted %+v, want 3 sent and 2 confirmed", got)
			}
		})
	}
}

// testAutocommit: a statement outside of BEGIN is committed when its whole reply is swallowed, in both protocols.
func testAutocommit(t *testing.T, c *Cluster) {
	newTable(t, c, "autocommit")
	for i, sql := range []func(*pgx.Conn) error{
		func(conn *pgx.Conn) error {
			_, err := conn.Exec(t.Context(), "INSERT INTO autocommit.t VALUES (0)")
			return err
		},
		func(conn *pgx.Conn) error {
			_, err := conn.Exec(t.Context(), "INSERT INTO autocommit.t VALUES ($1)", 1)
			return err
		},
		func(conn *pgx.Conn) error {
			var s string
			return conn.QueryRow(t.Context(), "INSERT INTO autocommit.t SELECT $1::int+generate_series(0, 999) RETURNING repeat('x', 1000)", 2).Scan(&s)
		},
	} {
		conn := connect(t, c.DSN("auto", false))
		answer, err := c.DropResponse(t.Context(), c.Nodes()[0], system.WireRule{Kind: KindQuery, Client: "auto"})
		if err != nil {
			t.Fatal(err)
		}
		if err := sql(conn); StatementOutcome(err) != ledger.InDoubt {
			t.Errorf("%d: %v", i, err)
		}
		if e := evidence(t, answer); !e.Bit {
			t.Errorf("%d: %+v", i, e)
		}
		_ = answer.Heal(t.Context())
	}
	if got := len(ids(t, c, "autocommit")); got != 1002 {
		t.Errorf("%d rows, want 1002", got)
	}
}

// testOutcomes makes a real server refuse.
func testOutcomes(t *testing.T, c *Cluster) {
	newTable(t, c, "outcomes")
	a, b := connect(t, c.DSN("outcomes", false)), connect(t, c.DSN("outcomes", false))
	mustExec(t, a, "CREATE TABLE outcomes.late (id int REFERENCES outcomes.t DEFERRABLE INITIALLY DEFERRED)")
	begin := func(conn *pgx.Conn, o pgx.TxOptions) pgx.Tx {
		tx, err := conn.BeginTx(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	exec := func(tx pgx.Tx, sql string) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	want := func(err error, outcome ledger.Outcome, class string) {
		t.Helper()
		if CommitOutcome(err) != outcome || ErrorClass(err) != class {
			t.Errorf("outcome %v of class %q, want %v of class %q: %v", CommitOutcome(err), ErrorClass(err), outcome, class, err)
		}
	}

	tx := begin(a, pgx.TxOptions{})
	exec(tx, "INSERT INTO outcomes.late VALUES (7)")
	want(tx.Commit(t.Context()), ledger.Failed, "23503")

	tx = begin(a, pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), "SELECT 1/0")
	want(err, ledger.Failed, "22012")
	want(tx.Commit(t.Context()), ledger.Failed, ClassRolledBack)
	want(tx.Commit(t.Context()), ledger.InDoubt, ClassOther)

	one, two := begin(a, pgx.TxOptions{IsoLevel: pgx.Serializable}), begin(b, pgx.TxOptions{IsoLevel: pgx.Serializable})
	exec(one, "SELECT * FROM outcomes.t")
	exec(two, "SELECT * FROM outcomes.t")
	exec(one, "INSERT INTO outcomes.t VALUES (1)")
	exec(two, "INSERT INTO outcomes.t VALUES (2)")
	want(one.Commit(t.Context()), ledger.OK, "")
	want(two.Commit(t.Context()), ledger.Failed, "40001")

	over, cancel := context.WithCancel(t.Context())
	tx = begin(b, pgx.TxOptions{})
	exec(tx, "INSERT INTO outcomes.t VALUES (3)")
	cancel()
	want(tx.Commit(over), ledger.Failed, ClassNotSent)

	tx = begin(a, pgx.TxOptions{})
	exec(tx, "INSERT INTO outcomes.t VALUES (4)")
	engine := connect(t, c.DSN("", true))
	mustExec(t, engine, "SELECT pg_terminate_backend($1)", a.PgConn().PID())
	want(tx.Commit(t.Context()), ledger.InDoubt, ClassShutdown)

	if got := fmt.Sprint(ids(t, c, "outcomes")); got != "[1]" {
		t.Errorf("rows %s, want [1]", got)
	}
}

func testSchema(t *testing.T, c *Cluster) {
	engine := connect(t, c.DSN("", true))
	mustExec(t, engine, "CREATE SCHEMA foreigner; CREATE TABLE foreigner.t (id bigint); INSERT INTO foreigner.t VALUES (1)")
	err := c.CreateSchema(t.Context(), "foreigner")
	if !errors.Is(err, ErrSchemaExists) || !errors.Is(err, system.ErrUsage) || !strings.Contains(err.Error(), `"foreigner"`) {
		t.Errorf("make one that exists: %v", err)
	}
	if err := c.DropSchema(t.Context(), "foreigner"); !errors.Is(err, system.ErrUsage) || errors.Is(err, system.ErrEnvironment) {
		t.Errorf("drop a foreign one: %v", err)
	}
	if got := fmt.Sprint(ids(t, c, "foreigner")); got != "[1]" {
		t.Errorf("foreign rows %s", got)
	}
	for _, name := range []string{"", "pg_mine"} {
		if err := c.CreateSchema(t.Context(), name); !errors.Is(err, system.ErrUsage) {
			t.Errorf("make %q: %v", name, err)
		}
	}
	odd := `Odd "name"; DROP SCHEMA foreigner CASCADE`
	for range 2 {
		if err := c.Create(t.Context(), system.DestinationSpec{Name: odd, Partitions: 1}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := c.Delete(t.Context(), odd); err != nil {
				t.Error(err)
			}
		}
	}
	wrong := errors.New("wrong")
	if err := c.Snapshot(t.Context(), func(pgx.Tx) error { return wrong }); !errors.Is(err, wrong) || errors.Is(err, system.ErrEnvironment) {
		t.Errorf("error of the reader: %v", err)
	}
	err = c.Snapshot(t.Context(), func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "DELETE FROM foreigner.t")
		return err
	})
	if err == nil || errors.Is(err, system.ErrEnvironment) {
		t.Errorf("writing in a snapshot: %v", err)
	}
}

// testConnections: clients use up all connections, and the engine still gets in.
func testConnections(t *testing.T, c *Cluster) {
	var refused error
	for range 40 {
		conn, err := pgx.Connect(t.Context(), c.DSN("many", false))
		if err != nil {
			refused = err
			break
		}
		defer conn.Close(context.Background())
	}
	if !IsEnvironment(refused) {
		t.Errorf("limit reached: %v", refused)
	}
	if strings.Contains(fmt.Sprint(refused), c.password) {
		t.Error("the password is in the error")
	}
	if err := c.Snapshot(t.Context(), func(pgx.Tx) error { return nil }); err != nil {
		t.Errorf("engine: %v", err)
	}
}

func testLink(t *testing.T, c *Cluster) {
	node := c.Nodes()[0]
	conn := connect(t, c.DSN("cut", false))
	reset, err := c.CutLink(t.Context(), node, system.Reset, system.Both)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Baseline(t.Context()); err == nil {
		t.Error("baseline with a cut in place")
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("connection survived")
	}
	if _, err := pgx.Connect(t.Context(), c.DSN("cut", false)); ErrorClass(err) != ClassLost {
		t.Errorf("connect: %v", err)
	}
	if err := c.Snapshot(t.Context(), func(pgx.Tx) error { return nil }); err != nil {
		t.Errorf("direct: %v", err)
	}
	for range 2 {
		if err := reset.Heal(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if e := evidence(t, reset); !e.Bit {
		t.Errorf("%+v", e)
	}
	conn = connect(t, c.DSN("cut", false))
	hole, err := c.CutLink(t.Context(), node, system.BlackHole, system.Outbound)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(short, "SELECT 1"); ErrorClass(err) != ClassTimeout {
		t.Errorf("in the hole: %v", err)
	}
	if err := hole.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := evidence(t, hole); !e.Bit {
		t.Errorf("%+v", e)
	}
	if _, err := c.CutLink(t.Context(), node, system.Reset, system.Inbound); !errors.Is(err, system.ErrUsage) {
		t.Errorf("half a reset: %v", err)
	}
	if _, err := c.DropResponse(t.Context(), node, system.WireRule{Kind: "produce"}); !errors.Is(err, system.ErrUsage) {
		t.Errorf("kind produce: %v", err)
	}
}

func testPause(t *testing.T, c *Cluster) {
	node := c.Nodes()[0]
	conn := connect(t, c.DSN("frozen", false))
	proof, err := c.Pause(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(proof)
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(short, "SELECT 1"); ErrorClass(err) != ClassTimeout {
		t.Errorf("frozen: %v", err)
	}
	if err := c.Snapshot(t.Context(), func(pgx.Tx) error { return nil }); !errors.Is(err, system.ErrEnvironment) {
		t.Errorf("snapshot of a frozen server: %v", err)
	}
	for range 2 {
		if err := c.Resume(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	mustExec(t, connect(t, c.DSN("frozen", false)), "SELECT 1")

	if _, err := c.Pause(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kill(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

// testKill: what was committed and what the clients connect to survive a SIGKILL.
func testKill(t *testing.T, c *Cluster) {
	node := c.Nodes()[0]
	newTable(t, c, "kill")
	conn := connect(t, c.DSN("kill", false))
	for id := range 100 {
		mustExec(t, conn, "INSERT INTO kill.t VALUES ($1)", id)
	}
	mustExec(t, conn, "BEGIN; INSERT INTO kill.t VALUES (1000)")
	link, direct := c.Endpoints()[0], c.DirectEndpoints()[0]
	proof, err := c.Kill(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(proof)
	if _, err := conn.Exec(t.Context(), "COMMIT"); CommitOutcome(err) != ledger.InDoubt && ErrorClass(err) != ClassNotSent {
		t.Errorf("commit: %v", err)
	}
	err = c.Snapshot(t.Context(), func(pgx.Tx) error { return nil })
	if !errors.Is(err, system.ErrEnvironment) || !strings.Contains(err.Error(), "log ends") {
		t.Errorf("snapshot of a dead server: %v", err)
	}
	if _, err := c.Kill(t.Context(), node); err == nil {
		t.Error("killed twice")
	}
	begin := time.Now()
	for range 2 {
		if err := c.Start(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("up again after %s", time.Since(begin))
	if c.Endpoints()[0] != link || c.DirectEndpoints()[0] != direct {
		t.Errorf("addresses were %s and %s, are %s and %s", link, direct, c.Endpoints()[0], c.DirectEndpoints()[0])
	}
	mustExec(t, connect(t, c.DSN("kill", false)), "SELECT 1")
	if got := ids(t, c, "kill"); len(got) != 100 {
		t.Errorf("%d rows, want 100", len(got))
	}
}

func testStop(t *testing.T, c *Cluster) {
	node := c.Nodes()[0]
	conn := connect(t, c.DSN("stop", false))
	proof, err := c.Stop(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(proof)
	if !strings.Contains(proof, "exit code 0") {
		t.Errorf("proof %q", proof)
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("connection survived")
	}
	if err := c.Start(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

func testDisk(t *testing.T, c *Cluster) {
	node := c.Nodes()[0]
	if _, err := c.LoseDisk(t.Context(), node); !errors.Is(err, system.ErrUsage) {
		t.Errorf("lose the disk of a running server: %v", err)
	}
	newTable(t, c, "disk")
	if _, err := c.Kill(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	proof, err := c.LoseDisk(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(proof)
	if err := c.Start(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	newTable(t, c, "disk")
	if got := ids(t, c, "disk"); len(got) != 0 {
		t.Errorf("rows %v", got)
	}
}

// TestAsyncCommit: with synchronous_commit=off what is confirmed lies in shared memory until the WAL writer has its turn.
func TestAsyncCommit(t *testing.T) {
	c := startServer(t, "18", map[string]string{"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"})
	node := c.Nodes()[0]
	for _, mode := range []string{"on", "off"} {
		for round := range 3 {
			schema := fmt.Sprintf("async_%s_%d", mode, round)
			newTable(t, c, schema)
			conn := connect(t, c.DSN(schema, false)+"&synchronous_commit="+mode)
			confirmed := 0
			for ; confirmed < 500; confirmed++ {
				if err := commits["simple"](t.Context(), conn, schema, int64(confirmed)); err != nil {
					t.Fatal(err)
				}
			}
			unflushed, err := c.UnflushedWAL(t.Context())
			if err != nil || mode == "off" && unflushed == 0 {
				t.Errorf("%d bytes of WAL unflushed, %v", unflushed, err)
			}
			if _, err := c.Kill(t.Context(), node); err != nil {
				t.Fatal(err)
			}
			if err := c.Start(t.Context(), node); err != nil {
				t.Fatal(err)
			}
			lost := confirmed - len(ids(t, c, schema))
			t.Logf("synchronous_commit=%s: %d of %d confirmed lost, %d bytes of WAL were unflushed", mode, lost, confirmed, unflushed)
			if mode == "on" && lost != 0 || mode == "off" && lost == 0 {
				t.Errorf("synchronous_commit=%s: %d lost", mode, lost)
			}
		}
	}
}

func TestStartFails(t *testing.T) {
	good := startServer(t, "18", nil)
	run := "test-start-fails" + time.Now().Format("-150405.000")
	state, err := good.node.server.State(t.Context())
	if err != nil || !state.Running {
		t.Fatal(state, err)
	}
	v, _ := fixtures.ParseVersion("postgres:18")
	_, err = System{}.Start(t.Context(), system.Spec{Run: run, Version: "18", Image: v.Image(), Settings: map[string]string{"no_such_setting": "1"}})
	if !errors.Is(err, system.ErrUsage) || errors.Is(err, system.ErrEnvironment) || !strings.Contains(err.Error(), `"no_such_setting"`) {
		t.Errorf("unknown setting: %v", err)
	}
	_, err = System{}.Start(t.Context(), system.Spec{Run: run, Version: "18", Image: v.Image(), Settings: map[string]string{"shared_buffers": "100TB"}})
	if !errors.Is(err, system.ErrUsage) && !errors.Is(err, system.ErrEnvironment) || !strings.Contains(err.Error(), "log ends") {
		t.Errorf("too much memory: %v", err)
	}
	_, err = System{}.Start(t.Context(), system.Spec{Run: run, Version: "18", Image: "localhost/no-such-image:1"})
	if !errors.Is(err, system.ErrEnvironment) {
		t.Errorf("no image: %v", err)
	}
	nothingLeft(t.Context(), t, run)
	if _, _, err := net.SplitHostPort(good.DirectEndpoints()[0]); err != nil {
		t.Error(err)
	}
}
