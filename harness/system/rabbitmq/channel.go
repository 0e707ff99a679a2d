package rabbitmq

import (
	"context"
	"fmt"

	"conform/harness/system"
)

// Queue is what a Consumer of this adapter can do beyond polling and settling.
type Queue interface {
	system.Consumer
	// Return gives deliveries back on the channel that they came on.
	Return(ctx context.Context, ds []system.Delivery, how Return) error
	// Holds says whether a delivery came on the channel that is open now.
	Holds(d system.Delivery) bool
	// AckByTag settles whatever has the delivery's tag on the channel that is open now. A tag that means nothing there
	// makes the node close the channel (PRECONDITION_FAILED).
	AckByTag(ctx context.Context, d system.Delivery) error
	// Abandon ends the channel with its connection without a word, as a process that dies does. The next Poll connects again.
	Abandon()
}

var _ Queue = (*consumer)(nil)

// Tag is the number of a delivery on its channel.
func Tag(d system.Delivery) uint64 { return tagOf(d) }

func (k *consumer) current() *subscription {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sub
}

func (k *consumer) Holds(d system.Delivery) bool {
	h, ok := d.Handle.(handle)
	return ok && h.sub == k.current()
}

func (k *consumer) AckByTag(_ context.Context, d system.Delivery) error {
	sub := k.current()
	if sub == nil {
		return fmt.Errorf("settle: %w", ErrDisconnected)
	}
	return k.each([]system.Delivery{{Handle: handle{sub, tagOf(d)}}}, func(h handle) error { return h.sub.ch.Ack(h.tag, false) })
}

func (k *consumer) Abandon() {
	if sub := k.current(); sub != nil {
		sub.conn.abort()
	}
}
