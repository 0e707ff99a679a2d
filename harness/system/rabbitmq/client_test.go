package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"conform/harness/ledger"
	"conform/harness/system"
)

// client configures clients of a queue.
func client(c *Cluster, queue, name string, settings map[string]string) system.ClientConfig {
	return system.ClientConfig{
		System: Name, Endpoints: c.Endpoints(), DSN: c.DSN(name, false), ClientID: name, Destination: queue, Settings: settings,
	}
}

// publish sends n messages, numbered from first, and returns how they ended once all have.
func publish(t testing.TB, p system.Producer, first, n int) []system.Receipt {
	t.Helper()
	type end struct {
		i int
		r system.Receipt
	}
	ends := make(chan end, n)
	for i := range n {
		id := ledger.MessageID{Stream: 1, Seq: uint64(first + i)}
		p.Send(t.Context(), system.Message{ID: id, Key: []byte("k"), Payload: ledger.AppendPayload(nil, 1, 1, id, 0, 160)}, func(r system.Receipt) { ends <- end{i, r} })
	}
	receipts := make([]system.Receipt, n)
	for k := range n {
		select {
		case e := <-ends:
			receipts[e.i] = e.r
		case <-time.After(20 * time.Second):
			t.Fatalf("%d of %d sends have ended", k, n)
		}
	}
	return receipts
}

func outcomes(rs []system.Receipt) string {
	count := map[string]int{}
	for _, r := range rs {
		count[r.Outcome.String()+" "+r.Err]++
	}
	return fmt.Sprint(count)
}

func create(t testing.TB, c *Cluster, name string, settings map[string]string) {
	t.Helper()
	if err := c.Create(t.Context(), system.DestinationSpec{Name: name, Settings: settings}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Delete(context.WithoutCancel(t.Context()), name); err != nil {
			t.Error(err)
		}
	})
}

func open(t testing.TB, c *Cluster, queue string, settings map[string]string) system.Producer {
	t.Helper()
	p, err := Clients{}.OpenProducer(t.Context(), client(c, queue, queue+"-producer", settings))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return p
}

func subscribe(t testing.TB, c *Cluster, queue string, settings map[string]string) *consumer {
	t.Helper()
	k, err := Clients{}.OpenConsumer(t.Context(), client(c, queue, queue+"-consumer", settings))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return k.(*consumer)
}

// poll receives n deliveries.
func poll(t testing.TB, k *consumer, n int) []system.Delivery {
	t.Helper()
	var all []system.Delivery
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for len(all) < n {
		ds, err := k.Poll(ctx)
		if err != nil || ctx.Err() != nil {
			t.Fatalf("%d of %d delivered: %v", len(all)+len(ds), n, err)
		}
		all = append(all, ds...)
	}
	return all
}

// until waits for 15 s at most.
func until(t testing.TB, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if err := (&Cluster{}).await(ctx, what, check); err != nil {
		t.Fatal(err)
	}
}

