package worker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"conform/harness/internal/clock"
	"conform/harness/ledger"
	"conform/harness/system"
)

const (
	pacingTick   = 2 * time.Millisecond
	maxBatch     = 256 // messages covered by one Invoke
	maxBacklog   = 100 * time.Millisecond
	defaultSends = 1000
)

// ParamTag is the parameter that holds the arm's tag (see ledger.Tag), in decimal.
const ParamTag = "tag"

// ProducerRole returns the role of a producer: open-loop pacing at Config.Rate with at most
// Config.Window sends in flight, each one recorded before it is handed to the client and when it
// is done.
//
// Open loop means that the schedule does not wait for confirms; a window that is full does hold
// it back, and what is then more than 100 ms behind is dropped from the schedule, so that a long
// fault is not followed by a burst that the rate does not explain.
func ProducerRole(clients system.Clients) Role {
	return func(ctx context.Context, s *Session) error {
		p, err := clients.OpenProducer(ctx, s.Config.Client)
		if err != nil {
			return fmt.Errorf("open producer: %w", err)
		}
		if err := s.Ready(ctx); err != nil {
			return errors.Join(err, p.Close(context.WithoutCancel(ctx)))
		}
		r, err := newSender(s, p)
		if err != nil {
			return errors.Join(err, p.Close(context.WithoutCancel(ctx)))
		}
		if err := r.send(ctx); err != nil {
			return errors.Join(err, p.Close(context.WithoutCancel(ctx)))
		}
		return r.end(ctx)
	}
}

type sender struct {
	s      *Session
	p      system.Producer
	c      Config
	tag    uint32
	window int64
	next   uint64
	keys   [][]byte // names by key, so that a send does not make them anew

	inFlight atomic.Int64
	freed    chan struct{} // capacity 1; a send was done
}

func newSender(s *Session, p system.Producer) (*sender, error) {
	c := s.Config
	r := &sender{s: s, p: p, c: c, window: int64(c.Window), freed: make(chan struct{}, 1)}
	if r.window <= 0 {
		r.window = defaultSends
	}
	if _, err := fmt.Sscan(c.Params[ParamTag], &r.tag); err != nil {
		return nil, fmt.Errorf("read parameter %s=%q: %w: %w", ParamTag, c.Params[ParamTag], err, system.ErrUsage)
	}
	r.keys = make([][]byte, max(1, c.Workload.Keys))
	for k := range r.keys {
		r.keys[k] = []byte(ledger.KeyName(uint32(k)))
	}
	return r, nil
}

// send hands messages to the client until the session stops or Config.Messages is reached. The
// error is that of the journal or the cause of ctx's end.
func (r *sender) send(ctx context.Context) error {
	tick := time.NewTicker(pacingTick)
	defer tick.Stop()
	schedule := newSchedule(int(r.s.rate.Load()), clock.Now())
	for {
		select {
		case <-r.s.Stopping():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.s.rateChanged:
			schedule = newSchedule(int(r.s.rate.Load()), clock.Now())
		default:
		}
		left := maxBatch
		if r.c.Messages > 0 {
			if left = min(left, r.c.Messages-int(r.next)); left == 0 {
				return nil
			}
		}
		n := min(left, schedule.due(clock.Now()))
		if n == 0 {
			select {
			case <-tick.C:
			case <-r.s.Stopping():
			case <-ctx.Done():
			case <-r.s.rateChanged:
				schedule = newSchedule(int(r.s.rate.Load()), clock.Now())
			}
			continue
		}
		room := r.window - r.inFlight.Load()
		if room <= 0 {
			select {
			case <-r.freed:
			case <-r.s.Stopping():
			case <-ctx.Done():
			}
			continue
		}
		n = min(n, int(room))
		if err := r.batch(ctx, n); err != nil {
			return err
		}
		schedule.took(n)
	}
}

// batch sends the next n messages under one flushed Invoke.
func (r *sender) batch(ctx context.Context, n int) error {
	from := r.next
	to := from + uint64(n)
	err := r.s.RecordNow(ledger.Event{Kind: ledger.Invoke, Stream: r.c.Stream, Seq: from, To: to, At: clock.Now()})
	if err != nil {
		return err
	}
	for seq := from; seq < to; seq++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.one(ctx, seq)
		r.next = seq + 1
	}
	return nil
}

