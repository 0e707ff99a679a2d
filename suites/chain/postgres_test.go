package chain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"conform/fixtures"
	"conform/harness/host"
	"conform/harness/system"
	"conform/harness/system/postgres"
)

// server is the one PostgreSQL of all tests, started by the first that needs it.
var server struct {
	sync.Once
	cluster *postgres.Cluster
	err     error
}

func TestMain(m *testing.M) {
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	code := m.Run()
	if server.cluster != nil {
		if err := server.cluster.Close(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

var errNoEngine = errors.New("needs a container engine and an image of PostgreSQL")

func startServer() {
	ctx := context.Background()
	version := fixtures.Versions(postgres.Name)[0]
	images, err := host.Prepare(ctx, host.Options{Systems: []fixtures.Version{version}})
	if err != nil {
		server.err = fmt.Errorf("%w: %w", errNoEngine, err)
		return
	}
	cluster, err := postgres.System{}.Start(ctx, system.Spec{
		Run: "test-chain" + time.Now().Format("-150405.000"), Version: version.Number, Image: images[version.String()].Ref,
	})
	if err != nil {
		server.err = err
		return
	}
	server.cluster = cluster.(*postgres.Cluster)
}

var schemas atomic.Int64

// env is a service with tables of its own, and a broker in memory.
type env struct {
	*Service
	pool   *pgxpool.Pool
	broker *broker
	keys   *memoryKeys
	ids    atomic.Uint64

	mu    sync.Mutex
	crash map[string]bool // points at which the process dies, once
}

var errCrash = errors.New("crash")

func newEnv(tb testing.TB) *env {
	tb.Helper()
	if testing.Short() {
		tb.Skip("starts a container: not with -short")
	}
	server.Do(startServer)
	switch {
	case errors.Is(server.err, errNoEngine) && os.Getenv("CI") != "true":
		tb.Skip(server.err)
	case server.err != nil:
		tb.Fatal(server.err)
	}
	schema := fmt.Sprintf("chain_%d", schemas.Add(1))
	if err := server.cluster.CreateSchema(tb.Context(), schema); err != nil {
		tb.Fatal(err)
	}
	pool, err := pgxpool.New(tb.Context(), server.cluster.DSN(schema, false)+"&search_path="+schema)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		pool.Close()
		if err := server.cluster.DropSchema(context.Background(), schema); err != nil {
			tb.Error(err)
		}
	})
	if err := Migrate(tb.Context(), pool); err != nil {
		tb.Fatal(err)
	}
	e := &env{pool: pool, broker: &broker{}, keys: &memoryKeys{values: map[string]value{}}, crash: map[string]bool{}}
	e.ids.Store(1000)
	e.Service = &Service{
		Name: "mailer", Destination: "orders", DB: pool, Publisher: e.broker, Keys: e.keys,
		NewID: func() uint64 { return e.ids.Add(1) },
		Point: e.point,
		Sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() },
	}
	return e
}

// point dies at the points of e.crash.
func (e *env) point(_ context.Context, name string, _ Event) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.crash[name] {
		delete(e.crash, name)
		return errCrash
	}
	return nil
}

func (e *env) crashAt(points ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range points {
		e.crash[p] = true
	}
}

