package rocketmq

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"conform/fixtures"
	"conform/harness/internal/container"
	"conform/harness/system"
	"conform/harness/system/systemtest"
)

// docker returns the engine and the image of the default version, or skips: in CI their absence is a failure.
func docker(t testing.TB) (engine *container.Engine, image string) {
	t.Helper()
	miss := t.Skipf
	if os.Getenv("CI") == "true" {
		miss = t.Fatalf
	}
	if testing.Short() {
		t.Skip("needs Docker: not in -short")
	}
	engine, err := container.Connect(t.Context())
	if err != nil {
		miss("needs Docker: %v", err)
	}
	version := fixtures.Versions(Name)[0]
	for _, image := range []string{version.Image(), version.Official} {
		if _, ok, err := engine.Image(t.Context(), image); err != nil {
			t.Fatal(err)
		} else if ok {
			return engine, image
		}
	}
	miss("needs the image of rocketmq %s: conform prepare", version.Number)
	return nil, ""
}

// newCluster starts a cluster and makes sure that nothing of it outlives the test.
func newCluster(t testing.TB, engine *container.Engine, image string, settings map[string]string) (*Cluster, string) {
	t.Helper()
	run := "test-" + strings.ToLower(rand.Text()[:8])
	t.Cleanup(func() {
		if err := engine.RemoveRun(context.WithoutCancel(t.Context()), run); err != nil {
			t.Error(err)
		}
	})
	c, err := System{}.Start(t.Context(), system.Spec{
		Run: run, Version: fixtures.Versions(Name)[0].Number, Image: image, Settings: settings,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Progress: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return c.(*Cluster), run
}

// bench returns the battery's bench. A confirm is SEND_OK, and a producer that tries again makes duplicates.
func bench(engine *container.Engine, c *Cluster, run string) systemtest.Bench {
	return systemtest.Bench{
		Cluster: c, Clients: Clients{}, Seed: 1,
		Resending: map[string]string{"retries": "10", "route": "reopen", "timeout.ms": "1000"},
		Patient:   map[string]string{"retries": "100", "route": "reopen", "timeout.ms": "1000"},
		Confirm:   KindSend, OneLeader: true,
		Left: func(ctx context.Context) ([]string, error) {
			objects, err := engine.List(ctx)
			var left []string
			for _, o := range objects {
				if o.Owner.Run == run {
					left = append(left, string(o.Kind)+" "+o.Name)
				}
			}
			return left, err
		},
	}
}

// clientless are the checks of the battery that open no client. The race detector finds races within the client library, so that
// with it the others cannot pass: they run without.
var clientless = []string{"identity", "usage", "logs", "closed"}

func runChecks(t *testing.T, c *Cluster, b systemtest.Bench) {
	for _, check := range systemtest.Checks() {
		if raced && !slices.Contains(clientless, check.Name) {
			continue
		}
		ok := t.Run(check.Name, func(t *testing.T) {
			began := time.Now()
			err := check.Run(t.Context(), b)
			t.Logf("%s: %.1f s", check.What, time.Since(began).Seconds())
			if errors.Is(err, system.ErrNotApplicable) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
		if !ok && t.Context().Err() == nil {
			for _, n := range c.nodes {
				if tail := n.broker.Tail(t.Context(), 15); tail != "" {
					t.Logf("log of %s ends:\n%s", n.name, tail)
				}
			}
		}
	}
}

// TestBattery runs the battery where another broker takes over: under a controller.
func TestBattery(t *testing.T) {
	engine, image := docker(t)
	c, run := newCluster(t, engine, image, map[string]string{
		SettingLayout: Controller, "inSyncReplicas": "2", "allAckInSyncStateSet": "true", "namesrv.enableElectUncleanMaster": "false",
	})
	if !raced {
		t.Run("follows", func(t *testing.T) { testFollows(t, c, run) })
	}
	runChecks(t, c, bench(engine, c, run))
}

// A consumer with route=reopen goes to the new master, and says that it gave its queues up between. One that waits for the
// library says nothing.
func testFollows(t *testing.T, c *Cluster, run string) {
	const topic = "follows"
	if err := c.Create(t.Context(), system.DestinationSpec{Name: topic, Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	config := system.ClientConfig{System: Name, ClientID: topic, DSN: c.DSN("", false), Destination: topic, Partitions: 1, Group: topic}
	config.Settings = map[string]string{"route": "reopen"}
	k, err := Clients{}.OpenConsumer(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close(context.WithoutCancel(t.Context())) }()
	var told []system.ChangeKind
	k.(system.Member).Watch(func(change system.Change) { told = append(told, change.Kind) })
	config.ClientID, config.Settings = "sender", bench(nil, c, run).Patient
	p, err := Clients{}.OpenProducer(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close(context.WithoutCancel(t.Context())) }()
	roundTrip := func(payload string) {
		t.Helper()
		p.Send(t.Context(), system.Message{Payload: []byte(payload)}, func(r system.Receipt) { t.Logf("%s: %+v", payload, r) })
		for {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // as workers poll
			ds, err := k.Poll(ctx)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(ds, func(d system.Delivery) bool { return string(d.Payload) == payload }) {
				return
			}
		}
	}
	roundTrip("before")
	leadership, err := c.Leadership(t.Context(), topic, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kill(t.Context(), leadership.Leader); err != nil {
		t.Fatal(err)
	}
	roundTrip("after")
	if want := []system.ChangeKind{system.Assigned, system.Revoked, system.Assigned}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	if err := errors.Join(c.Start(t.Context(), leadership.Leader), c.Baseline(t.Context())); err != nil {
		t.Fatal(err)
	}
}
