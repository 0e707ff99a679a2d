package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"conform/harness/ledger"
	"conform/harness/system"
)

func TestOutcome(t *testing.T) {
	for _, c := range []struct {
		err   error
		want  ledger.Outcome
		class string
	}{
		{nil, ledger.OK, ""},
		{errNotTaken, ledger.Failed, "not-taken"},
		{errNacked, ledger.Failed, "nacked"},
		{errReturned, ledger.Failed, "returned"},
		{errConnection, ledger.InDoubt, "connection-closed"},
		{errClosed, ledger.InDoubt, "client-closed"},
		{errUnconfirmed, ledger.InDoubt, ""},
		{amqp.ErrClosed, ledger.InDoubt, "channel-closed"},
		{fmt.Errorf("publish: %w", amqp.ErrClosed), ledger.InDoubt, "channel-closed"},
		// An exception is about one of the publishes on the channel, not said which.
		{&amqp.Error{Code: amqp.NotFound, Reason: "no exchange"}, ledger.InDoubt, "closed: 404"},
		{&amqp.Error{Code: amqp.PreconditionFailed, Reason: "message size larger than configured max size"}, ledger.InDoubt, "closed: 406"},
		{&amqp.Error{Code: amqp.ChannelError, Reason: "another channel error"}, ledger.InDoubt, "closed: 504"},
		{amqp.ErrFrameTooLarge, ledger.InDoubt, "frame-too-large"},
		{context.Canceled, ledger.InDoubt, "canceled"},
		{context.DeadlineExceeded, ledger.InDoubt, "timeout"},
		{io.EOF, ledger.InDoubt, "connection-closed"},
		{net.ErrClosed, ledger.InDoubt, "connection-closed"},
		{&net.OpError{Op: "write", Err: errors.New("broken pipe")}, ledger.InDoubt, "network: write"},
		{errors.New("never heard of"), ledger.InDoubt, "never heard of"},
	} {
		if got, want := receipt(c.err), (system.Receipt{Outcome: c.want, Offset: -1, Err: c.class}); got != want {
			t.Errorf("%v: %+v, want %+v", c.err, got, want)
		}
	}
	seen := map[error]bool{}
	for _, e := range Ends() {
		if e.Why == "" || seen[e.Err] {
			t.Errorf("%v is in the table twice or without a reason", e.Err)
		}
		seen[e.Err] = true
	}
}

// A refusal of a later attempt proves nothing about an earlier one.
func TestRefusalAfterDoubt(t *testing.T) {
	p := &producer{room: make(chan struct{}, 3)}
	var got []system.Receipt
	for _, c := range []struct {
		doubt bool
		err   error
	}{{false, errNacked}, {true, errNacked}, {true, nil}} {
		p.room <- struct{}{}
		p.finish(&send{doubt: c.doubt, done: func(r system.Receipt) { got = append(got, r) }}, c.err)
	}
	for i, want := range []ledger.Outcome{ledger.Failed, ledger.InDoubt, ledger.OK} {
		if got[i].Outcome != want {
			t.Errorf("%d: %v, want %v", i, got[i].Outcome, want)
		}
	}
}

