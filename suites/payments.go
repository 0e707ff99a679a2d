package suites

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/worker"
	"conform/suites/chain"
)

// The roles around payments.
const (
	rolePayment  = "payment-service"
	roleExecutor = "payment-executor"
)

func init() {
	worker.Register(rolePayment, servePayments)
	worker.Register(roleExecutor, executeIntents)
}

const (
	// processPayment is the name of the process that pays.
	processPayment = "payment"
	// tablePayments is the service's book.
	tablePayments = "payments"
	// paymentTimeout is how long a client waits for its answer.
	paymentTimeout = 500 * time.Millisecond

	// paramKeyless "true" makes a service that knows no keys and cannot be asked.
	paramKeyless = "keyless"
	// paramCharge is a chain.Charger by name; default Charge.
	paramCharge = "charge"
)

// servePayments is a payment service. When it ends it records its book, which is what was really paid.
func servePayments(ctx context.Context, s *worker.Session) error {
	service := &chain.PaymentService{
		Keyless: s.Config.Params[paramKeyless] == "true",
		Point: func(ctx context.Context, point string, ev chain.Event) error {
			s.Count(worker.Counts{Published: 1})
			return s.PointOf(ctx, point, ev.ID, ledger.NoKey)
		},
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Config.Listen)
	if err != nil {
		return fmt.Errorf("listen for payments: %w: %w", err, system.ErrEnvironment)
	}
	server := &http.Server{Handler: service, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	err = s.Ready(ctx)
	if err == nil {
		select {
		case <-s.Stopping():
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	down, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(down))
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	book := service.Book()
	for _, p := range book {
		s.Record(ledger.Event{
			Kind: ledger.Effect, At: worker.Now(), EventID: p.Reference, N: p.Amount, Text: tablePayments,
			Key: ledger.KeyOfEvent(s.Config.Seed, p.Reference, s.Config.Workload.Keys),
		})
	}
	s.Record(ledger.Event{Kind: ledger.SnapshotEnd, At: worker.Now(), Text: tablePayments, N: int64(len(book)), Detail: s.Config.Schema})
	return err
}

// executeIntents makes the payments that are wanted, and says what became of them.
func executeIntents(ctx context.Context, s *worker.Session) error {
	p := &settingsOf{params: s.Config.Params}
	charge := function[chain.Charger](p, paramCharge, "Charge")
	pool, err := openDatabase(ctx, s.Config)
	if err != nil {
		return err
	}
	defer pool.Close()
	service := newService(s, p, pool)
	service.Payments = &chain.PaymentClient{URL: "http://" + s.Config.Peers[processPayment], Timeout: paymentTimeout}
	if p.err != nil {
		return p.err
	}
	if err := s.Ready(ctx); err != nil {
		return err
	}
	telling := func(ctx context.Context, service *chain.Service, ev chain.Event) chain.PaymentState {
		state := charge(ctx, service, ev)
		e := ledger.Event{Kind: ledger.Claimed, EventID: ev.ID, At: worker.Now()}
		switch state {
		case chain.PaymentMade:
			e.Claim = ledger.ClaimSent
		case chain.PaymentRefused:
			e.Claim = ledger.ClaimFailed
		default:
			return state
		}
		s.Record(e)
		return state
	}
	return untilStopped(ctx, s, func(ctx context.Context) error {
		return chain.RunRelay(ctx, service, func(ctx context.Context, service *chain.Service) (int, error) {
			return chain.ExecuteIntents(ctx, service, telling)
		})
	})
}

// roomOfKeys keeps the keys of an arm apart from those of others on the same server.
type roomOfKeys struct {
	chain.Keys
	prefix string
}

// Claim is that of Keys.
func (r roomOfKeys) Claim(ctx context.Context, key, value string, ttl time.Duration) (string, bool, error) {
	return r.Keys.Claim(ctx, r.prefix+key, value, ttl)
}

// Put is that of Keys.
func (r roomOfKeys) Put(ctx context.Context, key, value string, ttl time.Duration) error {
	return r.Keys.Put(ctx, r.prefix+key, value, ttl)
}

// openKeys opens the arm's Valkey, if there is one.
func openKeys(c worker.Config) (*redis.Client, error) {
	with, ok := c.With["valkey"]
	if !ok {
		return nil, nil
	}
	options, err := redis.ParseURL(with.DSN)
	if err != nil {
		// The text of the error may hold the connection string.
		return nil, fmt.Errorf("open keys: the connection string cannot be read: %w", system.ErrUsage)
	}
	return redis.NewClient(options), nil
}
