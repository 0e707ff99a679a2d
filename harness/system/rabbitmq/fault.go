package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"conform/harness/internal/clock"
	"conform/harness/system"
)

var (
	_ system.Alarmer   = (*Cluster)(nil)
	_ system.Limiter   = (*Cluster)(nil)
	_ system.Unbinder  = (*Cluster)(nil)
	_ system.Attendant = (*Cluster)(nil)
)

// fault is an injection whose evidence is looked at until it is there.
type fault struct {
	look func(context.Context) (system.Evidence, error)
	undo func(context.Context) error // nil = nothing to heal

	mu     sync.Mutex
	seen   system.Evidence
	healed bool
}

// Evidence stays once it is there.
func (f *fault) Evidence(ctx context.Context) (system.Evidence, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen.Bit || f.healed {
		return f.seen, nil
	}
	e, err := f.look(ctx)
	if err != nil {
		return system.Evidence{}, err
	}
	f.seen = e
	return e, nil
}

func (f *fault) Heal(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.healed || f.undo == nil {
		return nil
	}
	if err := f.undo(ctx); err != nil {
		return err
	}
	f.healed = true
	return nil
}

// RaiseAlarm sets vm_memory_high_watermark or disk_free_limit of the node by rabbitmqctl, and on heal back to what they were by default or
// by the cluster's settings. An alarm of one node blocks the publishers of all of them.
func (c *Cluster) RaiseAlarm(ctx context.Context, node system.Node, resource string) (system.Injection, error) {
	n, err := c.own(node)
	if err != nil {
		return nil, err
	}
	var raise, lift []string
	switch resource {
	case "memory":
		raise = []string{"set_vm_memory_high_watermark", "absolute", "1MB"}
		lift = []string{"set_vm_memory_high_watermark", "0.6"}
	case "disk":
		raise = []string{"set_disk_free_limit", "1000TB"}
		lift = []string{"set_disk_free_limit", "50MB"}
	default:
		return nil, fmt.Errorf("alarm %q: want memory or disk: %w", resource, system.ErrUsage)
	}
	ctl := func(ctx context.Context, argv []string) error {
		_, err := n.ctl(ctx, append([]string{"rabbitmqctl"}, argv...)...)
		return err
	}
	f := &fault{
		look: func(ctx context.Context) (system.Evidence, error) {
			said, err := n.alarms(ctx)
			return system.Evidence{Bit: said != "", Count: 1, Detail: fmt.Sprintf("%s alarm of %s: %s", resource, n.name, said)}, err
		},
	}
	f.undo = func(ctx context.Context) error {
		if err := ctl(ctx, lift); err != nil {
			return fmt.Errorf("lift %s alarm of %s: %w", resource, n.name, err)
		}
		if err := c.await(ctx, "the alarm is over", func(ctx context.Context) error {
			said, err := n.alarms(ctx)
			if err == nil && said != "" {
				err = errors.New(said)
			}
			return err
		}); err != nil {
			return fmt.Errorf("lift %s alarm of %s: %w", resource, n.name, err)
		}
		c.over(f)
		return nil
	}
	c.inForce(f, resource+" alarm of "+n.name)
	if err := ctl(ctx, raise); err != nil {
		return nil, errors.Join(fmt.Errorf("raise %s alarm of %s: %w", resource, n.name, err), f.Heal(context.WithoutCancel(ctx)))
	}
	return f, nil
}

// alarms returns what the node says about alarms of its own, "" if there are none.
func (n *Node) alarms(ctx context.Context) (string, error) {
	err := n.ask(ctx, "health/checks/local-alarms", nil)
	if err != nil && strings.Contains(err.Error(), "503") {
		return err.Error(), nil
	}
	return "", err
}

