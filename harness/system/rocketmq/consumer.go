package rocketmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-client-go/v2"
	rmqconsumer "github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"conform/harness/internal/clock"
	"conform/harness/ledger"
	"conform/harness/system"
)

// pollSlice bounds one wait in the library, which takes a duration and no end.
const pollSlice = 250 * time.Millisecond

// OpenConsumer opens a consumer of c.Destination: the library's pull consumer, which pulls each of its queues from the position
// of c.Group, a thousand messages ahead at most, and commits it. All queues are assigned to it, or with queues=shared those
// that the library gives it: then a member that comes has a queue before the one that had it knows, and both own it for a
// moment. Without a group it begins where the queues do and cannot settle. With route=reopen it follows a failover at once.
// Unknown settings are ErrUsage. It is a [system.Member].
func (Clients) OpenConsumer(_ context.Context, c system.ClientConfig) (system.Consumer, error) {
	quiet()
	s := newSettings(c.Settings, ConsumerSettings())
	var (
		from   = s.choice("consume.from", "first", "first", "last")
		shared = s.choice("queues", "all", "all", "shared") == "shared"
		tags   = cmp.Or(c.Settings["tags"], "*")
		reopen = s.choice("route", "refresh", "refresh", "reopen") == "reopen"
	)
	if tags != "*" && !shared {
		s.fail("setting tags=%q needs queues=shared", tags)
	}
	if reopen && shared {
		s.fail("setting route=reopen needs queues=all: a client that goes leaves its queues to the others")
	}
	k := &consumer{
		config: c, topic: topicName(c.Destination), group: topicName(c.Group),
		most:   s.number("max.poll.records", 32, 1),
		commit: s.millis("commit.wait.ms", 2*time.Second, 10),
		shared: shared, tags: tags, from: rmqconsumer.ConsumeFromFirstOffset,
		reopens: reopen,
		owned:   map[int32]bool{},
	}
	if of := c.Settings["dead.letters"]; of != "" {
		k.topic = deadLetters(c.Destination, of)
	}
	namesrv, err := namesrvOf(c)
	if err = cmp.Or(s.err, err); err != nil {
		return nil, fmt.Errorf("open consumer %s: %w", c.ClientID, err)
	}
	k.namesrv = namesrv
	if k.group == "" {
		k.group = instance(c.ClientID)
	}
	if from == "last" {
		k.from = rmqconsumer.ConsumeFromLastOffset
	}
	if k.client, err = k.connect(); err != nil {
		return nil, fmt.Errorf("open consumer %s: %w", c.ClientID, err)
	}
	return k, nil
}

// connect opens a client of the library.
func (k *consumer) connect() (rmq.PullConsumer, error) {
	options := []rmqconsumer.Option{
		rmqconsumer.WithNsResolver(primitive.NewPassthroughResolver([]string{k.namesrv})),
		rmqconsumer.WithGroupName(k.group), rmqconsumer.WithInstance(instance(k.config.ClientID)), rmqconsumer.WithConsumeFromWhere(k.from),
		rmqconsumer.WithStrategy(k.allocate),
		rmqconsumer.WithPullBatchSize(int32(k.most)), // without it each pull brings one message
	}
	consumerTimeouts.Do(func() {
		options = append(options, rmqconsumer.WithRemotingTimeout(dialTimeout, readTimeout2, writeTimeout))
	})
	client, err := rmq.NewPullConsumer(options...)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	if k.shared {
		err = client.Subscribe(k.topic, rmqconsumer.MessageSelector{Type: rmqconsumer.TAG, Expression: k.tags})
	} else {
		queues := make([]*primitive.MessageQueue, 0, max(1, k.config.Partitions))
		for q := range max(1, k.config.Partitions) {
			queues = append(queues, k.queue(int32(q)))
		}
		k.own(queues)
		err = client.Assign(k.topic, queues)
	}
	if err == nil {
		err = client.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start client: %w", err)
	}
	return client, nil
}

var _ system.Member = (*consumer)(nil)

