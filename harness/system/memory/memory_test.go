package memory

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"conform/harness/ledger"
	"conform/harness/system"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What the engine asks of a cluster by type assertion.
var (
	_ system.Killer          = (*cluster)(nil)
	_ system.Pauser          = (*cluster)(nil)
	_ system.LinkCutter      = (*cluster)(nil)
	_ system.ResponseDropper = (*cluster)(nil)
	_ system.RequestRefuser  = (*cluster)(nil)
	_ system.LeaderFinder    = (*cluster)(nil)
	_ system.WireCounter     = (*cluster)(nil)
	_ system.StoreReader     = (*cluster)(nil)
	_ system.Positions       = (*cluster)(nil)
	_ system.LogCollector    = (*cluster)(nil)
)

const tag = 77

func start(t *testing.T) *cluster {
	t.Helper()
	c, err := System{}.Start(t.Context(), system.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c.(*cluster)
}

type sent struct {
	id      ledger.MessageID
	receipt system.Receipt
}

// produce sends n messages, runs during in the middle and waits for all to be done.
func produce(t *testing.T, c *cluster, dest system.DestinationSpec, client map[string]string, n int, during func()) []sent {
	t.Helper()
	if err := c.Create(t.Context(), dest); err != nil {
		t.Fatal(err)
	}
	p, err := Clients{}.OpenProducer(t.Context(), system.ClientConfig{
		Endpoints: c.Endpoints(), ClientID: dest.Name + ".p1", Destination: dest.Name, Partitions: dest.Partitions, Settings: client,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close(context.Background()) }()
	all := make(chan sent, n)
	for seq := range n {
		if seq == n/2 && during != nil {
			during()
		}
		id := ledger.MessageID{Stream: 1, Seq: uint64(seq)}
		key := ledger.KeyOf(1, id, 8)
		p.Send(t.Context(), system.Message{
			ID: id, Key: []byte(ledger.KeyName(key)), Payload: ledger.AppendPayload(nil, 1, tag, id, 0, 160),
			Partition: ledger.PartitionOf(key, dest.Partitions),
		}, func(r system.Receipt) { all <- sent{id, r} })
		if seq%20 == 0 {
			time.Sleep(time.Millisecond) // several batches
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := p.Flush(ctx); err != nil {
		t.Fatalf("flush: %v", err)
	}
	close(all)
	var done []sent
	for s := range all {
		done = append(done, s)
	}
	if len(done) != n {
		t.Fatalf("%d of %d sends were done", len(done), n)
	}
	return done
}

func read(t *testing.T, c *cluster, dest string) []ledger.Event {
	t.Helper()
	var stored []ledger.Event
	err := c.ReadStore(t.Context(), dest, 0, tag, func(e ledger.Event) {
		if e.Kind == ledger.Stored && e.View == ledger.ViewRaw {
			stored = append(stored, e)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// Without a bug every fault leaves each message exactly once and in order.
func TestSoundUnderFaults(t *testing.T) {
	ctx := t.Context()
	for name, during := range map[string]func(c *cluster, leader system.Node) func(){
		"nothing": func(*cluster, system.Node) func() { return nil },
		"kill": func(c *cluster, l system.Node) func() {
			return func() { _, _ = c.Kill(ctx, l) }
		},
		"pause": func(c *cluster, l system.Node) func() {
			return func() {
				_, _ = c.Pause(ctx, l)
				time.AfterFunc(50*time.Millisecond, func() { _ = c.Resume(ctx, l) })
			}
		},
		"reset": func(c *cluster, l system.Node) func() {
			return func() {
				i, _ := c.CutLink(ctx, l, system.Reset, system.Both)
				time.AfterFunc(50*time.Millisecond, func() { _ = i.Heal(ctx) })
			}
		},
		"response dropped": func(c *cluster, l system.Node) func() {
			return func() { _, _ = c.DropResponse(ctx, l, system.WireRule{Client: "d.", Nth: 1}) }
		},
		"request refused": func(c *cluster, l system.Node) func() {
			return func() { _, _ = c.RefuseRequest(ctx, l, system.WireRule{Nth: 2}, codeNotLeader) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t)
			leader := c.Nodes()[1]
			done := produce(t, c, system.DestinationSpec{Name: "d", Partitions: 2, Leader: leader}, nil, 1000, during(c, leader))
			seen := map[ledger.MessageID]int{}
			last := map[uint32]uint64{}
			for _, e := range read(t, c, "d") {
				seen[e.ID()]++
				if e.Seq < last[e.Key] {
					t.Errorf("%v stands behind %d of its key", e.ID(), last[e.Key])
				}
				last[e.Key] = e.Seq
			}
			for _, s := range done {
				if s.receipt.Outcome != ledger.OK || seen[s.id] != 1 {
					t.Errorf("%v: outcome %v, stored %d times", s.id, s.receipt.Outcome, seen[s.id])
				}
			}
		})
	}
}

func TestNotIdempotentDuplicatesAndReorders(t *testing.T) {
	for name, arm := range map[string]func(c *cluster, l system.Node){
		"duplicates": func(c *cluster, l system.Node) {
			_, _ = c.DropResponse(t.Context(), l, system.WireRule{Nth: 1})
		},
		"reorders": func(c *cluster, l system.Node) {
			_, _ = c.RefuseRequest(t.Context(), l, system.WireRule{Nth: 2, Behind: 2}, codeNotLeader)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t)
			l := c.Nodes()[0]
			produce(t, c, system.DestinationSpec{Name: "d", Partitions: 1, Leader: l}, map[string]string{"idempotence": "false"}, 1000, func() { arm(c, l) })
			seen := map[uint64]bool{}
			twice, back, high := 0, 0, uint64(0)
			for _, e := range read(t, c, "d") {
				switch {
				case seen[e.Seq]:
					twice++
				case e.Seq < high:
					back++
				}
				seen[e.Seq] = true
				high = max(high, e.Seq)
			}
			if name == "duplicates" && twice == 0 {
				t.Error("a dropped response led to no duplicate")
			}
			if name == "reorders" && back == 0 {
				t.Error("a refused request led to no reordering")
			}
		})
	}
}

func TestDeadlineLeavesInDoubt(t *testing.T) {
	c := start(t)
	if err := c.Create(t.Context(), system.DestinationSpec{Name: "d"}); err != nil {
		t.Fatal(err)
	}
	p, err := Clients{}.OpenProducer(t.Context(), system.ClientConfig{
		Endpoints: c.Endpoints(), ClientID: "x", Destination: "d", Settings: map[string]string{"delivery.timeout.ms": "50"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes() {
		_, _ = c.Kill(t.Context(), n)
	}
	got := make(chan system.Receipt, 1)
	p.Send(t.Context(), system.Message{Payload: []byte("x")}, func(r system.Receipt) { got <- r })
	if r := <-got; r.Outcome != ledger.InDoubt || r.Err != "delivery timeout" {
		t.Errorf("past its deadline a send is %v (%s), want in doubt", r.Outcome, r.Err)
	}
	_ = p.Close(context.Background())
}

func TestConsumerGoesOnFromTheCommit(t *testing.T) {
	c := start(t)
	produce(t, c, system.DestinationSpec{Name: "d", Partitions: 1}, nil, 700, nil)
	open := func() system.Consumer {
		k, err := Clients{}.OpenConsumer(t.Context(), system.ClientConfig{Endpoints: c.Endpoints(), ClientID: "c", Destination: "d", Partitions: 1, Group: "g"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = k.Close(context.Background()) })
		return k
	}
	k := open()
	first, err := k.Poll(t.Context())
	if err != nil || len(first) != maxFetch {
		t.Fatalf("polled %d, error %v", len(first), err)
	}
	if err := k.Settle(t.Context(), first[:10]); err != nil {
		t.Fatal(err)
	}
	again, err := open().Poll(t.Context())
	if err != nil || again[0].Offset != 10 {
		t.Errorf("the next consumer begins at %d, error %v, want 10", again[0].Offset, err)
	}
}

func TestBaselineNamesWhatIsLeft(t *testing.T) {
	c := start(t)
	if err := c.Baseline(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := c.Nodes()[2]
	_, _ = c.Kill(t.Context(), n)
	if err := c.Baseline(t.Context()); err == nil {
		t.Error("a node is down, and the baseline holds")
	}
	_ = c.Start(t.Context(), n)
	if err := c.Baseline(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestUnknownSettingsAreRefused(t *testing.T) {
	c := start(t)
	if err := c.Create(t.Context(), system.DestinationSpec{Name: "d", Settings: map[string]string{"bug": "no-such"}}); err == nil {
		t.Error("an unknown bug was planted")
	}
	if _, err := (Clients{}).OpenProducer(t.Context(), system.ClientConfig{Settings: map[string]string{"x": "1"}}); err == nil {
		t.Error("an unknown client setting was taken")
	}
}
