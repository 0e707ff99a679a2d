package chain

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Fate is what became of an order's transaction.
type Fate string

// The fates.
const (
	FateUnknown    Fate = "unknown" // as yet: the broker asks again
	FateCommitted  Fate = "committed"
	FateRolledBack Fate = "rolled back"
)

// HalfPublisher publishes an event in two halves, as RocketMQ's transactional messages are.
type HalfPublisher interface {
	// PublishAround hands the event to the broker, which shows it to nobody yet, then calls transact, and tells the broker the
	// fate. A broker that was not told asks a Checker. The error wraps ErrRefused if the broker, for sure, does not have the
	// event; transact was called only if there is none.
	PublishAround(ctx context.Context, ev Event, transact func(context.Context) Fate) error
}

// PlaceOrderBetween writes an order between the two halves of its message, and what became of it with it.
func PlaceOrderBetween(ctx context.Context, s *Service, ev Event) error {
	var failed error
	err := s.Halves.PublishAround(ctx, ev, func(ctx context.Context) Fate {
		failed = s.placeWithFate(ctx, ev)
		fate := fateOf(failed)
		s.Memory.put(ev.ID, fate)
		return fate
	})
	return errors.Join(err, failed)
}

func (s *Service) placeWithFate(ctx context.Context, ev Event) error {
	w := s.begin(ctx, ev)
	w.do(ctx, insertOrder)
	w.do(ctx, insertFate)
	w.do(ctx, inStock)
	w.at(ctx, BeforeOrderCommit)
	w.commit(ctx)
	w.at(ctx, AfterOrderCommit)
	w.end(ctx)
	if fateOf(w.err) == FateRolledBack {
		return errors.Join(w.err, s.at(ctx, AfterOrderRollback, ev))
	}
	return w.err
}

func fateOf(err error) Fate {
	switch {
	case err == nil:
		return FateCommitted
	case errors.Is(err, ErrInDoubt):
		return FateUnknown
	default:
		return FateRolledBack
	}
}

// ErrOutOfStock is why an order is not placed.
var ErrOutOfStock = errors.New("out of stock")

// A Checker answers the broker's question what became of the transaction of an event whose half it holds. It may be asked in
// another process than that which wrote the order, before that has committed, and several times.
type Checker func(ctx context.Context, s *Service, ev Event) (Fate, error)

// CheckInTable answers by what the order's transaction has written.
func CheckInTable(ctx context.Context, s *Service, ev Event) (Fate, error) {
	q := s.asked(ev)
	q.lookUp(ctx) // safe: written with the order, and there for whoever is asked
	q.decide(ctx) // safe: whoever is asked first decides: once it says "rolled back" the order can no longer be written
	return q.fate, q.err
}

// CheckInMemory is CheckInTable, but answers by what its process remembers.
func CheckInMemory(ctx context.Context, s *Service, ev Event) (Fate, error) {
	q := s.asked(ev)
	q.recall()    // unsafe: the process that is asked may be another one, or the same after a restart, and takes what it does not know for rolled back
	q.decide(ctx) // safe: whoever is asked first decides: once it says "rolled back" the order can no longer be written
	return q.fate, q.err
}

// CheckHopefully is CheckInTable, but takes what it does not find for committed.
func CheckHopefully(ctx context.Context, s *Service, ev Event) (Fate, error) {
	q := s.asked(ev)
	q.lookUp(ctx) // safe: written with the order, and there for whoever is asked
	q.hope()      // unsafe: an order that was rolled back has left nothing either, and its event is published
	return q.fate, q.err
}

// Memory is what a process remembers of its orders. Its zero value is ready to use.
type Memory struct {
	mu    sync.Mutex
	fates map[uint64]Fate
}

func (m *Memory) put(event uint64, fate Fate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fates == nil {
		m.fates = map[uint64]Fate{}
	}
	m.fates[event] = fate
}

func (m *Memory) get(event uint64) (Fate, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fate, ok := m.fates[event]
	return fate, ok
}

// question is one that the broker has asked. After an error its methods do nothing more.
type question struct {
	s    *Service
	ev   Event
	fate Fate
	err  error
}

func (s *Service) asked(ev Event) *question { return &question{s: s, ev: ev, fate: FateUnknown} }

func (q *question) lookUp(ctx context.Context) {
	err := q.s.DB.QueryRow(ctx, "SELECT fate FROM order_fate WHERE event_id = $1", int64(q.ev.ID)).Scan(&q.fate)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		q.fate, q.err = FateUnknown, fmt.Errorf("look up fate: %w", err)
	}
}

func (q *question) recall() {
	fate, ok := q.s.Memory.get(q.ev.ID)
	if !ok {
		fate = FateRolledBack
	}
	q.fate = fate
}

// decide settles what nothing is known of. The unique event id makes it wait for a transaction that is under way: if that
// commits, its word stands; if not, it cannot be written any more.
func (q *question) decide(ctx context.Context) {
	if q.err != nil || q.fate != FateUnknown {
		return
	}
	_, q.err = q.s.DB.Exec(ctx, "INSERT INTO order_fate (event_id, fate) VALUES ($1, $2) ON CONFLICT DO NOTHING", int64(q.ev.ID), FateRolledBack)
	if q.err != nil {
		q.err = fmt.Errorf("settle fate: %w", q.err)
		return
	}
	q.lookUp(ctx)
}

func (q *question) hope() {
	if q.err == nil && q.fate == FateUnknown {
		q.fate = FateCommitted
	}
}

// insertFate fails if somebody was asked, and has answered, before.
func insertFate(ctx context.Context, tx pgx.Tx, _ *Service, ev Event) error {
	_, err := tx.Exec(ctx, "INSERT INTO order_fate (event_id, fate) VALUES ($1, $2)", int64(ev.ID), FateCommitted)
	return err
}

func inStock(_ context.Context, _ pgx.Tx, s *Service, ev Event) error {
	if s.OutOfStock != nil && s.OutOfStock(ev) {
		return ErrOutOfStock
	}
	return nil
}