// LimitQueues sets a policy for each destination, or with limits["of"] = "dead-letters" for its dead-letter target. The other
// limits are the keys of a policy, numbers.
func (c *Cluster) LimitQueues(ctx context.Context, destinations []string, limits map[string]string) (system.Injection, error) {
	definition := map[string]any{}
	if of, ok := limits["of"]; ok {
		if of != "dead-letters" {
			return nil, fmt.Errorf("limit of %q: want dead-letters: %w", of, system.ErrUsage)
		}
		limits = maps.Clone(limits)
		delete(limits, "of")
		destinations = slices.Clone(destinations)
		for i, name := range destinations {
			destinations[i] = c.of(name).target()
		}
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		n, err := strconv.Atoi(limits[name])
		if err != nil {
			return nil, fmt.Errorf("limit %s=%q: want a number: %w", name, limits[name], system.ErrUsage)
		}
		definition[name] = n
		words = append(words, fmt.Sprintf("%s=%d", name, n))
	}
	path := func(queue string) string { return "policies/" + vhost + "/" + url.PathEscape(limitOf(queue)) }
	f := &fault{}
	f.look = func(ctx context.Context) (system.Evidence, error) {
		e := system.Evidence{Bit: true}
		var details []string
		for _, queue := range destinations {
			var q struct {
				Effective map[string]any `json:"effective_policy_definition"`
				Policy    string         `json:"policy"` // before 4.3 its name is all that is told
			}
			if err := c.anyNode(ctx, func(n *Node) error { return n.ask(ctx, queuePath(queue), &q) }); err != nil {
				return system.Evidence{}, err
			}
			ready, _, err := c.count(ctx, queue)
			if err != nil {
				return system.Evidence{}, err
			}
			e.Bit = e.Bit && (len(q.Effective) >= len(definition) || q.Policy == limitOf(queue))
			e.Count += ready
			details = append(details, fmt.Sprintf("%s: %v of policy %q in force, %d messages", queue, q.Effective, q.Policy, ready))
		}
		e.Detail = strings.Join(details, "; ")
		return e, nil
	}
	f.undo = func(ctx context.Context) error {
		for _, queue := range destinations {
			err := c.anyNode(ctx, func(n *Node) error { return n.call(ctx, http.MethodDelete, path(queue), nil, nil) })
			if err != nil && !errors.Is(err, errNotFound) {
				return fmt.Errorf("lift limit of %s: %w", queue, err)
			}
		}
		c.over(f)
		return nil
	}
	c.inForce(f, "limit "+strings.Join(words, ", "))
	for _, queue := range destinations {
		c.mu.Lock()
		c.limits[queue] = maps.Clone(limits)
		c.mu.Unlock()
		policy := map[string]any{"pattern": "^" + quoteMeta(queue) + "$", "definition": definition, "apply-to": "queues", "priority": 1}
		err := c.anyNode(ctx, func(n *Node) error { return n.call(ctx, http.MethodPut, path(queue), policy, nil) })
		if err != nil {
			return nil, errors.Join(fmt.Errorf("limit %s: %w", queue, err), f.Heal(context.WithoutCancel(ctx)))
		}
	}
	return f, nil
}

// limitOf names the policy that limits a queue.
func limitOf(queue string) string { return "limit of " + queue }

