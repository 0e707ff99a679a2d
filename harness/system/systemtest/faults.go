package systemtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"conform/harness/system"
)

// sent is how many messages a fault check sends before the fault, and during or after it.
const sent = 100

// struck is the common shape of the fault checks: a destination led by the first node, a load, the fault in the middle, and
// then a cluster as good as new with everything that was confirmed.
func struck(ctx context.Context, b Bench, name string, most int, settings map[string]string,
	fault func(f system.LeaderFinder, leader system.Node, l *load) error,
) (err error) {
	f, err := need[system.LeaderFinder](b)
	if err != nil {
		return err
	}
	name = "battery-" + name
	leader := b.Cluster.Nodes()[0]
	remove, err := b.destination(ctx, name, leader, b.Safe)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if settings == nil && b.Patient != nil {
		settings, most = b.Patient, 0
	}
	if b.OneLeader {
		led, err := leads(ctx, f, name, "somebody leads", func(s system.Leadership) bool { return s.Leader != nil })
		if err != nil {
			return err
		}
		leader = led.Leader
	}
	l, err := b.produce(ctx, name, name+"-client", 1, settings)
	if err != nil {
		return err
	}
	l.send(ctx, sent)
	if err := l.confirmed(ctx, sent); err != nil {
		return errors.Join(err, l.producer.Close(ctx))
	}
	if err := fault(f, leader, l); err != nil {
		return errors.Join(err, l.producer.Close(ctx))
	}
	if err := l.close(ctx); err != nil {
		return err
	}
	if err := b.Cluster.Baseline(ctx); err != nil {
		return err
	}
	s, err := b.read(ctx, name)
	if err != nil {
		return err
	}
	return s.whole(l, most)
}

func killed(ctx context.Context, b Bench) error {
	k, err := need[system.Killer](b)
	if err != nil {
		return err
	}
	return struck(ctx, b, "killed", 1, nil, func(f system.LeaderFinder, leader system.Node, l *load) error {
		before := append(b.Cluster.Endpoints(), b.Cluster.DirectEndpoints()...)
		proof, err := k.Kill(ctx, leader)
		if err != nil || proof == "" {
			return fmt.Errorf("killed with proof %q: %w", proof, err)
		}
		l.send(ctx, sent)
		_, err = leads(ctx, f, l.name, "another node leads", func(s system.Leadership) bool { return s.Leader != nil && s.Leader != leader })
		err = errors.Join(err, l.again(ctx))
		if err := errors.Join(err, k.Start(ctx, leader), k.Start(ctx, leader)); err != nil {
			return err
		}
		if after := append(b.Cluster.Endpoints(), b.Cluster.DirectEndpoints()...); !slices.Equal(before, after) {
			return fmt.Errorf("addresses were %v and are %v", before, after)
		}
		return nil
	})
}

func paused(ctx context.Context, b Bench) error {
	p, err := need[system.Pauser](b)
	if err != nil {
		return err
	}
	return struck(ctx, b, "paused", 1, nil, func(_ system.LeaderFinder, leader system.Node, l *load) error {
		proof, err := p.Pause(ctx, leader)
		if err != nil || proof == "" {
			return fmt.Errorf("paused with proof %q: %w", proof, err)
		}
		conn, err := net.DialTimeout("tcp", b.endpoint(leader), time.Second)
		if err != nil {
			return errors.Join(fmt.Errorf("a paused node's address: %w", err), p.Resume(ctx, leader))
		}
		if err := errors.Join(conn.Close(), p.Resume(ctx, leader), p.Resume(ctx, leader)); err != nil {
			return err
		}
		l.send(ctx, sent)
		if err := l.confirmed(ctx, 2*sent); err != nil {
			return err
		}
		k, err := need[system.Killer](b)
		if err != nil {
			return nil //nolint:nilerr // a system that only pauses is whole
		}
		if _, err := p.Pause(ctx, leader); err != nil {
			return err
		}
		_, err = k.Kill(ctx, leader)
		if err := errors.Join(err, p.Resume(ctx, leader), k.Start(ctx, leader)); err != nil {
			return err
		}
		l.send(ctx, sent)
		return l.again(ctx)
	})
}