type consumer struct {
	config       system.ClientConfig
	topic, group string
	namesrv      string
	most         int
	commit       time.Duration
	shared       bool
	tags         string
	from         rmqconsumer.ConsumeFromWhere
	reopens      bool

	mu        sync.Mutex              // of Poll
	waiting   []*primitive.MessageExt // from the library, not yet polled
	asked     time.Time               // when follow was last answered
	answering string                  // the master's address then; none = there was none, or it did not answer

	clients sync.Mutex // of client
	client  rmq.PullConsumer

	balance sync.Mutex // of one rebalance after the other, and of Watch
	watch   func(system.Change)
	owners  sync.Mutex // of owned
	owned   map[int32]bool
}

// current returns the client to ask.
func (k *consumer) current() rmq.PullConsumer {
	k.clients.Lock()
	defer k.clients.Unlock()
	return k.client
}

// follow replaces the client once another master answers than before, or one answers again. The library looks for routes every
// 30 s only, and waits as long for the answer to a pull whose connection is gone. As after any restart of a consumer, what is
// not settled comes again.
func (k *consumer) follow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second) // the end of a poll is none of these questions
	defer cancel()
	addresses, err := route(ctx, k.namesrv, k.topic)
	if err != nil && !answered(err, answerTopicNotExist) {
		return nil // it is asked again
	}
	now := addresses[masterID]
	if now != "" {
		if _, _, err := ask(ctx, now, codeHAStatus, nil, nil); err != nil {
			now = ""
		}
	}
	was, first := k.answering, k.asked.IsZero()
	if k.answering, k.asked = now, time.Now(); first || now == "" || now == was {
		return nil
	}
	// One after the other: what a client has committed it commits again when it ends, which would set the next one back.
	k.own(nil)
	k.waiting = nil
	_ = k.current().Shutdown() // it never returns an error
	client, err := k.connect()
	if err != nil {
		return fmt.Errorf("open a new client for the master at %s: %w", now, err)
	}
	k.clients.Lock()
	defer k.clients.Unlock()
	k.client = client
	return nil
}

// allocate divides the queues as the library does, which asks for that before it goes by it: what the consumer is about to
// lose can still be committed.
func (k *consumer) allocate(group, client string, all []*primitive.MessageQueue, members []string) []*primitive.MessageQueue {
	mine := rmqconsumer.AllocateByAveragely(group, client, all, members)
	if len(all) > 0 && all[0].Topic == k.topic {
		k.own(mine)
	}
	return mine
}

// own tells of the queues that are lost and won.
func (k *consumer) own(queues []*primitive.MessageQueue) {
	k.balance.Lock()
	defer k.balance.Unlock()
	next := map[int32]bool{}
	for _, q := range queues {
		next[int32(q.QueueId)] = true
	}
	k.owners.Lock()
	lost, won := missing(next, k.owned), missing(k.owned, next)
	k.owners.Unlock()
	if k.watch != nil && len(lost) > 0 {
		k.watch(system.Change{Kind: system.Revoked, At: clock.Now(), Partitions: lost})
	}
	k.owners.Lock()
	k.owned = next
	k.owners.Unlock()
	if k.watch != nil && len(won) > 0 {
		k.watch(system.Change{Kind: system.Assigned, At: clock.Now(), Partitions: won})
	}
}

// missing lists what is in b and not in a.
func missing(a, b map[int32]bool) []int32 {
	var m []int32
	for q := range b {
		if !a[q] {
			m = append(m, q)
		}
	}
	slices.Sort(m)
	return m
}

func (k *consumer) owns(q int32) bool {
	k.owners.Lock()
	defer k.owners.Unlock()
	return k.owned[q]
}

// queue is a queue as the library takes it.
func (k *consumer) queue(q int32) *primitive.MessageQueue {
	return &primitive.MessageQueue{Topic: k.topic, BrokerName: groupName, QueueId: int(q)}
}

// master returns a way to ask the broker that clients are told as master: a replica has the positions of a while ago. Who that is
// is asked again after an error only.
func (k *consumer) master() func(context.Context, int, map[string]string) (map[string]string, error) {
	address := ""
	return func(ctx context.Context, code int, fields map[string]string) (map[string]string, error) {
		if address == "" {
			addresses, err := route(ctx, k.namesrv, k.topic)
			if err != nil {
				return nil, err
			}
			address = addresses[masterID]
		}
		answer, _, err := ask(ctx, address, code, fields, nil)
		if err != nil {
			address = ""
		}
		return answer, err
	}
}

