package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"conform/harness/internal/clock"
	"conform/harness/system"
)

// routingKey is what a queue is bound to its exchange by.
func routingKey(name string) string { return name }

// Create makes a queue and its exchange, and what else the settings ask for (see DestinationSettings), on the node that
// shall lead it, or on each in turn, and waits until all of its members are in step. On disks of their own, all that the nodes have written is
// durable then. Unknown settings, and arguments that RabbitMQ refuses, are
// ErrUsage. A queue or exchange that exists already is left alone and is an error.
func (c *Cluster) Create(ctx context.Context, spec system.DestinationSpec) error {
	if err := c.create(ctx, spec); err != nil {
		return fmt.Errorf("create queue %s: %w", spec.Name, err)
	}
	return nil
}

func (c *Cluster) create(ctx context.Context, spec system.DestinationSpec) error {
	d, err := parseDestination(spec)
	if err != nil {
		return err
	}
	// Queues that nobody wants on a certain node are spread over them, with the clients that connect to their leaders.
	home := c.nodes[int(c.turn.Add(1)-1)%len(c.nodes)]
	if spec.Leader != nil {
		if home, err = c.own(spec.Leader); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 3*changeTimeout)
	defer cancel()
	if d.kind == Classic && !d.durable && !d.exclusive {
		if err := c.permits(ctx, "transient_nonexcl_queues"); err != nil {
			return err
		}
	}
	for _, name := range d.queues() {
		err := home.ask(ctx, queuePath(name), nil)
		if err == nil {
			return fmt.Errorf("%s exists already: %w", name, system.ErrUsage)
		}
		if !errors.Is(err, errNotFound) {
			return err
		}
	}
	conn, err := home.dial(ctx, "conform-admin")
	if err != nil {
		return err
	}
	defer conn.within(ctx, changeTimeout)()
	d.targetNode = home
	if d.deadLetter != "" && d.dlOther {
		d.targetNode = c.after(home)
		err = d.targetNode.declareTarget(ctx, d)
	}
	if err == nil {
		err = d.declare(conn)
	}
	if err == nil && d.attended {
		err = d.attend(conn)
	}
	if !d.attended || err != nil {
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		if e := (*amqp.Error)(nil); errors.As(err, &e) && (e.Code == amqp.PreconditionFailed || e.Code == amqp.CommandInvalid || e.Code == amqp.NotAllowed) {
			return fmt.Errorf("%w: %w", err, system.ErrUsage)
		}
		return err
	}
	before := c.allDrops(ctx)
	c.mu.Lock()
	c.made[d.name] = d
	c.dropsAt[d.name] = before
	if d.attended {
		c.held[d.name] = conn
	}
	c.mu.Unlock()
	if !d.bound {
		c.lacks(d.name, clock.Now(), "it was made without a binding")
	}
	for _, name := range d.queues() {
		err := c.await(ctx, name+" has a leader and all members in step", func(ctx context.Context) error {
			l, err := c.leadership(ctx, name)
			if err != nil {
				return err
			}
			if l.Leader == nil || len(l.InSync) < len(l.Replicas) || name == d.name && l.Leader != home {
				return fmt.Errorf("leader %v, %d of %d members in step", l.Leader, len(l.InSync), len(l.Replicas))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return c.sync(ctx)
}

// declare makes exchanges, queues and bindings. The target comes first: a queue that dead-letters into nothing loses.
func (d destination) declare(conn *connection) error {
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	if d.deadLetter != "" && !d.dlOther {
		if err := d.declareTarget(ch); err != nil {
			return err
		}
	}
	if d.deadLetter != "" {
		if d.dlExchange {
			if err := ch.ExchangeDeclare(d.deadExchange(), "fanout", true, false, false, false, nil); err != nil {
				return fmt.Errorf("declare exchange %s: %w", d.deadExchange(), err)
			}
		}
		if d.dlExchange && d.dlBinding {
			if err := ch.QueueBind(d.target(), "", d.deadExchange(), false, nil); err != nil {
				return fmt.Errorf("bind queue %s: %w", d.target(), err)
			}
		}
	}
	var exchange amqp.Table
	if d.alternate {
		exchange = amqp.Table{"alternate-exchange": d.alternateExchange()}
		if err := ch.ExchangeDeclare(d.alternateExchange(), "fanout", true, false, false, false, nil); err != nil {
			return fmt.Errorf("declare exchange %s: %w", d.alternateExchange(), err)
		}
		if _, err := ch.QueueDeclare(d.unrouted(), true, false, false, false, leader(amqp.Table{"x-queue-type": Quorum})); err != nil {
			return fmt.Errorf("declare queue %s: %w", d.unrouted(), err)
		}
		if err := ch.QueueBind(d.unrouted(), "", d.alternateExchange(), false, nil); err != nil {
			return fmt.Errorf("bind queue %s: %w", d.unrouted(), err)
		}
	}
	if err := ch.ExchangeDeclare(d.name, "direct", true, false, false, false, exchange); err != nil {
		return fmt.Errorf("declare exchange %s: %w", d.name, err)
	}
	if _, err := ch.QueueDeclare(d.name, d.durable, d.autoDelete, d.exclusive, false, leader(d.arguments)); err != nil {
		return fmt.Errorf("declare queue %s: %w", d.name, err)
	}
	if d.bound {
		if err := ch.QueueBind(d.name, routingKey(d.name), d.name, false, nil); err != nil {
			return fmt.Errorf("bind queue %s: %w", d.name, err)
		}
	}
	for _, w := range d.waits {
		if _, err := ch.QueueDeclare(w.name, true, false, false, false, leader(w.arguments)); err != nil {
			return fmt.Errorf("declare queue %s: %w", w.name, err)
		}
		if w.key == "" {
			continue
		}
		if err := ch.QueueBind(w.name, w.key, d.name, false, nil); err != nil {
			return fmt.Errorf("bind queue %s: %w", w.name, err)
		}
	}
	for _, name := range d.groupQueues() {
		if _, err := ch.QueueDeclare(name, d.durable, false, false, false, leader(d.arguments)); err != nil {
			return fmt.Errorf("declare queue %s: %w", name, err)
		}
		if err := ch.QueueBind(name, routingKey(d.name), d.name, false, nil); err != nil {
			return fmt.Errorf("bind queue %s: %w", name, err)
		}
	}
	return ch.Close()
}

// leader puts a quorum queue's leader on the node that it is declared at.
func leader(t amqp.Table) amqp.Table {
	if t["x-queue-type"] == Quorum {
		t["x-queue-leader-locator"] = "client-local"
	}
	return t
}

func (d destination) declareTarget(ch *amqp.Channel) error {
	if _, err := ch.QueueDeclare(d.target(), true, false, false, false, leader(d.dlArgs)); err != nil {
		return fmt.Errorf("declare queue %s: %w", d.target(), err)
	}
	return nil
}

// declareTarget declares a destination's dead-letter target on the node.
func (n *Node) declareTarget(ctx context.Context, d destination) error {
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
	if err := d.declareTarget(ch); err != nil {
		return err
	}
	return conn.Close()
}

// after returns the next node.
func (c *Cluster) after(n *Node) *Node {
	return c.nodes[(slices.Index(c.nodes, n)+1)%len(c.nodes)]
}

// attend puts a consumer on the queue that takes one message and keeps it.
func (d destination) attend(conn *connection) error {
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	if err := ch.Qos(1, 0, false); err != nil {
		return fmt.Errorf("set prefetch: %w", err)
	}
	if _, err := ch.Consume(d.name, "conform-attendant", false, false, false, false, nil); err != nil {
		return fmt.Errorf("attend %s: %w", d.name, err)
	}
	return nil
}

// permits asks whether the nodes permit a deprecated feature; refusal wraps ErrUsage and names the setting that permits it.
func (c *Cluster) permits(ctx context.Context, feature string) error {
	var features []struct {
		Name  string `json:"name"`
		State string `json:"state"`
		Phase string `json:"deprecation_phase"`
	}
	if err := c.anyNode(ctx, func(n *Node) error { return n.ask(ctx, "deprecated-features", &features) }); err != nil {
		return err
	}
	for _, f := range features {
		setting := c.config.settings["deprecated_features.permit."+feature]
		// 4.0 tells no state.
		permitted := f.State == "permitted" || f.State == "" && (setting == "true" || setting == "" && f.Phase == "permitted_by_default")
		if f.Name == feature && !permitted {
			return fmt.Errorf("%s is %s (%s): set deprecated_features.permit.%s = true: %w", feature, f.State, f.Phase, feature, system.ErrUsage)
		}
	}
	return nil
}

// Delete removes a destination with its exchanges and targets; one that is gone already is no error.
func (c *Cluster) Delete(ctx context.Context, name string) error {
	c.mu.Lock()
	d, ok := c.made[name]
	held := c.held[name]
	delete(c.held, name)
	c.mu.Unlock()
	if held != nil {
		_ = held.Close()
	}
	if !ok {
		d = destination{name: name}
	}
	remove := func(path string) error {
		err := c.anyNode(ctx, func(n *Node) error { return n.call(ctx, http.MethodDelete, path, nil, nil) })
		if errors.Is(err, errNotFound) {
			return nil
		}
		return err
	}
	var errs []error
	for _, q := range d.queues() {
		errs = append(errs, remove("queues/"+vhost+"/"+url.PathEscape(q)), remove("exchanges/"+vhost+"/"+url.PathEscape(q)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("delete queue %s: %w", name, err)
	}
	c.mu.Lock()
	delete(c.made, name)
	delete(c.dropsAt, name)
	delete(c.absences, name)
	delete(c.limits, name)
	delete(c.deadEnds, name)
	c.mu.Unlock()
	return nil
}
