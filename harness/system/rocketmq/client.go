package rocketmq

import (
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/apache/rocketmq-client-go/v2/rlog"

	"conform/harness/system"
)

// Clients opens producers and consumers on rocketmq-client-go. The zero value is ready to use. See ProducerSettings and
// ConsumerSettings for the names that ClientConfig.Settings may have. ClientConfig.DSN is the address of the name server.
type Clients struct{}

var _ system.Clients = Clients{}

// The settings of a client's connections that are not a choice of the arm. Connecting holds up all brokers' connects, so the
// library's 15 s are too long on one host.
const (
	dialTimeout  = 2 * time.Second
	readTimeout2 = 120 * time.Second // the library's default: it bounds how long a connection may be silent
	writeTimeout = 5 * time.Second
)

// ProducerSettings documents the settings of a producer, and their defaults.
func ProducerSettings() map[string]string {
	return map[string]string{
		"mode":          "async (the answer is awaited) or one-way (there is none); default async",
		"timeout.ms":    "how long an attempt waits for its answer; default 3000",
		"retries":       "how often a send that is not confirmed is tried again, under the same identity and by the adapter, so that each attempt is seen; the library's own retries are off. Default 0",
		"backoff.ms":    "between attempts; default 200",
		"max.in.flight": "sends at once before Send waits; default 1000",
		"status":        "strict, or ignored: an answer with another status than SEND_OK is told without its error, as to an application that looks at the error alone. Its outcome is in doubt in any case. Default strict",
		"wait":          "true, or false: the message says that neither flush nor replication is waited for (property WAIT). Default true",
		"route":         "refresh (the library asks for routes every 30 s), or reopen: an attempt that fails without an answer, or is refused as by a replica, makes the adapter open a new client, at most once a second. Default refresh",
		"tags":          "tags of messages, separated by commas, which they get by turns; default none",
		"delay.level":   "level of messageDelayLevel, from 1; default 0 = none",
		"delay.ms":      "delay of a timed message, or several, separated by commas, which messages have by turns; negative = it is due since then. Default 0 = none",
	}
}

// ConsumerSettings documents the settings of a consumer, and their defaults.
func ConsumerSettings() map[string]string {
	return map[string]string{
		"queues":           "all (they are assigned to this consumer, whoever else is in the group) or shared (the library divides them among the members); default all",
		"tags":             "the messages that are wanted, with queues=shared: \"a || b\"; default *. Others in its queues are passed over",
		"dead.letters":     "a group: its dead letters are read instead of the destination; default none",
		"route":            "refresh (as the library does, every 30 s) or reopen (name server and master are asked four times a second, and a new client is opened once another master answers, or one again); default refresh",
		"consume.from":     "first or last: where a queue is begun that the group has no position in; default first",
		"max.poll.records": "of one poll; default 32",
		"commit.wait.ms":   "how long the broker is asked whether it has a commit, which the library sends one-way; default 2000",
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
		s.fail("setting %q is unknown, the nearest is %q", name, nearest)
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
		s.fail("setting %s=%q: want one of %q", name, v, allowed)
		return def
	}
	return v
}

func (s *settings) number(name string, def, least int) int {
	v, ok := s.values[name]
	if !ok {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least {
		s.fail("setting %s=%q: want a whole number >= %d", name, v, least)
		return def
	}
	return n
}

func (s *settings) millis(name string, def time.Duration, least int) time.Duration {
	return time.Duration(s.number(name, int(def.Milliseconds()), least)) * time.Millisecond
}

// quiet silences the library, whose log is one for the whole process and goes to the standard output by default, where
// workers speak their protocol. What it would say ends up in the errors of sends and polls.
var quiet = sync.OnceFunc(func() { rlog.SetLogger(silence{}) })

type silence struct{}

func (silence) Debug(string, map[string]any)   {}
func (silence) Info(string, map[string]any)    {}
func (silence) Warning(string, map[string]any) {}
func (silence) Error(string, map[string]any)   {}
func (silence) Fatal(string, map[string]any)   {}
func (silence) Level(string)                   {}
func (silence) OutputPath(string) error        { return nil }

// instance names a client of the library: those of one name share their connections.
func instance(clientID string) string { return topicName(clientID) + "-" + rand.Text()[:8] }

// namesrvOf returns the address of the name server.
func namesrvOf(c system.ClientConfig) (string, error) {
	if c.DSN == "" {
		return "", fmt.Errorf("no address of a name server: %w", system.ErrUsage)
	}
	return c.DSN, nil
}

// allMillis reads durations that are separated by commas.
func (s *settings) allMillis(name string) (all []time.Duration) {
	for text := range strings.SplitSeq(s.values[name], ",") {
		if text == "" {
			continue
		}
		ms, err := strconv.Atoi(text)
		if err != nil {
			s.fail("setting %s=%q: want whole numbers, separated by commas", name, s.values[name])
		}
		all = append(all, time.Duration(ms)*time.Millisecond)
	}
	return all
}
