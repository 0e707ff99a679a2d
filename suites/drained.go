package suites

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"conform/harness"
	"conform/harness/audit"
	"conform/harness/system"
)

// What is left for a relay, or another job, to do, as a query in the arm's schema. A relay that will never look at a row
// again has nothing left to do with it: what it has lost is for the audit to say.
var leftFor = map[string]string{
	"Relay":             "SELECT count(*) FROM outbox WHERE status = 'pending'",
	"RelayMarkFirst":    "SELECT count(*) FROM outbox WHERE status = 'pending'",
	"RelayWithoutLanes": "SELECT count(*) FROM outbox WHERE status = 'pending'",
	"RelayPastLast": `SELECT count(*) FROM outbox o WHERE status = 'pending'
		AND seq > (SELECT coalesce(max(seq), 0) FROM outbox p WHERE p.lane = o.lane AND p.status = 'published')`,
	"RelayBelowHorizon": "SELECT count(*) FROM outbox o, relay_cursor c WHERE (o.xid, o.seq) > (c.xid, c.seq)",
	"RelayPastCursor":   "SELECT count(*) FROM outbox o, relay_cursor c WHERE o.seq > c.seq",
	"ResendDue":         "SELECT count(*) FROM retry_queue",
	"Reconcile":         unreconciled,
	roleExecutor:        "SELECT count(*) FROM payment_intents WHERE status = 'pending'",
	"ScanTasks":         openTasks,
	"ScanByOwnClock":    openTasks,
	"ScanWithoutClaim":  openTasks,
	"ScanUnclaimed":     "SELECT count(*) FROM delay_task WHERE status = 'pending'",
}

const openTasks = "SELECT count(*) FROM delay_task WHERE status IN ('pending', 'claimed')"

// unreconciled counts orders without an effect, second orders of one wish, rows that are not published and effects that happened
// twice, or of an order that was cancelled.
const unreconciled = `SELECT
	(SELECT count(*) FROM orders o WHERE (state <> 'cancelled') <> EXISTS (SELECT FROM notifications n WHERE n.event_id = o.event_id))
	+ (SELECT count(*) - count(DISTINCT wish) FROM orders WHERE state <> 'cancelled')
	+ (SELECT count(*) FROM outbox WHERE status <> 'published')
	+ (SELECT count(*) - count(DISTINCT event_id) FROM notifications)`

// chainDrained says whether an arm's relays, executors and consumers have nothing left to do.
func chainDrained(ctx context.Context, e harness.ArmEnv) (done bool, seen string, progress int64, err error) {
	if b := e.Arm.Break; b != nil && b.Anomaly == audit.Stall {
		return true, "it is the control's anomaly that it never ends", 0, nil
	}
	var queries []string
	for _, p := range e.Arm.Processes {
		job := p.Role
		if strings.HasSuffix(p.Role, "-"+roleJob) {
			job = or(p.Params[paramJob], "Relay")
		}
		if p.Role == roleScanner {
			job = or(p.Params[paramScan], "ScanTasks")
		}
		if q, ok := leftFor[job]; ok && p.Params[paramOnce] == "" {
			queries = append(queries, q)
		}
	}
	left, err := countRows(ctx, e.Env, e.Schema, queries...)
	if err != nil {
		return false, "", 0, err
	}
	lag, progress, err := lagOf(ctx, e)
	if err != nil {
		return false, "", 0, err
	}
	return left+lag == 0, fmt.Sprintf("%d rows and %d records left", left, lag), progress - left, nil
}

// lagOf returns how many records the arm's groups have before them.
func lagOf(ctx context.Context, e harness.ArmEnv) (lag, progress int64, err error) {
	names := map[string]bool{}
	for _, p := range e.Arm.Processes {
		if p.Group != "" {
			names[p.Group] = true
		}
	}
	if queues, ok := e.Cluster.(system.GroupBacklogs); ok {
		for name := range names {
			left, err := queues.GroupBacklog(ctx, e.Destination, e.Group(name))
			if err != nil {
				return 0, 0, err
			}
			lag += left
		}
		return lag, -lag, nil
	}
	groups, ok := e.Cluster.(system.GroupPositions)
	if !ok {
		return 0, 0, nil
	}
	for name := range names {
		positions, err := groups.GroupPositions(ctx, e.Destination, e.Group(name))
		if err != nil {
			return 0, 0, err
		}
		for _, p := range positions {
			lag += p.Lag()
			progress += p.Committed + p.End
		}
	}
	return lag, progress, nil
}

// countRows returns the sum of what queries return in an arm's schema.
func countRows(ctx context.Context, e harness.Env, schema string, queries ...string) (sum int64, err error) {
	if len(queries) == 0 {
		return 0, nil
	}
	db, err := database(e)
	if err != nil {
		return 0, err
	}
	err = db.Snapshot(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL search_path = "+pgx.Identifier{schema}.Sanitize()); err != nil {
			return err
		}
		for _, q := range queries {
			var n int64
			if err := tx.QueryRow(ctx, q).Scan(&n); err != nil {
				return err
			}
			sum += n
		}
		return nil
	})
	return sum, err
}

// quiet is a drain of what no position tells: halves of messages, delayed ones, retries. It has ended when nothing lags and nothing is
// left; in a control also when for the span nothing has become less and no end has moved: what is left there is for the audit to say.
// With twice it waits for the span in any case, for what may come a second time.
func quiet(span time.Duration, twice bool, left func(context.Context, harness.ArmEnv) (int64, error)) func(context.Context, harness.ArmEnv) (bool, string, int64, error) {
	type last struct {
		end, left int64
		at        time.Time
	}
	var mu sync.Mutex
	ends := map[string]last{}
	return func(ctx context.Context, e harness.ArmEnv) (bool, string, int64, error) {
		done, seen, _, err := chainDrained(ctx, e)
		positions, ok := e.Cluster.(system.Positions)
		if err != nil || !ok {
			return done, seen, 0, err
		}
		now, err := positions.EndPositions(ctx, e.Destination)
		if err != nil {
			return false, "", 0, err
		}
		var end int64
		for _, p := range now {
			end += p
		}
		n, err := left(ctx, e)
		if err != nil {
			return false, "", 0, err
		}
		mu.Lock()
		defer mu.Unlock()
		l, known := ends[e.Destination]
		if !known || l.end != end || l.left != n {
			l = last{end, n, time.Now()}
			ends[e.Destination] = l
		}
		over := time.Since(l.at) > span
		ended := done && n <= 0 && (over || !twice) || over && e.Arm.Role == harness.Control
		return ended, fmt.Sprintf("%s, %d without an effect", seen, max(0, n)), end - n, nil
	}
}

// withoutEffect counts what the producers of an arm were told, or say, that it was sent and has no effect.
func withoutEffect(told func(harness.Counts) int, table string) func(context.Context, harness.ArmEnv) (int64, error) {
	return func(ctx context.Context, e harness.ArmEnv) (int64, error) {
		n, err := countRows(ctx, e.Env, e.Schema, "SELECT count(DISTINCT event_id) FROM "+table)
		return int64(told(e.Counts(e.Arm.Name))) - n, err
	}
}

func confirmed(c harness.Counts) int { return c.Confirmed }

func claimed(c harness.Counts) int { return c.Claimed }