func stopped(ctx context.Context, b Bench) error {
	s, err := need[system.Stopper](b)
	if err != nil {
		return err
	}
	k, err := need[system.Killer](b)
	if err != nil {
		return err
	}
	return struck(ctx, b, "stopped", 1, nil, func(f system.LeaderFinder, leader system.Node, l *load) error {
		proof, err := s.Stop(ctx, leader)
		if err != nil || proof == "" {
			return fmt.Errorf("stopped with proof %q: %w", proof, err)
		}
		_, err = leads(ctx, f, l.name, "another node leads", func(s system.Leadership) bool { return s.Leader != nil && s.Leader != leader })
		l.send(ctx, sent)
		return errors.Join(err, l.again(ctx), k.Start(ctx, leader))
	})
}

// onlyLeader says that the leader leads and is the only one in sync.
func onlyLeader(leader system.Node) func(system.Leadership) bool {
	return func(s system.Leadership) bool {
		return s.Leader == leader && slices.Equal(s.InSync, []system.Node{leader})
	}
}

func isolatedByListener(ctx context.Context, b Bench) error {
	i, err := need[system.Isolator](b)
	if err != nil {
		return err
	}
	if b.Alone == nil {
		return fmt.Errorf("no leader confirms alone: %w", system.ErrNotApplicable)
	}
	return struck(ctx, b, "isolated-by-listener", 1, nil, func(f system.LeaderFinder, leader system.Node, l *load) error {
		want := sent
		for _, d := range []system.Direction{system.Inbound, system.Both} {
			cut, err := i.Isolate(ctx, leader, system.Isolation{Listeners: []string{"replication"}, Direction: d})
			if err != nil {
				return err
			}
			l.send(ctx, sent) // a follower that has everything stays in sync, fetching or not
			want += sent
			_, err = leads(ctx, f, l.name, "only the leader is in sync", onlyLeader(leader))
			if err := errors.Join(err, bites(ctx, cut), heals(ctx, cut), l.confirmed(ctx, want)); err != nil {
				return err
			}
			_, err = leads(ctx, f, l.name, "all are in sync", func(s system.Leadership) bool { return len(s.InSync) == len(s.Replicas) })
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func isolated(ctx context.Context, b Bench) error {
	i, err := need[system.Isolator](b)
	if err != nil {
		return err
	}
	return struck(ctx, b, "isolated", 1, nil, func(f system.LeaderFinder, leader system.Node, l *load) error {
		cut, err := i.Isolate(ctx, leader, system.Isolation{})
		if err != nil {
			return err
		}
		if err := b.Cluster.Baseline(ctx); err == nil {
			return errors.Join(errors.New("the baseline holds while a node is cut off"), cut.Heal(ctx))
		}
		_, err = leads(ctx, f, l.name, "another node leads", func(s system.Leadership) bool { return s.Leader != nil && s.Leader != leader })
		if err == nil {
			var conn net.Conn
			if conn, err = net.DialTimeout("tcp", b.endpoint(leader), time.Second); err == nil {
				err = conn.Close()
			}
		}
		l.send(ctx, sent)
		return errors.Join(err, bites(ctx, cut), heals(ctx, cut), l.again(ctx))
	})
}

// lossy is how many percent of the packets a slow link loses.
const lossy = 20

func slowed(ctx context.Context, b Bench) error {
	i, err := need[system.Isolator](b)
	if err != nil {
		return err
	}
	return struck(ctx, b, "slowed", 1, nil, func(_ system.LeaderFinder, leader system.Node, l *load) error {
		cut, err := i.Isolate(ctx, leader, system.Isolation{Listeners: []string{"replication"}, Share: lossy})
		if errors.Is(err, system.ErrUsage) { // it calls it otherwise
			cut, err = i.Isolate(ctx, leader, system.Isolation{Share: lossy})
		}
		if err != nil {
			return err
		}
		l.send(ctx, sent)
		return errors.Join(l.confirmed(ctx, 2*sent), bites(ctx, cut), heals(ctx, cut))
	})
}

func linkReset(ctx context.Context, b Bench) error {
	c, err := need[system.LinkCutter](b)
	if err != nil {
		return err
	}
	return struck(ctx, b, "link-reset", 1, nil, func(_ system.LeaderFinder, leader system.Node, l *load) error {
		cut, err := c.CutLink(ctx, leader, system.Reset, system.Both)
		if err != nil {
			return err
		}
		if conn, err := net.DialTimeout("tcp", b.endpoint(leader), time.Second); err == nil {
			return errors.Join(errors.New("a reset link accepts connections"), conn.Close(), cut.Heal(ctx))
		}
		l.send(ctx, sent)
		err = errors.Join(bites(ctx, cut), heals(ctx, cut))
		return errors.Join(err, l.again(ctx))
	})
}

func linkBlackHole(ctx context.Context, b Bench) error {
	c, err := need[system.LinkCutter](b)
	if err != nil {
		return err
	}
	return struck(ctx, b, "link-black-hole", 1, nil, func(_ system.LeaderFinder, leader system.Node, l *load) error {
		want := sent
		for _, d := range []system.Direction{system.Both, system.Inbound, system.Outbound} {
			cut, err := c.CutLink(ctx, leader, system.BlackHole, d)
			if err != nil {
				return err
			}
			l.send(ctx, sent)
			err = bites(ctx, cut)
			if ok, _, _, _ := l.counts(); ok != want {
				err = errors.Join(err, fmt.Errorf("%s: %d confirmed in a black hole", d, ok-want))
			}
			want += sent
			if err := errors.Join(err, heals(ctx, cut), l.confirmed(ctx, want)); err != nil {
				return err
			}
		}
		return nil
	})
}

func responseDropped(ctx context.Context, b Bench) error {
	d, err := need[system.ResponseDropper](b)
	if err != nil {
		return err
	}
	drop := func(_ system.LeaderFinder, leader system.Node, l *load) error {
		i, err := d.DropResponse(ctx, leader, system.WireRule{Kind: cmp.Or(b.Confirm, "produce"), Client: l.name, Nth: 2})
		if err != nil {
			return err
		}
		for k := range 5 { // one batch after the other
			l.send(ctx, 1)
			if err := l.confirmed(ctx, sent+k+1); err != nil {
				return errors.Join(err, i.Heal(ctx))
			}
		}
		return errors.Join(bites(ctx, i), heals(ctx, i))
	}
	if b.Confirm == "" {
		if err := struck(ctx, b, "response-dropped", 1, nil, drop); err != nil {
			return err
		}
	}
	if b.Resending == nil {
		return nil
	}
	err = struck(ctx, b, "response-dropped-resent", 1, b.Resending, drop)
	if err == nil {
		return errors.New("a producer that sends again made no duplicate: the fault did not bite")
	}
	return struck(ctx, b, "response-dropped-twice", 2, b.Resending, drop)
}

func requestRefused(ctx context.Context, b Bench) error {
	r, err := need[system.RequestRefuser](b)
	if err != nil {
		return err
	}
	if _, err := r.RefuseRequest(ctx, b.Cluster.Nodes()[0], system.WireRule{Kind: "produce"}, "NO_SUCH_CODE"); !errors.Is(err, system.ErrUsage) {
		return fmt.Errorf("an unknown code: %w", err)
	}
	return struck(ctx, b, "request-refused", 1, nil, func(_ system.LeaderFinder, leader system.Node, l *load) error {
		i, err := r.RefuseRequest(ctx, leader, system.WireRule{Kind: "produce", Client: l.name, Nth: 1, Count: 2}, "NOT_LEADER_OR_FOLLOWER")
		if err != nil {
			return err
		}
		l.send(ctx, 1)
		return errors.Join(l.confirmed(ctx, sent+1), bites(ctx, i), heals(ctx, i))
	})
}

// requestOvertaken refuses a request once two later ones have passed it.
func requestOvertaken(ctx context.Context, b Bench) error {
	r, err := need[system.RequestRefuser](b)
	if err != nil {
		return err
	}
	overtake := func(_ system.LeaderFinder, leader system.Node, l *load) error {
		i, err := r.RefuseRequest(ctx, leader, system.WireRule{Kind: "produce", Client: l.name, Nth: 3, Behind: 2}, "NOT_LEADER_OR_FOLLOWER")
		if err != nil {
			return err
		}
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for range sent {
			l.send(ctx, 1)
			<-tick.C
		}
		return errors.Join(bites(ctx, i), l.confirmed(ctx, 2*sent), heals(ctx, i))
	}
	if err := struck(ctx, b, "overtaken", 1, nil, func(f system.LeaderFinder, leader system.Node, l *load) error {
		if err := overtake(f, leader, l); err != nil {
			return err
		}
		if ordered, err := b.ordered(ctx, l); err != nil || !ordered {
			return fmt.Errorf("in order: %t: %w", ordered, err)
		}
		return nil
	}); err != nil {
		return err
	}
	if b.Resending == nil {
		return nil
	}
	return struck(ctx, b, "overtaken-resent", 0, b.Resending, func(f system.LeaderFinder, leader system.Node, l *load) error {
		if err := overtake(f, leader, l); err != nil {
			return err
		}
		if ordered, err := b.ordered(ctx, l); err != nil || ordered {
			return fmt.Errorf("nothing was overtaken: %w", err)
		}
		return nil
	})
}

// ordered says whether the first occurrences of l's messages stand in the order they were sent.
func (b Bench) ordered(ctx context.Context, l *load) (bool, error) {
	s, err := b.read(ctx, l.name)
	if err != nil {
		return false, err
	}
	var next uint64
	for _, id := range s.order {
		if id.Seq > next {
			return false, nil
		}
		next = max(next, id.Seq+1)
	}
	return true, nil
}

func diskLost(ctx context.Context, b Bench) error {
	d, err := need[system.Diskful](b)
	if err != nil {
		return err
	}
	k, err := need[system.Killer](b)
	if err != nil {
		return err
	}
	return struck(ctx, b, "disk-lost", 1, nil, func(f system.LeaderFinder, leader system.Node, l *load) error {
		if _, err := d.LoseDisk(ctx, leader); err == nil {
			return errors.New("the disk of a running node was taken")
		}
		if _, err := k.Kill(ctx, leader); err != nil {
			return err
		}
		proof, err := d.LoseDisk(ctx, leader)
		if err == nil && proof == "" {
			err = errors.New("a disk was lost without proof")
		}
		if err := errors.Join(err, k.Start(ctx, leader)); err != nil {
			return err
		}
		_, err = leads(ctx, f, l.name, "all are in sync", func(s system.Leadership) bool { return len(s.InSync) == len(s.Replicas) })
		return err
	})
}

func uncleanElection(ctx context.Context, b Bench) (err error) {
	e, err := need[system.Elector](b)
	if err != nil {
		return err
	}
	i, err := need[system.Isolator](b)
	if err != nil {
		return err
	}
	k, err := need[system.Killer](b)
	if err != nil {
		return err
	}
	f, err := need[system.LeaderFinder](b)
	if err != nil {
		return err
	}
	const name = "battery-unclean-election"
	leader := b.Cluster.Nodes()[0]
	remove, err := b.destination(ctx, name, leader, b.Alone)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove(), b.Cluster.Baseline(ctx)) }()
	l, err := b.produce(ctx, name, name+"-client", 1, nil)
	if err != nil {
		return err
	}
	cut, err := i.Isolate(ctx, leader, system.Isolation{Listeners: []string{"replication"}, Direction: system.Inbound})
	if err != nil {
		return errors.Join(err, l.producer.Close(ctx))
	}
	l.send(ctx, sent) // a follower that has everything stays in sync, fetching or not
	_, err = leads(ctx, f, name, "only the leader is in sync", onlyLeader(leader))
	l.send(ctx, sent)
	err = errors.Join(err, l.confirmed(ctx, 2*sent), l.producer.Close(ctx))
	if err == nil {
		_, err = k.Kill(ctx, leader)
	}
	if err := errors.Join(err, heals(ctx, cut)); err != nil {
		return err
	}
	_, err = leads(ctx, f, name, "nobody leads", func(s system.Leadership) bool { return s.Leader == nil })
	err = errors.Join(err, e.ElectUnclean(ctx, name))
	if err == nil {
		_, err = leads(ctx, f, name, "another node leads", func(s system.Leadership) bool { return s.Leader != nil && s.Leader != leader })
	}
	if err := errors.Join(err, k.Start(ctx, leader), b.Cluster.Baseline(ctx)); err != nil {
		return err
	}
	s, err := b.read(ctx, name)
	// An answer to a follower that was under way at the cut may still arrive after the heal: the dead leader's kernel sends
	// it again. It can only hold what came before the leader was alone.
	if err == nil && len(s.order) > sent {
		err = fmt.Errorf("%d records are there, the other leader can only have had %d", len(s.order), sent)
	}
	return err
}

func closed(ctx context.Context, b Bench) error {
	if err := errors.Join(b.Cluster.Close(ctx), b.Cluster.Close(ctx)); err != nil {
		return err
	}
	if b.Left == nil {
		return nil
	}
	left, err := b.Left(ctx)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left behind: %v", left)
	}
	return err
}