func TestClientSettings(t *testing.T) {
	const dsn = "amqp://u:secret@127.0.0.1:1/"
	config := func(settings map[string]string) system.ClientConfig {
		return system.ClientConfig{Endpoints: []string{"127.0.0.1:1"}, DSN: dsn, ClientID: "c", Settings: settings}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, good := range []map[string]string{
		nil,
		{"confirms": "false", "persistent": "false", "mandatory": "true"},
		{"unconfirmed": "resend", "nacked": "resend", "connect": "any", "expiration": "1000", "max.buffered": "1", "heartbeat.s": "3", "delay.by": "queue", "delay.ms": "1", "priority": "1", "priority.later": "2", "priority.after": "3"},
	} {
		if _, err := (Clients{}).OpenProducer(ended, config(good)); errors.Is(err, system.ErrUsage) || err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: %v", good, err) // nobody listens there
		}
	}
	for _, bad := range []map[string]string{
		{"confirms": "yes"}, {"confirm": "true"}, {"unconfirmed": "lose"}, {"confirms": "false", "unconfirmed": "resend"}, {"max.buffered": "0"}, {"expiration": "-1"},
	} {
		if _, err := (Clients{}).OpenProducer(t.Context(), config(bad)); !errors.Is(err, system.ErrUsage) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	for _, bad := range []map[string]string{{"ack": "never"}, {"prefetch": "-1"}, {"argument.prefetch": "1"}, {"mandatory": "true"}} {
		if _, err := (Clients{}).OpenConsumer(t.Context(), config(bad)); !errors.Is(err, system.ErrUsage) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if _, err := (Clients{}).OpenConsumer(t.Context(), config(map[string]string{"argument.x-priority": "1", "ack.multiple": "true"})); err != nil {
		t.Error(err)
	}
	wrong := config(nil)
	wrong.DSN = "http://u:secret@x"
	if _, err := (Clients{}).OpenProducer(t.Context(), wrong); !errors.Is(err, system.ErrUsage) || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

func TestNewConfig(t *testing.T) {
	c, err := newConfig(system.Spec{Settings: map[string]string{
		"net_ticktime": "60", "advanced.quorum_tick_interval": "1000", "deprecated_features.permit.transient_nonexcl_queues": "true",
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, lowered := c.timing["net_ticktime"]; lowered || c.settings["net_ticktime"] != "60" {
		t.Errorf("a scenario's own setting counts as lowered: %v", c.timing)
	}
	conf := string(c.conf("u", "p", []*Node{{name: "rabbit-1"}}))
	if !strings.Contains(conf, "deprecated_features.permit.transient_nonexcl_queues = true\n") || strings.Contains(conf, "advanced") {
		t.Error(conf)
	}
	if got, want := string(c.advanced()), "[{rabbit, [{'dead_letter_worker_publisher_confirm_timeout', 3000}, {'quorum_tick_interval', 1000}]}].\n"; got != want {
		t.Error(got)
	}
	if c, err = newConfig(system.Spec{Timing: timingProduction}); err != nil || len(c.timing) != 0 || c.settings["net_ticktime"] != "" {
		t.Errorf("production timing: %v %v", c, err)
	}
	for _, bad := range []system.Spec{
		{Timing: "slow"},
		{Settings: map[string]string{"default_pass": "x"}},
		{Settings: map[string]string{"log.console": "false"}},
		{Settings: map[string]string{"a": "b\nc = d"}},
		{Settings: map[string]string{"a = b": "c"}},
		{Settings: map[string]string{"advanced.x": "os:cmd(\"true\")"}},
	} {
		if _, err := newConfig(bad); !errors.Is(err, system.ErrUsage) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestParseDestination(t *testing.T) {
	d, err := parseDestination(system.DestinationSpec{Name: "q", Settings: map[string]string{
		"type": "classic", "durable": "false", "x-max-length": "10", "x-overflow": "drop-head", "x-single-active-consumer": "true",
		"dead-letter": "quorum", "dead-letter.x-max-length": "5", "dead-letter.binding": "missing",
	}})
	if err != nil || d.kind != Classic || d.durable || !d.dlExchange || d.dlBinding || d.deadLetter != Quorum {
		t.Fatalf("%+v %v", d, err)
	}
	if d.arguments["x-max-length"] != int64(10) || d.arguments["x-overflow"] != "drop-head" || d.arguments["x-single-active-consumer"] != true ||
		d.arguments["x-dead-letter-exchange"] != "q.dead" || d.dlArgs["x-max-length"] != int64(5) || d.dlArgs["x-queue-type"] != Quorum {
		t.Errorf("%v %v", d.arguments, d.dlArgs)
	}
	for _, bad := range []system.DestinationSpec{
		{Partitions: 2},
		{Settings: map[string]string{"type": "stream"}},
		{Settings: map[string]string{"durable": "false"}},
		{Settings: map[string]string{"type": "classic", "exclusive": "true"}},
		{Settings: map[string]string{"max-length": "1"}},
		{Settings: map[string]string{"dead-letter": "yes"}},
	} {
		if _, err := parseDestination(bad); !errors.Is(err, system.ErrUsage) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestNewestViewHasTheHighestTerm(t *testing.T) {
	c := &Cluster{}
	for _, name := range []string{"rabbit-1", "rabbit-2", "rabbit-3"} {
		c.nodes = append(c.nodes, &Node{name: name, cluster: c})
	}
	m := func(node, state, written, commit, term string) member {
		return member{Node: "rabbit@" + node, State: state, Written: []byte(written), Commit: []byte(commit), Term: []byte(term)}
	}
	none := func(node string) member { return m(node, "noconnection", `""`, `""`, `""`) }
	cutOff := c.read([]member{m("rabbit-1", "leader", "9", "5", "1"), none("rabbit-2"), none("rabbit-3")})
	majority := c.read([]member{none("rabbit-1"), m("rabbit-2", "follower", "7", "6", "2"), m("rabbit-3", "leader", "7", "7", "2")})
	got := newest([]view{cutOff, majority})
	if got.Leader != c.nodes[2] || got.Epoch != 2 || len(got.InSync) != 2 || len(got.Replicas) != 3 {
		t.Errorf("%+v", got)
	}
	behind := c.read([]member{m("rabbit-1", "leader", "9", "9", "3"), m("rabbit-2", "follower", "8", "8", "3"), m("rabbit-3", "follower", "9", "9", "2")})
	if len(behind.InSync) != 1 {
		t.Errorf("in sync %v", behind.InSync)
	}
	if v := c.read([]member{none("rabbit-1"), m("rabbit-2", "follower", "1", "1", "1"), none("rabbit-3")}); v.Leader != nil {
		t.Errorf("a leader without one: %+v", v)
	}
}
