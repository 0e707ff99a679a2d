package rocketmq

import (
	"cmp"
	"context"
	"fmt"
	"time"

	rmq "github.com/apache/rocketmq-client-go/v2"
	rmqconsumer "github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"conform/harness/system"
)

// ListenerSettings documents the settings of a listener, and their defaults.
func ListenerSettings() map[string]string {
	return map[string]string{
		"order":         "concurrent (messages are handed over at once, and one that fails goes to the group's retry topic) or orderly (those of a queue one after the other, under the broker's lock of the queue, and one that fails holds it up); default concurrent",
		"max.reconsume": "how often a message is tried again before it becomes a dead letter; default 16 if concurrent, for ever if orderly",
	}
}

// Listener is the library's push consumer.
type Listener struct{ client rmq.PushConsumer }

// lockEvery is how often an orderly listener renews its locks of queues, suspended for how long a queue is held up by a failure.
const (
	lockEvery = time.Second
	suspended = 500 * time.Millisecond
)

// OpenListener opens a push consumer of c.Destination in c.Group, which begins where the queues do. It hands each message to listen,
// and tells the library what that returns: that the work is done, or that it is not, and the message is to come again. A delivery
// has no offset, since a message that comes again does so from another topic, and says how often it has come. The group's retry
// topic must be there (DestinationSettings: groups), or its first retry takes 40 s.
func (Clients) OpenListener(c system.ClientConfig, listen func(context.Context, system.Delivery) bool) (*Listener, error) {
	quiet()
	s := newSettings(c.Settings, ListenerSettings())
	orderly := s.choice("order", "concurrent", "concurrent", "orderly") == "orderly"
	most := s.number("max.reconsume", -1, 0)
	if c.Group == "" {
		s.fail("a listener needs a group")
	}
	namesrv, err := namesrvOf(c)
	if err = cmp.Or(s.err, err); err != nil {
		return nil, fmt.Errorf("open listener %s: %w", c.ClientID, err)
	}
	options := []rmqconsumer.Option{
		rmqconsumer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})),
		rmqconsumer.WithGroupName(topicName(c.Group)), rmqconsumer.WithInstance(instance(c.ClientID)),
		rmqconsumer.WithConsumeFromWhere(rmqconsumer.ConsumeFromFirstOffset),
		rmqconsumer.WithConsumerOrder(orderly), rmqconsumer.WithRebalanceLockInterval(lockEvery),
		rmqconsumer.WithSuspendCurrentQueueTimeMillis(suspended), rmqconsumer.WithMaxReconsumeTimes(int32(most)),
	}
	consumerTimeouts.Do(func() {
		options = append(options, rmqconsumer.WithRemotingTimeout(dialTimeout, readTimeout2, writeTimeout))
	})
	client, err := rmq.NewPushConsumer(options...)
	if err != nil {
		return nil, fmt.Errorf("open listener %s: make client: %w", c.ClientID, err)
	}
	again := rmqconsumer.ConsumeRetryLater
	if orderly {
		again = rmqconsumer.SuspendCurrentQueueAMoment
	}
	err = client.Subscribe(topicName(c.Destination), rmqconsumer.MessageSelector{}, func(ctx context.Context, messages ...*primitive.MessageExt) (rmqconsumer.ConsumeResult, error) {
		for _, m := range messages { // one, unless the library is told otherwise
			d := system.Delivery{Key: []byte(m.GetKeys()), Payload: m.Body, Partition: int32(m.Queue.QueueId), Offset: -1, Attempt: int(m.ReconsumeTimes) + 1}
			if !listen(ctx, d) {
				return again, nil
			}
		}
		return rmqconsumer.ConsumeSuccess, nil
	})
	if err == nil {
		err = client.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("open listener %s: start client: %w", c.ClientID, err)
	}
	return &Listener{client}, nil
}

// Close ends the client.
func (l *Listener) Close() error { return l.client.Shutdown() }
