package rabbitmq

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"strings"
	"testing"

	"conform/fixtures"
	"conform/harness/system"
	"conform/harness/system/disks"
	"conform/harness/system/systemtest"
)

// TestPowerCut measures what a publisher confirm is worth: a quorum queue has it on the disks of a majority, a classic one in
// the page cache of its node.
func TestPowerCut(t *testing.T) {
	engine, image := docker(t)
	run := "test-" + strings.ToLower(rand.Text()[:8])
	t.Cleanup(func() {
		if err := engine.RemoveRun(context.WithoutCancel(t.Context()), run); err != nil {
			t.Error(err)
		}
	})
	c, err := System{}.Start(t.Context(), system.Spec{
		Run: run, Version: fixtures.Versions(Name)[0].Number, Image: image, Settings: map[string]string{disks.Setting: "512"},
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
	if err := c.(*Cluster).DiskBacked(); err != nil {
		if _, loop := os.Stat("/dev/loop-control"); os.Getenv("CI") == "true" && os.Getuid() == 0 && loop == nil {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	classic := map[string]string{"type": Classic, "durable": "true"}
	worths, err := systemtest.Power(t.Context(), systemtest.Bench{Cluster: c, Clients: Clients{}, Seed: 1}, []systemtest.Setting{
		{
			Name: "quorum queue", Destination: map[string]string{"type": Quorum},
			Keeps: []string{systemtest.KillOfAll, systemtest.CutOfOne, systemtest.CutOfAll},
		},
		{
			Name: "classic queue, persistent", Destination: classic,
			Keeps: []string{systemtest.KillOfAll}, Loses: []string{systemtest.CutOfOne, systemtest.CutOfAll},
		},
		{
			Name: "classic queue, transient", Destination: classic, Client: map[string]string{"persistent": "false"},
			Loses: []string{systemtest.KillOfAll, systemtest.CutOfOne, systemtest.CutOfAll},
		},
	})
	for _, w := range worths {
		t.Log(w)
	}
	if err != nil {
		t.Error(err)
	}
}
