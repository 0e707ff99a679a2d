package systemtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"conform/harness/ledger"
	"conform/harness/system"
)

// Setting is one way to be told that a message is safe.
type Setting struct {
	Name                string
	Client, Destination map[string]string
	Loses               []string // strikes after which some of what was confirmed must be gone: else it was none
	Keeps               []string // strikes after which all of it must be there
}

// The strikes of Power.
const (
	KillOfAll = "SIGKILL of all"
	CutOfOne  = "power cut of the leader"
	CutOfAll  = "power cut of all"
)

// Worth is what confirms under a setting were worth under a strike, and what they cost before it.
type Worth struct {
	Strike, Setting string
	Confirmed, Lost int           // messages
	Rate            float64       // confirmed per second, by itself
	P99             time.Duration // send to confirm, by itself
}

// String is a cell of the README's table.
func (w Worth) String() string {
	return fmt.Sprintf("%s, %s: %d confirmed, %d lost, %.0f confirmed/s, p99 %s", w.Strike, w.Setting, w.Confirmed, w.Lost, w.Rate, w.P99.Round(100*time.Microsecond))
}

const (
	underWay   = 100             // sends at once
	powerAlone = 3 * time.Second // how long each setting is measured by itself
	powerLoad  = time.Second     // how long all are under load when the strike comes
)

// Power measures what a confirm is worth, on a cluster whose nodes have disks of their own. Each setting is measured by itself
// first; at the strike all are under load, the whole load before it shorter than a kernel takes to write back by itself. The
// error joins what a setting lost and should not have, and what it should have and did not.
func Power(ctx context.Context, b Bench, settings []Setting) ([]Worth, error) {
	powered, err := need[system.Powered](b)
	if err != nil {
		return nil, err
	}
	if err := powered.DiskBacked(); err != nil {
		return nil, err
	}
	all := b.Cluster.Nodes()
	var worths []Worth
	var errs []error
	for _, strike := range []struct {
		name string
		do   func(context.Context) (heal func(context.Context) error, err error)
	}{
		{KillOfAll, func(ctx context.Context) (func(context.Context) error, error) { return killAll(ctx, b) }},
		{CutOfOne, func(ctx context.Context) (func(context.Context) error, error) { return cut(ctx, powered, all[:1]) }},
		{CutOfAll, func(ctx context.Context) (func(context.Context) error, error) { return cut(ctx, powered, all) }},
	} {
		if strike.name == CutOfOne && len(all) == 1 {
			continue
		}
		found, err := b.worth(ctx, strike.name, settings, strike.do)
		worths, errs = append(worths, found...), append(errs, err)
	}
	return worths, errors.Join(errs...)
}

func killAll(ctx context.Context, b Bench) (heal func(context.Context) error, err error) {
	killer, err := need[system.Killer](b)
	if err != nil {
		return nil, err
	}
	each := func(ctx context.Context, do func(context.Context, system.Node) error) error {
		var g errgroup.Group
		for _, n := range b.Cluster.Nodes() {
			g.Go(func() error { return do(ctx, n) })
		}
		return g.Wait()
	}
	err = each(ctx, func(ctx context.Context, n system.Node) error { _, err := killer.Kill(ctx, n); return err })
	return func(ctx context.Context) error { return each(ctx, killer.Start) }, err
}

func cut(ctx context.Context, c system.Powered, nodes []system.Node) (heal func(context.Context) error, err error) {
	i, err := c.CutPower(ctx, nodes)
	if err != nil {
		return nil, err
	}
	e, err := i.Evidence(ctx)
	if err == nil && !e.Bit {
		err = fmt.Errorf("no evidence of the power cut: %s", e.Detail)
	}
	return i.Heal, err
}

// worth strikes once while every setting is under load.
func (b Bench) worth(ctx context.Context, strike string, settings []Setting, do func(context.Context) (func(context.Context) error, error)) ([]Worth, error) {
	loads := make([]*load, len(settings))
	worths := make([]Worth, len(settings))
	for i, s := range settings {
		name := strings.NewReplacer(" ", "-", "=", "-", ",", "").Replace(strike + "." + s.Name)
		remove, err := b.destination(ctx, name, b.Cluster.Nodes()[0], s.Destination)
		if err != nil {
			return nil, err
		}
		defer func() { _ = remove() }()
		if loads[i], err = b.produce(ctx, name, name, uint32(i+1), s.Client); err != nil {
			return nil, err
		}
	}
	for i, s := range settings {
		worths[i] = Worth{Strike: strike, Setting: s.Name}
		if err := loads[i].charge(ctx, time.Second, nil); err != nil { // what opens connections is no part of it
			return nil, err
		}
		var latencies []time.Duration
		if err := loads[i].charge(ctx, powerAlone, func(d time.Duration) { latencies = append(latencies, d) }); err != nil {
			return nil, err
		}
		loads[i].mu.Lock() // a confirm that came last may still be noted
		slices.Sort(latencies)
		if n := len(latencies); n > 0 {
			worths[i].Rate, worths[i].P99 = float64(n)/powerAlone.Seconds(), latencies[n*99/100]
		}
		loads[i].mu.Unlock()
	}
	loaded, stop := context.WithCancel(ctx)
	defer stop()
	var g errgroup.Group
	for _, l := range loads {
		g.Go(func() error { return l.charge(loaded, time.Hour, nil) })
	}
	select {
	case <-time.After(powerLoad):
	case <-ctx.Done():
	}
	heal, err := do(ctx)
	stop()
	err = errors.Join(err, g.Wait())
	for _, l := range loads { // what is under way stays in doubt: nothing is confirmed after the strike
		err = errors.Join(err, l.producer.Close(ctx))
	}
	if heal != nil {
		err = errors.Join(err, heal(ctx), b.Cluster.Baseline(ctx))
	}
	if err != nil {
		return nil, err
	}
	var errs []error
	for i, s := range settings {
		found, err := b.read(ctx, loads[i].name)
		if err != nil {
			return nil, err
		}
		loads[i].mu.Lock()
		for seq, r := range loads[i].receipts {
			if r.Outcome != ledger.OK {
				continue
			}
			worths[i].Confirmed++
			if found.times[ledger.MessageID{Stream: loads[i].stream, Seq: seq}] == 0 {
				worths[i].Lost++
			}
		}
		loads[i].mu.Unlock()
		switch w := worths[i]; {
		case w.Confirmed < underWay:
			errs = append(errs, fmt.Errorf("%s: too few were confirmed to tell anything", w))
		case w.Lost == 0 && slices.Contains(s.Loses, strike), w.Lost > 0 && slices.Contains(s.Keeps, strike):
			errs = append(errs, fmt.Errorf("not as it must be: %s", w))
		}
	}
	return worths, errors.Join(errs...)
}

// charge keeps sends under way for as long as told, or until ctx ends. seen, if set, is given how long each confirm took.
func (l *load) charge(ctx context.Context, d time.Duration, seen func(time.Duration)) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	room := make(chan struct{}, underWay)
	for {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return nil // what is under way ends with the client
		}
		m, began := l.message(), time.Now()
		l.producer.Send(context.WithoutCancel(ctx), m, func(r system.Receipt) {
			l.mu.Lock()
			l.receipts[m.ID.Seq] = r
			if seen != nil && r.Outcome == ledger.OK && ctx.Err() == nil {
				seen(time.Since(began))
			}
			l.mu.Unlock()
			<-room
		})
	}
}
