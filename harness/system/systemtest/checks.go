package systemtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"conform/harness/ledger"
	"conform/harness/system"
)

// Checks returns the battery in the order it is meant to run: the last one closes the cluster.
func Checks() []Check {
	return []Check{
		{"identity", "nodes, addresses, settings, memory and start-up time are told", identity},
		{"destinations", "a destination is led where it was asked for, and removed twice without an error", destinations},
		{"round-trip", "what is confirmed is read back once, counted on the links, and delivered", roundTrip},
		{"usage", "settings that do not exist are refused as usage", usage},
		{"logs", "each node has a log", logs},
		{"killed", "a killed node loses its lead, keeps its addresses and comes back with what was confirmed", killed},
		{"paused", "a paused node keeps its sockets, goes on, and can be killed", paused},
		{"stopped", "a stopped node hands over and comes back", stopped},
		{"isolated-by-listener", "cut from one listener alone, the leader leads on with fewer in sync", isolatedByListener},
		{"isolated", "cut from its peers the leader is deposed while clients still reach it", isolated},
		{"slowed", "a link between nodes that loses a part of its packets is slow, and carries everything", slowed},
		{"link-reset", "a reset link refuses, and works after the heal at the same address", linkReset},
		{"link-black-hole", "in a black hole nothing completes, and all of it after the heal", linkBlackHole},
		{"response-dropped", "the request passes, the response does not; what is sent again is there twice or not by the client's settings", responseDropped},
		{"request-refused", "a refused request does not reach the node, and is sent again", requestRefused},
		{"request-overtaken", "later requests pass a refused one; what is sent again stands behind them or not by the client's settings", requestOvertaken},
		{"disk-lost", "a node whose disk is gone comes back and is in sync again", diskLost},
		{"unclean-election", "a replica out of sync leads where nobody does", uncleanElection},
		{"closed", "closing twice leaves nothing", closed},
	}
}

func identity(ctx context.Context, b Bench) error {
	c := b.Cluster
	names := namesOf(c.Nodes())
	if len(names) == 0 || len(slices.Compact(names)) != len(c.Nodes()) {
		return fmt.Errorf("node names %v", names)
	}
	for _, addr := range append(c.Endpoints(), c.DirectEndpoints()...) {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return fmt.Errorf("address %q: %w", addr, err)
		}
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			return fmt.Errorf("address %q is not on the loopback", addr)
		}
	}
	if len(c.Endpoints()) != len(names) || c.Startup() <= 0 || c.System() == "" || c.Version() == "" {
		return fmt.Errorf("%d endpoints, startup %s, %s %s", len(c.Endpoints()), c.Startup(), c.System(), c.Version())
	}
	for name, value := range c.Timing() {
		if c.Settings()[name] != value {
			return fmt.Errorf("timing setting %s=%s is not among the settings", name, value)
		}
	}
	m, err := c.MemoryMiB(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if m[name] <= 0 {
			return fmt.Errorf("memory of %s: %d MiB", name, m[name])
		}
	}
	return c.Baseline(ctx)
}

func destinations(ctx context.Context, b Bench) error {
	f, err := need[system.LeaderFinder](b)
	if err != nil {
		return err
	}
	for _, n := range b.Cluster.Nodes() {
		name := "battery-led-by-" + n.Name()
		remove, err := b.destination(ctx, name, n, b.Safe)
		if err != nil {
			return err
		}
		l, err := f.Leadership(ctx, name, 0)
		if err != nil {
			return err
		}
		if (l.Leader != n && !b.OneLeader) || l.Leader == nil || len(l.InSync) != len(b.Cluster.Nodes()) || len(l.Replicas) != len(l.InSync) {
			return fmt.Errorf("%s: leader %s, in sync %v", name, nameOf(l.Leader), namesOf(l.InSync))
		}
		if err := errors.Join(remove(), remove()); err != nil {
			return err
		}
	}
	controller, err := f.Controller(ctx)
	if errors.Is(err, system.ErrNotApplicable) {
		return nil
	}
	if err != nil {
		return err
	}
	if !slices.Contains(b.Cluster.Nodes(), controller) {
		return fmt.Errorf("controller %v is none of the nodes", controller)
	}
	return nil
}

