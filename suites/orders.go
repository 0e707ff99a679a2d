package suites

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/worker"
	"conform/suites/chain"
)

// The parameters of the roles "orders", "job" and "replay".
const (
	// paramCommand is the chain.Command of each order; default PlaceOrder.
	paramCommand = "command"
	// paramClaims "true" says that the command sends rather than commits: its caller is told "sent".
	paramClaims = "claims"
	// paramTimeout bounds one call of the publisher; default none.
	paramTimeout = "publish-timeout"
	// paramDeadline is chain.Service.Deadline, paramCallers the capacity of Callers, paramTries Tries.
	paramDeadline = "deadline"
	paramCallers  = "callers"
	paramTries    = "tries"
	// paramJob is a chain.Job by name, paramRun the chain.Runner; paramOnce "true" runs the job once and ends.
	paramJob   = "job"
	paramRun   = "run"
	paramOnce  = "once"
	paramBatch = "batch"
	// paramClient holds settings of the client on top of the broker's usual ones: "name=value name=value".
	paramClient = "client"
	// paramEvery is the pause between two looks of a job that found nothing; default 20 ms.
	paramEvery = "every"
	// paramPace is the pause of a job after each piece of work: so long, beside the work, that it is what bounds the job; default 0.
	paramPace = "pace"
	// paramRedeliver and paramReplay are those of chain.Service.
	paramRedeliver = "redeliver"
	paramReplay    = "replay"
	// paramDelay, paramUse and paramLease are Delay, Use and Lease of chain.Service. Where there is a delay, it is counted from
	// the time at which the command began.
	paramDelay = "delay"
	paramUse   = "use"
	paramLease = "lease"
	// paramFollow is a chain.Handler by name that is called with each fourth order, once it is placed, and after which nothing
	// is left to do about the order; default none.
	paramFollow = "follow"
)

// settingsOf reads numbers and durations; the first one that cannot be read is the error.
type settingsOf struct {
	params map[string]string
	err    error
}

func (p *settingsOf) duration(name string) time.Duration {
	if p.params[name] == "" {
		return 0
	}
	d, err := time.ParseDuration(p.params[name])
	p.note(name, err)
	return d
}

func (p *settingsOf) number(name string) int {
	if p.params[name] == "" {
		return 0
	}
	n, err := strconv.Atoi(p.params[name])
	p.note(name, err)
	return n
}

func (p *settingsOf) note(name string, err error) {
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("read parameter %s: %w: %w", name, err, system.ErrUsage)
	}
}

// function looks a function of suites/chain up by the name in a parameter.
func function[F any](p *settingsOf, param, def string) F {
	name := or(p.params[param], def)
	f, ok := chain.Function[F](name)
	if !ok {
		p.note(param, fmt.Errorf("chain has no such function %q", name))
	}
	return f
}

// newService makes the service that all roles share.
func newService(s *worker.Session, p *settingsOf, pool *pgxpool.Pool) *chain.Service {
	service := &chain.Service{
		Name: or(p.params[paramConsumer], defaultConsumer), Destination: s.Config.Client.Destination, DB: lateBegin{pool}, Log: s.Log,
		Batch: p.number(paramBatch), Tries: p.number(paramTries), Deadline: p.duration(paramDeadline),
		Redeliver: p.duration(paramRedeliver), Replay: p.duration(paramReplay), Poll: cmp.Or(p.duration(paramEvery), 20*time.Millisecond),
		Delay: p.duration(paramDelay), Use: p.duration(paramUse), Lease: p.duration(paramLease),
		Backoff: chain.Backoff{First: 20 * time.Millisecond, Max: 500 * time.Millisecond, Jitter: 0.5, Seed: s.Config.Seed},
		Point: func(ctx context.Context, point string, ev chain.Event) error {
			return s.PointOf(ctx, point, ev.ID, ev.Key)
		},
	}
	if n := p.number(paramCallers); n > 0 {
		service.Callers = make(chan struct{}, n)
	}
	return service
}

