package kafka

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"conform/fixtures"
	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/system/disks"
)

// newDiskCluster starts a cluster whose nodes have disks of their own, or skips where the machine cannot. In CI that is an
// error only where there are rights and loop devices.
func newDiskCluster(t *testing.T) *Cluster {
	t.Helper()
	engine, image := docker(t)
	run := "test-" + strings.ToLower(rand.Text()[:8])
	t.Cleanup(func() {
		if err := engine.RemoveRun(context.WithoutCancel(t.Context()), run); err != nil {
			t.Error(err)
		}
	})
	started, err := System{}.Start(t.Context(), system.Spec{
		Run: run, Version: fixtures.Versions(Name)[0].Number, Image: image, Settings: map[string]string{disks.Setting: "512"},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Progress: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := started.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	c := started.(*Cluster)
	if err := c.DiskBacked(); err != nil {
		_, loop := os.Stat("/dev/loop-control")
		if os.Getenv("CI") == "true" && os.Getuid() == 0 && loop == nil {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return c
}

// charge is a closed-loop load on one topic: so many records are always under way.
type charge struct {
	topic    string
	producer system.Producer
	next     uint64

	mu        sync.Mutex
	confirmed map[uint64]bool
	latencies []time.Duration
	done      chan struct{} // a token for each record that is completed
}

const underWay = 100

func (c *Cluster) charge(t *testing.T, topic string, client, settings map[string]string) *charge {
	t.Helper()
	if err := c.Create(t.Context(), system.DestinationSpec{Name: topic, Leader: c.nodes[0], Settings: settings}); err != nil {
		t.Fatal(err)
	}
	p, err := Clients{}.OpenProducer(t.Context(), system.ClientConfig{Endpoints: c.Endpoints(), ClientID: topic, Destination: topic, Settings: client})
	if err != nil {
		t.Fatal(err)
	}
	l := &charge{topic: topic, producer: p, confirmed: map[uint64]bool{}, done: make(chan struct{}, underWay)}
	for range underWay {
		l.done <- struct{}{}
	}
	return l
}

// run sends until ctx ends.
func (l *charge) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.done:
		}
		id, sent := l.next, time.Now()
		l.next++
		payload := binary.BigEndian.AppendUint64(make([]byte, 0, 160), id)
		l.producer.Send(context.WithoutCancel(ctx), system.Message{Payload: payload[:160]}, func(r system.Receipt) {
			l.mu.Lock()
			if r.Outcome == ledger.OK {
				l.confirmed[id] = true
				l.latencies = append(l.latencies, time.Since(sent))
			}
			l.mu.Unlock()
			l.done <- struct{}{}
		})
	}
}

// alone measures the load by itself.
func (l *charge) alone(t *testing.T, warm, d time.Duration) string {
	pace := func(d time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		l.run(ctx)
	}
	for sent := l.next; l.next < sent+10*underWay; { // the first record waits for metadata
		pace(warm)
	}
	l.mu.Lock()
	before, from := len(l.confirmed), len(l.latencies)
	l.mu.Unlock()
	pace(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	measured := slices.Sorted(slices.Values(l.latencies[from:]))
	if len(measured) == 0 {
		return "nothing confirmed"
	}
	return fmt.Sprintf("%.0f confirmed/s, p99 %s", float64(len(l.confirmed)-before)/d.Seconds(), measured[len(measured)*99/100].Round(100*time.Microsecond))
}

// stored reads the topic to its end.
func (c *Cluster) stored(t *testing.T, topic string) map[uint64]bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ends, err := c.EndPositions(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	found := map[uint64]bool{}
	if ends[0] == 0 {
		return found
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.DirectEndpoints()...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for at := int64(0); at < ends[0]; {
		fetches := client.PollFetches(ctx)
		if err := errors.Join(ctx.Err(), fetches.Err()); err != nil {
			t.Fatalf("read %s at %d of %d: %v", topic, at, ends[0], err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			at = r.Offset + 1
			found[binary.BigEndian.Uint64(r.Value)] = true
		})
	}
	return found
}

// TestPowerCut measures what a confirm is worth under a SIGKILL, a power cut of the leader, and one of all nodes, for three
// settings. Their rate and latency are measured by themselves first; at the strike all are under load.
func TestPowerCut(t *testing.T) {
	c := newDiskCluster(t)
	all := c.Nodes()
	heal := func(strike func(context.Context) (system.Injection, error)) func(context.Context) (func(context.Context) error, error) {
		return func(ctx context.Context) (func(context.Context) error, error) {
			i, err := strike(ctx)
			if err != nil {
				return nil, err
			}
			e, err := i.Evidence(ctx)
			if t.Log(e.Detail); err == nil && !e.Bit {
				err = errors.New("it has no evidence")
			}
			return i.Heal, err
		}
	}
	for _, fault := range []struct {
		name   string
		lossOf []string // settings that must lose something
		strike func(context.Context) (func(context.Context) error, error)
	}{
		{"SIGKILL of all", nil, func(ctx context.Context) (func(context.Context) error, error) {
			each := func(do func(system.Node) error) error {
				var g errgroup.Group
				for _, n := range all {
					g.Go(func() error { return do(n) })
				}
				return g.Wait()
			}
			err := each(func(n system.Node) error { _, err := c.Kill(ctx, n); return err })
			return func(ctx context.Context) error {
				return each(func(n system.Node) error { return c.Start(ctx, n) })
			}, err
		}},
		{"power cut of one", nil, heal(func(ctx context.Context) (system.Injection, error) { return c.CutPower(ctx, all[:1]) })},
		{"power cut of all", []string{"default flush", "acks=1"}, heal(func(ctx context.Context) (system.Injection, error) { return c.CutPower(ctx, all) })},
	} {
		t.Run(fault.name, func(t *testing.T) {
			safe, loads := map[string]string{"min.insync.replicas": "2"}, map[string]*charge{}
			flush := maps.Clone(safe)
			flush["flush.messages"] = "1"
			topic := func(setting string) string {
				return strings.NewReplacer(" ", "-", "=", "-").Replace(fault.name + "." + setting)
			}
			for setting, l := range map[string]struct{ client, topic map[string]string }{
				"flush.messages=1": {nil, flush},
				"default flush":    {nil, safe},
				"acks=1":           {map[string]string{"acks": "1", "idempotence": "false"}, safe},
			} {
				loads[setting] = c.charge(t, topic(setting), l.client, l.topic)
			}
			rates := map[string]string{}
			for setting, l := range loads {
				rates[setting] = l.alone(t, time.Second, 3*time.Second)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for _, l := range loads {
				wg.Go(func() { l.run(ctx) })
			}
			time.Sleep(time.Second) // of load at once
			up, err := fault.strike(t.Context())
			cancel()
			wg.Wait()
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range loads { // what is under way stays in doubt: nothing is confirmed after the strike
				if err := l.producer.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if err := up(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := c.Baseline(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, setting := range slices.Sorted(maps.Keys(loads)) {
				l, lost := loads[setting], 0
				found := c.stored(t, l.topic)
				for id := range l.confirmed {
					if !found[id] {
						lost++
					}
				}
				t.Logf("%s, %s: %d confirmed, %d lost, %s", fault.name, setting, len(l.confirmed), lost, rates[setting])
				switch must := slices.Contains(fault.lossOf, setting); {
				case len(l.confirmed) < 100:
					t.Errorf("%s: too few were confirmed to tell anything", setting)
				case must && lost == 0:
					t.Errorf("%s lost nothing: was it a power cut?", setting)
				case setting == "flush.messages=1" && lost > 0, setting == "default flush" && !must && lost > 0:
					t.Errorf("%s lost %d", setting, lost)
				}
			}
		})
	}
}

// TestDiskFaults fills, slows, loses and damages the disk of a node that has one of its own.
func TestDiskFaults(t *testing.T) {
	c := newDiskCluster(t)
	ctx, node := t.Context(), c.nodes[0]
	l := c.charge(t, "damaged", nil, map[string]string{"min.insync.replicas": "2"})
	defer func() { _ = l.producer.Close(context.WithoutCancel(ctx)) }()
	fast := l.alone(t, time.Second, time.Second)
	topic := system.DestinationSpec{Name: "alone", Leader: node, Settings: map[string]string{SettingReplicas: "1"}}
	if err := c.Create(ctx, topic); err != nil {
		t.Fatal(err)
	}
	if lead, err := c.Leadership(ctx, "alone", 0); err != nil || len(lead.Replicas) != 1 || lead.Leader != system.Node(node) {
		t.Errorf("a topic with one replica: %+v, %v", lead, err)
	}
	topic.Name, topic.Settings = "none", map[string]string{SettingReplicas: "4"}
	if err := c.Create(ctx, topic); !errors.Is(err, system.ErrUsage) {
		t.Errorf("four replicas on three nodes: %v", err)
	}

	slow, err := c.ThrottleDisk(ctx, node, 256<<10)
	switch {
	case errors.Is(err, system.ErrNotApplicable):
		t.Log(err)
	case err != nil:
		t.Fatal(err)
	default:
		if e, err := slow.Evidence(ctx); err != nil || !e.Bit {
			t.Errorf("throttle: %+v, %v", e, err)
		} else {
			t.Logf("%s; %s before", e.Detail, fast)
		}
		if err := slow.Heal(ctx); err != nil {
			t.Fatal(err)
		}
	}

	rot := system.Rot{Pattern: "damaged-0/*.log", Offset: 1 << 20}
	if _, err := c.RotFile(ctx, node, rot); !errors.Is(err, system.ErrUsage) {
		t.Errorf("damaged a running node: %v", err)
	}
	if _, err := c.Kill(ctx, node); err != nil {
		t.Fatal(err)
	}
	for _, r := range []system.Rot{rot, {Pattern: "damaged-0/*.log", Cut: 100}} {
		proof, err := c.RotFile(ctx, node, r)
		if err != nil || !strings.Contains(proof, "damaged-0/00000000000000000000.log") {
			t.Errorf("damage: %q, %v", proof, err)
		}
		t.Log(proof)
	}
	proof, err := c.LoseDisk(ctx, node)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(proof)
	if err := c.Start(ctx, node); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(ctx, "alone"); err != nil { // it is gone for good
		t.Fatal(err)
	}
	if err := c.Baseline(ctx); err != nil {
		t.Fatal(err)
	}

	full, err := c.FillDisk(ctx, node, 0)
	if err != nil {
		t.Fatal(err)
	}
	// It halts once its log cannot grow any more.
	loaded, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { l.run(loaded) })
	err = c.await(ctx, "the node has halted", func(ctx context.Context) error {
		if _, err := node.process().Running(ctx); err == nil {
			return errors.New("it still runs")
		}
		return nil
	})
	cancel()
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := full.Heal(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if e, err := full.Evidence(ctx); err != nil || !e.Bit {
		t.Errorf("full disk: %+v, %v", e, err)
	} else if t.Log(e.Detail); !strings.Contains(e.Detail, "has ended") {
		t.Error("how the node ended is not told")
	}
	if err := c.Baseline(ctx); err != nil {
		t.Fatal(err)
	}
	found, lost := c.stored(t, "damaged"), 0
	for id := range l.confirmed {
		if !found[id] {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d confirmed records are lost", lost, len(l.confirmed))
	}
	if _, err := c.CutPower(ctx, nil); !errors.Is(err, system.ErrUsage) {
		t.Errorf("the power of nobody: %v", err)
	}
}
