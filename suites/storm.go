package suites

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/worker"
	"conform/suites/chain"
)

// The parameters of a storming role.
const (
	// paramParallel is how many deliveries it works on at once.
	paramParallel = "parallel"
	// paramPause is "backoff", or "none": the next attempt follows at once.
	paramPause = "pause"
)

// strikeTemporary names the temporary failures: three of ten attempts.
const strikeTemporary = "temporary-failures"

// secondTimeout is how long an attempt waits for the second of its two connections.
const secondTimeout = 500 * time.Millisecond

// stormRole works on whole batches. Each attempt needs two connections of the database at once, one for its transaction and
// one for a look-up within, out of the four that there are: a database at its limit.
func stormRole(clients system.Clients) worker.Role {
	return func(ctx context.Context, s *worker.Session) error {
		parallel, err := strconv.Atoi(s.Config.Params[paramParallel])
		if err != nil {
			return fmt.Errorf("read parameter %s: %w: %w", paramParallel, err, system.ErrUsage)
		}
		c, err := newConsuming(ctx, s)
		if err != nil {
			return err
		}
		defer c.pool.Close()
		if c.client, err = clients.OpenConsumer(ctx, s.Config.Client); err != nil {
			return fmt.Errorf("open consumer: %w", err)
		}
		if c.member, _ = c.client.(system.Member); c.member != nil {
			c.member.Watch(c.changed)
		}
		err = s.Ready(ctx)
		if err == nil {
			err = (&storm{consuming: c, parallel: parallel, pause: s.Config.Params[paramPause]}).run(ctx)
		}
		return errors.Join(err, c.client.Close(context.WithoutCancel(ctx)))
	}
}

type storm struct {
	*consuming
	parallel int
	pause    string
	struck   sync.Once
}

func (c *storm) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-c.s.Stopping():
			cancel()
		case <-over:
		}
	}()
	for ctx.Err() == nil {
		ds, err := c.poll(ctx, pollWait)
		if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		var g errgroup.Group
		g.SetLimit(c.parallel)
		for _, d := range ds {
			g.Go(func() error { return c.attempt(ctx, d) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil // what is not done is not settled
		}
		for _, d := range ds {
			c.mu.Lock()
			c.settleLater(d)
			c.mu.Unlock()
		}
		c.commitSettled(ctx)
	}
	return nil
}

// attempt tries until the work is done, or ctx ends. The error is that of the journal.
func (c *storm) attempt(ctx context.Context, d system.Delivery) error {
	e := c.event(ledger.Handled, d)
	ev := chain.Event{ID: ledger.EventOf(e.ID(), e.EventID), Key: e.Key, Amount: 1, Body: []byte{}}
	ev.Version = ledger.VersionOf(ev.ID)
	ctx, sum := timed(ctx)
	for n := 1; ctx.Err() == nil; n++ {
		err := c.once(ctx, ev, n)
		e.At, e.Attempt, e.N = worker.Now(), uint32(n), sum.Load()
		if err == nil {
			e.Outcome, e.Text, e.Detail = ledger.OK, string(chain.Applied), ""
			c.s.Count(worker.Counts{Handled: 1})
			return c.s.RecordNow(e)
		}
		c.struck.Do(func() {
			err = errors.Join(err, strike(c.s, strikeTemporary, "three of ten attempts fail, on a database at its limit", chain.Redact(err), 1))
		})
		if n == 1 { // one is enough to tell what happened
			e.Outcome, e.Text, e.Detail = ledger.Failed, "retried", chain.Redact(err)
			c.s.Record(e)
		}
		if c.pause == "backoff" {
			select {
			case <-time.After(c.service.Backoff.Delay(ev.ID, n)):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

var errTemporary = fmt.Errorf("%w: planned failure", chain.ErrTemporary)

// once is one attempt. Three of ten fail after they have done their work.
func (c *storm) once(ctx context.Context, ev chain.Event, attempt int) error {
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO notifications (event_id, key, version, amount, consumer) VALUES ($1, $2, $3, $4, $5)",
			int64(ev.ID), int64(ev.Key), ev.Version, ev.Amount, c.service.Name)
		if err != nil {
			return err
		}
		second, cancel := context.WithTimeout(ctx, secondTimeout)
		defer cancel()
		var open int
		// As a helper does that knows nothing of the transaction.
		if err := c.pool.QueryRow(second, "SELECT count(*) FROM orders WHERE key = $1", int64(ev.Key)).Scan(&open); err != nil {
			return fmt.Errorf("look up: %w", err)
		}
		if (ev.ID*2654435761+uint64(attempt)*40503)%10 < 3 {
			return errTemporary
		}
		return nil
	})
}
