package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:     "power-cut",
		Summary:  "the nodes lose power at once: what was not fsynced is gone; healed by a start",
		Proof:    "on each disk a canary file that was fsynced is there and another is gone; bytes that were not on disk, and messages confirmed since all was made durable",
		Supports: onDisks[system.Powered]("lose power"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.Powered](s.Cluster)
			if err != nil {
				return nil, err
			}
			cut, err := c.CutPower(ctx, s.Targets)
			if err != nil {
				return nil, errors.Join(err, startAll(context.WithoutCancel(ctx), s))
			}
			return &powerCut{Injection: cut, confirmed: confirmed(s)}, nil
		},
	})
}

// onDisks asks for the capability C on nodes with disks of their own.
func onDisks[C system.DiskBacked](what string) func(system.Cluster) error {
	return func(c system.Cluster) error {
		d, ok := c.(C)
		if !ok {
			return needs[C](what)(c)
		}
		return d.DiskBacked()
	}
}

// startAll starts the nodes that a strike which failed half-way has ended.
func startAll(ctx context.Context, s system.Strike) error {
	killer, ok := s.Cluster.(system.Killer)
	if !ok {
		return nil
	}
	_, err := onEach(ctx, s.Targets, func(ctx context.Context, n system.Node) (string, error) { return "", killer.Start(ctx, n) }, nil)
	return err
}

// powerCut adds what was at risk to the evidence.
type powerCut struct {
	system.Injection
	confirmed string
}

func (p *powerCut) Evidence(ctx context.Context) (system.Evidence, error) {
	e, err := p.Injection.Evidence(ctx)
	if p.confirmed != "" {
		e.AtRisk = strings.TrimPrefix(e.AtRisk+"; "+p.confirmed, "; ")
	}
	return e, err
}

// confirmed says how many messages of each client had been confirmed when the power went: destinations are made durable when
// they are created, so these are all the ones that a flush setting has to answer for.
func confirmed(s system.Strike) string {
	wire, ok := s.Cluster.(system.WireCounter)
	if !ok || len(s.Clients) == 0 {
		return ""
	}
	words := make([]string, len(s.Clients))
	for i, client := range s.Clients {
		sum := int64(0)
		for _, n := range s.Cluster.Nodes() {
			sum += wire.WireCounts(n, client).Confirmed
		}
		words[i] = fmt.Sprintf("%s %d", strings.TrimSuffix(client, "."), sum)
	}
	return "messages confirmed since all was made durable: " + strings.Join(words, ", ")
}
