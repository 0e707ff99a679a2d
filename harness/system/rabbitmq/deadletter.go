package rabbitmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"conform/harness/ledger"
	"conform/harness/system"
)

var (
	_ system.DeadLetterCutter = (*Cluster)(nil)
	_ system.DeadLetterFinder = (*Cluster)(nil)
	_ system.DeadLetterKeeper = (*Cluster)(nil)
)

// DeadLetterExchange is the name of the exchange to which a destination's queue dead-letters.
func DeadLetterExchange(destination string) string { return destination + ".dead" }

// DeadLetterNode returns the node that leads the destination's dead-letter target, or is home to it.
func (c *Cluster) DeadLetterNode(ctx context.Context, destination string) (system.Node, error) {
	d := c.of(destination)
	if d.deadLetter == "" {
		return nil, fmt.Errorf("find dead-letter target of %s: it has none: %w", destination, system.ErrUsage)
	}
	n, err := c.leader(ctx, d.target())
	if err != nil {
		return nil, fmt.Errorf("find dead-letter target of %s: %w", destination, err)
	}
	return n, nil
}

// CutDeadLetters deletes each destination's dead-letter exchange, or the binding of the target to it.
func (c *Cluster) CutDeadLetters(ctx context.Context, destinations []string, what string) (system.Injection, error) {
	if what != "exchange" && what != "binding" {
		return nil, fmt.Errorf("cut dead letters: %q: want exchange or binding: %w", what, system.ErrUsage)
	}
	for _, name := range destinations {
		if c.of(name).deadLetter == "" {
			return nil, fmt.Errorf("cut dead letters of %s: it has no target: %w", name, system.ErrUsage)
		}
	}
	f := &fault{}
	f.look = func(ctx context.Context) (system.Evidence, error) {
		e := system.Evidence{Bit: true, Count: int64(len(destinations))}
		var details []string
		for _, name := range destinations {
			d := c.of(name)
			bound, _, err := c.routing(ctx, d.target(), d.deadExchange())
			if err != nil {
				return system.Evidence{}, err
			}
			e.Bit = e.Bit && bound == 0
			err = c.anyNode(ctx, func(n *Node) error {
				return n.ask(ctx, "exchanges/"+vhost+"/"+url.PathEscape(d.deadExchange()), nil)
			})
			switch {
			case errors.Is(err, errNotFound):
				details = append(details, d.deadExchange()+" does not exist")
			case err != nil:
				return system.Evidence{}, err
			default:
				details = append(details, d.deadExchange()+" has no binding")
			}
		}
		e.Detail = strings.Join(details, "; ")
		return e, nil
	}
	f.undo = func(ctx context.Context) error {
		for _, name := range destinations {
			d := c.of(name)
			if err := c.onAny(ctx, d.bindTarget); err != nil {
				return fmt.Errorf("bring back dead letters of %s: %w", name, err)
			}
		}
		c.over(f)
		return nil
	}
	c.inForce(f, "no dead-letter "+what+" of "+strings.Join(destinations, ", "))
	for _, name := range destinations {
		d := c.of(name)
		c.noDeadLetters(name, "its dead-letter "+what+" was deleted")
		var err error
		if what == "exchange" {
			err = c.anyNode(ctx, func(n *Node) error {
				return n.call(ctx, http.MethodDelete, "exchanges/"+vhost+"/"+url.PathEscape(d.deadExchange()), nil, nil)
			})
		} else {
			err = c.onAny(ctx, func(ch *amqp.Channel) error { return ch.QueueUnbind(d.target(), "", d.deadExchange(), nil) })
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("cut dead letters of %s: %w", name, err), f.Heal(context.WithoutCancel(ctx)))
		}
	}
	return f, nil
}

// bindTarget makes the dead-letter exchange and binds the target to it.
func (d destination) bindTarget(ch *amqp.Channel) error {
	if err := ch.ExchangeDeclare(d.deadExchange(), "fanout", true, false, false, false, nil); err != nil {
		return fmt.Errorf("declare exchange %s: %w", d.deadExchange(), err)
	}
	if err := ch.QueueBind(d.target(), "", d.deadExchange(), false, nil); err != nil {
		return fmt.Errorf("bind queue %s: %w", d.target(), err)
	}
	return nil
}

// onAny does something on a channel to the first node that answers.
func (c *Cluster) onAny(ctx context.Context, do func(*amqp.Channel) error) error {
	return c.anyNode(ctx, func(n *Node) error {
		conn, err := n.dial(ctx, "conform-admin")
		if err != nil {
			return err
		}
		defer conn.abort()
		defer conn.within(ctx, changeTimeout)()
		ch, err := conn.Channel()
		if err != nil {
			return fmt.Errorf("open channel: %w", err)
		}
		if err := do(ch); err != nil {
			return err
		}
		return conn.Close()
	})
}

