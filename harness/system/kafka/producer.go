package kafka

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"conform/harness/ledger"
	"conform/harness/system"
)

// OpenProducer opens a producer for c.Destination. Unknown settings and combinations that cannot work are ErrUsage. It does
// not wait for a connection.
func (Clients) OpenProducer(_ context.Context, c system.ClientConfig) (system.Producer, error) {
	s := newSettings(c.Settings, ProducerSettings())
	var (
		acks        = s.choice("acks", "all", "all", "-1", "1", "0")
		idempotent  = s.choice("idempotence", "true", "true", "false") == "true"
		inFlight    = s.number("in.flight", 5, 1)
		linger      = s.millis("linger.ms", 5*time.Millisecond, 0)
		delivery    = s.millis("delivery.timeout.ms", 0, 0)
		request     = s.millis("request.timeout.ms", 10*time.Second, 100)
		retries     = s.number("retries", -1, -1)
		batch       = s.number("batch.max.bytes", 1000012, 1024)
		buffered    = s.number("max.buffered", 10000, 1)
		age         = s.millis("timestamp.age.ms", 0, math.MinInt32)
		compression = s.choice("compression", "none", "none", "gzip", "snappy", "lz4", "zstd")
	)
	if idempotent && acks != "all" && acks != "-1" {
		s.fail("client settings: acks=%s needs idempotence=false", acks)
	}
	if _, ok := c.Settings["in.flight"]; ok && idempotent && inFlight != 5 {
		s.fail("client settings: in.flight=%d needs idempotence=false; idempotent producers have 5", inFlight)
	}
	if s.err != nil {
		return nil, fmt.Errorf("open producer %s: %w", c.ClientID, s.err)
	}
	opts := append(common(c),
		kgo.DefaultProduceTopic(c.Destination), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(linger), kgo.ProduceRequestTimeout(request), kgo.ProducerBatchMaxBytes(int32(batch)),
		// The producer counts for itself, so that waiting for room can be given up without giving up the record.
		kgo.MaxBufferedRecords(buffered+1),
		// A broker that has just come back may not know the topic yet. Retries bound it, as in the Java client.
		kgo.UnknownTopicRetries(-1),
	)
	switch acks {
	case "1":
		opts = append(opts, kgo.RequiredAcks(kgo.LeaderAck()))
	case "0":
		opts = append(opts, kgo.RequiredAcks(kgo.NoAck()))
	}
	if !idempotent {
		// Without the second option franz-go has one request in flight and never reorders.
		opts = append(opts, kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(inFlight))
	}
	if delivery > 0 {
		opts = append(opts, kgo.RecordDeliveryTimeout(delivery))
	}
	if retries >= 0 {
		opts = append(opts, kgo.RecordRetries(retries))
	}
	codec := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}[compression]
	opts = append(opts, kgo.ProducerBatchCompression(codec))
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("open producer %s: %w: %w", c.ClientID, err, system.ErrUsage)
	}
	return &producer{
		client: client, unconfirmed: acks == "0", room: make(chan struct{}, buffered), age: age,
		sending: sending{idempotent: idempotent, inFlight: inFlight, retries: retries},
	}, nil
}

type producer struct {
	client      *kgo.Client
	sending     sending
	unconfirmed bool          // acks=0: the broker answers nothing
	room        chan struct{} // one token for each record in the client
	age         time.Duration // > 0: records say that they are so old
}

// Send hands the message to the client. ctx bounds the waiting for room only: a record that was taken stays taken.
func (p *producer) Send(ctx context.Context, m system.Message, done func(system.Receipt)) {
	select {
	case p.room <- struct{}{}:
	case <-ctx.Done():
		done(p.sending.failed(errNotTaken))
		return
	}
	r := &kgo.Record{Key: m.Key, Value: m.Payload, Partition: m.Partition}
	if p.age != 0 {
		r.Timestamp = time.Now().Add(-p.age)
	}
	p.client.Produce(context.WithoutCancel(ctx), r, func(r *kgo.Record, err error) {
		<-p.room
		done(p.receipt(r, err))
	})
}

func (p *producer) receipt(r *kgo.Record, err error) system.Receipt {
	switch {
	case err != nil:
		return p.sending.failed(err)
	case p.unconfirmed: // written to a socket: nobody confirmed anything
		return system.Receipt{Outcome: ledger.InDoubt, Offset: -1}
	default:
		return system.Receipt{Outcome: ledger.OK, Offset: r.Offset}
	}
}

// Flush waits until all records that were handed over are done.
func (p *producer) Flush(ctx context.Context) error {
	if err := p.client.Flush(ctx); err != nil {
		return fmt.Errorf("flush producer: %w", err)
	}
	return nil
}

// Close ends the client. What is still in it is given up and in doubt.
func (p *producer) Close(context.Context) error {
	p.client.Close()
	return nil
}
