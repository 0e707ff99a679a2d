package suites

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestWaitsAreAddedUp lets work wait twice for a connection, and other work, which nobody times, once.
func TestWaitsAreAddedUp(t *testing.T) {
	ctx, sum := timed(t.Context())
	for range 2 {
		end := waits{}.TraceAcquireStart(ctx, nil, pgxpool.TraceAcquireStartData{})
		time.Sleep(2 * time.Millisecond)
		waits{}.TraceAcquireEnd(end, nil, pgxpool.TraceAcquireEndData{})
	}
	if got := time.Duration(sum.Load()); got < 4*time.Millisecond || got != time.Duration(waited(ctx)) {
		t.Errorf("waited %s, twice 2 ms at least", got)
	}
	other := waits{}.TraceAcquireStart(t.Context(), nil, pgxpool.TraceAcquireStartData{})
	waits{}.TraceAcquireEnd(other, nil, pgxpool.TraceAcquireEndData{})
	if got := waited(other); got != 0 {
		t.Errorf("work that nobody times waited %d ns", got)
	}
}
