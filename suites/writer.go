package suites

import (
	"context"

	"conform/harness/system"
	"conform/harness/worker"
)

// roleKafkaWriter is a second producer beside the load, on Kafka.
const roleKafkaWriter = "kafka-" + roleWriter

// The parameters of a writer.
const (
	paramMessages   = "messages"   // how many it sends, before it waits to be stopped; needed, since nobody else may stop it before a drain
	paramRate       = "rate"       // per second; default the load's
	paramPartitions = "partitions" // how many it knows; default as many as the load
)

func writerRole(clients system.Clients) worker.Role {
	return func(ctx context.Context, s *worker.Session) error {
		p := &settingsOf{params: s.Config.Params}
		s.Config.Messages = p.number(paramMessages)
		if rate := p.number(paramRate); rate > 0 {
			s.SetRate(rate)
		}
		if partitions := p.number(paramPartitions); partitions > 0 {
			s.Config.Client.Partitions = partitions
		}
		if p.err != nil {
			return p.err
		}
		if err := worker.ProducerRole(clients)(ctx, s); err != nil {
			return err
		}
		select {
		case <-s.Stopping():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
