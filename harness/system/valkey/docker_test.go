package valkey

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"conform/fixtures"
	"conform/harness/host"
	"conform/harness/system"
)

func TestMain(m *testing.M) {
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	os.Exit(m.Run())
}

func TestSettingsAreChecked(t *testing.T) {
	for name, value := range map[string]string{"port": "1", "requirepass": "x", "Max Memory": "1", "maxmemory": "1\nport 2"} {
		if _, err := conf(map[string]string{name: value}, "p"); !errors.Is(err, system.ErrUsage) {
			t.Errorf("setting %q = %q: error %v, want usage", name, value, err)
		}
	}
	text, err := conf(map[string]string{"maxmemory-policy": "noeviction"}, "p")
	if err != nil || !strings.Contains(string(text), "maxmemory-policy noeviction\n") || !strings.Contains(string(text), "requirepass p\n") {
		t.Errorf("conf: %v\n%s", err, text)
	}
}

// TestServer: who knows the password gets in, keys are kept and expire, and a server that died is told of.
func TestServer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a container: not with -short")
	}
	v, err := fixtures.ParseVersion(Name)
	if err != nil {
		t.Fatal(err)
	}
	images, err := host.Prepare(t.Context(), host.Options{Systems: []fixtures.Version{v}})
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("needs a container engine and an image of %s: %v", v, err)
		}
		t.Skipf("needs a container engine and an image of %s: %v", v, err)
	}
	started, err := System{}.Start(t.Context(), system.Spec{Run: "test-valkey" + time.Now().Format("-150405"), Version: v.Number, Image: images[v.String()].Ref})
	if err != nil {
		t.Fatal(err)
	}
	c := started.(*Cluster)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for range 2 {
			if err := c.Close(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	options, err := redis.ParseURL(c.DSN("test", false))
	if err != nil {
		t.Fatal("connection string cannot be read")
	}
	client := redis.NewClient(options)
	defer client.Close()
	if err := client.Set(t.Context(), "k", "v", 50*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	for !errors.Is(client.Get(t.Context(), "k").Err(), redis.Nil) {
		time.Sleep(10 * time.Millisecond)
		if t.Context().Err() != nil {
			t.Fatal("the key does not expire")
		}
	}
	stranger := redis.NewClient(&redis.Options{Addr: c.Endpoints()[0]})
	defer stranger.Close()
	if err := stranger.Ping(t.Context()).Err(); err == nil {
		t.Error("a client without a password got in")
	}
	if err := errors.Join(c.Baseline(t.Context()), c.Died(t.Context())); err != nil {
		t.Error(err)
	}
	if err := c.server.Signal(t.Context(), "KILL"); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(5 * time.Second)
	for c.Died(t.Context()) == nil {
		if time.Now().After(deadline) {
			t.Fatal("nobody tells that the server died")
		}
		time.Sleep(20 * time.Millisecond)
	}
}