// quoteMeta quotes a name for Erlang's regular expressions.
func quoteMeta(name string) string {
	var b strings.Builder
	for _, r := range name {
		if strings.ContainsRune(`\.+*?()|[]{}^$#-`, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Unbind deletes the binding of each destination's queue to its exchange.
func (c *Cluster) Unbind(ctx context.Context, destinations []string) (system.Injection, error) {
	f := &fault{}
	f.look = func(ctx context.Context) (system.Evidence, error) {
		e := system.Evidence{Bit: true, Count: int64(len(destinations))}
		var details []string
		for _, name := range destinations {
			bound, asked, err := c.routing(ctx, name, name)
			if err != nil {
				return system.Evidence{}, err
			}
			e.Bit = e.Bit && bound == 0
			details = append(details, fmt.Sprintf("%d of %d nodes have a binding of %s to its exchange", bound, asked, name))
		}
		e.Detail = strings.Join(details, "; ")
		return e, nil
	}
	f.undo = func(ctx context.Context) error {
		for _, name := range destinations {
			if err := c.bind(ctx, name, true); err != nil {
				return fmt.Errorf("bind %s: %w", name, err)
			}
			// The others learn of it some milliseconds later, and go on dropping until then.
			err := c.await(ctx, "all nodes have the binding of "+name, func(ctx context.Context) error {
				bound, asked, err := c.routing(ctx, name, name)
				if err == nil && bound < asked {
					err = fmt.Errorf("%d of %d have it", bound, asked)
				}
				return err
			})
			if err != nil {
				return err
			}
			c.regains(name)
		}
		c.over(f)
		return nil
	}
	c.inForce(f, "no binding of "+strings.Join(destinations, ", "))
	for _, name := range destinations {
		c.lacks(name, clock.Now(), "its binding was deleted")
		if err := c.bind(ctx, name, false); err != nil {
			return nil, errors.Join(fmt.Errorf("unbind %s: %w", name, err), f.Heal(context.WithoutCancel(ctx)))
		}
	}
	return f, nil
}

// binding is what the management interface tells of one.
type binding struct {
	Source string `json:"source"` // the exchange, "" for the default one
}

// routing tells how many nodes have a binding of a queue to an exchange, of those that answer: each routes by its own copy of
// them.
func (c *Cluster) routing(ctx context.Context, queue, exchange string) (bound, asked int, err error) {
	for _, n := range c.nodes {
		var bindings []binding
		if e := n.ask(ctx, "queues/"+vhost+"/"+url.PathEscape(queue)+"/bindings", &bindings); e != nil {
			err = errors.Join(err, e)
			continue
		}
		asked++
		if slices.Contains(bindings, binding{Source: exchange}) {
			bound++
		}
	}
	if asked > 0 {
		err = nil
	}
	return bound, asked, err
}

// bind binds a destination's queue to its exchange, or takes the binding away.
func (c *Cluster) bind(ctx context.Context, name string, bound bool) error {
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
		if bound {
			err = ch.QueueBind(name, routingKey(name), name, false, nil)
		} else {
			err = ch.QueueUnbind(name, routingKey(name), name, nil)
		}
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// Leave ends the attending consumers.
func (c *Cluster) Leave(_ context.Context, destinations []string) (system.Injection, error) {
	left := clock.Now()
	for _, name := range destinations {
		c.mu.Lock()
		held := c.held[name]
		delete(c.held, name)
		c.mu.Unlock()
		if held == nil {
			return nil, fmt.Errorf("leave %s: nobody attends it: %w", name, system.ErrUsage)
		}
		if err := held.Close(); err != nil {
			return nil, fmt.Errorf("leave %s: %w", name, err)
		}
	}
	return &fault{look: func(ctx context.Context) (system.Evidence, error) {
		e := system.Evidence{Bit: true, Count: int64(len(destinations))}
		var details []string
		for _, name := range destinations {
			// Not by asking the queue itself, which would be a use of it that x-expires counts from.
			l, err := c.leadership(ctx, name)
			switch {
			case err != nil:
				return system.Evidence{}, err
			case l.Gone:
				c.lacks(name, left, "its queue was deleted when its consumer left")
				details = append(details, name+": its consumer has left, deleted")
			default:
				e.Bit = e.Bit && !c.of(name).transient()
				details = append(details, name+": its consumer has left, the queue is there")
			}
		}
		e.Detail = strings.Join(details, "; ")
		return e, nil
	}}, nil
}

// transient says that a queue goes when it has no consumer, at once or after a while.
func (d destination) transient() bool {
	_, expires := d.arguments["x-expires"]
	return d.autoDelete || d.exclusive || expires
}
