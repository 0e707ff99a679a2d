package rabbitmq

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/agnivade/levenshtein"
	amqp "github.com/rabbitmq/amqp091-go"

	"conform/harness/system"
	"conform/harness/system/disks"
)

// The container ports of a node.
const (
	portAMQP       = 5672
	portManagement = 15672
	portMetrics    = 15692
	portCluster    = 25672
	portMapper     = 4369 // epmd, which tells where a node's cluster port is
)

// ListenerCluster is the name of the broker-to-broker ports in a system.Isolation.
const ListenerCluster = "cluster"

// advancedPrefix marks a Spec setting as one of the application environment of rabbit, which only advanced.config can say.
const advancedPrefix = "advanced."

// base are the node settings that differ from RabbitMQ's defaults whatever the timing.
var base = map[string]string{
	// Who leads and what is in a queue is asked for by the request; statistics of all that passes would only cost.
	"management_agent.disable_metrics_collector": "true",
}

// short are the timing settings that are lowered to keep runs short. RabbitMQ's defaults are beside them.
var short = map[string]string{
	"net_ticktime": "10", // 60 s: silence after which a node is taken for down
	// How often queues tell how much is delivered and not settled: nobody is told it faster.
	"collect_statistics_interval":                                   "1000", // 5000 ms, for classic queues
	advancedPrefix + "quorum_tick_interval":                         "1000", // 5000 ms, for quorum queues
	advancedPrefix + "dead_letter_worker_publisher_confirm_timeout": "3000", // 180000 ms: a dead letter is tried again
}

// owned are settings that the adapter needs as it writes them: the cluster would not be the one it believes in.
var owned = []string{"default_user", "default_pass", "default_vhost", "loopback_users", "listeners", "log", "cluster_formation", "management.tcp", "cluster_name"}

// The values of Spec.Timing.
const (
	timingShort      = "short"
	timingProduction = "production"
)

var settingName = regexp.MustCompile(`^[a-z][A-Za-z0-9_$-]*(\.[A-Za-z0-9_$-]+)*$`)

// config is what is the same on every node of a cluster.
type config struct {
	settings map[string]string // all that differs from RabbitMQ's defaults, topology excluded
	timing   map[string]string // the part of it that was lowered
	diskMiB  int               // 0 = ordinary volumes
}

// newConfig merges defaults and the settings of spec. Errors are ErrUsage.
func newConfig(spec system.Spec) (config, error) {
	c := config{settings: maps.Clone(base), timing: map[string]string{}}
	switch spec.Timing {
	case "", timingShort:
		maps.Copy(c.timing, short)
		maps.Copy(c.settings, short)
	case timingProduction:
	default:
		return config{}, fmt.Errorf("timing %q: want %s or %s: %w", spec.Timing, timingShort, timingProduction, system.ErrUsage)
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Settings)) {
		value := spec.Settings[name]
		if name == disks.Setting {
			var err error
			if c.diskMiB, err = disks.ParseMiB(value); err != nil {
				return config{}, err
			}
			continue
		}
		ours := slices.ContainsFunc(owned, func(o string) bool { return name == o || strings.HasPrefix(name, o+".") })
		switch {
		case ours:
			return config{}, fmt.Errorf("setting %s belongs to the adapter: %w", name, system.ErrUsage)
		case !settingName.MatchString(name) || strings.ContainsAny(value, "\r\n\x00"):
			return config{}, fmt.Errorf("setting %q is no name of a node setting, or its value no line: %w", name, system.ErrUsage)
		}
		if strings.HasPrefix(name, advancedPrefix) {
			if _, err := strconv.Atoi(value); err != nil && value != "true" && value != "false" {
				return config{}, fmt.Errorf("setting %s=%q: want a number, true or false: %w", name, value, system.ErrUsage)
			}
		}
		c.settings[name] = value
		delete(c.timing, name) // it is the scenario's own now, not lowered to save time
	}
	return c, nil
}

