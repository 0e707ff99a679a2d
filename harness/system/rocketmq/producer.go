package rocketmq

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	rmqproducer "github.com/apache/rocketmq-client-go/v2/producer"

	"conform/harness/ledger"
	"conform/harness/system"
)

const (
	// reopenEvery is how often a producer with route=reopen may open a new client.
	reopenEvery = time.Second
	// neverCompressed is a size above what is sent: what is stored must be what was sent, byte for byte.
	neverCompressed = 1 << 30
)

// OpenProducer opens a producer for c.Destination. Unknown settings are ErrUsage. It does not wait for a connection.
func (Clients) OpenProducer(_ context.Context, c system.ClientConfig) (system.Producer, error) {
	quiet()
	s := newSettings(c.Settings, ProducerSettings())
	p := &producer{
		config: c, topic: topicName(c.Destination),
		oneWay:  s.choice("mode", "async", "async", "one-way") == "one-way",
		timeout: s.millis("timeout.ms", 3*time.Second, 10),
		retries: s.number("retries", 0, 0),
		backoff: s.millis("backoff.ms", 200*time.Millisecond, 0),
		room:    make(chan struct{}, s.number("max.in.flight", 1000, 1)),
		blind:   s.choice("status", "strict", "strict", "ignored") == "ignored",
		wait:    s.choice("wait", "true", "true", "false") == "true",
		reopens: s.choice("route", "refresh", "refresh", "reopen") == "reopen",
		level:   s.number("delay.level", 0, 0),
		tags:    strings.FieldsFunc(c.Settings["tags"], func(r rune) bool { return r == ',' }),
		delays:  s.allMillis("delay.ms"),
	}
	if s.err == nil {
		p.namesrv, s.err = namesrvOf(c)
	}
	if s.err != nil {
		return nil, fmt.Errorf("open producer %s: %w", c.ClientID, s.err)
	}
	p.life, p.end = context.WithCancel(context.Background())
	client, err := p.connect()
	if err != nil {
		return nil, fmt.Errorf("open producer %s: %w", c.ClientID, err)
	}
	p.client, p.opened = client, time.Now()
	return p, nil
}

type producer struct {
	config  system.ClientConfig
	topic   string
	namesrv string

	oneWay, blind, wait, reopens bool

	timeout, backoff time.Duration
	delays           []time.Duration
	retries, level   int
	tags             []string
	room             chan struct{} // one token for each send that is under way

	life context.Context // ends at Close: no attempt begins any more
	end  context.CancelFunc
	wg   sync.WaitGroup // sends that are under way, and clients that are shut down

	mu     sync.Mutex
	client rmq.Producer
	opened time.Time
}

// The library keeps the timeouts of all its clients in one variable, which their goroutines read without a lock: it is set
// once, by the first producer and by the first consumer.
var producerTimeouts, consumerTimeouts sync.Once

// connect opens a client of the library. The manual selector sends a message to the queue that it names.
func (p *producer) connect() (rmq.Producer, error) {
	options := []rmqproducer.Option{
		rmqproducer.WithNsResolver(primitive.NewPassthroughResolver([]string{p.namesrv})),
		rmqproducer.WithGroupName(topicName(p.config.ClientID)), rmqproducer.WithInstanceName(instance(p.config.ClientID)),
		rmqproducer.WithRetry(0), rmqproducer.WithSendMsgTimeout(p.timeout),
		rmqproducer.WithQueueSelector(rmqproducer.NewManualQueueSelector()),
		rmqproducer.WithCompressMsgBodyOverHowmuch(neverCompressed),
	}
	producerTimeouts.Do(func() {
		options = append(options, rmqproducer.WithRemotingTimeout(dialTimeout, readTimeout2, writeTimeout))
	})
	client, err := rmq.NewProducer(options...)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	if err := client.Start(); err != nil {
		return nil, fmt.Errorf("start client: %w", err)
	}
	return client, nil
}

// current returns the client to send with.
func (p *producer) current() rmq.Producer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

// reopen replaces the client that an attempt failed with, so that the next one learns the route anew.
func (p *producer) reopen(failed rmq.Producer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client != failed || time.Since(p.opened) < reopenEvery || p.life.Err() != nil {
		return
	}
	client, err := p.connect()
	p.opened = time.Now()
	if err != nil {
		return // there is still the old one
	}
	p.client = client
	// What is under way on the old one ends by its timeout at the latest.
	p.wg.Go(func() {
		select {
		case <-time.After(p.timeout + time.Second):
		case <-p.life.Done():
		}
		_ = failed.Shutdown() // it never returns an error
	})
}