// committed asks for a group's position in a queue; -1 = none.
func committed(ctx context.Context, ask func(context.Context, int, map[string]string) (map[string]string, error), topic, group string, q int32) (int64, error) {
	answer, err := ask(ctx, codeQueryOffset, map[string]string{
		"consumerGroup": group, "topic": topic, "queueId": strconv.Itoa(int(q)), "setZeroIfNotFound": "false",
	})
	if answered(err, answerQueryNotFound) {
		return -1, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(answer["offset"], 10, 64)
}

// Poll waits for messages. Deliveries carry no attempt: nobody counts them.
func (k *consumer) Poll(ctx context.Context) ([]system.Delivery, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		if k.reopens && time.Since(k.asked) >= pollSlice {
			if err := k.follow(ctx); err != nil {
				return nil, fmt.Errorf("poll: %w", err)
			}
		}
		if len(k.waiting) > 0 {
			break
		}
		if ctx.Err() != nil {
			return nil, nil
		}
		request, err := k.current().Poll(ctx, pollSlice)
		if err != nil && !rmqconsumer.IsNoNewMsgError(err) {
			return nil, fmt.Errorf("poll: %w", err)
		}
		if request != nil {
			// It is never acknowledged to the library, whose way of doing so also moves positions by itself.
			k.waiting = request.GetMsgList()
		}
		k.waiting = slices.DeleteFunc(k.waiting, func(m *primitive.MessageExt) bool { return !k.owns(int32(m.Queue.QueueId)) })
	}
	n := min(k.most, len(k.waiting))
	ds := make([]system.Delivery, 0, n)
	for _, m := range k.waiting[:n] {
		ds = append(ds, system.Delivery{
			Key: []byte(m.GetKeys()), Payload: m.Body, Partition: int32(m.Queue.QueueId), Offset: m.QueueOffset,
		})
	}
	k.waiting = k.waiting[n:]
	return ds, nil
}

// Settle commits, for each queue, the offset behind the last of ds.
func (k *consumer) Settle(ctx context.Context, ds []system.Delivery) error {
	if k.config.Group == "" {
		return fmt.Errorf("settle: a consumer without a group has no positions: %w", system.ErrUsage)
	}
	var errs []error
	for _, s := range k.Commit(ctx, ds) {
		if s.Outcome != ledger.OK {
			errs = append(errs, fmt.Errorf("settle queue %d: %s", s.Partition, s.Err))
		}
	}
	return errors.Join(errs...)
}

// Commit commits like Settle. The library sends commits one-way, so that nobody confirms them; the broker is asked afterwards
// what it has, which is the confirm. It keeps positions in memory and writes them every 5 s (flushConsumerOffsetInterval).
func (k *consumer) Commit(ctx context.Context, ds []system.Delivery) []system.Settlement {
	next := map[int32]int64{}
	for _, d := range ds {
		next[d.Partition] = max(next[d.Partition], d.Offset+1)
	}
	var all []system.Settlement
	for _, q := range slices.Sorted(maps.Keys(next)) {
		all = append(all, k.commitQueue(ctx, q, next[q]))
	}
	return all
}

func (k *consumer) commitQueue(ctx context.Context, q int32, next int64) system.Settlement {
	s := system.Settlement{Partition: q, Next: next, Err: "no answer"}
	ctx, cancel := context.WithTimeout(ctx, k.commit)
	defer cancel()
	client := k.current()
	err := client.UpdateOffset(k.queue(q), next)
	if err == nil {
		err = client.PersistOffset(ctx, k.topic)
	}
	if err != nil {
		s.Err = errorClass(err, nil)
		return s
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	master := k.master()
	for {
		at, err := committed(ctx, master, k.topic, k.group, q)
		switch {
		case err == nil && at == next:
			s.Outcome, s.Err = ledger.OK, ""
			return s
		case err != nil:
			s.Err = errorClass(err, nil)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return s
		}
	}
}

// Watch hands every change to f. A rebalance waits for its return.
func (k *consumer) Watch(f func(system.Change)) {
	k.balance.Lock()
	defer k.balance.Unlock()
	k.watch = f
	if queues := missing(nil, k.owned); len(queues) > 0 {
		f(system.Change{Kind: system.Assigned, At: clock.Now(), Partitions: queues})
	}
}

// Close gives the queues up and ends the client.
func (k *consumer) Close(context.Context) error {
	k.own(nil)
	return k.current().Shutdown()
}
