package kafka

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/twmb/franz-go/pkg/kgo"

	"conform/harness/system"
)

// Clients opens producers and consumers on franz-go. The zero value is ready to use. See ProducerSettings and
// ConsumerSettings for the names that ClientConfig.Settings may have.
type Clients struct{}

var _ system.Clients = Clients{}

// The settings of a client that are not a choice of the arm.
const (
	clientOverhead = 3 * time.Second        // how long an answer may be late before the connection is given up
	clientDial     = 3 * time.Second        // on the same host
	metadataMinAge = 500 * time.Millisecond // 5 s by default: failover would be the client's, not the cluster's
)

// ProducerSettings documents the settings of a producer, by Kafka's own names where it has one, and their defaults.
func ProducerSettings() map[string]string {
	return map[string]string{
		"acks":                "all, 1 or 0; default all. 1 and 0 need idempotence=false",
		"idempotence":         "true or false; default true",
		"in.flight":           "produce requests at once per broker, 1 or more; default 5. Idempotent producers always have 5",
		"linger.ms":           "how long a record waits for company; default 5",
		"delivery.timeout.ms": "when a record is given up; default 0 = never. An idempotent record that may have been written is never given up",
		"request.timeout.ms":  "how long a broker may wait for its replicas; default 10000",
		"retries":             "how often a batch is sent again; default -1 = without limit",
		"batch.max.bytes":     "of one batch; default 1000012",
		"max.buffered":        "records in the client before Send waits; default 10000",
		"timestamp.age.ms":    "how old the records say they are, negative = of the future; default 0",
		"compression":         "none, gzip, snappy, lz4 or zstd; default none",
	}
}

// ConsumerSettings documents the settings of a consumer, and their defaults.
func ConsumerSettings() map[string]string {
	return map[string]string{
		"isolation":               "read_uncommitted or read_committed; default read_uncommitted",
		"group.protocol":          "classic or consumer (KIP-848); default classic. A broker without KIP-848 makes it classic",
		"assignor":                "range, sticky or, in classic groups, cooperative-sticky; default range",
		"group.instance.id":       "makes the member a static one; default none",
		"auto.commit":             "false, true (what an earlier poll returned) or greedy (what any poll returned); default false",
		"auto.commit.interval.ms": "default 5000",
		"auto.offset.reset":       "earliest, latest or none (an error); default earliest",
		"session.timeout.ms":      "classic groups only, those of KIP-848 have the broker's; default 45000",
		"heartbeat.ms":            "classic groups only, those of KIP-848 have the broker's; default 3000",
		"rebalance.timeout.ms":    "how long a rebalance waits for a member; default 60000",
		"block.rebalance.on.poll": "true or false: a poll that returned records holds rebalances up until the next; default false",
		"max.poll.records":        "of one poll; default 500",
		"fetch.min.bytes":         "how much a broker waits for, within fetch.max.wait.ms; default 1",
		"fetch.max.wait.ms":       "how long a broker may wait for records; default 500",
		"metadata.max.age.ms":     "when new partitions are noticed at the latest; default 300000",
	}
}

// settings reads a client's settings and keeps the first error.
type settings struct {
	values map[string]string
	err    error
}

func newSettings(values, documented map[string]string) *settings {
	s := &settings{values: values}
	known := slices.Sorted(maps.Keys(documented))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, ok := documented[name]; ok {
			continue
		}
		nearest := slices.MinFunc(known, func(a, b string) int {
			return levenshtein.ComputeDistance(a, name) - levenshtein.ComputeDistance(b, name)
		})
		s.fail("client setting %q is unknown, the nearest is %q", name, nearest)
	}
	return s
}

func (s *settings) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format+": %w", append(args, system.ErrUsage)...)
	}
}

func (s *settings) choice(name, def string, allowed ...string) string {
	v, ok := s.values[name]
	if !ok {
		return def
	}
	if !slices.Contains(allowed, v) {
		s.fail("client setting %s=%q: want one of %q", name, v, allowed)
		return def
	}
	return v
}

func (s *settings) text(name string) string { return s.values[name] }

func (s *settings) number(name string, def, least int) int {
	v, ok := s.values[name]
	if !ok {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least {
		s.fail("client setting %s=%q: want a whole number >= %d", name, v, least)
		return def
	}
	return n
}

func (s *settings) millis(name string, def time.Duration, least int) time.Duration {
	return time.Duration(s.number(name, int(def.Milliseconds()), least)) * time.Millisecond
}

// common are the options of producers and consumers.
func common(c system.ClientConfig) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Endpoints...), kgo.ClientID(c.ClientID), kgo.DisableClientMetrics(),
		kgo.RequestTimeoutOverhead(clientOverhead), kgo.DialTimeout(clientDial), kgo.MetadataMinAge(metadataMinAge),
	}
	if c.Log != nil {
		opts = append(opts, kgo.WithLogger(logger{c.Log}))
	}
	return opts
}

// logger hands the client's warnings on.
type logger struct{ log *slog.Logger }

func (logger) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l logger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	if level == kgo.LogLevelError {
		l.log.Error(msg, keyvals...)
		return
	}
	l.log.Warn(msg, keyvals...)
}