// ordersRole is the load of a chain that begins in a database, or at a caller: an open loop that carries out one command for
// each event. Commands of one key follow each other, those of different keys run side by side.
func (b broker) ordersRole() worker.Role {
	return func(ctx context.Context, s *worker.Session) (err error) {
		p := &settingsOf{params: s.Config.Params}
		o := &ordering{s: s, claims: p.params[paramClaims] == "true", names: renamer{s: s}, at: map[uint64]*order{}}
		o.command = function[chain.Command](p, paramCommand, "PlaceOrder")
		pool, err := openDatabase(ctx, s.Config)
		if err != nil {
			return err
		}
		defer pool.Close()
		out, err := b.openPublisher(ctx, s, s.Config.Stream+streamOfMessages)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.close(ctx)) }()
		out.own, out.timeout = o.claims, p.duration(paramTimeout)
		o.service = newService(s, p, pool)
		o.service.Publisher, o.service.Point = out, o.point
		o.timed = o.service.Delay > 0
		if p.params[paramFollow] != "" {
			o.follow = function[chain.Handler](p, paramFollow, "")
		}
		if p.err != nil {
			return p.err
		}
		if err := s.Ready(ctx); err != nil {
			return err
		}
		switch p.params[paramCommand] {
		case "PlaceOrderOnWheel", "SendOnWheel":
			defer o.turnWheel(ctx)()
		}
		return o.run(ctx)
	}
}

// ordering carries out commands.
type ordering struct {
	s       *worker.Session
	command chain.Command
	service *chain.Service
	claims  bool
	timed   bool
	follow  chain.Handler // nil = none
	names   renamer

	mu sync.Mutex
	at map[uint64]*order // under way, by event id
	// since is when the first order was followed up, followed how many were.
	since    int64
	followed int
}

// order is one command under way.
type order struct {
	began    int64
	asked    int64 // when its COMMIT was
	recorded bool  // what became of it
	renamed  bool
}

// laneDepth is how many commands may wait for others of their key. They wait when a fault holds those up.
const laneDepth = 1024

func (o *ordering) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var lanes sync.WaitGroup
	keys := max(1, o.s.Config.Workload.Keys)
	queues := make([]chan chain.Event, keys)
	for k := range queues {
		queues[k] = make(chan chain.Event, laneDepth)
		lanes.Go(func() {
			for ev := range queues[k] {
				if ctx.Err() != nil || o.stopping() {
					continue // never begun
				}
				if err := o.one(ctx, ev); err != nil {
					cancel(err)
				}
			}
		})
	}
	err := o.dispatch(ctx, queues)
	for _, q := range queues {
		close(q)
	}
	done := make(chan struct{})
	go func() { lanes.Wait(); close(done) }()
	select {
	case <-done:
	case <-o.s.Ending():
		cancel(nil)
		<-done
	}
	return err
}

func (o *ordering) stopping() bool {
	select {
	case <-o.s.Stopping():
		return true
	default:
		return false
	}
}

