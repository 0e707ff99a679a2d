package rabbitmq

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"conform/fixtures"
	"conform/harness/system"
)

// TestStartFails: a start that does not work says why, with the end of the log, and leaves nothing behind.
func TestStartFails(t *testing.T) {
	engine, image := docker(t)
	for _, c := range []struct {
		name     string
		settings map[string]string
		image    string
		after    time.Duration // when it is interrupted
		is       error
		says     string
	}{
		{"setting that does not exist", map[string]string{"queue_leader": "1"}, image, 0, system.ErrUsage, "queue_leader"},
		{"value that is none", map[string]string{"net_ticktime": "soon"}, image, 0, system.ErrEnvironment, "soon"},
		{"no such image", nil, "localhost/conform-rabbitmq:none", 0, system.ErrEnvironment, "localhost/conform-rabbitmq:none"},
		{"interrupted", nil, image, time.Second, context.DeadlineExceeded, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := t.Context()
			if c.after > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.after)
				defer cancel()
			}
			run := "test-" + strings.ToLower(rand.Text()[:8])
			cluster, err := System{}.Start(ctx, system.Spec{
				Run: run, Version: fixtures.Versions(Name)[0].Number, Image: c.image, Nodes: 1, Settings: c.settings,
			})
			if cluster != nil || !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("cluster %v, error %v", cluster, err)
			}
			objects, err := engine.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range objects {
				if o.Owner.Run == run {
					t.Errorf("left behind: %s %s", o.Kind, o.Name)
				}
			}
			if err := engine.RemoveRun(t.Context(), run); err != nil {
				t.Error(err)
			}
		})
	}
}