// all returns the settings as Spec.Settings has them.
func (c config) all() map[string]string {
	m := maps.Clone(c.settings)
	if c.diskMiB > 0 {
		m[disks.Setting] = fmt.Sprint(c.diskMiB)
	}
	return m
}

// conf writes rabbitmq.conf.
func (c config) conf(user, password string, nodes []*Node) []byte {
	var b strings.Builder
	line := func(name, value string) { fmt.Fprintf(&b, "%s = %s\n", name, value) }
	line("default_user", user)
	line("default_pass", password)
	line("loopback_users", "none") // the user comes from outside of the container
	line("log.console", "true")
	line("log.console.level", "notice") // elections and alarms; at info each question about a queue is a line
	line("log.file", "false")
	line("cluster_formation.peer_discovery_backend", "classic_config")
	for i, n := range nodes {
		line(fmt.Sprintf("cluster_formation.classic_config.nodes.%d", i+1), n.erlang())
	}
	for _, name := range slices.Sorted(maps.Keys(c.settings)) {
		if !strings.HasPrefix(name, advancedPrefix) {
			line(name, c.settings[name])
		}
	}
	return []byte(b.String())
}

// advanced writes advanced.config.
func (c config) advanced() []byte {
	var terms []string
	for _, name := range slices.Sorted(maps.Keys(c.settings)) {
		if key, ok := strings.CutPrefix(name, advancedPrefix); ok {
			terms = append(terms, fmt.Sprintf("{'%s', %s}", key, c.settings[name]))
		}
	}
	return fmt.Appendf(nil, "[{rabbit, [%s]}].\n", strings.Join(terms, ", "))
}

// The types of queues.
const (
	Quorum  = "quorum"
	Classic = "classic"
)

// Names of destination settings that are no arguments of a queue.
const (
	settingType       = "type"
	settingDurable    = "durable"
	settingAutoDelete = "auto-delete"
	settingExclusive  = "exclusive"
	settingAttended   = "attended"
	settingBinding    = "binding"
	settingAlternate  = "alternate"
	settingGroups     = "groups"
	settingDelay      = "delay"
	settingDelayType  = delayPrefix + "type"
	settingRetry      = "retry"
	settingDeadLetter = "dead-letter"
	deadLetterPrefix  = "dead-letter."
	settingDLExchange = deadLetterPrefix + "exchange"
	settingDLBinding  = deadLetterPrefix + "binding"
	settingDLNode     = deadLetterPrefix + "node"
	delayPrefix       = "delay."
	argumentPrefix    = "x-"
)

// DestinationSettings documents the settings of a destination and their defaults.
func DestinationSettings() map[string]string {
	return map[string]string{
		settingType:       "quorum or classic; default quorum",
		settingDurable:    "true or false; default true",
		settingAutoDelete: "true or false: the queue goes with its last consumer; default false",
		settingExclusive:  "true or false: the queue goes with the connection of its attending consumer; default false",
		settingAttended:   "true or false: whether the adapter keeps a consumer on the queue, which takes one message and never settles it, until it is told to leave; default false",
		settingBinding:    "true or false: whether the queue is bound to its exchange; default true",
		settingAlternate:  "true or false: whether the exchange hands what it cannot route to an alternate one, with a quorum queue behind it; default false",
		settingGroups:     "names of groups of consumers, separated by blanks: each has a queue of its own beside the destination's, bound to its exchange, of the same type and with the same arguments; default none",
		settingDelay:      "queues in front of the destination's own in which messages wait until they are dead-lettered into its exchange: message (one, in which each message's own expiration counts), or milliseconds, separated by commas (one with that TTL for each); default none",
		settingDelayType:  "type of those queues; default that of the queue",
		settingRetry:      "milliseconds: what is rejected waits so long in a queue of its own, and comes back then at the tail; default none",
		settingDeadLetter: "type of a dead-letter target made beside the queue (quorum or classic), or none; default none",
		settingDLExchange: "present or missing: whether the dead-letter exchange exists; default present",
		settingDLBinding:  "present or missing: whether the target is bound to it; default present",
		settingDLNode:     "same or other: whether the target is on the queue's node or on the next one; default same",
		"x-*":             "an argument of the queue, e.g. x-max-length; numbers, true and false are told from strings",
		"dead-letter.x-*": "an argument of the target",
		"delay.x-*":       "an argument of the queues in which messages wait",
	}
}

