package container_test

import (
	"context"
	"testing"
	"time"
)

// contextForCleanup is for what runs after the test, when its own context has ended.
func contextForCleanup(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
