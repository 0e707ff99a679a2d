package suites

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"conform/faults"
	"conform/fixtures"
	"conform/harness"
	"conform/harness/host"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/system/kafka"
	"conform/harness/system/postgres"
	"conform/harness/worker"
	"conform/suites/chain"
)

func TestMain(m *testing.M) {
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	if len(os.Args) > 1 && os.Args[1] == "worker" { // this binary, started again by the engine
		if err := worker.Main(context.Background(), os.Args[2:], os.Stdin, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The chain that is measured: one order per transaction, its event in the outbox; relays; four partitions, each with a consumer
// that has one transaction for each event.
const (
	throughputWarm    = 3 * time.Second
	throughputSpan    = 10 * time.Second
	throughputParts   = 4
	throughputKeys    = 32
	throughputOffered = 520                    // orders/s, recorded: more would only take from the consumers what the two share
	throughputOpen    = 256                    // orders that have no effect yet, unrecorded
	throughputPoll    = 100 * time.Millisecond // of a relay that found nothing: what comes meanwhile is one batch
)

// throughputFetch lets brokers wait for some 16 events, and no longer than a relay does.
var throughputFetch = with(onKafka.consumer, "fetch.min.bytes", "4000", "fetch.max.wait.ms", "100")

// BenchmarkChain reports orders per second through the whole chain, from the order's commit to its effect, recorded by the
// engine and not recorded. It starts clusters of its own:
//
//	go test ./suites -run NONE -bench Chain -benchtime 1x
func BenchmarkChain(b *testing.B) {
	if testing.Short() {
		b.Skip("starts clusters: not with -short")
	}
	images, err := host.Prepare(b.Context(), host.Options{Systems: []fixtures.Version{fixtures.Versions(kafka.Name)[0], fixtures.Versions(postgres.Name)[0]}})
	if err != nil {
		if os.Getenv("CI") == "true" {
			b.Fatalf("needs a container engine and images: %v", err)
		}
		b.Skipf("needs a container engine and images: %v", err)
	}
	refs := map[string]string{}
	for _, name := range []string{kafka.Name, postgres.Name} {
		refs[name] = images[fixtures.Versions(name)[0].String()].Ref
	}
	b.Run("recorded", func(b *testing.B) {
		for b.Loop() {
			b.ReportMetric(recordedChain(b, refs), "orders/s")
		}
	})
	b.Run("unrecorded", func(b *testing.B) {
		for b.Loop() {
			b.ReportMetric(unrecordedChain(b, refs), "orders/s")
		}
	})
}

func recordedChain(b *testing.B, refs map[string]string) float64 {
	var from, to struct {
		at time.Time
		n  int
	}
	consumers := []harness.Process{onKafka.relay("relay-1", map[string]string{paramEvery: throughputPoll.String()}), onKafka.relay("relay-2", map[string]string{paramEvery: throughputPoll.String()})}
	for i := range throughputParts {
		p := onKafka.reader(fmt.Sprintf("consumer-%d", i+1), map[string]string{paramCommit: "batch"})
		p.Client = throughputFetch
		consumers = append(consumers, p)
	}
	s := chained(harness.Scenario{
		Name: "throughput",
		Arms: []harness.Arm{{
			Name: "recorded", Role: harness.Observation, Reason: "a figure", Destination: onKafka.destination,
			Producer: onKafka.orders(nil), Processes: consumers,
		}},
		Gates: map[string]harness.Gate{"measured": func(_ context.Context, e harness.Env, _ plan.State) (bool, string, error) {
			now, n := time.Now(), e.Counts("recorded").Handled
			switch {
			case from.at.IsZero():
				from.at, from.n = now, n
			case now.Sub(from.at) >= throughputSpan:
				to.at, to.n = now, n
				return true, "measured", nil
			}
			return false, fmt.Sprint(n), nil
		}},
		Steps: []plan.Step{
			{Name: "warm", Until: []plan.State{{Kind: plan.Handled, N: throughputKeys}}},
			{Name: "warmer", Until: []plan.State{{Kind: plan.Elapsed, Hold: throughputWarm, Since: "warm"}}},
			{Name: "measured", Until: []plan.State{{Kind: plan.Custom, Name: "measured"}}},
		},
	})
	s.Load.Rate, s.Load.Partitions = throughputOffered, throughputParts
	suite := outbox(onKafka)
	suite.Name, suite.Scenarios = "throughput", []harness.Scenario{s}
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	result, err := harness.Run(b.Context(), harness.Config{
		RunID: "throughput" + time.Now().Format("-150405"), Suites: []harness.Suite{suite}, Seed: 1, Out: filepath.Join(b.TempDir(), "run"),
		Worker: []string{self, "worker"}, Faults: faults.All(), Images: refs,
	})
	if err != nil {
		b.Fatal(err)
	}
	if to.at.IsZero() {
		b.Fatalf("not measured: %+v", result.Suites[0].Scenarios[0])
	}
	arm := result.Suites[0].Scenarios[0].Repeats[0].Arms[0]
	b.Logf("%s: %d orders, %d handled, %v", arm.Verdict.Arm, arm.Verdict.Totals.Ordered, arm.Verdict.Totals.Handled, arm.Verdict.Reasons)
	return float64(to.n-from.n) / to.at.Sub(from.at).Seconds()
}

// unrecordedChain runs the same code in this process, on clients that record nothing.
func unrecordedChain(b *testing.B, refs map[string]string) float64 {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	start := func(s system.System) system.Cluster {
		c, err := s.Start(ctx, system.Spec{
			Run: "throughput" + time.Now().Format("-150405.000"), Version: s.Versions()[0], Image: refs[s.Name()],
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = c.Close(context.Background()) })
		return c
	}
	var brokers, server system.Cluster
	var starting sync.WaitGroup
	starting.Go(func() { brokers = start(kafka.System{}) })
	starting.Go(func() { server = start(postgres.System{}) })
	starting.Wait()
	db := server.(*postgres.Cluster)
	must := func(err error) {
		if err != nil && ctx.Err() == nil {
			b.Error(err)
		}
	}
	must(db.CreateSchema(ctx, "throughput"))
	must(brokers.Create(ctx, system.DestinationSpec{Name: "throughput", Partitions: throughputParts, Settings: onKafka.destination}))
	open := func(client string) *pgxpool.Pool {
		config, err := pgxpool.ParseConfig(db.DSN(client, false))
		if err != nil {
			b.Fatal(err)
		}
		config.MaxConns, config.ConnConfig.RuntimeParams["search_path"] = 8, "throughput"
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(pool.Close)
		return pool
	}
	config := system.ClientConfig{
		System: kafka.Name, Endpoints: brokers.Endpoints(), Destination: "throughput", Partitions: throughputParts, Settings: onKafka.producer,
	}
	service := func(name string) *chain.Service {
		return &chain.Service{Name: defaultConsumer, Destination: "throughput", DB: lateBegin{open(name)}, Poll: throughputPoll}
	}
	orders := service("orders")
	must(chain.Migrate(ctx, orders.DB))

	var working sync.WaitGroup
	var handled atomic.Int64
	var seq atomic.Uint64
	room := make(chan struct{}, throughputOpen)
	for key := range uint32(throughputKeys) {
		working.Go(func() {
			for {
				select {
				case room <- struct{}{}:
				case <-ctx.Done():
					return
				}
				id := ledger.EventID(firstStream, seq.Add(1))
				must(chain.PlaceOrder(ctx, orders, chain.Event{ID: id, Key: key, Version: ledger.VersionOf(id), Amount: 160, Body: []byte{}}))
			}
		})
	}
	for range 2 {
		client, err := kafka.Clients{}.OpenProducer(ctx, config)
		if err != nil {
			b.Fatal(err)
		}
		relay := service("relay")
		relay.Publisher = plainPublisher{client, throughputParts}
		working.Go(func() {
			must(chain.RunRelay(ctx, relay, chain.Relay))
			must(client.Close(context.WithoutCancel(ctx)))
		})
	}
	config.Group, config.Settings = "throughput", throughputFetch
	for range throughputParts {
		client, err := kafka.Clients{}.OpenConsumer(ctx, config)
		if err != nil {
			b.Fatal(err)
		}
		working.Go(func() {
			must(chain.RunConsumer(ctx, service("consumer"), &plainSubscriber{client: client}, func(ctx context.Context, s *chain.Service, ev chain.Event) (chain.Result, error) {
				result, err := chain.ApplyOnce(ctx, s, ev)
				if err == nil {
					handled.Add(1)
					<-room
				}
				return result, err
			}, chain.Consume))
			must(client.Close(context.WithoutCancel(ctx)))
		})
	}
	for handled.Load() < throughputKeys && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(throughputWarm)
	from, began := handled.Load(), time.Now()
	time.Sleep(throughputSpan)
	rate := float64(handled.Load()-from) / time.Since(began).Seconds()
	cancel()
	working.Wait()
	return rate
}

// plainPublisher sends events whose payload is their id, padded to the size of a recorded one.
type plainPublisher struct {
	client     system.Producer
	partitions int
}

func (p plainPublisher) Publish(ctx context.Context, events ...chain.Event) error {
	receipts := make(chan system.Receipt, len(events))
	for _, ev := range events {
		p.client.Send(ctx, system.Message{
			Key: []byte(ledger.KeyName(ev.Key)), Payload: fmt.Appendf(nil, "%d %s", ev.ID, strings.Repeat("x", 140)), Partition: ledger.PartitionOf(ev.Key, p.partitions),
		}, func(r system.Receipt) { receipts <- r })
	}
	for range events {
		if r := <-receipts; r.Outcome != ledger.OK {
			return errors.New(r.Err)
		}
	}
	return nil
}

// plainSubscriber commits what was settled before the next fetch.
type plainSubscriber struct {
	client            system.Consumer
	released, settled []system.Delivery
}

func (s *plainSubscriber) Fetch(ctx context.Context) ([]chain.Delivery, error) {
	if len(s.settled) > 0 {
		if err := s.client.Settle(ctx, s.settled); err != nil {
			return nil, err
		}
		s.settled = nil
	}
	ds := s.released
	s.released = nil
	if len(ds) == 0 {
		ctx, cancel := context.WithTimeout(ctx, pollWait)
		defer cancel()
		var err error
		if ds, err = s.client.Poll(ctx); err != nil && ctx.Err() == nil {
			return nil, err
		}
	}
	events := make([]chain.Delivery, len(ds))
	for i, d := range ds {
		var id uint64
		_, _ = fmt.Sscan(string(d.Payload), &id)
		key, _ := ledger.ParseKey(string(d.Key))
		events[i] = chain.Delivery{Event: chain.Event{ID: id, Key: key, Version: ledger.VersionOf(id), Amount: 160, Body: []byte{}}, Position: d}
	}
	return events, nil
}

func (s *plainSubscriber) Settle(_ context.Context, d chain.Delivery) error {
	s.settled = append(s.settled, d.Position.(system.Delivery))
	return nil
}

func (s *plainSubscriber) Release(_ context.Context, ds []chain.Delivery) error {
	for _, d := range ds {
		s.released = append(s.released, d.Position.(system.Delivery))
	}
	return nil
}