// destination is a DestinationSpec as this adapter understands it.
type destination struct {
	name       string
	kind       string
	durable    bool
	autoDelete bool
	exclusive  bool
	attended   bool
	bound      bool
	alternate  bool
	groups     []string
	deadLetter string // type of the target; empty = none
	dlExchange bool
	dlBinding  bool
	dlOther    bool
	targetNode *Node // of a dead-letter target, once it is made
	waits      []wait
	arguments  amqp.Table
	dlArgs     amqp.Table
}

// wait is a queue in which messages wait for their turn in the destination's own.
type wait struct {
	name, key string // key: by which it is bound to the exchange; "" = it is not
	arguments amqp.Table
}

// delayKey is what a queue of delayed messages is bound to the exchange by; ms is "" where each message says it itself.
func delayKey(ms string) string {
	if ms == "" {
		return "delay"
	}
	return "delay." + ms
}

func (d destination) target() string            { return d.name + ".dead" }
func (d destination) deadExchange() string      { return DeadLetterExchange(d.name) }
func (d destination) unrouted() string          { return d.name + ".unrouted" }
func (d destination) alternateExchange() string { return d.name + ".unrouted" }

// groupQueues lists the queues of groups of consumers. Their names are those that the engine gives to groups.
func (d destination) groupQueues() []string {
	names := make([]string, len(d.groups))
	for i, g := range d.groups {
		names[i] = d.name + "." + g
	}
	return names
}

// queues lists all queues of the destination, its own last.
func (d destination) queues() []string {
	return append(append(d.side(), d.groupQueues()...), d.own()...)
}

// own lists the destination's queue, and before it those in which messages wait for it.
func (d destination) own() []string {
	var names []string
	for _, w := range d.waits {
		names = append(names, w.name)
	}
	return append(names, d.name)
}

// side lists the queues beside the destination's own that belong to its store.
func (d destination) side() []string {
	var names []string
	if d.deadLetter != "" {
		names = append(names, d.target())
	}
	if d.alternate {
		names = append(names, d.unrouted())
	}
	return names
}

// parseDestination reads the settings of a destination. Errors are ErrUsage.
func parseDestination(spec system.DestinationSpec) (destination, error) {
	if spec.Partitions > 1 {
		return destination{}, fmt.Errorf("%d partitions: a queue has one: %w", spec.Partitions, system.ErrUsage)
	}
	plain := map[string]string{}
	d := destination{name: spec.Name, arguments: amqp.Table{}, dlArgs: amqp.Table{}}
	delayed := amqp.Table{}
	for name, value := range spec.Settings {
		if a, ok := strings.CutPrefix(name, delayPrefix); ok && strings.HasPrefix(a, argumentPrefix) {
			delayed[a] = argument(value)
			continue
		}
		switch dl, isDL := strings.CutPrefix(name, deadLetterPrefix); {
		case isDL && strings.HasPrefix(dl, argumentPrefix):
			d.dlArgs[dl] = argument(value)
		case strings.HasPrefix(name, argumentPrefix):
			d.arguments[name] = argument(value)
		default:
			plain[name] = value
		}
	}
	s := newSettings("destination setting", plain, DestinationSettings())
	d.kind = s.choice(settingType, Quorum, Quorum, Classic)
	d.durable = s.flag(settingDurable, true)
	d.autoDelete = s.flag(settingAutoDelete, false)
	d.exclusive = s.flag(settingExclusive, false)
	d.attended = s.flag(settingAttended, false)
	d.bound = s.flag(settingBinding, true)
	d.alternate = s.flag(settingAlternate, false)
	d.groups = strings.Fields(plain[settingGroups])
	d.deadLetter = s.choice(settingDeadLetter, "none", "none", Quorum, Classic)
	if d.deadLetter == "none" {
		d.deadLetter = ""
	}
	d.dlExchange = s.choice(settingDLExchange, "present", "present", "missing") == "present"
	d.dlBinding = s.choice(settingDLBinding, "present", "present", "missing") == "present"
	d.dlOther = s.choice(settingDLNode, "same", "same", "other") == "other"
	delayed["x-queue-type"] = s.choice(settingDelayType, d.kind, Quorum, Classic)
	d.wait(s, plain, delayed)
	if d.kind == Quorum && (!d.durable || d.autoDelete || d.exclusive) {
		s.fail("a quorum queue is durable, not auto-delete and not exclusive")
	}
	if d.exclusive && !d.attended {
		s.fail("an exclusive queue needs attended=true: it goes with its consumer")
	}
	d.arguments["x-queue-type"] = d.kind
	if d.deadLetter != "" {
		d.arguments["x-dead-letter-exchange"] = d.deadExchange()
		d.dlArgs["x-queue-type"] = d.deadLetter
	}
	return d, s.err
}

