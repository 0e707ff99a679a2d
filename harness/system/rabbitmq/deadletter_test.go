package rabbitmq

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"conform/harness/ledger"
	"conform/harness/system"
)

func TestWaitingRooms(t *testing.T) {
	parse := func(settings map[string]string) (destination, error) {
		return parseDestination(system.DestinationSpec{Name: "q", Settings: settings})
	}
	d, err := parse(map[string]string{"delay": "1000,5000", "delay.type": "classic", "delay.x-max-length": "7"})
	if err != nil {
		t.Fatal(err)
	}
	if got := d.own(); !slices.Equal(got, []string{"q.delay.1000", "q.delay.5000", "q"}) {
		t.Errorf("queues %v", got)
	}
	w := d.waits[1]
	if w.key != "delay.5000" || w.arguments["x-message-ttl"] != int64(5000) || w.arguments["x-queue-type"] != Classic ||
		w.arguments["x-dead-letter-exchange"] != "q" || w.arguments["x-dead-letter-routing-key"] != routingKey("q") || w.arguments["x-max-length"] != int64(7) {
		t.Errorf("%+v", w)
	}
	d, err = parse(map[string]string{"delay": "message", "delay.x-dead-letter-strategy": "at-least-once"})
	if err != nil || len(d.waits) != 1 || d.waits[0].key != "delay" || d.waits[0].arguments["x-message-ttl"] != nil {
		t.Errorf("%+v %v", d.waits, err)
	}
	if d.atMostOnce() || !slices.Equal(d.sources(), []string{"q.delay"}) {
		t.Errorf("at most once %v, sources %v", d.atMostOnce(), d.sources())
	}
	d, err = parse(map[string]string{"retry": "300"})
	if err != nil || !slices.Equal(d.own(), []string{"q.retry", "q"}) || d.arguments["x-dead-letter-exchange"] != "" || d.arguments["x-dead-letter-routing-key"] != "q.retry" {
		t.Errorf("%+v %v", d, err)
	}
	if !d.atMostOnce() || len(d.sources()) != 0 {
		t.Errorf("at most once %v, sources %v", d.atMostOnce(), d.sources())
	}
	for _, bad := range []map[string]string{
		{"delay": "soon"}, {"delay": "1000,"}, {"delay": "0"}, {"retry": "x"}, {"delay.type": "stream"}, {"retry": "1", "dead-letter": "quorum"}, {"dead-letter.node": "far"},
	} {
		if _, err := parse(bad); !errors.Is(err, system.ErrUsage) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestRoutes(t *testing.T) {
	for name, c := range map[string]struct {
		p               *producer
		key, expiration string
	}{
		"at once":     {&producer{exchange: "q", delay: "none", expiration: "9"}, "q", "9"},
		"by queue":    {&producer{exchange: "q", delay: "queue", delayMS: "1000"}, "delay.1000", ""},
		"by message":  {&producer{exchange: "q", delay: "message", delayMS: "1000"}, "delay", "1000"},
		"by a policy": {&producer{exchange: "q", delay: "none"}, "q", ""},
	} {
		if key, expiration := c.p.route(); key != c.key || expiration != c.expiration {
			t.Errorf("%s: %q, %q", name, key, expiration)
		}
	}
	p := producer{priority: 1, later: 9, after: 3}
	for seq, want := range map[uint64]uint8{0: 1, 2: 1, 3: 9, 100: 9} {
		if got := p.priorityOf(seq); got != want {
			t.Errorf("priority of %d: %d", seq, got)
		}
	}
}

// The first death counts, wherever its entry stands.
func TestDeath(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	entry := func(queue, reason string, n int64) amqp.Table {
		return amqp.Table{"queue": queue, "reason": reason, "count": n, "time": at, "exchange": "x"}
	}
	headers := func(queue, reason string, deaths ...any) amqp.Table {
		return amqp.Table{"x-first-death-queue": queue, "x-first-death-reason": reason, "x-death": deaths}
	}
	for name, c := range map[string]struct {
		headers amqp.Table
		want    ledger.DeathRecord
	}{
		"none":    {nil, ledger.DeathRecord{}},
		"one":     {headers("q", "expired", entry("q", "expired", 1)), ledger.DeathRecord{Queue: "q", Reason: "expired", Count: 1, Time: "2026-01-02T03:04:05Z"}},
		"two":     {headers("q", "rejected", entry("q.retry", "expired", 2), entry("q", "rejected", 3)), ledger.DeathRecord{Queue: "q", Reason: "rejected", Count: 3, Time: "2026-01-02T03:04:05Z"}},
		"no list": {amqp.Table{"x-death": "q"}, ledger.DeathRecord{}},
		"no such": {headers("q", "expired", entry("q", "rejected", 3)), ledger.DeathRecord{Queue: "q", Reason: "expired"}},
	} {
		var got ledger.DeathRecord
		if err := json.Unmarshal([]byte(death(c.headers)), &got); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
