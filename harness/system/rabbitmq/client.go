package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"conform/harness/system"
)

// Clients opens producers and consumers on amqp091-go, whose own recovery is not used: it would hide which publishes are in
// doubt. The zero value is ready to use. See ProducerSettings and ConsumerSettings for the names that ClientConfig.Settings
// may have.
type Clients struct{}

var _ system.Clients = Clients{}

const (
	clientDial     = 3 * time.Second
	clientAsk      = time.Second // the management interface, for the queue's leader
	reconnectEvery = 200 * time.Millisecond
	// subscribeTimeout bounds an attempt to subscribe: dial, handshake, and three answers of the node.
	subscribeTimeout = 2 * clientDial
	// dsnManagement is the parameter of a DSN that lists the management interfaces.
	dsnManagement = "management"
	// headerKey is the header that carries a message's key.
	headerKey = "key"
)

// ProducerSettings documents the settings of a producer and their defaults.
func ProducerSettings() map[string]string {
	return map[string]string{
		"confirms":       "true or false: whether the channel is in confirm mode; default true",
		"persistent":     "true or false: the delivery mode of messages; default true",
		"mandatory":      "true or false: whether what cannot be routed is returned; default false",
		"unconfirmed":    "in-doubt or resend: what becomes of publishes whose connection was lost before their confirm; default in-doubt",
		"nacked":         "fail or resend: what becomes of publishes that were nacked; resent after a pause; default fail",
		"disconnected":   "wait or fail: what becomes of publishes while there is no connection; they wait for the next one, or are refused as by the library itself; default wait",
		"connect":        "leader (the node that leads the queue, by the management interface) or any (in turn); default leader",
		"expiration":     "of messages, in milliseconds; default none",
		"delay.by":       "none, queue (published to the destination's delay queue of that TTL) or message (to its one delay queue, with an expiration); default none",
		"delay.ms":       "how long messages are delayed, in milliseconds; default 1000",
		"priority":       "of messages, 0 to 255; default 0",
		"priority.later": "of messages from priority.after on; default that of the first",
		"priority.after": "number of the first message with the later priority; default 0",
		"max.buffered":   "messages in the client before Send waits; default 10000",
		"heartbeat.s":    "seconds between heartbeats; default 10",
	}
}

// ConsumerSettings documents the settings of a consumer and their defaults.
func ConsumerSettings() map[string]string {
	return map[string]string{
		"ack":          "manual or auto; default manual",
		"ack.multiple": "true or false: whether a settle of several deliveries is one ack with the multiple flag on the last; default false",
		"prefetch":     "unsettled deliveries at most, 0 = without limit; default 100",
		"connect":      "leader (the node that leads the queue, by the management interface) or any (in turn); default leader",
		"max.poll":     "deliveries of one poll; default 500",
		"heartbeat.s":  "seconds between heartbeats; default 10",
		"queue":        "own (the destination's) or group (the one of the consumer's group, see the setting groups of destinations); default own",
		"argument.x-*": "an argument of the subscription, e.g. argument.x-consumer-timeout",
	}
}

// connection is a connection with the socket under it, which can be ended whatever the connection waits for.
type connection struct {
	*amqp.Connection
	socket net.Conn
}

// abort ends the connection without a word.
func (c *connection) abort() { _ = c.socket.Close() }

// dial opens a connection. ctx bounds the handshake only.
func dial(ctx context.Context, addr, user, password, name string, heartbeat time.Duration) (*connection, error) {
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	d := net.Dialer{Timeout: clientDial}
	socket, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	// The library's handshake knows no context.
	if err := socket.SetDeadline(time.Now().Add(clientDial)); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	defer stop()
	c, err := amqp.Open(socket, amqp.Config{
		SASL: []amqp.Authentication{&amqp.PlainAuth{Username: user, Password: password}}, Vhost: "/",
		Heartbeat: heartbeat, Properties: properties, Locale: "en_US",
	})
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	// The heartbeat sets the read deadline anew, nobody the one for writing.
	if err := socket.SetWriteDeadline(time.Time{}); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return &connection{Connection: c, socket: socket}, nil
}

// within ends the connection if what is asked of it next takes too long. The library's calls know no context.
func (c *connection) within(ctx context.Context, limit time.Duration) (stop func()) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	after := context.AfterFunc(ctx, c.abort)
	return func() { after(); cancel() }
}

// target is where a client connects to.
type target struct {
	endpoints  []string
	management []string
	user       string
	password   string
	name       string // of the connection
	queue      string
	leader     bool
	heartbeat  time.Duration
	log        *slog.Logger
	next       int
}

// newTarget reads the parts of a ClientConfig that say where to. Errors are ErrUsage.
func newTarget(c system.ClientConfig, leader bool, heartbeat time.Duration) (*target, error) {
	if len(c.Endpoints) == 0 {
		return nil, fmt.Errorf("no endpoints: %w", system.ErrUsage)
	}
	u, err := url.Parse(c.DSN)
	if err != nil || u.Scheme != "amqp" || u.User == nil {
		return nil, fmt.Errorf("the connection string is no AMQP URI with a user: %w", system.ErrUsage) // not the string: it has a password
	}
	password, _ := u.User.Password()
	t := &target{
		endpoints: c.Endpoints, user: u.User.Username(), password: password, name: c.ClientID, queue: c.Destination,
		leader: leader, heartbeat: heartbeat, log: c.Log,
	}
	if m := u.Query().Get(dsnManagement); m != "" {
		t.management = strings.Split(m, ",")
	}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	return t, nil
}

// connect opens a connection to the next endpoint, or to the leader's.
func (t *target) connect(ctx context.Context) (*connection, error) {
	i := t.next % len(t.endpoints)
	t.next++
	if t.leader {
		if l := t.findLeader(ctx); l >= 0 {
			i = l
		}
	}
	c, err := dial(ctx, t.endpoints[i], t.user, t.password, t.name, t.heartbeat)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", t.endpoints[i], err)
	}
	return c, nil
}

// findLeader returns the index of the endpoint of the queue's leader as the first node that answers has it, or -1. Clients
// that want locality do it so: https://www.rabbitmq.com/docs/clustering#connect-to-the-queue-leader
func (t *target) findLeader(ctx context.Context) int {
	if len(t.management) != len(t.endpoints) {
		return -1
	}
	ctx, cancel := context.WithTimeout(ctx, clientAsk)
	defer cancel()
	answers := make(chan int, len(t.management))
	client := newHTTP()
	for _, addr := range t.management {
		go func() {
			var q queueInfo
			i := -1
			if api(ctx, client, addr, t.user, t.password, "GET", queuePath(t.queue), nil, &q) == nil {
				i = t.indexOf(q.Node)
			}
			answers <- i
		}()
	}
	found := -1
	for range t.management {
		if i := <-answers; i >= 0 && found < 0 {
			found = i
			cancel()
		}
	}
	return found
}

// indexOf finds "rabbit@rabbit-2": nodes are numbered from 1 in the order of the endpoints.
func (t *target) indexOf(erlang string) int {
	for i := range t.endpoints {
		if erlang == fmt.Sprintf("rabbit@rabbit-%d", i+1) {
			return i
		}
	}
	return -1
}

func headerBytes(h amqp.Table, name string) []byte {
	switch v := h[name].(type) {
	case string:
		return []byte(v)
	case []byte:
		return v
	default:
		return nil
	}
}
