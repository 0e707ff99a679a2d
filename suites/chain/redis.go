package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Keys is what the patterns need of Redis or Valkey.
type Keys interface {
	// Claim sets key to value if there is none; ttl 0 = for ever. If there is one, it is returned, and not claimed.
	Claim(ctx context.Context, key, value string, ttl time.Duration) (current string, claimed bool, err error)
	// Put sets key to value.
	Put(ctx context.Context, key, value string, ttl time.Duration) error
}

// ApplyWithKey asks Redis before it works, which is cheap, and relies on the unique key of the effect, which is sure.
func ApplyWithKey(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.claim(ctx, cmp.Or(s.Lease, 30*time.Second)) // safe: "at work" is not "done", and ends with its lease
	w.at(ctx, AfterMarkSeen)
	w.do(ctx, writeReceipt) // safe: Redis may forget, expire and fail over; the table does not
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	w.putDone(ctx)
	return w.done()
}

// ApplyAfterSetNX is ApplyWithKey, but takes "begun" for "done".
func ApplyAfterSetNX(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.claimAsDone(ctx) // unsafe: if the process dies now, the event passes for done
	w.at(ctx, AfterMarkSeen)
	w.do(ctx, writeReceipt) // safe: Redis may forget, expire and fail over; the table does not
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	w.putDone(ctx)
	return w.done()
}

// ApplyWhileKeyLives is ApplyWithKey without the unique key of the effect.
func ApplyWhileKeyLives(ctx context.Context, s *Service, ev Event) (Result, error) {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.claim(ctx, cmp.Or(s.Lease, 30*time.Second)) // safe: "at work" is not "done", and ends with its lease
	w.at(ctx, AfterMarkSeen)
	w.do(ctx, notify) // unsafe: an event that comes after its key has expired is new
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	w.putDone(ctx)
	return w.done()
}

const (
	atWork = "at work"
	isDone = "done"
)

// RedisKey is the key of an event for a consumer.
func RedisKey(consumer string, event uint64) string {
	return fmt.Sprintf("seen:%s:%d", consumer, event)
}

// claim takes the key for as long as the lease lasts. The work is over if it is done, and ErrBusy if somebody is at it.
func (w *work) claim(ctx context.Context, lease time.Duration) {
	w.setKey(ctx, atWork, lease)
}

// claimAsDone is what SETNX does.
func (w *work) claimAsDone(ctx context.Context) {
	w.setKey(ctx, isDone, 0)
}

func (w *work) setKey(ctx context.Context, value string, ttl time.Duration) {
	if w.over() {
		return
	}
	current, claimed, err := w.s.Keys.Claim(ctx, RedisKey(w.s.Name, w.ev.ID), value, ttl)
	switch {
	case err != nil:
		w.err = fmt.Errorf("claim key: %w", err)
	case claimed:
	case current == isDone:
		w.result = Duplicate
	default:
		w.err = ErrBusy
	}
}

// putDone remembers what is committed. It may fail: the next delivery then does the work once more, in vain.
func (w *work) putDone(ctx context.Context) {
	if w.over() {
		return
	}
	if err := w.s.Keys.Put(ctx, RedisKey(w.s.Name, w.ev.ID), isDone, cmp.Or(w.s.KeepKey, 24*time.Hour)); err != nil {
		w.s.log().WarnContext(ctx, "done, but not remembered", "event", w.ev.ID, "error", Redact(err))
	}
}

// Redis is the Keys of a Redis (7.0 or later) or a Valkey.
type Redis struct{ Client redis.Cmdable }

// Claim is SET key value NX GET.
func (r Redis) Claim(ctx context.Context, key, value string, ttl time.Duration) (string, bool, error) {
	current, err := r.Client.SetArgs(ctx, key, value, redis.SetArgs{Mode: "NX", Get: true, TTL: ttl}).Result()
	if errors.Is(err, redis.Nil) {
		return "", true, nil
	}
	return current, false, err
}

// Put is SET key value.
func (r Redis) Put(ctx context.Context, key, value string, ttl time.Duration) error {
	return r.Client.Set(ctx, key, value, ttl).Err()
}
