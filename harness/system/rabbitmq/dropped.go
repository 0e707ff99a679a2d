package rabbitmq

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"conform/harness/internal/clock"
	"conform/harness/ledger"
)

// The reasons for which nodes drop messages that they have confirmed, as the ledger calls them.
const (
	unroutable        = "unroutable"
	overflowed        = "overflowed"
	expired           = "expired"
	deadLetterDropped = "dead-letter-dropped"
	// atMostOnce is no reason: what was dead-lettered without waiting for a confirm, and may have been dropped.
	atMostOnce = "at-most-once"
)

// counter is one line of a node's metrics: a name, and a label that the line must have.
type counter struct{ name, label string }

// counters are what a node counts of what it drops (https://www.rabbitmq.com/docs/prometheus, global counters): for all of
// its queues together, so that each is the most that one of them can have lost.
var counters = map[counter]string{
	{"rabbitmq_global_messages_unroutable_dropped_total", `protocol="amqp091"`}:                        unroutable,
	{"rabbitmq_global_messages_dead_lettered_maxlen_total", `dead_letter_strategy="disabled"`}:         overflowed,
	{"rabbitmq_global_messages_dead_lettered_expired_total", `dead_letter_strategy="disabled"`}:        expired,
	{"rabbitmq_global_messages_dead_lettered_delivery_limit_total", `dead_letter_strategy="disabled"`}: deadLetterDropped,
	{"rabbitmq_global_messages_dead_lettered_rejected_total", `dead_letter_strategy="disabled"`}:       deadLetterDropped,

	{"rabbitmq_global_messages_dead_lettered_maxlen_total", `dead_letter_strategy="at_most_once"`}:         atMostOnce,
	{"rabbitmq_global_messages_dead_lettered_expired_total", `dead_letter_strategy="at_most_once"`}:        atMostOnce,
	{"rabbitmq_global_messages_dead_lettered_delivery_limit_total", `dead_letter_strategy="at_most_once"`}: atMostOnce,
	{"rabbitmq_global_messages_dead_lettered_rejected_total", `dead_letter_strategy="at_most_once"`}:       atMostOnce,
}

// drops are a node's counts by reason.
type drops map[string]int64

// absence is a span of time in which what was published to a destination had nowhere to go.
type absence struct {
	from, to int64  // ledger times; to is 0 while it lasts
	why      string // in words
}

// drops asks a node for its counters.
func (n *Node) drops(ctx context.Context) (drops, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.pod.HostPort(portMetrics)+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	resp, err := n.cluster.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask %s for its metrics: %w", n.name, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask %s for its metrics: %s", n.name, resp.Status)
	}
	return readDrops(resp.Body)
}

// readDrops reads the text format of Prometheus.
func readDrops(r io.Reader) (drops, error) {
	d := drops{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, rest, ok := strings.Cut(lines.Text(), "{")
		if !ok {
			continue
		}
		labels, value, ok := strings.Cut(rest, "} ")
		if !ok {
			continue
		}
		for c, reason := range counters {
			if c.name != name || !slices.Contains(strings.Split(labels, ","), c.label) {
				continue
			}
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				return nil, fmt.Errorf("read metric %s: %w", name, err)
			}
			d[reason] += int64(n)
		}
	}
	return d, lines.Err()
}

// since returns what was counted after before. A node that was restarted has begun at 0 again.
func (d drops) since(before drops) drops {
	delta := drops{}
	for reason, now := range d {
		if then := before[reason]; now >= then {
			delta[reason] = now - then
		} else {
			delta[reason] = now
		}
	}
	return delta
}

// allDrops asks all nodes; one that does not answer is left out.
func (c *Cluster) allDrops(ctx context.Context) map[*Node]drops {
	all := map[*Node]drops{}
	for _, n := range c.nodes {
		if d, err := n.drops(ctx); err == nil {
			all[n] = d
		} else {
			c.log.Debug("metrics not read", "error", err)
		}
	}
	return all
}

// dropped tells what the nodes have dropped of a destination since it was made: in the time in which it had no route, and
// by the rules that it has.
func (c *Cluster) dropped(ctx context.Context, name string) []ledger.Event {
	now := c.allDrops(ctx)
	c.mu.Lock()
	d, before, absences := c.made[name], c.dropsAt[name], c.absences[name]
	limits := maps.Clone(c.limits[name])
	deadEnd := c.deadEnds[name]
	c.mu.Unlock()
	sum := drops{}
	for n, counts := range now {
		for reason, k := range counts.since(before[n]) {
			sum[reason] += k
		}
	}
	var events []ledger.Event
	tell := func(reason string, from, to int64, detail string) {
		if to == 0 {
			to = clock.Now()
		}
		events = append(events, ledger.Event{
			Kind: ledger.Dropped, Text: reason, Sent: from, At: to, Count: sum[reason],
			Detail: fmt.Sprintf("%s; the nodes count %d dropped as %s", detail, sum[reason], reason),
		})
	}
	for _, a := range absences {
		switch {
		case len(d.waits) > 0: // what had nowhere to go were dead letters of the queues before it
			deadEnd = a.why
		case sum[unroutable] > 0:
			tell(unroutable, a.from, a.to, a.why)
		}
	}
	c.mu.Lock()
	limited := maps.Clone(c.limits[d.target()])
	c.mu.Unlock()
	if overflow := d.dlArgs["x-overflow"]; len(limited) > 0 && sum[overflowed] > 0 && (overflow == nil || overflow == "drop-head") {
		tell(overflowed, 0, 0, fmt.Sprintf("its dead-letter target has a policy of %v", limited))
	}
	if deadEnd != "" && d.atMostOnce() {
		// Without its exchange a queue counts its dead letters as one that has none.
		given := sum[atMostOnce] + sum[expired] + sum[overflowed] + sum[deadLetterDropped]
		if sum = (drops{deadLetterDropped: given}); given > 0 {
			tell(deadLetterDropped, 0, 0, deadEnd+", and nobody waits for a confirm of dead letters")
		}
		return events
	}
	for _, reason := range slices.Sorted(maps.Keys(sum)) {
		if why := d.drops(reason, limits); sum[reason] > 0 && why != "" {
			tell(reason, 0, 0, why)
		}
	}
	return events
}

// drops says why a queue with such settings and limits drops messages for a reason, "" if it does not.
func (d destination) drops(reason string, limits map[string]string) string {
	has := func(names ...string) string {
		for _, name := range names {
			if v, ok := d.arguments[argumentPrefix+name]; ok {
				return fmt.Sprintf("%s=%v", name, v)
			}
			if v, ok := limits[name]; ok {
				return fmt.Sprintf("a policy of %s=%s", name, v)
			}
		}
		return ""
	}
	if _, target := d.arguments["x-dead-letter-exchange"]; target {
		return "" // counted under another strategy
	}
	switch reason {
	case overflowed:
		if o := d.arguments["x-overflow"]; o == nil || o == "drop-head" {
			return has("max-length", "max-length-bytes")
		}
	case expired:
		return has("message-ttl")
	case deadLetterDropped:
		return "no dead-letter exchange"
	}
	return ""
}

// lacks notes that a destination may have no route from then on; regains that it has one again for certain. What is lost in
// between had none: what had one is not lost.
func (c *Cluster) lacks(name string, from int64, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.absences[name] {
		if a.to == 0 {
			return
		}
	}
	c.absences[name] = append(c.absences[name], absence{from: from, why: why})
}

func (c *Cluster) regains(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.absences[name] {
		if c.absences[name][i].to == 0 {
			c.absences[name][i].to = clock.Now()
		}
	}
}