// holdAt stops the first to come to a point, until release is called. reached is closed when it is there.
func (e *env) holdAt(point string) (reached <-chan struct{}, release func()) {
	at, on := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	e.Point = func(ctx context.Context, name string, _ Event) error {
		if name != point || !first.CompareAndSwap(false, true) {
			return nil
		}
		close(at)
		select {
		case <-on:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return at, sync.OnceFunc(func() { close(on) })
}

// event returns an event whose id, key and version are given.
func event(id uint64, key uint32, version int64) Event {
	return Event{ID: id, Key: key, Version: version, Amount: 100, Body: []byte("order")}
}

// must fails the test unless err is nil or the planned crash.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
}

func (e *env) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := e.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func scan[T any](t *testing.T, e *env, sql string, args ...any) (v T) {
	t.Helper()
	if err := e.pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// drain runs a relay until it has nothing more to do.
func (e *env) drain(t *testing.T, relay Job) {
	t.Helper()
	for range 100 {
		n, err := relay(t.Context(), e.Service)
		must(t, err)
		if n == 0 && err == nil {
			return
		}
	}
	t.Fatal("the relay does not come to an end")
}

// consume runs a loop until the broker has nothing more.
func (e *env) consume(t *testing.T, loop Loop, handle Handler) {
	t.Helper()
	for range 100 {
		_ = loop(t.Context(), e.Service, e.broker, handle) // what failed comes again
		if e.broker.lag() == 0 {
			return
		}
	}
	t.Fatal("the consumer does not come to an end")
}

// storeAnomaly compares the orders with what was published.
func (e *env) storeAnomaly(t *testing.T) string {
	t.Helper()
	rows, err := e.pool.Query(t.Context(), "SELECT event_id FROM orders")
	if err != nil {
		t.Fatal(err)
	}
	orders, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	newest := map[uint32]int64{}
	seen := map[uint64]bool{}
	for _, ev := range e.broker.published() {
		switch {
		case !slices.Contains(orders, int64(ev.ID)):
			return "published-uncommitted"
		case !seen[ev.ID] && ev.Version < newest[ev.Key]:
			return "reordered-store"
		}
		seen[ev.ID] = true
		newest[ev.Key] = max(newest[ev.Key], ev.Version)
	}
	for _, id := range orders {
		if !seen[uint64(id)] {
			return "unpublished"
		}
	}
	return ""
}

// effectAnomaly looks whether each business event, that is each version of a key, had one effect for each consumer, or is
// kept as a dead letter. missing is what a missing effect is attributed to.
func (e *env) effectAnomaly(t *testing.T, missing string, consumers []string, events ...Event) string {
	t.Helper()
	for _, c := range consumers {
		for _, ev := range events {
			n := scan[int](t, e, `SELECT count(*) FROM (SELECT consumer, key, version FROM notifications
				UNION ALL SELECT consumer, key, version FROM receipts) WHERE (consumer, key, version) = ($1, $2, $3)`, c, int64(ev.Key), ev.Version)
			kept := scan[bool](t, e, "SELECT EXISTS (SELECT FROM dead_letter WHERE (consumer, key, version) = ($1, $2, $3))", c, int64(ev.Key), ev.Version)
			switch {
			case n == 0 && !kept:
				return "missing-effect/" + missing
			case n > 1:
				return "duplicate-effect"
			}
		}
	}
	return ""
}

// broker is a log in memory with one consumer group.
type broker struct {
	mu        sync.Mutex
	log       []Event
	position  int
	committed int
	answer    func(n int, ev Event) (stored bool, err error) // what becomes of the n-th publish, from 1; nil = stored
	publishes int
}

func (b *broker) Publish(_ context.Context, events ...Event) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ev := range events {
		b.publishes++
		stored, err := true, error(nil)
		if b.answer != nil {
			stored, err = b.answer(b.publishes, ev)
		}
		if stored {
			b.log = append(b.log, ev)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *broker) published() []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.log)
}

func (b *broker) lag() int { return len(b.log) - b.position }

// reopen is what a restarted consumer sees.
func (b *broker) reopen() { b.position = b.committed }

func (b *broker) Fetch(context.Context) ([]Delivery, error) {
	var ds []Delivery
	for ; b.position < len(b.log); b.position++ {
		ds = append(ds, Delivery{Event: b.log[b.position], Position: b.position})
	}
	return ds, nil
}

func (b *broker) Settle(_ context.Context, d Delivery) error {
	b.committed = d.Position.(int) + 1
	return nil
}

func (b *broker) Release(_ context.Context, ds []Delivery) error {
	b.position = ds[0].Position.(int)
	return nil
}

// memoryKeys are Keys whose time passes when expire is called.
type memoryKeys struct{ values map[string]value }

type value struct {
	text    string
	expires bool
}

func (k *memoryKeys) Claim(_ context.Context, key, text string, ttl time.Duration) (string, bool, error) {
	if v, ok := k.values[key]; ok {
		return v.text, false, nil
	}
	k.values[key] = value{text, ttl > 0}
	return "", true, nil
}

func (k *memoryKeys) Put(_ context.Context, key, text string, ttl time.Duration) error {
	k.values[key] = value{text, ttl > 0}
	return nil
}

func (k *memoryKeys) expire() {
	for key, v := range k.values {
		if v.expires {
			delete(k.values, key)
		}
	}
}
