package chain

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed" // the schema
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Event is one business event: an order that was placed, and what it asks for.
type Event struct {
	ID      uint64 // of the business event, never 0. Each attempt to bring it anywhere has the same one
	Key     uint32 // what it is about; the events of one key have an order
	Version int64  // the place in that order, growing
	Amount  int64  // of the order; for a state, the new balance
	Body    []byte // the rest, opaque
	Wish    uint64 // the asker's own number of what is wanted, whatever event comes of it; 0 = ID
}

// Digest identifies the content of the event, whatever its id says.
func (e Event) Digest() []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %d %s", e.Key, e.Version, e.Amount, e.Body))
	return sum[:]
}

// Publisher hands events to a broker, in order.
type Publisher interface {
	// Publish returns nil once the broker has confirmed every event. Otherwise the error wraps ErrRefused if none of them
	// is there, for sure; any other error leaves each of them in doubt.
	Publish(ctx context.Context, events ...Event) error
}

// Delivery is one event as a consumer gets it.
type Delivery struct {
	Event    Event
	Attempt  int // from 1; 0 = the broker does not say
	Position any // the adapter's own: an offset, a delivery tag, a receipt handle
}

// Subscriber gets deliveries from a broker.
type Subscriber interface {
	// Fetch waits until there is something, and returns it in order.
	Fetch(ctx context.Context) ([]Delivery, error)
	// Settle tells the broker that d is done with, and returns when it has taken note. On a log everything before d is
	// done with too.
	Settle(ctx context.Context, d Delivery) error
	// Release gives deliveries back: they come again, in the same order.
	Release(ctx context.Context, ds []Delivery) error
}

// DB is a *pgxpool.Pool or a *pgx.Conn whose search_path leads to the tables of Schema.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Schema makes the tables.
//
//go:embed schema.sql
var Schema string

// Migrate makes the tables in the first schema of db's search_path. They must not be there yet.
func Migrate(ctx context.Context, db DB) error {
	if _, err := db.Exec(ctx, Schema); err != nil {
		return fmt.Errorf("make tables: %w", err)
	}
	return nil
}

// Service is what the patterns work with. Name and DB are always needed, the rest by those who use it.
type Service struct {
	Name        string // of the consumer, as the inbox knows it
	Destination string // topic or queue, for the dead letter
	DB          DB
	Publisher   Publisher
	Payments    *PaymentClient
	Progress    Progress
	Keys        Keys   // Redis or Valkey
	Wheel       *Wheel // timers of this process
	Halves      HalfPublisher
	Memory      *Memory // of a process that places orders between halves

	OutOfStock func(Event) bool // whether an order is to be refused; nil = never

	NewID   func() uint64                              // draws the id of a new event
	Applied func(context.Context, Event) (bool, error) // tells whether an event has had its effect; nil = the inbox does
	Letter  Recorder                                   // records a failure; nil = NewLetter

	Batch     int           // events a relay or job takes at once; 0 = 100
	Tries     int           // attempts before an event is given up; 0 = 3
	Backoff   Backoff       // between attempts; zero = 100 ms, doubled up to 10 s, half of it jitter
	Deadline  time.Duration // a caller waits no longer for the broker; 0 = 5 s
	Callers   chan struct{} // its capacity is how many callers may wait; nil = any number
	Poll      time.Duration // between two looks at an empty outbox; 0 = 50 ms
	Lease     time.Duration // how long a claimed task, or key of Redis, is kept for its owner; 0 = 30 s
	KeepKey   time.Duration // how long Redis remembers what is done; 0 = 24 h
	Delay     time.Duration // a task is due so long after its order
	Use       time.Duration // and of use so long after it was due; 0 = for ever
	Redeliver time.Duration // the broker delivers again within this time
	Replay    time.Duration // a person replays an event within this time, the longest there is

	Now func() time.Time // the machine's clock; nil = time.Now

	// Point, if set, is called at each named point where a crash matters, and only if all before it went well: at
	// AfterOrderCommit the order is committed, at AfterBusinessCommit the effect. Its error ends the pattern there, as a
	// crash would, and is in doubt for whoever called.
	Point func(ctx context.Context, name string, ev Event) error
	Sleep func(ctx context.Context, d time.Duration) error // nil = a timer
	Log   *slog.Logger                                     // nil = none
}

// The points, in the order of the chain. A relay calls them with the first event of its batch.
const (
	BeforeOrderCommit    = "before-order-commit"
	AfterOrderCommit     = "after-order-commit"
	AfterOrderRollback   = "after-order-rollback"
	BeforePublish        = "before-publish"
	AfterPublish         = "after-publish" // for adapters: handed over, not confirmed
	AfterConfirm         = "after-confirm"
	BeforeMark           = "before-mark"
	AfterMark            = "after-mark"
	AfterFetch           = "after-fetch"
	AfterClaim           = "after-claim"
	BeforeTask           = "before-task" // a task is due, ours and of use: its work begins
	AfterMarkSeen        = "after-mark-seen"
	BetweenTransactions  = "between-transactions"
	AfterPaymentCall     = "after-payment-call"
	BeforeBusinessCommit = "before-business-commit"
	AfterBusinessCommit  = "after-business-commit"
	AfterPark            = "after-park" // kept as a dead letter
	BeforeSettle         = "before-settle"
	AfterSettle          = "after-settle"
	HalfMoved            = "half-moved"         // of two steps, here and elsewhere, one is done
	AfterPaymentMade     = "after-payment-made" // in the payment service: done, not answered
)

// Points lists all names.
func Points() []string {
	return []string{
		BeforeOrderCommit, AfterOrderCommit, AfterOrderRollback, BeforePublish, AfterPublish, AfterConfirm, BeforeMark, AfterMark, AfterFetch, AfterClaim, BeforeTask, AfterMarkSeen,
		BetweenTransactions, AfterPaymentCall, BeforeBusinessCommit, AfterBusinessCommit, AfterPark, BeforeSettle, AfterSettle, HalfMoved, AfterPaymentMade,
	}
}

var (
	// ErrInDoubt is wrapped by errors that leave open whether the thing was done: a COMMIT or a publish without an answer.
	ErrInDoubt = errors.New("outcome unknown")
	// ErrRefused is wrapped by a Publisher's error if the broker, for sure, does not have the event.
	ErrRefused = errors.New("refused")
	// ErrBusy says that another process works on the event just now: it should come again.
	ErrBusy = errors.New("event is being processed")
)

func (s *Service) at(ctx context.Context, point string, ev Event) error {
	if s.Point == nil {
		return nil
	}
	if err := s.Point(ctx, point, ev); err != nil {
		return fmt.Errorf("at %s: %w: %w", point, ErrInDoubt, err)
	}
	return nil
}

func (s *Service) sleep(ctx context.Context, d time.Duration) error {
	if s.Sleep != nil {
		return s.Sleep(ctx, d)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Service) log() *slog.Logger {
	if s.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Log
}

func (s *Service) batch() int { return cmp.Or(s.Batch, 100) }

func (s *Service) poll() time.Duration { return cmp.Or(s.Poll, 50*time.Millisecond) }

func (s *Service) tries() int { return cmp.Or(s.Tries, 3) }