func roundTrip(ctx context.Context, b Bench) (err error) {
	const n, name, client = 500, "battery-round-trip", "battery-round-trip-client"
	remove, err := b.destination(ctx, name, nil, b.Safe)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	l, err := b.produce(ctx, name, client, 1, nil)
	if err != nil {
		return err
	}
	l.send(ctx, n)
	if err := errors.Join(l.confirmed(ctx, n), l.close(ctx)); err != nil {
		return err
	}
	offsets := map[int64]bool{}
	for _, r := range l.receipts {
		offsets[r.Offset] = true
	}
	if len(offsets) != n && !b.NoOffsets {
		return fmt.Errorf("%d messages were confirmed at %d offsets", n, len(offsets))
	}
	if p, ok := b.Cluster.(system.Positions); ok {
		ends, err := p.EndPositions(ctx, name)
		if err != nil || len(ends) != 1 || ends[0] != n {
			return fmt.Errorf("end positions %v: %w", ends, err)
		}
	}
	s, err := b.read(ctx, name)
	if err != nil {
		return err
	}
	if err := s.whole(l, 1); err != nil {
		return err
	}
	if w, ok := b.Cluster.(system.WireCounter); ok {
		var sum system.WireCounts
		for _, node := range b.Cluster.Nodes() {
			k := w.WireCounts(node, client)
			sum.Sent, sum.Confirmed, sum.Refused = sum.Sent+k.Sent, sum.Confirmed+k.Confirmed, sum.Refused+k.Refused
		}
		if sum.Sent < n || sum.Confirmed != n {
			return fmt.Errorf("the links counted %+v of %d messages", sum, n)
		}
	}
	if b.Draining {
		again, err := b.produce(ctx, name, client+"-again", 2, nil)
		if err != nil {
			return err
		}
		again.send(ctx, n)
		if err := errors.Join(again.confirmed(ctx, n), again.close(ctx)); err != nil {
			return err
		}
	}
	return b.consume(ctx, name, n)
}

// consume reads n messages in a group, settles them, and checks that a second member of the group gets none of them.
func (b Bench) consume(ctx context.Context, name string, n int) error {
	open := func() (system.Consumer, error) {
		return b.Clients.OpenConsumer(ctx, system.ClientConfig{
			System: b.Cluster.System(), Endpoints: b.Cluster.Endpoints(), ClientID: name + "-consumer",
			Destination: name, Partitions: 1, Group: name + "-group", DSN: b.dsn(name),
		})
	}
	c, err := open()
	if err != nil {
		return err
	}
	seen := map[ledger.MessageID]bool{}
	err = until(ctx, "all is delivered", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		ds, err := c.Poll(ctx)
		if err != nil {
			return err
		}
		for _, d := range ds {
			h, ok := ledger.ParsePayload(d.Payload)
			if !ok {
				return fmt.Errorf("delivery at %d is unreadable", d.Offset)
			}
			seen[h.ID] = true
		}
		if len(ds) > 0 {
			if err := c.Settle(ctx, ds); err != nil {
				return err
			}
		}
		if len(seen) < n {
			return fmt.Errorf("%d of %d delivered", len(seen), n)
		}
		return nil
	})
	if err := errors.Join(err, c.Close(ctx)); err != nil {
		return err
	}
	if c, err = open(); err != nil {
		return err
	}
	pollCtx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	ds, err := c.Poll(pollCtx)
	if len(ds) > 0 {
		err = errors.Join(err, fmt.Errorf("%d settled messages were delivered again", len(ds)))
	}
	return errors.Join(err, c.Close(ctx))
}

func usage(ctx context.Context, b Bench) error {
	bad := system.ClientConfig{
		System: b.Cluster.System(), Endpoints: b.Cluster.Endpoints(), ClientID: "battery-usage",
		Destination: "battery-usage", Partitions: 1, Settings: map[string]string{"no.such.setting": "1"},
	}
	if _, err := b.Clients.OpenProducer(ctx, bad); !errors.Is(err, system.ErrUsage) {
		return fmt.Errorf("a producer with an unknown setting: %w", err)
	}
	if _, err := b.Clients.OpenConsumer(ctx, bad); !errors.Is(err, system.ErrUsage) {
		return fmt.Errorf("a consumer with an unknown setting: %w", err)
	}
	err := b.Cluster.Create(ctx, system.DestinationSpec{Name: "battery-usage", Partitions: 1, Settings: bad.Settings})
	if !errors.Is(err, system.ErrUsage) {
		return fmt.Errorf("a destination with an unknown setting: %w", err)
	}
	return nil
}

func logs(ctx context.Context, b Bench) error {
	c, err := need[system.LogCollector](b)
	if err != nil {
		return err
	}
	for _, n := range b.Cluster.Nodes() {
		var log bytes.Buffer
		if err := c.CollectLog(ctx, n, &log); err != nil {
			return err
		}
		if log.Len() == 0 {
			return fmt.Errorf("the log of %s is empty", n.Name())
		}
	}
	return nil
}