// noDeadLetters notes that, for some time, a destination's dead letters had nowhere to go.
func (c *Cluster) noDeadLetters(name, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadEnds[name] = why
}

// goingDown notes whose dead letters have nowhere to go while a node is down.
func (c *Cluster) goingDown(n *Node) {
	c.mu.Lock()
	c.down[n] = true // several may go down at once
	up := len(c.nodes) - len(c.down)
	ends := map[string]string{}
	for name, d := range c.made {
		switch {
		case d.deadLetter == Classic && d.targetNode == n:
			ends[name] = n.name + ", which has its dead-letter target, was down"
		case d.deadLetter == Quorum && up <= len(c.nodes)/2:
			ends[name] = "most of the nodes, which have its dead-letter target, were down"
		}
	}
	c.mu.Unlock()
	for name, why := range ends {
		c.noDeadLetters(name, why)
	}
}

// death tells of the first time that a message was dead-lettered, by its headers x-first-death-queue and -reason, and of their
// entry in x-death (https://www.rabbitmq.com/docs/dlx#effects).
func death(h amqp.Table) string {
	var r ledger.DeathRecord
	r.Queue, _ = h["x-first-death-queue"].(string)
	r.Reason, _ = h["x-first-death-reason"].(string)
	deaths, _ := h["x-death"].([]any)
	for _, d := range deaths {
		if t, ok := d.(amqp.Table); ok && t["queue"] == r.Queue && t["reason"] == r.Reason {
			r.Count, _ = t["count"].(int64)
			if at, ok := t["time"].(time.Time); ok {
				r.Time = at.UTC().Format(time.RFC3339)
			}
		}
	}
	b, err := json.Marshal(r)
	if err != nil {
		return "" // it has nothing that could not be written
	}
	return string(b)
}

// sources lists the quorum queues of the destination that keep a dead letter until its target has confirmed it.
func (d destination) sources() []string {
	var names []string
	sure := func(name string, t amqp.Table) {
		if t["x-queue-type"] == Quorum && t["x-dead-letter-strategy"] == "at-least-once" {
			names = append(names, name)
		}
	}
	for _, w := range d.waits {
		sure(w.name, w.arguments)
	}
	sure(d.name, d.arguments)
	return names
}

// pendingFor is how long a count of pending dead letters is good: asking is a command in a container.
const pendingFor = time.Second

// counted is a count of pending dead letters.
type counted struct {
	n  int64
	at time.Time
}

// pending returns how many dead letters the destination's queues keep that no target has confirmed. No interface tells it:
// the queue itself is asked (the state that rabbitmqctl list_queues messages_dlx shows, which is seconds old there).
func (c *Cluster) pending(ctx context.Context, destination string) (sum int64, err error) {
	for _, name := range c.of(destination).sources() {
		c.mu.Lock()
		known := c.kept[name]
		c.mu.Unlock()
		if known.at.IsZero() || time.Since(known.at) > pendingFor {
			n, err := c.leader(ctx, name)
			if err != nil {
				return 0, fmt.Errorf("count dead letters of %s: %w", name, err)
			}
			said, err := n.ctl(ctx, "rabbitmqctl", "eval", fmt.Sprintf(
				`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), `+
					`{ok, {_, {N, _}}, _} = ra:local_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_stat_dlx/1), N.`, name))
			if err != nil {
				return 0, fmt.Errorf("count dead letters of %s: %w", name, err)
			}
			known = counted{at: time.Now()}
			if known.n, err = strconv.ParseInt(strings.TrimSpace(said), 10, 64); err != nil {
				return 0, fmt.Errorf("count dead letters of %s: %w", name, err)
			}
			c.mu.Lock()
			c.kept[name] = known
			c.mu.Unlock()
		}
		sum += known.n
	}
	return sum, nil
}

// DeadLettersKept returns how many dead letters the destination's queues keep that no target has confirmed.
func (c *Cluster) DeadLettersKept(ctx context.Context, destination string) (int64, error) {
	return c.pending(ctx, destination)
}

// atMostOnce says whether dead letters of the destination, or of the queues before it, are given up when nobody takes them.
func (d destination) atMostOnce() bool {
	arguments := []amqp.Table{d.arguments}
	for _, w := range d.waits {
		arguments = append(arguments, w.arguments)
	}
	return slices.ContainsFunc(arguments, func(t amqp.Table) bool {
		_, dead := t["x-dead-letter-exchange"]
		return dead && t["x-dead-letter-strategy"] != "at-least-once"
	})
}