// dispatch hands out what is due until the worker is to stop.
func (o *ordering) dispatch(ctx context.Context, queues []chan chain.Event) error {
	const tick, backlog = 5 * time.Millisecond, 0.1
	rate := float64(max(1, o.s.Config.Rate))
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	next, began, credit := uint64(0), time.Now(), 0.0
	for {
		select {
		case <-ticker.C:
		case <-o.s.Stopping():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		now := time.Now()
		credit = min(credit+now.Sub(began).Seconds()*rate, max(1, rate*backlog))
		began = now
		n := uint64(credit)
		if n == 0 {
			continue
		}
		credit -= float64(n)
		if err := o.announce(next, next+n); err != nil {
			return err
		}
		for ; n > 0; n-- {
			ev := o.event(next)
			select {
			case queues[ev.Key] <- ev:
			case <-o.s.Stopping():
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			next++
		}
	}
}

// announce covers the next orders by an Invoke. Those that are sends are covered by their publisher.
func (o *ordering) announce(from, to uint64) error {
	if o.claims {
		return nil
	}
	return o.s.RecordNow(ledger.Event{Kind: ledger.Invoke, Stream: o.s.Config.Stream, Seq: from, To: to, At: worker.Now()})
}

func (o *ordering) event(seq uint64) chain.Event {
	return eventOf(o.s.Config, ledger.EventID(o.s.Config.Stream, seq))
}

// eventOf is the business event of an id, whose content is a function of it.
func eventOf(c worker.Config, id uint64) chain.Event {
	return chain.Event{
		ID: id, Key: ledger.KeyOfEvent(c.Seed, id, c.Workload.Keys), Version: ledger.VersionOf(id),
		Amount: int64(max(c.Workload.PayloadSize, ledger.MinPayload)), Body: []byte{},
	}
}

// one carries out the command for an event. The error is that of the journal.
func (o *ordering) one(ctx context.Context, ev chain.Event) error {
	this := &order{began: worker.Now()}
	o.track(ev.ID, this)
	service := *o.service
	service.NewID = func() uint64 {
		id := o.names.rename(ev)
		this.renamed = true
		o.track(id, &order{renamed: true, began: worker.Now()})
		return id
	}
	err := o.command(ctx, &service, ev)
	if err != nil {
		o.s.Log.Info("command failed", "event", ev.ID, "error", chain.Redact(err))
	}
	o.mu.Lock()
	delete(o.at, ev.ID)
	o.mu.Unlock()
	if o.claims {
		stream, seq := ledger.SplitEventID(ev.ID)
		e := ledger.Event{
			Kind: ledger.Claimed, Stream: stream, Seq: seq, EventID: ev.ID, Claim: ledger.ClaimSent, At: worker.Now(), Sent: this.began,
		}
		if err != nil {
			e.Claim = ledger.ClaimFailed // that is an answer, too
		} else {
			o.s.Count(worker.Counts{Claimed: 1})
		}
		o.s.Record(e)
		return nil
	}
	if this.recorded {
		return o.followUp(ctx, ev)
	}
	outcome := ledger.Failed
	switch {
	case err == nil && !this.renamed:
		outcome = ledger.OK // it was looked up
	case err == nil, errors.Is(err, chain.ErrInDoubt):
		outcome = ledger.InDoubt
	}
	return o.ordered(ev, this, outcome)
}

func (o *ordering) track(id uint64, x *order) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.at[id] = x
}

// point records what is committed at the very place where that is known, and is where the worker crashes or waits.
func (o *ordering) point(ctx context.Context, point string, ev chain.Event) error {
	o.mu.Lock()
	this := o.at[ev.ID]
	o.mu.Unlock()
	if point == chain.BeforeTask || this == nil && point == chain.AfterBusinessCommit { // a timer of this process
		return atTask(ctx, o.s, point, ev)
	}
	if this != nil {
		switch point {
		case chain.BeforeOrderCommit, chain.BeforeBusinessCommit:
			this.asked = worker.Now()
		case chain.AfterOrderRollback:
			this.recorded = true
			if err := o.ordered(ev, this, ledger.Failed); err != nil {
				return err
			}
		case chain.AfterOrderCommit, chain.AfterBusinessCommit:
			this.recorded = true
			if err := o.ordered(ev, this, ledger.OK); err != nil {
				return err
			}
		}
	}
	return o.s.PointOf(ctx, point, ev.ID, ev.Key)
}

func (o *ordering) ordered(ev chain.Event, this *order, outcome ledger.Outcome) error {
	if outcome == ledger.OK {
		o.s.Count(worker.Counts{Ordered: 1})
	}
	if o.timed {
		this.asked = this.began
	}
	o.s.Record(ledger.Event{
		Kind: ledger.Ordered, EventID: ev.ID, Key: ev.Key, N: ev.Version, Outcome: outcome, Sent: this.asked, At: worker.Now(), Text: "order",
	})
	return nil
}

// jobRole runs a chain.Job with a publisher: a relay, the resending of what could not be sent, or the purging of an inbox.
func (b broker) jobRole() worker.Role {
	return func(ctx context.Context, s *worker.Session) (err error) {
		p := &settingsOf{params: s.Config.Params}
		job := function[chain.Job](p, paramJob, "Relay")
		run := function[chain.Runner](p, paramRun, "RunRelay")
		pool, err := openDatabase(ctx, s.Config)
		if err != nil {
			return err
		}
		defer pool.Close()
		out, err := b.openPublisher(ctx, s, s.Config.Stream)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.close(ctx)) }()
		out.timeout = p.duration(paramTimeout)
		service := newService(s, p, pool)
		service.Publisher = out
		if address := s.Config.Peers[processPayment]; address != "" {
			service.Payments = &chain.PaymentClient{URL: "http://" + address, Timeout: paymentTimeout}
		}
		end, err := b.openProgress(ctx, s.Config, service)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end(ctx)) }()
		if p.err != nil {
			return p.err
		}
		if err := s.Ready(ctx); err != nil {
			return err
		}
		pace := p.duration(paramPace)
		counted := func(ctx context.Context, service *chain.Service) (int, error) {
			n, err := job(ctx, service)
			if err == nil {
				s.Count(worker.Counts{Published: int64(n)})
			}
			if n > 0 && pace > 0 {
				select {
				case <-time.After(pace):
				case <-ctx.Done():
				}
			}
			return n, err
		}
		if p.params[paramOnce] == "true" {
			_, err := counted(ctx, service)
			return err
		}
		return untilStopped(ctx, s, func(ctx context.Context) error { return run(ctx, service, counted) })
	}
}

// untilStopped runs f, whose context ends when the worker is to stop. That it ended so is no error.
func untilStopped(ctx context.Context, s *worker.Session, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-s.Stopping():
			cancel()
		case <-ctx.Done():
		}
	}()
	err := f(ctx)
	cancel()
	<-stopped
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
