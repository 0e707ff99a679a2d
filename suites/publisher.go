package suites

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/worker"
	"conform/suites/chain"
)

// Streams of what one worker makes, beside its own: messages that carry its events, and events that it calls new. They are
// far apart from each other and from the streams that the engine numbers.
const (
	streamOfMessages = 1 << 20
	streamOfNew      = 2 << 20
)

// publisher is a chain.Publisher on a broker's client that records what it does. Each attempt is a message of its own.
type publisher struct {
	s       *worker.Session
	client  system.Producer
	stream  uint32
	tag     uint32
	timeout time.Duration // of one call; 0 = the caller's
	size    int           // of a payload
	own     bool          // the first attempt at an event of this worker's stream is the message of that number

	refusal sync.Once // it is told once

	mu   sync.Mutex
	next uint64
	sent map[uint64]bool // with own
}

// openPublisher opens a client with the broker's usual settings. Its messages are of the given stream.
func (b broker) openPublisher(ctx context.Context, s *worker.Session, stream uint32) (*publisher, error) {
	p := &publisher{s: s, stream: stream, size: s.Config.Workload.PayloadSize, sent: map[uint64]bool{}}
	if _, err := fmt.Sscan(s.Config.Params[worker.ParamTag], &p.tag); err != nil {
		return nil, fmt.Errorf("read parameter %s: %w: %w", worker.ParamTag, err, system.ErrUsage)
	}
	config := s.Config.Client
	config.Settings = maps.Clone(b.producer)
	for _, setting := range strings.Fields(s.Config.Params[paramClient]) {
		name, value, _ := strings.Cut(setting, "=")
		config.Settings[name] = value
	}
	var err error
	if p.client, err = b.clients.OpenProducer(ctx, config); err != nil {
		return nil, fmt.Errorf("open producer: %w", err)
	}
	return p, nil
}

// close flushes, for a little while, and closes the client.
func (p *publisher) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = p.client.Flush(ctx) // what is left is in doubt, and recorded so
	return p.client.Close(ctx)
}

// Publish hands events to the client, in order, and waits for their confirms.
func (p *publisher) Publish(ctx context.Context, events ...chain.Event) error {
	if p.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.timeout)
		defer cancel()
	}
	ids := p.identify(events)
	for i, ev := range events {
		e := ledger.Event{Kind: ledger.Invoke, Stream: ids[i].Stream, Seq: ids[i].Seq, To: ids[i].Seq + 1, EventID: ev.ID, At: worker.Now()}
		if i < len(events)-1 {
			p.s.Record(e)
		} else if err := p.s.RecordNow(e); err != nil {
			return err
		}
	}
	receipts := make(chan system.Receipt, len(events))
	for i, ev := range events {
		p.send(ctx, ids[i], ev, receipts)
	}
	if err := p.s.PointOf(ctx, chain.AfterPublish, events[0].ID, events[0].Key); err != nil {
		return err
	}
	refused := 0
	var failed error
	for range events {
		select {
		case r := <-receipts:
			if r.Outcome == ledger.Failed {
				refused++
			}
			if r.Outcome != ledger.OK {
				failed = errors.New(or(r.Err, "not confirmed"))
			}
		case <-ctx.Done():
			return fmt.Errorf("wait for confirms: %w", context.Cause(ctx))
		}
	}
	if refused == len(events) {
		return fmt.Errorf("%w: %w", chain.ErrRefused, failed)
	}
	return failed
}

// identify numbers one attempt at each event.
func (p *publisher) identify(events []chain.Event) []ledger.MessageID {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := make([]ledger.MessageID, len(events))
	for i, ev := range events {
		stream, seq := ledger.SplitEventID(ev.ID)
		if p.own && stream == p.s.Config.Stream && !p.sent[ev.ID] {
			p.sent[ev.ID] = true
			ids[i] = ledger.MessageID{Stream: stream, Seq: seq}
			continue
		}
		ids[i] = ledger.MessageID{Stream: p.stream, Seq: p.next}
		p.next++
	}
	return ids
}

func (p *publisher) send(ctx context.Context, id ledger.MessageID, ev chain.Event, receipts chan<- system.Receipt) {
	c := p.s.Config
	m := system.Message{
		ID: id, EventID: ev.ID, Key: []byte(ledger.KeyName(ev.Key)),
		Payload:   ledger.AppendPayload(nil, c.Seed, p.tag, id, ev.ID, p.size),
		Partition: ledger.PartitionOf(ev.Key, c.Client.Partitions),
	}
	sent := worker.Now()
	p.s.Count(worker.Counts{Sent: 1})
	p.client.Send(ctx, m, func(r system.Receipt) {
		e := ledger.Event{
			Kind: ledger.Complete, Stream: id.Stream, Seq: id.Seq, EventID: ev.ID, Outcome: r.Outcome, At: worker.Now(), Sent: sent, Text: r.Err,
		}
		switch r.Outcome {
		case ledger.OK:
			e.Pos = ledger.Position{Destination: c.Destination, Partition: m.Partition, Offset: r.Offset}
			p.s.Count(worker.Counts{Confirmed: 1})
		case ledger.Failed:
			p.s.Count(worker.Counts{Refused: 1})
			p.tellRefusal(ev, r.Err)
		default:
			p.s.Count(worker.Counts{InDoubt: 1})
		}
		p.s.Record(e)
		receipts <- r
	})
}

// tellRefused, as paramTell, makes the first refusal of the broker a strike.
const tellRefused = "refused"

func (p *publisher) tellRefusal(ev chain.Event, class string) {
	if p.s.Config.Params[paramTell] != tellRefused {
		return
	}
	p.refusal.Do(func() {
		if err := strike(p.s, tellRefused, "the broker refuses a message", fmt.Sprintf("event %d: %s", ev.ID, class), 1); err != nil {
			p.s.Log.Error("journal cannot be written", "error", err)
		}
	})
}

// renamer draws ids for events that are called new, of which the ledger knows what they really are.
type renamer struct {
	s    *worker.Session
	mu   sync.Mutex
	next uint64
}

// rename returns a new id for an event. Its key is the event's, as a function of the id, too.
func (r *renamer) rename(ev chain.Event) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.s.Config
	for {
		id := ledger.EventID(c.Stream+streamOfNew, r.next)
		r.next++
		if ledger.KeyOfEvent(c.Seed, id, c.Workload.Keys) != ev.Key {
			continue
		}
		if err := r.s.RecordNow(ledger.Event{Kind: ledger.Resent, EventID: id, To: ev.ID, At: worker.Now()}); err != nil {
			r.s.Log.Error("journal cannot be written", "error", err)
		}
		return id
	}
}

// strike records a fault that a worker is itself, with the proof that it bit. Nothing of it needs to be undone.
func strike(s *worker.Session, name, detail, proof string, n int) error {
	return strikeSince(s, worker.Now(), name, detail, proof, n)
}

// strikeSince is strike for a fault that began before it can be proven: what it does may be done by then.
func strikeSince(s *worker.Session, began int64, name, detail, proof string, n int) error {
	now := worker.Now() // the same for both: another worker may strike under the same name
	s.Record(ledger.Event{Kind: ledger.Inject, At: began, Text: name, Detail: detail})
	s.Record(ledger.Event{Kind: ledger.Bite, At: now, Text: name, Outcome: ledger.OK, N: int64(n), Detail: proof})
	return s.RecordNow(ledger.Event{Kind: ledger.Heal, At: now, Text: name, Outcome: ledger.OK})
}
