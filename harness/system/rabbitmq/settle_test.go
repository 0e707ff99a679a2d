package rabbitmq

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"conform/harness/ledger"
	"conform/harness/system"
)

// TestSettledStaysSettled: what was settled one by one, more at once than a channel hands over to a quorum queue, does not
// come again once Close has returned nil.
func TestSettledStaysSettled(t *testing.T) {
	engine, image := docker(t)
	if other := os.Getenv("CONFORM_TEST_IMAGE"); other != "" {
		image = other
	}
	c, _ := newCluster(t, engine, image, 0)
	for _, kind := range []string{Quorum, Classic} {
		t.Run(kind, func(t *testing.T) {
			const n, rounds = 400, 8
			name := "settled-" + kind
			if err := c.Create(t.Context(), system.DestinationSpec{Name: name, Settings: map[string]string{"type": kind}}); err != nil {
				t.Fatal(err)
			}
			client := system.ClientConfig{
				Endpoints: c.Endpoints(), DSN: c.DSN(name, false), ClientID: name, Destination: name,
			}
			p, err := Clients{}.OpenProducer(t.Context(), client)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = p.Close(context.WithoutCancel(t.Context())) }()
			for round := range rounds {
				for i := range n {
					p.Send(t.Context(), system.Message{ID: ledger.MessageID{Stream: 1, Seq: uint64(round*n + i)}, Payload: []byte("x")}, func(system.Receipt) {})
				}
				if err := p.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				k, err := Clients{}.OpenConsumer(t.Context(), client)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				for got := 0; got < n; {
					ds, err := k.Poll(ctx)
					if err != nil || ctx.Err() != nil {
						t.Fatal(got, err, ctx.Err())
					}
					got += len(ds)
					if err := k.Settle(ctx, ds); err != nil {
						t.Fatal(err)
					}
				}
				cancel()
				if err := k.Close(context.WithoutCancel(t.Context())); err != nil {
					t.Fatal(err)
				}
				// What was not taken is there again as soon as the node has noticed that the channel is gone.
				err = c.await(t.Context(), "nothing comes again", func(ctx context.Context) error {
					for range 5 {
						left, err := c.leftOf(ctx, name)
						if err != nil {
							return err
						}
						if left > 0 {
							return fmt.Errorf("round %d: %d settled messages are ready again: %w", round, left, errEnded)
						}
						time.Sleep(40 * time.Millisecond)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// leftOf says how many messages of a queue are ready.
func (c *Cluster) leftOf(ctx context.Context, queue string) (int64, error) {
	n, err := c.leader(ctx, queue)
	if err != nil {
		return 0, err
	}
	return n.ready(ctx, queue)
}
