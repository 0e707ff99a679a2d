package suites

import (
	"context"
	"errors"
	"maps"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/system/rocketmq"
	"conform/harness/worker"
)

// roleListener is the worker role of a push consumer of RocketMQ: the library pulls, and calls the handler of suites/chain. Its
// parameters are those of roleConsume that are about the handler, and its group is named as harness.ArmEnv.Group names one.
const roleListener = "rocketmq-listener"

// paramGroup is the name of its group within the arm. It is none of the harness's: the positions of messages that come again
// from the group's retry topic would not be those of the destination.
const paramGroup = "group"

func init() { worker.Register(roleListener, listenRole) }

// listening records what a listener does.
type listening struct{ *consuming }

func listenRole(ctx context.Context, s *worker.Session) error {
	c, err := newConsuming(ctx, s)
	if err != nil {
		return err
	}
	defer c.pool.Close()
	l := listening{c}
	config := s.Config.Client
	config.Group, config.Settings = config.Destination+"."+s.Config.Params[paramGroup], maps.Clone(config.Settings)
	if err := s.Ready(ctx); err != nil { // a listener begins at once
		return err
	}
	client, err := rocketmq.Clients{}.OpenListener(config, l.take)
	if err != nil {
		return err
	}
	select {
	case <-s.Stopping():
	case <-ctx.Done():
	}
	return errors.Join(client.Close(), context.Cause(ctx))
}

// take does the work on a message, and says whether it is done. One is worked on at a time, in the order in which they come.
func (l listening) take(ctx context.Context, d system.Delivery) bool {
	c := l.consuming
	received := c.event(ledger.Received, d)
	c.mu.Lock()
	if err := c.s.RecordNow(received); err != nil {
		c.mu.Unlock()
		return false
	}
	c.s.Count(worker.Counts{Received: 1})
	ev := c.content(received, d.Payload)
	c.batch[ev.ID] = append(c.batch[ev.ID], d)
	c.mu.Unlock()
	if _, err := c.handle(ctx, c.service, ev); err != nil {
		return false
	}
	// The library tells the broker later, and nobody confirms it.
	settled := c.event(ledger.Settled, d)
	settled.Text, settled.Sent = "ack", settled.At
	c.s.Record(settled)
	c.s.Count(worker.Counts{Settled: 1})
	return true
}

// listener is a push consumer of the group that bears its name.
func listener(name string, client, params map[string]string) harness.Process {
	return harness.Process{Name: name, Role: roleListener, Client: client, Params: with(params, paramGroup, group)}
}

// listened is the destination of a group of listeners.
var listened = map[string]string{"groups": group}

// allListened is a drain of listeners, whose positions do not tell what is to come again: nothing is left once each message
// whose send was confirmed is in the inbox, or when for so long nothing has changed that it would have come again.
var allListened = quiet(noQuestion, false, withoutEffect(confirmed, "inbox"))