// wait reads the settings of the queues in which messages wait.
func (d *destination) wait(s *settings, plain map[string]string, delayed amqp.Table) {
	back := func(arguments amqp.Table, ttl int) amqp.Table {
		arguments = maps.Clone(arguments)
		arguments["x-dead-letter-exchange"], arguments["x-dead-letter-routing-key"] = d.name, routingKey(d.name)
		if ttl > 0 {
			arguments["x-message-ttl"] = int64(ttl)
		}
		return arguments
	}
	switch v := plain[settingDelay]; v {
	case "":
	case "message":
		d.waits = append(d.waits, wait{name: d.name + ".delay", key: delayKey(""), arguments: back(delayed, 0)})
	default:
		for ms := range strings.SplitSeq(v, ",") {
			ttl, err := strconv.Atoi(ms)
			if err != nil || ttl < 1 {
				s.fail("%s %s=%q: want message, or milliseconds", s.what, settingDelay, v)
			}
			d.waits = append(d.waits, wait{name: d.name + ".delay." + ms, key: delayKey(ms), arguments: back(delayed, ttl)})
		}
	}
	if ttl := s.number(settingRetry, 0, 1); ttl > 0 {
		name := d.name + ".retry"
		d.waits = append(d.waits, wait{name: name, arguments: back(amqp.Table{"x-queue-type": d.kind}, ttl)})
		d.arguments["x-dead-letter-exchange"], d.arguments["x-dead-letter-routing-key"] = "", name
		if d.deadLetter != "" {
			s.fail("%s and %s: a queue has one dead-letter exchange", settingRetry, settingDeadLetter)
		}
	}
}

// argument tells numbers and truth values from strings, as a queue's arguments are typed.
func argument(value string) any {
	if n, err := strconv.ParseInt(value, 10, 64); err == nil {
		return n
	}
	if b, err := strconv.ParseBool(value); err == nil && (value == "true" || value == "false") {
		return b
	}
	return value
}

// settings reads named values and keeps the first error.
type settings struct {
	what   string
	values map[string]string
	err    error
}

func newSettings(what string, values, documented map[string]string) *settings {
	s := &settings{what: what, values: values}
	known := slices.Sorted(maps.Keys(documented))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, ok := documented[name]; ok {
			continue
		}
		nearest := slices.MinFunc(known, func(a, b string) int {
			return levenshtein.ComputeDistance(a, name) - levenshtein.ComputeDistance(b, name)
		})
		s.fail("%s %q is unknown, the nearest is %q", what, name, nearest)
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
		s.fail("%s %s=%q: want one of %q", s.what, name, v, allowed)
		return def
	}
	return v
}

func (s *settings) flag(name string, def bool) bool {
	return s.choice(name, strconv.FormatBool(def), "true", "false") == "true"
}

func (s *settings) number(name string, def, least int) int {
	v, ok := s.values[name]
	if !ok {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least {
		s.fail("%s %s=%q: want a whole number >= %d", s.what, name, v, least)
		return def
	}
	return n
}
