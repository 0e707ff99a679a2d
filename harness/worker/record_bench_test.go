package worker_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"conform/fixtures"
	"conform/harness/host"
	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/system/kafka"
	"conform/harness/system/rabbitmq"
	"conform/harness/system/rocketmq"
	"conform/harness/worker"
)

// recorders are the clients whose recording is measured.
var recorders = []struct {
	system   system.System
	clients  system.Clients
	messages int
	window   int
	node     map[string]string // settings of the broker
}{
	{kafka.System{}, kafka.Clients{}, 300_000, 5000, nil},
	{rabbitmq.System{}, rabbitmq.Clients{}, 60_000, 1000, nil},
	{rocketmq.System{}, rocketmq.Clients{}, 20_000, 64, map[string]string{rocketmq.SettingLayout: rocketmq.Single}},
}

func init() {
	for _, r := range recorders {
		worker.Register(r.system.Name()+"-recorded", worker.ProducerRole(r.clients))
		worker.Register(r.system.Name()+"-bare", bare(r.clients))
	}
}

// bare is the same client with the same messages, window and waiting, that records nothing.
func bare(clients system.Clients) worker.Role {
	return func(ctx context.Context, s *worker.Session) error {
		c := s.Config
		p, err := clients.OpenProducer(ctx, c.Client)
		if err != nil {
			return err
		}
		if err := s.Ready(ctx); err != nil {
			return err
		}
		keys := make([][]byte, c.Workload.Keys)
		for k := range keys {
			keys[k] = []byte(ledger.KeyName(uint32(k)))
		}
		var inFlight, bad atomic.Int64
		freed := make(chan struct{}, 1)
		batch := 0
		for seq := range uint64(c.Messages) {
			// In batches as the recording one sends, which makes a difference to the client's own batches.
			for ; batch == 0; batch = min(256, c.Window-int(inFlight.Load())) {
				if inFlight.Load() >= int64(c.Window) {
					<-freed
				}
			}
			batch--
			id := ledger.MessageID{Stream: 1, Seq: seq}
			key := ledger.KeyOf(c.Seed, id, c.Workload.Keys)
			inFlight.Add(1)
			p.Send(ctx, system.Message{
				ID: id, Key: keys[key],
				Payload: ledger.AppendPayload(make([]byte, 0, c.Workload.PayloadSize), c.Seed, tag, id, 0, c.Workload.PayloadSize),
			}, func(r system.Receipt) {
				if r.Outcome != ledger.OK {
					bad.Add(1)
				}
				inFlight.Add(-1)
				select {
				case freed <- struct{}{}:
				default:
				}
			})
		}
		if err := p.Flush(ctx); err != nil {
			return err
		}
		if n := bad.Load(); n > 0 {
			return fmt.Errorf("%d sends were not confirmed", n)
		}
		return p.Close(ctx)
	}
}

// BenchmarkRecord compares a saturated producer that records with the same one that does not, run in turn as processes of their
// own; the figures are medians of five. The aim is at most 10 % in CPU per message and in rate. Kafka's broker is a fake in
// memory, that of the others is a real node, which needs a container engine and its image.
func BenchmarkRecord(b *testing.B) {
	for _, r := range recorders {
		b.Run(r.system.Name(), func(b *testing.B) {
			fresh := fakeKafka
			if r.system.Name() != kafka.Name {
				fresh = realNode(b, r.system, r.node)
			}
			const rounds = 5
			type sample struct{ cpu, rate float64 }
			measure := func(role string) sample {
				client, done := fresh(b)
				defer done()
				p, err := worker.Start(b.Context(), argv(b), worker.Config{
					Role: role, Worker: "producer-1", Journal: filepath.Join(b.TempDir(), "producer-1.journal"), Seed: 1, Stream: 1,
					Client: client, Workload: ledger.Workload{Keys: 64, PayloadSize: 160}, Window: r.window, Messages: r.messages,
					Params: map[string]string{worker.ParamTag: fmt.Sprint(tag)},
				})
				if err != nil {
					b.Fatal(err)
				}
				if err := p.Ready(b.Context()); err != nil {
					b.Fatal(err)
				}
				begun := time.Now()
				p.Begin()
				end := p.End()
				took := time.Since(begun)
				if !end.Planned {
					b.Fatalf("%s: %s", role, end.How)
				}
				return sample{float64(end.CPU.Nanoseconds()) / float64(r.messages), float64(r.messages) / took.Seconds()}
			}
			for b.Loop() {
				var cpu, rate [2][]float64
				for range rounds {
					for i, role := range []string{r.system.Name() + "-bare", r.system.Name() + "-recorded"} {
						s := measure(role)
						cpu[i], rate[i] = append(cpu[i], s.cpu), append(rate[i], s.rate)
					}
				}
				median := func(xs []float64) float64 { slices.Sort(xs); return xs[len(xs)/2] }
				b.ReportMetric(median(cpu[0]), "bare-cpu-ns/msg")
				b.ReportMetric(median(cpu[1]), "recorded-cpu-ns/msg")
				b.ReportMetric(100*(median(cpu[1])/median(cpu[0])-1), "cpu-overhead-%")
				b.ReportMetric(median(rate[0]), "bare-msg/s")
				b.ReportMetric(median(rate[1]), "recorded-msg/s")
				b.ReportMetric(100*(1-median(rate[1])/median(rate[0])), "rate-overhead-%")
			}
		})
	}
}

// fakeKafka starts a broker of its own for each producer, so that none inherits the other's log.
func fakeKafka(b *testing.B) (system.ClientConfig, func()) {
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "d"))
	if err != nil {
		b.Fatal(err)
	}
	return system.ClientConfig{System: kafka.Name, Endpoints: fake.ListenAddrs(), ClientID: "b", Destination: "d", Partitions: 1}, fake.Close
}

// realNode starts one node, and makes a destination of its own for each producer.
func realNode(b *testing.B, s system.System, settings map[string]string) func(b *testing.B) (system.ClientConfig, func()) {
	version := fixtures.Versions(s.Name())[0]
	images, err := host.Prepare(b.Context(), host.Options{Systems: []fixtures.Version{version}})
	if err != nil {
		b.Skipf("needs a container engine and images: %v", err)
	}
	c, err := s.Start(b.Context(), system.Spec{
		Run: "record" + time.Now().Format("-150405"), Version: version.Number, Image: images[version.String()].Ref, Nodes: 1, Settings: settings,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(b.Context())); err != nil {
			b.Error(err)
		}
	})
	made := 0
	return func(b *testing.B) (system.ClientConfig, func()) {
		made++
		name := fmt.Sprintf("d%d", made)
		if err := c.Create(b.Context(), system.DestinationSpec{Name: name, Partitions: 1}); err != nil {
			b.Fatal(err)
		}
		config := system.ClientConfig{System: s.Name(), Endpoints: c.Endpoints(), ClientID: "b", Destination: name, Partitions: 1}
		if connector, ok := c.(system.Connector); ok {
			config.DSN = connector.DSN(config.ClientID, false)
		}
		return config, func() {
			if err := c.Delete(b.Context(), name); err != nil {
				b.Error(err)
			}
		}
	}
}
