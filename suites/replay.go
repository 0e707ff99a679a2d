package suites

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/worker"
	"conform/suites/chain"
)

// The parameters of the role "replay".
const (
	// paramEvents is how many of the load's first events are sent again.
	paramEvents = "events"
	// paramForged "true" sends other contents under their ids.
	paramForged = "forged"
	// paramLetters is a chain.Replayer by name: the dead letters are sent again, each of them twice.
	paramLetters = "letters"
)

// strikeReplay names the strike of events that come again.
const strikeReplay = "replayed"

// forgedBy is by how much the payload of an event under a wrong id is longer than that of others.
const forgedBy = 16

// replayRole sends events again, and ends.
func (b broker) replayRole() worker.Role {
	return func(ctx context.Context, s *worker.Session) (err error) {
		p := &settingsOf{params: s.Config.Params}
		events := p.number(paramEvents)
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
		service := newService(s, p, pool)
		service.Publisher = out
		if p.err != nil {
			return p.err
		}
		if err := s.Ready(ctx); err != nil {
			return err
		}
		began := worker.Now()
		if name := p.params[paramLetters]; name != "" {
			replay := function[chain.Replayer](p, paramLetters, "")
			if p.err != nil {
				return p.err
			}
			return replayLetters(ctx, s, service, pool, replay, began)
		}
		if p.params[paramForged] == "true" {
			return forge(ctx, s, out, events, began)
		}
		for seq := range events {
			if err := service.Publisher.Publish(ctx, eventOf(s.Config, ledger.EventID(firstStream, uint64(seq)))); err != nil {
				return fmt.Errorf("send event again: %w", err)
			}
		}
		return strikeSince(s, began, strikeReplay, "old events are sent again", fmt.Sprintf("%d events were confirmed again", events), events)
	}
}

// firstStream is the stream of the load's first incarnation.
const firstStream = 1

// forge sends events of its own under the ids of others. In the ledger they are what they are: events of their own.
func forge(ctx context.Context, s *worker.Session, out *publisher, events int, began int64) error {
	out.size = max(out.size, ledger.MinPayload) + forgedBy
	for seq := range uint64(events) {
		of := eventOf(s.Config, ledger.EventID(firstStream, seq))
		id := ledger.MessageID{Stream: s.Config.Stream, Seq: seq}
		if err := s.RecordNow(ledger.Event{Kind: ledger.Invoke, Stream: id.Stream, Seq: seq, To: seq + 1, At: worker.Now()}); err != nil {
			return err
		}
		receipts := make(chan system.Receipt, 1)
		sent := worker.Now()
		out.client.Send(ctx, system.Message{
			ID: id, EventID: of.ID, Key: []byte(ledger.KeyName(of.Key)),
			Payload:   ledger.AppendPayload(nil, s.Config.Seed, out.tag, id, of.ID, out.size),
			Partition: ledger.PartitionOf(of.Key, s.Config.Client.Partitions),
		}, func(r system.Receipt) { receipts <- r })
		r := <-receipts
		e := ledger.Event{Kind: ledger.Complete, Stream: id.Stream, Seq: seq, Outcome: r.Outcome, At: worker.Now(), Sent: sent, Text: r.Err}
		if r.Outcome == ledger.OK {
			e.Pos = ledger.Position{Destination: s.Config.Destination, Partition: ledger.PartitionOf(of.Key, s.Config.Client.Partitions), Offset: r.Offset}
		}
		s.Record(e)
	}
	return strikeSince(s, began, strikeReplay, "other contents are sent under known event ids", fmt.Sprintf("%d were confirmed", events), events)
}

// replayLetters sends each dead letter twice, as two people would who do not know of each other.
func replayLetters(ctx context.Context, s *worker.Session, service *chain.Service, pool *pgxpool.Pool, replay chain.Replayer, began int64) error {
	rows, err := pool.Query(ctx, "SELECT event_id FROM dead_letter ORDER BY quarantined_at")
	if err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	letters, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	if len(letters) == 0 {
		return errors.New("there are no dead letters")
	}
	names := renamer{s: s}
	for _, id := range letters {
		service.NewID = func() uint64 { return names.rename(eventOf(s.Config, uint64(id))) }
		for range 2 {
			if err := replay(ctx, service, uint64(id)); err != nil {
				return fmt.Errorf("replay dead letter: %w", err)
			}
		}
	}
	return strikeSince(s, began, strikeReplay, "dead letters are replayed twice", fmt.Sprintf("%d dead letters were sent twice", len(letters)), len(letters))
}