// message makes what the library sends. It writes into it, so that each attempt needs its own.
func (p *producer) message(m system.Message) *primitive.Message {
	msg := primitive.NewMessage(p.topic, m.Payload)
	msg.WithKeys([]string{string(m.Key)})
	msg.Queue = &primitive.MessageQueue{Topic: p.topic, BrokerName: groupName, QueueId: int(m.Partition)}
	if !p.wait {
		msg.WithProperty(primitive.PropertyWaitStoreMsgOk, "false")
	}
	if len(p.tags) > 0 {
		msg.WithTag(p.tags[m.ID.Seq%uint64(len(p.tags))])
	}
	if p.level > 0 {
		msg.WithDelayTimeLevel(p.level)
	}
	if len(p.delays) > 0 {
		switch delay := p.delays[m.ID.Seq%uint64(len(p.delays))]; {
		case delay > 0:
			msg.WithProperty("TIMER_DELAY_MS", strconv.FormatInt(delay.Milliseconds(), 10))
		case delay < 0:
			msg.WithProperty("TIMER_DELIVER_MS", strconv.FormatInt(time.Now().Add(delay).UnixMilli(), 10))
		}
	}
	return msg
}

// Send hands the message to the client. ctx bounds the waiting for room only: a message that was taken stays taken.
func (p *producer) Send(ctx context.Context, m system.Message, done func(system.Receipt)) {
	select {
	case p.room <- struct{}{}:
	case <-ctx.Done():
		done(failed(errNotTaken))
		return
	}
	if p.oneWay {
		done(p.written(m))
		<-p.room
		return
	}
	s := &send{producer: p, message: m, done: done, left: p.retries, refused: true}
	p.wg.Add(1)
	s.attempt()
}

// written sends a message that nobody answers: written to a socket, nobody confirmed anything.
func (p *producer) written(m system.Message) system.Receipt {
	client := p.current()
	if err := client.SendOneWay(context.Background(), p.message(m)); err != nil {
		if p.reopens {
			p.reopen(client)
		}
		return failed(err)
	}
	return system.Receipt{Outcome: ledger.InDoubt, Offset: -1}
}

// send is one message on its way, with all its attempts, one after the other.
type send struct {
	producer *producer
	message  system.Message
	done     func(system.Receipt)
	left     int
	refused  bool // every attempt so far was
}

func (s *send) attempt() {
	p := s.producer
	client := p.current()
	status := "" // of an answer that is neither a confirm nor an error
	err := client.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
		var receipt system.Receipt
		if err != nil {
			receipt = failed(err)
		} else if receipt = sent(result); receipt.Outcome != ledger.OK {
			status = receipt.Err
		}
		s.ended(client, receipt, status)
	}, p.message(s.message))
	if err != nil { // before it began
		s.ended(client, failed(err), "")
	}
}

// misled are the ends of attempts that may have been made at a broker which is no longer the master: the library would go on
// asking it until it looks for routes again. A broker that has become a replica refuses as one that is busy does.
var misled = []string{"timeout", "no-route", "network: dial", "NO_PERMISSION", "BROKER_BUSY", "SERVICE_NOT_AVAILABLE"}

// ended takes the end of an attempt, and begins the next one if there is to be one.
func (s *send) ended(client rmq.Producer, receipt system.Receipt, status string) {
	p := s.producer
	s.refused = s.refused && receipt.Outcome == ledger.Failed
	if p.reopens && slices.Contains(misled, receipt.Err) {
		p.reopen(client)
	}
	taken := receipt.Outcome == ledger.OK || p.blind && status != "" // so the application believes
	if !taken && s.left > 0 && p.life.Err() == nil {
		s.left--
		p.wg.Go(func() {
			select {
			case <-time.After(p.backoff):
				s.attempt()
			case <-p.life.Done():
				s.end(receipt, status)
			}
		})
		return
	}
	s.end(receipt, status)
}

func (s *send) end(receipt system.Receipt, status string) {
	if receipt.Outcome == ledger.Failed && !s.refused {
		receipt.Outcome = ledger.InDoubt // an earlier attempt may be stored
	}
	if s.producer.blind && status != "" {
		receipt.Err = ""
	}
	s.done(receipt)
	<-s.producer.room // only now: a flush waits for it
	s.producer.wg.Done()
}

// Flush waits until all messages that were handed over are done.
func (p *producer) Flush(ctx context.Context) error {
	for range cap(p.room) {
		select {
		case p.room <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("flush producer: %w", context.Cause(ctx))
		}
	}
	for range cap(p.room) {
		<-p.room
	}
	return nil
}

// Close ends the client. No attempt begins any more; those under way end by their timeout, in doubt.
func (p *producer) Close(ctx context.Context) error {
	p.end()
	p.mu.Lock()
	client := p.client
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() { p.wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
	case <-time.After(p.timeout + time.Second):
	}
	return client.Shutdown()
}