func (r *sender) one(ctx context.Context, seq uint64) {
	id := ledger.MessageID{Stream: r.c.Stream, Seq: seq}
	key := ledger.KeyOf(r.c.Seed, id, r.c.Workload.Keys)
	size := r.c.Workload.PayloadSize
	m := system.Message{
		ID: id, Key: r.keys[key],
		Payload:   ledger.AppendPayload(make([]byte, 0, max(size, ledger.MinPayload)), r.c.Seed, r.tag, id, 0, size),
		Partition: ledger.PartitionOf(key, r.c.Client.Partitions),
	}
	r.inFlight.Add(1)
	r.s.sent.Add(1)
	sent := clock.Now()
	r.p.Send(ctx, m, func(receipt system.Receipt) { r.done(id, m.Partition, sent, receipt) })
	if r.c.Claim == ClaimAtEnqueue {
		r.s.claimed.Add(1)
		r.s.Record(ledger.Event{Kind: ledger.Claimed, Stream: id.Stream, Seq: seq, Claim: ledger.ClaimSent, At: clock.Now(), Sent: sent})
	}
}

// done records how a send ended. It runs on the client's goroutines.
func (r *sender) done(id ledger.MessageID, partition int32, sent int64, receipt system.Receipt) {
	e := ledger.Event{
		Kind: ledger.Complete, Stream: id.Stream, Seq: id.Seq, Outcome: receipt.Outcome,
		At: clock.Now(), Sent: sent, Text: receipt.Err,
	}
	switch receipt.Outcome {
	case ledger.OK:
		e.Pos = ledger.Position{Destination: r.c.Destination, Partition: partition, Offset: receipt.Offset}
		r.s.confirmed.Add(1)
	case ledger.Failed:
		r.s.refused.Add(1)
	default:
		r.s.inDoubt.Add(1)
	}
	if r.c.Claim != ClaimAtEnqueue { // that caller has been told already
		e.Claim = claim(r.c.Claim, receipt)
		if e.Claim == ledger.ClaimSent {
			r.s.claimed.Add(1)
		}
	}
	r.s.Record(e)
	r.inFlight.Add(-1)
	select {
	case r.freed <- struct{}{}:
	default:
	}
}

// claim says what the caller is told when a send is done.
func claim(at string, receipt system.Receipt) ledger.Claim {
	switch {
	case receipt.Outcome == ledger.Failed:
		return ledger.ClaimFailed
	case receipt.Outcome == ledger.OK:
		return ledger.ClaimSent
	case at == ClaimAtWritten && receipt.Err == "":
		return ledger.ClaimSent // the client calls it done and nobody will ever confirm it
	default:
		return ledger.ClaimNone
	}
}

// end ends the client as Config.End wants it.
func (r *sender) end(ctx context.Context) error {
	stopped := r.c.Messages == 0 || int(r.next) < r.c.Messages
	if !stopped && r.c.End != EndFlush && r.c.End != "" {
		l := newLine(evBuffered)
		l.Count = r.inFlight.Load()
		if err := r.s.out.write(l); err != nil {
			return err
		}
		if r.c.End == EndKill {
			return r.s.Crash(PointBuffered)
		}
		return errExit // without Flush or Close: the process ends with whatever the client still holds
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	flushed := make(chan struct{})
	go func() { // "end" while the flush waits for a broker that does not answer
		select {
		case <-r.s.Ending():
			cancel(errEnded)
		case <-flushed:
		}
	}()
	err := r.p.Flush(ctx)
	close(flushed)
	if err != nil && !errors.Is(context.Cause(ctx), errEnded) {
		err = fmt.Errorf("flush producer: %w", err)
	} else {
		err = nil
	}
	return errors.Join(err, r.p.Close(context.WithoutCancel(ctx)))
}

var errEnded = errors.New("ended by the engine")

// schedule says how many messages an open-loop load is due.
type schedule struct {
	rate  int64
	start int64
	done  int64
}

func newSchedule(rate int, now int64) *schedule { return &schedule{rate: int64(rate), start: now} }

func (s *schedule) due(now int64) int {
	if s.rate <= 0 {
		return maxBatch
	}
	due := (now-s.start)*s.rate/int64(time.Second) - s.done
	if limit := max(1, s.rate*int64(maxBacklog)/int64(time.Second)); due > limit {
		s.done += due - limit
		due = limit
	}
	return int(due)
}

func (s *schedule) took(n int) { s.done += int64(n) }
