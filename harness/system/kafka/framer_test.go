package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"conform/harness/internal/netproxy"
	"conform/harness/system"
)

// fake starts one fake broker with the topic "t" and a link before it. It stands in for the wire format only: what a
// broker does with a record is never judged here. via makes a client's connections pass the link.
func fake(tb testing.TB) (link *netproxy.Link, addr string, via kgo.Opt) {
	tb.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(cluster.Close)
	addr = cluster.ListenAddrs()[0]
	link, err = netproxy.Open(netproxy.Config{Name: "fake", Framer: framer{}, Upstream: func() string { return addr }})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := link.Close(); err != nil {
			tb.Error(err)
		}
	})
	via = kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, link.Addr())
	})
	return link, addr, via
}

// produceAll sends n records one batch after the other and returns the errors.
func produceAll(tb testing.TB, n int, opts ...kgo.Opt) []error {
	tb.Helper()
	client, err := kgo.NewClient(append(opts, kgo.DefaultProduceTopic("t"), kgo.ProducerLinger(0))...)
	if err != nil {
		tb.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Second)
	defer cancel()
	var errs []error
	for range n {
		if err := client.ProduceSync(ctx, kgo.StringRecord("v")).FirstErr(); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// TestFramerCounts: messages are counted alike in every version of the produce request that a broker may speak.
func TestFramerCounts(t *testing.T) {
	link, addr, via := fake(t)
	const n = 7
	for _, acks := range []struct {
		client    string
		opts      []kgo.Opt
		confirmed int64
	}{
		{"all", nil, n},
		{"one", []kgo.Opt{kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()}, n},
		{"none", []kgo.Opt{kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite()}, 0},
	} {
		if errs := produceAll(t, n, append(acks.opts, kgo.SeedBrokers(addr), via, kgo.ClientID(acks.client))...); errs != nil {
			t.Fatal(errs)
		}
		var k netproxy.Counts
		for deadline := time.Now().Add(5 * time.Second); k.Sent != n || k.Confirmed != acks.confirmed; {
			if k = link.Counts(acks.client, KindProduce); time.Now().After(deadline) {
				t.Fatalf("%s: counted %+v", acks.client, k)
			}
			time.Sleep(time.Millisecond)
		}
	}
	if !slices.Contains(link.Clients(), "all") || link.Counts("all", "metadata").Requests == 0 {
		t.Errorf("clients %v, metadata requests %+v", link.Clients(), link.Counts("all", "metadata"))
	}
}

func TestFramerRefuses(t *testing.T) {
	link, addr, via := fake(t)
	armed, err := link.Arm(netproxy.Rule{Kind: KindProduce, Client: "c", Nth: 2, Count: 3, Action: netproxy.Answer, Code: "NOT_LEADER_OR_FOLLOWER"})
	if err != nil {
		t.Fatal(err)
	}
	if errs := produceAll(t, 5, kgo.SeedBrokers(addr), via, kgo.ClientID("c-1"), kgo.MetadataMinAge(10*time.Millisecond)); errs != nil {
		t.Fatal(errs)
	}
	if h := armed.Hits(); h.Done != 3 || h.Messages != 3 {
		t.Errorf("hits %+v", h)
	}
	if k := link.Counts("c", KindProduce); k.Answered != 3 || k.Refused != 3 || k.Sent != 5 {
		t.Errorf("counted %+v", k)
	}
	armed.Heal()
	armed, err = link.Arm(netproxy.Rule{Kind: KindProduce, Count: -1, Action: netproxy.Answer, Code: "INVALID_RECORD"})
	if err != nil {
		t.Fatal(err)
	}
	errs := produceAll(t, 1, kgo.SeedBrokers(addr), via)
	if len(errs) != 1 || idempotent.failed(errs[0]).Err != "INVALID_RECORD" {
		t.Errorf("errors %v", errs)
	}
	armed.Heal()
}

func TestCheckAnswer(t *testing.T) {
	for _, code := range []string{"NOT_LEADER_OR_FOLLOWER", "NOT_LEADER_FOR_PARTITION", "REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS"} {
		if err := (framer{}).CheckAnswer(KindProduce, code); err != nil {
			t.Errorf("%s: %v", code, err)
		}
	}
	for kind, code := range map[string]string{"fetch": "REQUEST_TIMED_OUT", KindProduce: "NOPE"} {
		if err := (framer{}).CheckAnswer(kind, code); !errors.Is(err, system.ErrUsage) {
			t.Errorf("%s %s: %v", kind, code, err)
		}
	}
}

// TestFramerAnswerVersions: an answer is a response of the request's own version that names each of its partitions.
func TestFramerAnswerVersions(t *testing.T) {
	for version := int16(3); version <= kmsg.NewPtrProduceRequest().MaxVersion(); version++ {
		req := kmsg.NewPtrProduceRequest()
		req.Version, req.Acks = version, -1
		for _, name := range []string{"a", "b"} {
			rt := kmsg.NewProduceRequestTopic()
			if rt.Topic = name; version >= 13 {
				rt.Topic, rt.TopicID = "", [16]byte{name[0]}
			}
			for p := range int32(2) {
				rp := kmsg.NewProduceRequestTopicPartition()
				rp.Partition, rp.Records = p, batch(3+p)
				rt.Partitions = append(rt.Partitions, rp)
			}
			req.Topics = append(req.Topics, rt)
		}
		frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID("me")).AppendRequest(nil, req, 77)
		s := &session{}
		if n, err := s.Len(netproxy.ToNode, frame); err != nil || n != len(frame) {
			t.Fatalf("v%d: length %d, %v", version, n, err)
		}
		if _, more := s.Request(frame[:20], len(frame)); !more {
			t.Errorf("v%d: half a produce request was enough", version)
		}
		r, more := s.Request(frame, len(frame))
		if more || r.Kind != KindProduce || r.Client != "me" || r.Tag != 77 || r.NoReply || r.Messages != 14 {
			t.Fatalf("v%d: %+v", version, r)
		}
		answer, err := s.Answer(&r, frame, "NOT_ENOUGH_REPLICAS")
		if err != nil {
			t.Fatal(err)
		}
		if tag, ok := s.Tag(answer); !ok || tag != 77 || int(binary.BigEndian.Uint32(answer)) != len(answer)-4 {
			t.Errorf("v%d: tag %d", version, tag)
		}
		if confirmed, refused := s.Judge(&r, answer); confirmed != 0 || refused != 14 {
			t.Errorf("v%d: %d confirmed, %d refused", version, confirmed, refused)
		}
	}
}

// batch is the header of a record batch of n records.
func batch(n int32) []byte {
	b := make([]byte, 70)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	b[16] = 2
	binary.BigEndian.PutUint32(b[57:], uint32(n))
	return b
}

func TestCountRecords(t *testing.T) {
	for _, c := range []struct {
		records []byte
		want    int64
	}{
		{nil, 0},
		{batch(3), 3},
		{slices.Concat(batch(3), batch(4)), 7},
		{batch(3)[:60], 0},
		{slices.Concat(batch(3), batch(4)[:20]), 3},
		{bytes.Repeat([]byte{0xff}, 100), 0},
	} {
		if got := countRecords(c.records); got != c.want {
			t.Errorf("%d bytes: %d records, want %d", len(c.records), got, c.want)
		}
	}
}

// FuzzFramer: whatever comes over the wire, the framer neither panics nor keeps the relay from going on.
func FuzzFramer(f *testing.F) {
	req := kmsg.NewPtrProduceRequest()
	req.Version = 9
	f.Add(kmsg.NewRequestFormatter(kmsg.FormatterClientID("me")).AppendRequest(nil, req, 1))
	f.Add([]byte{0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 1})
	f.Fuzz(func(_ *testing.T, b []byte) {
		s := &session{}
		if _, err := s.Len(netproxy.ToNode, b); err != nil {
			return
		}
		r, more := s.Request(b, len(b))
		if more {
			return
		}
		_, _ = s.Answer(&r, b, "REQUEST_TIMED_OUT")
		if r.State != nil && len(b) >= 8 {
			_, _ = s.Judge(&r, b)
		}
	})
}

// BenchmarkLink sends 20,000 records a second of 200 bytes for a second with and without the link, in turns. It reports
// the rates and the medians of the time from send to confirm. One iteration is one pair; use -benchtime=5x.
func BenchmarkLink(b *testing.B) {
	_, addr, via := fake(b)
	direct := paced(b, kgo.SeedBrokers(addr))
	linked := paced(b, kgo.SeedBrokers(addr), via)
	benchPairs(b, direct, linked)
}

// BenchmarkLinkKafka does the same with a real broker: one node, so that two cores are enough for both sides. It needs Docker.
func BenchmarkLinkKafka(b *testing.B) {
	engine, image := docker(b)
	c, _ := newCluster(b, engine, image, 1)
	if err := c.Create(b.Context(), system.DestinationSpec{Name: "t", Partitions: 1}); err != nil {
		b.Fatal(err)
	}
	benchPairs(b, paced(b, kgo.SeedBrokers(c.DirectEndpoints()...)), paced(b, kgo.SeedBrokers(c.Endpoints()...)))
}

// benchPairs runs the two loads in turns and reports their medians.
func benchPairs(b *testing.B, direct, linked func() (rate float64, p50 time.Duration)) {
	direct()
	linked()
	var rates, p50s [2][]float64
	for b.Loop() {
		for i, run := range []func() (float64, time.Duration){direct, linked} {
			rate, p50 := run()
			rates[i] = append(rates[i], rate)
			p50s[i] = append(p50s[i], float64(p50.Microseconds()))
		}
	}
	median := func(v []float64) float64 {
		slices.Sort(v)
		return v[len(v)/2]
	}
	b.ReportMetric(median(rates[0]), "direct-records/s")
	b.ReportMetric(median(rates[1]), "linked-records/s")
	b.ReportMetric(100*median(rates[1])/median(rates[0]), "linked-%")
	b.ReportMetric(median(p50s[0]), "direct-p50-µs")
	b.ReportMetric(median(p50s[1]), "linked-p50-µs")
	b.ReportMetric(median(p50s[1])-median(p50s[0]), "added-p50-µs")
}

// paced returns a load of 20,000 records offered within a second.
func paced(b *testing.B, opts ...kgo.Opt) func() (rate float64, p50 time.Duration) {
	client, err := kgo.NewClient(append(opts, kgo.DefaultProduceTopic("t"), kgo.ProducerLinger(5*time.Millisecond),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ClientID("bench"))...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(client.Close)
	value := make([]byte, 200)
	return func() (float64, time.Duration) {
		const total, slice, every = 20_000, 100, 5 * time.Millisecond
		var (
			mu    sync.Mutex
			took  []time.Duration
			ended sync.WaitGroup
		)
		began := time.Now()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for range total / slice {
			<-tick.C
			for range slice {
				ended.Add(1)
				at := time.Now()
				client.Produce(b.Context(), &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
					defer ended.Done()
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						b.Error(fmt.Errorf("produce: %w", err))
					}
					took = append(took, time.Since(at))
				})
			}
		}
		ended.Wait()
		rate := total / time.Since(began).Seconds()
		slices.Sort(took)
		return rate, took[len(took)/2]
	}
}
