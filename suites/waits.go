package suites

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// waits traces how long work waits for one of the pool's connections: of the three layers in which a backlog can wait, the one
// that no lag and no count of unsettled messages shows.
type waits struct{}

var (
	_ pgxpool.AcquireTracer = waits{}
	_ pgx.QueryTracer       = waits{} // what a pool takes its tracer from
)

type (
	waitedKey struct{} // *atomic.Int64, ns
	sinceKey  struct{} // time.Time
)

// timed returns a context under which waits are added up, and their sum in ns.
func timed(ctx context.Context) (context.Context, *atomic.Int64) {
	sum := new(atomic.Int64)
	return context.WithValue(ctx, waitedKey{}, sum), sum
}

// waited is the sum so far under a context of timed; 0 under any other.
func waited(ctx context.Context) int64 {
	if sum, ok := ctx.Value(waitedKey{}).(*atomic.Int64); ok {
		return sum.Load()
	}
	return 0
}

func (waits) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	return context.WithValue(ctx, sinceKey{}, time.Now())
}

func (waits) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireEndData) {
	if sum, ok := ctx.Value(waitedKey{}).(*atomic.Int64); ok {
		sum.Add(int64(time.Since(ctx.Value(sinceKey{}).(time.Time))))
	}
}

func (waits) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (waits) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
