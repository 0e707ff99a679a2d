package rocketmq

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	rmqproducer "github.com/apache/rocketmq-client-go/v2/producer"

	"conform/harness/ledger"
	"conform/harness/system"
)

// Fate is what the broker is told of a transaction.
type Fate int

// The fates.
const (
	Unknown Fate = iota // the broker asks again
	Commit
	Rollback
)

var states = map[Fate]primitive.LocalTransactionState{
	Unknown: primitive.UnkonwnState, Commit: primitive.CommitMessageState, Rollback: primitive.RollbackMessageState,
}

// Transactions sends transactional messages, and answers the broker's questions about those of its group.
type Transactions struct {
	producer *producer // for its messages and settings; it has no client of its own
	client   rmq.TransactionProducer
	check    func(payload []byte) Fate

	mu      sync.Mutex
	execute map[*primitive.Message]func() Fate
}

// OpenTransactions opens a producer of transactional messages for c.Destination, of the producer group c.Group. It has the
// settings of a producer, but answers are awaited. check answers the broker's questions, one at a time; it may be asked about
// messages of another process of the group. It waits for a broker as long as ctx does. A broker asks those who have told it of themselves, as clients do a second after their
// start and then every 30 s.
func (Clients) OpenTransactions(ctx context.Context, c system.ClientConfig, check func(payload []byte) Fate) (*Transactions, error) {
	quiet()
	s := newSettings(c.Settings, ProducerSettings())
	t := &Transactions{
		producer: &producer{config: c, topic: topicName(c.Destination), timeout: s.millis("timeout.ms", 3*time.Second, 10), wait: true},
		check:    check, execute: map[*primitive.Message]func() Fate{},
	}
	if s.err == nil && c.Group == "" {
		s.fail("there is no producer group, and so nobody to ask about a transaction")
	}
	var namesrv string
	if s.err == nil {
		namesrv, s.err = namesrvOf(c)
	}
	if s.err != nil {
		return nil, fmt.Errorf("open transactions %s: %w", c.ClientID, s.err)
	}
	for {
		client, err := t.connect(c, namesrv)
		if err != nil {
			return nil, fmt.Errorf("open transactions %s: %w", c.ClientID, err)
		}
		t.client = client
		began := time.Now()
		receipt := t.Send(ctx, system.Message{Payload: hello}, func() Fate { return Rollback })
		if receipt.Outcome == ledger.OK && time.Since(began) < helloWithin {
			return t, nil
		}
		_ = client.Shutdown() // it never returns an error
		select {
		case <-time.After(helloPause):
		case <-ctx.Done():
			return nil, fmt.Errorf("open transactions %s: no broker takes a first message (%s): %w", c.ClientID, receipt.Err, context.Cause(ctx))
		}
	}
}

// A client tells those brokers of its group that it knows, a second after its start and then every 30 s; and it knows none before it
// has sent something. So each sends a half first, which is rolled back: who never sends would never be asked.
var hello = []byte("hello")

const (
	helloWithin = 800 * time.Millisecond
	helloPause  = 200 * time.Millisecond
)

func (t *Transactions) connect(c system.ClientConfig, namesrv string) (rmq.TransactionProducer, error) {
	client, err := rmq.NewTransactionProducer(listener{t},
		rmqproducer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})),
		rmqproducer.WithGroupName(topicName(c.Group)), rmqproducer.WithInstanceName(instance(c.ClientID)),
		rmqproducer.WithRetry(0), rmqproducer.WithSendMsgTimeout(t.producer.timeout),
		rmqproducer.WithQueueSelector(rmqproducer.NewManualQueueSelector()),
		rmqproducer.WithCompressMsgBodyOverHowmuch(neverCompressed),
	)
	if err == nil {
		err = client.Start()
	}
	return client, err
}

// Send sends the half of a message and, once that is stored, calls execute and tells the broker what that returns, in a request
// that nobody answers. So the receipt is that of the half: OK says that the message is the broker's, and not that anybody will see it.
func (t *Transactions) Send(ctx context.Context, m system.Message, execute func() Fate) system.Receipt {
	msg := t.producer.message(m)
	t.mu.Lock()
	t.execute[msg] = execute
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.execute, msg)
	}()
	result, err := t.client.SendMessageInTransaction(ctx, msg)
	if err != nil {
		return failed(err)
	}
	return sent(result.SendResult)
}

// Close ends the client.
func (t *Transactions) Close() error { return t.client.Shutdown() }

// listener is what the library calls back.
type listener struct{ t *Transactions }

func (l listener) ExecuteLocalTransaction(msg *primitive.Message) primitive.LocalTransactionState {
	l.t.mu.Lock()
	execute := l.t.execute[msg]
	l.t.mu.Unlock()
	return states[execute()]
}

func (l listener) CheckLocalTransaction(msg *primitive.MessageExt) primitive.LocalTransactionState {
	if bytes.Equal(msg.Body, hello) {
		return states[Rollback]
	}
	return states[l.t.check(msg.Body)]
}

// exhaustedTopic is where a broker puts the halves about which it has asked often enough.
const exhaustedTopic = "TRANS_CHECK_MAX_TIME_TOPIC"

// Exhausted returns how many halves the master has given up asking about, since it has its disk.
func (c *Cluster) Exhausted(ctx context.Context) (int64, error) {
	n, err := c.leader(ctx, clusterName)
	if err != nil {
		return 0, fmt.Errorf("count what is given up: %w", err)
	}
	end, err := n.maxOffset(ctx, exhaustedTopic, 0)
	if err != nil {
		return 0, fmt.Errorf("count what is given up: %w", err)
	}
	return end, nil
}

var _ system.PositionClients = Clients{}

// OpenPositions opens a client that asks where groups stand, as any application can, if there is one broker: which of several is
// the master it does not know, and a replica may be behind.
func (Clients) OpenPositions(_ context.Context, c system.ClientConfig) (system.GroupAsker, error) {
	if len(c.Endpoints) != 1 {
		return nil, fmt.Errorf("open positions: %d brokers, want one: %w", len(c.Endpoints), system.ErrNotApplicable)
	}
	return positions{c.Endpoints[0], c.Partitions}, nil
}

type positions struct {
	broker string
	queues int
}

func (p positions) GroupPositions(ctx context.Context, destination, group string) ([]system.GroupPosition, error) {
	found, err := positionsAt(ctx, p.broker, topicName(destination), topicName(group), p.queues)
	if err != nil {
		return nil, fmt.Errorf("find positions of group %s: %w", group, err)
	}
	return found, nil
}

func (positions) Close(context.Context) error { return nil }