// TestClients works on one node: what the protocol says about publishes and deliveries needs no cluster.
func TestClients(t *testing.T) {
	engine, image := docker(t)
	c, _ := newCluster(t, engine, image, 1)
	t.Run("settled deliveries are gone", func(t *testing.T) {
		const n = 500
		create(t, c, "settled", nil)
		if rs := publish(t, open(t, c, "settled", nil), 0, n); outcomes(rs) != "map[ok :500]" {
			t.Fatal(outcomes(rs))
		}
		k := subscribe(t, c, "settled", nil)
		for got := 0; got < n; {
			ds := poll(t, k, 1)
			got += len(ds)
			if err := k.Settle(t.Context(), ds); err != nil {
				t.Fatal(err)
			}
		}
		if err := k.Close(t.Context()); err != nil {
			t.Error(err)
		}
		until(t, "the queue is empty", func(ctx context.Context) error {
			ready, unsettled, err := c.count(ctx, "settled")
			if ready > 0 {
				return fmt.Errorf("%d are ready again: %w", ready, errEnded)
			}
			if err == nil && unsettled != 0 {
				err = fmt.Errorf("%d unsettled", unsettled)
			}
			return err
		})
	})
	t.Run("who does not wait for a connection is refused", func(t *testing.T) {
		create(t, c, "impatient", nil)
		p := open(t, c, "impatient", map[string]string{"disconnected": "fail"})
		if rs := publish(t, p, 0, 5); outcomes(rs) != "map[ok :5]" {
			t.Fatal(outcomes(rs))
		}
		cut, err := c.CutLink(t.Context(), c.nodes[0], system.Reset, system.Both)
		if err != nil {
			t.Fatal(err)
		}
		next := 5
		send := func() []system.Receipt {
			next += 5
			return publish(t, p, next-5, 5)
		}
		until(t, "publishes are refused", func(context.Context) error {
			if rs := send(); outcomes(rs) != "map[fail not-connected:5]" {
				return errors.New(outcomes(rs))
			}
			return nil
		})
		if err := cut.Heal(t.Context()); err != nil {
			t.Fatal(err)
		}
		until(t, "publishes are confirmed", func(context.Context) error {
			if rs := send(); outcomes(rs) != "map[ok :5]" {
				return errors.New(outcomes(rs))
			}
			return nil
		})
	})
	t.Run("polls shorter than a handshake subscribe once", func(t *testing.T) {
		const n = 20
		create(t, c, "hasty", nil)
		publish(t, open(t, c, "hasty", nil), 0, n)
		k := subscribe(t, c, "hasty", nil)
		began := time.Now()
		for got := 0; got < n; {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			ds, err := k.Poll(ctx)
			cancel()
			if err != nil || time.Since(began) > 10*time.Second {
				t.Fatalf("%d of %d delivered: %v", got, n, err)
			}
			for _, d := range ds {
				if d.Attempt != 1 {
					t.Errorf("delivered in attempt %d", d.Attempt)
				}
			}
			got += len(ds)
		}
	})
	t.Run("groups have a queue each", func(t *testing.T) {
		create(t, c, "shared", map[string]string{"groups": "mailers billers"})
		publish(t, open(t, c, "shared", nil), 0, 20)
		for _, group := range []string{"shared.mailers", "shared.billers"} {
			config := client(c, "shared", group, map[string]string{"queue": "group"})
			config.Group = group
			k, err := Clients{}.OpenConsumer(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			ds := poll(t, k.(*consumer), 20)
			if left, err := c.GroupBacklog(t.Context(), "shared", group); err != nil || left == 0 {
				t.Errorf("%s holds %d, %v", group, left, err)
			}
			if state, err := c.GroupMembers(t.Context(), group); err != nil || state.Members != 1 || !state.Stable {
				t.Errorf("%s: %+v, %v", group, state, err)
			}
			if err := errors.Join(k.Settle(t.Context(), ds), k.Close(t.Context())); err != nil {
				t.Fatal(err)
			}
			until(t, "nothing is left", func(ctx context.Context) error {
				left, err := c.GroupBacklog(ctx, "shared", group)
				if err == nil && left > 0 {
					err = fmt.Errorf("%d", left)
				}
				return err
			})
		}
		if ends, err := c.EndPositions(t.Context(), "shared"); err != nil || ends[0] != 20 {
			t.Errorf("beside them: %v, %v", ends, err)
		}
	})
	t.Run("returns and nacks are refusals", func(t *testing.T) {
		create(t, c, "unbound", map[string]string{"binding": "false"})
		if rs := publish(t, open(t, c, "unbound", map[string]string{"mandatory": "true"}), 0, 50); outcomes(rs) != "map[fail returned:50]" {
			t.Error(outcomes(rs))
		}
		if rs := publish(t, open(t, c, "unbound", nil), 50, 50); outcomes(rs) != "map[ok :50]" {
			t.Error("not mandatory:", outcomes(rs)) // confirmed does not mean routed
		}
		create(t, c, "full", map[string]string{"x-max-length": "10", "x-overflow": "reject-publish"})
		full := open(t, c, "full", nil)
		if rs := publish(t, full, 0, 1); rs[0].Outcome != ledger.OK {
			t.Error(outcomes(rs))
		}
		// A quorum queue is full a moment after it has taken what fills it.
		until(t, "publishes are nacked", func(context.Context) error {
			if rs := publish(t, full, 1, 20); rs[19].Outcome != ledger.Failed || rs[19].Err != "nacked" {
				return errors.New(outcomes(rs))
			}
			return nil
		})
		create(t, c, "unconfirmed", nil)
		if rs := publish(t, open(t, c, "unconfirmed", map[string]string{"confirms": "false"}), 0, 10); outcomes(rs) != "map[info :10]" {
			t.Error(outcomes(rs))
		}
	})
	t.Run("an exception leaves publishes in doubt", func(t *testing.T) {
		create(t, c, "vanishing", nil)
		p := open(t, c, "vanishing", nil)
		publish(t, p, 0, 1)
		if err := c.Delete(t.Context(), "vanishing"); err != nil {
			t.Fatal(err)
		}
		for i, r := range publish(t, p, 1, 20) {
			if r.Outcome == ledger.OK {
				t.Errorf("publish %d to an exchange that is gone: %+v", i, r)
			}
		}
	})
	t.Run("a deleted queue cancels the consumer", func(t *testing.T) {
		create(t, c, "cancelled", nil)
		k := subscribe(t, c, "cancelled", nil)
		publish(t, open(t, c, "cancelled", nil), 0, 1)
		poll(t, k, 1)
		if err := c.Delete(t.Context(), "cancelled"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := k.Poll(ctx); !errors.Is(err, ErrCanceled) {
			t.Errorf("poll: %v", err)
		}
	})
	t.Run("an unknown tag closes the channel", func(t *testing.T) {
		create(t, c, "tags", nil)
		publish(t, open(t, c, "tags", nil), 0, 2)
		k := subscribe(t, c, "tags", nil)
		ds := poll(t, k, 2)
		if ds[0].Attempt != 1 {
			t.Errorf("attempt %d", ds[0].Attempt)
		}
		wrong := ds[0].Handle.(handle)
		wrong.tag = 99
		if err := k.Settle(t.Context(), []system.Delivery{{Handle: wrong}}); err != nil {
			t.Fatal(err) // written: nobody confirms it
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := k.Poll(ctx); !errors.Is(err, ErrDisconnected) {
			t.Errorf("poll: %v", err)
		}
		if err := k.Settle(t.Context(), ds); !errors.Is(err, ErrDisconnected) {
			t.Errorf("settle on a closed channel: %v", err)
		}
		again := poll(t, k, 2)
		if again[0].Attempt != 2 {
			t.Errorf("attempt %d of a redelivery", again[0].Attempt)
		}
		if err := k.Return(t.Context(), again[:1], RejectRequeue); err != nil {
			t.Fatal(err)
		}
		if third := poll(t, k, 1); third[0].Attempt != 3 {
			t.Errorf("attempt %d after a reject", third[0].Attempt)
		}
	})
	t.Run("an alarm blocks publishers", func(t *testing.T) {
		create(t, c, "blocked", nil)
		p := open(t, c, "blocked", nil).(*producer)
		publish(t, p, 0, 1)
		i, err := c.RaiseAlarm(t.Context(), c.nodes[0], "memory")
		if err != nil {
			t.Fatal(err)
		}
		e, err := i.Evidence(t.Context())
		if err != nil || !e.Bit {
			t.Errorf("evidence %+v, error %v", e, err)
		}
		done := make(chan system.Receipt, 1)
		id := ledger.MessageID{Stream: 1, Seq: 1}
		p.Send(t.Context(), system.Message{ID: id, Payload: ledger.AppendPayload(nil, 1, 1, id, 0, 160)}, func(r system.Receipt) { done <- r })
		until(t, "the client knows", func(context.Context) error {
			if why, _ := p.Blocked(); why == "" {
				return errors.New("not blocked")
			}
			return nil
		})
		select {
		case r := <-done:
			t.Errorf("ended during the alarm: %+v", r)
		default:
		}
		if err := c.Baseline(t.Context()); !errors.Is(err, system.ErrUsage) {
			t.Errorf("baseline during the alarm: %v", err)
		}
		if err := errors.Join(i.Heal(t.Context()), i.Heal(t.Context())); err != nil {
			t.Fatal(err)
		}
		if r := <-done; r.Outcome != ledger.OK {
			t.Errorf("after the alarm: %+v", r)
		}
	})
	t.Run("a missing route and a limit are healed", func(t *testing.T) {
		create(t, c, "limited", map[string]string{"x-overflow": "reject-publish"})
		p := open(t, c, "limited", map[string]string{"mandatory": "true"})
		for name, inject := range map[string]func() (system.Injection, error){
			"returned": func() (system.Injection, error) { return c.Unbind(t.Context(), []string{"limited"}) },
			"nacked": func() (system.Injection, error) {
				return c.LimitQueues(t.Context(), []string{"limited"}, map[string]string{"max-length": "1"})
			},
		} {
			i, err := inject()
			if err != nil {
				t.Fatal(err)
			}
			until(t, "it has bitten", func(ctx context.Context) error {
				e, err := i.Evidence(ctx)
				if err == nil && !e.Bit {
					err = errors.New(e.Detail)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			// A limit is in force a moment before the queue knows it.
			until(t, "publishes are "+name, func(context.Context) error {
				if rs := publish(t, p, 0, 50); rs[49].Err != name {
					return errors.New(outcomes(rs))
				}
				return nil
			})
			if err := errors.Join(i.Heal(t.Context()), i.Heal(t.Context())); err != nil {
				t.Fatal(err)
			}
			until(t, "publishes are taken again", func(_ context.Context) error {
				if rs := publish(t, p, 50, 1); rs[0].Outcome != ledger.OK {
					return errors.New(outcomes(rs))
				}
				return nil
			})
		}
	})
	t.Run("queues go with their consumers", func(t *testing.T) {
		for name, settings := range map[string]map[string]string{
			"auto-delete": {"type": "classic", "auto-delete": "true", "attended": "true"},
			"exclusive":   {"type": "classic", "exclusive": "true", "attended": "true"},
			"expires":     {"x-expires": "1000", "attended": "true"},
			"stays":       {"attended": "true"},
		} {
			create(t, c, name, settings)
			publish(t, open(t, c, name, nil), 0, 5)
			i, err := c.Leave(t.Context(), []string{name})
			if err != nil {
				t.Fatal(err)
			}
			until(t, name+" has ended", func(ctx context.Context) error {
				e, err := i.Evidence(ctx)
				if err == nil && !e.Bit {
					err = errors.New(e.Detail)
				}
				return err
			})
			var stored int64
			err = c.ReadStore(t.Context(), name, 0, 1, func(e ledger.Event) {
				if e.Kind == ledger.StoreEnd {
					stored = e.N
				}
			})
			if want := map[bool]int64{true: 5}[name == "stays"]; err != nil || stored != want {
				t.Errorf("%s: %d messages, want %d, error %v", name, stored, want, err)
			}
		}
	})
	t.Run("dead letters and what cannot be routed belong to the store", func(t *testing.T) {
		create(t, c, "dying", map[string]string{"x-message-ttl": "1", "dead-letter": "classic", "alternate": "true"})
		p := open(t, c, "dying", nil)
		publish(t, p, 0, 20)
		i, err := c.Unbind(t.Context(), []string{"dying"})
		if err != nil {
			t.Fatal(err)
		}
		publish(t, p, 20, 10)
		if err := i.Heal(t.Context()); err != nil {
			t.Fatal(err)
		}
		until(t, "all is dead", func(ctx context.Context) error {
			ends, err := c.EndPositions(ctx, "dying")
			if err == nil && fmt.Sprint(ends) != "[0 30]" {
				err = fmt.Errorf("%v", ends)
			}
			return err
		})
		dead := 0
		err = c.ReadStore(t.Context(), "dying", 0, 1, func(e ledger.Event) {
			switch {
			case e.Kind == ledger.Stored && e.View == ledger.ViewDeadLetter && e.Stream == 1 && e.Text == "":
				dead++
			case e.Kind == ledger.StoreEnd && (e.Pos.Offset != e.N || e.View == ledger.ViewRaw && e.N != 0):
				t.Errorf("end %+v", e)
			}
		})
		if err != nil || dead != 30 {
			t.Errorf("%d dead letters, error %v", dead, err)
		}
	})
}
