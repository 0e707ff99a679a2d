package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"conform/harness/internal/clock"
	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/worker"
)

// armRun is one arm while it runs: its ledger folder, its producers and its processes.
type armRun struct {
	arm         Arm
	folder      string // absolute
	destination string
	client      string // client id prefix, unique on the cluster
	schema      string
	header      ledger.Header
	tie         ledger.Segment // Run, Arm and Header of all its segments
	load        Load
	argv        []string
	system      System
	endpoints   []string
	home        system.Cluster // that the suite's broker runs on
	with        map[string]system.Cluster
	peers       map[string]string // addresses of the processes that listen
	caps        caps

	engine sync.Mutex // guards events
	events *journal   // the engine's own segment

	producers *crew // nil = the arm has no load
	processes []*crew
	drained   ledger.Event // what became of its drain; Kind 0 = there was none

	mu     sync.Mutex
	fault  error    // of the machine, as a worker saw it
	unwell []string // workers that did not end as planned
}

// enlist makes the arm's crews.
func (a *armRun) enlist() error {
	incarnations := a.arm.Producer.Incarnations
	if len(incarnations) == 0 {
		incarnations = []Incarnation{{}}
	}
	if a.arm.Producer.None {
		incarnations = nil
	} else {
		a.producers = a.crew(producerCrew)
		a.producers.config = func(i int) worker.Config { return a.producerConfig(incarnations[i], i) }
		a.producers.follows = func(i int, _ bool) bool { return i+1 < len(incarnations) }
		for _, inc := range incarnations {
			a.producers.points = a.producers.points || inc.CrashAt != ""
		}
	}
	a.peers = map[string]string{}
	for i, p := range a.arm.Processes {
		if p.Listen {
			address, err := freeAddress()
			if err != nil {
				return err
			}
			a.peers[p.Name] = address
		}
		c := a.crew(p.Name)
		c.manual, c.points = p.Manual, p.CrashAt != ""
		c.follows = func(_ int, crashed bool) bool { return crashed && p.Restart }
		c.config = func(r int) worker.Config {
			// Streams and consumers are numbered without regard to what happens first: payloads are a
			// function of them.
			n := uint32(1 + i + r*len(a.arm.Processes))
			return a.processConfig(p, r, uint32(len(incarnations))+n, n)
		}
		a.processes = append(a.processes, c)
	}
	return nil
}

func (a *armRun) crew(name string) *crew {
	c := &crew{arm: a, name: name, idle: make(chan struct{}), tally: tally{at: map[string]int{}}}
	close(c.idle)
	return c
}

// freeAddress returns a loopback address that nobody listens at. It is free until somebody does.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("reserve address: %w: %w", err, system.ErrEnvironment)
	}
	address := l.Addr().String()
	return address, l.Close()
}

func (a *armRun) producerConfig(inc Incarnation, i int) worker.Config {
	role := a.arm.Producer.Role
	if role == "" {
		role = a.system.Producer
	}
	return worker.Config{
		Role: role, Stream: uint32(i + 1), Rate: a.load.Rate, Window: a.load.Window, Messages: inc.Messages,
		Client: system.ClientConfig{ClientID: a.client + "p" + strconv.Itoa(i+1), Settings: a.arm.Client},
		Claim:  string(a.arm.Producer.Claim), End: string(inc.End), Params: a.arm.Producer.Params,
		CrashAt: inc.CrashAt, CrashNth: inc.CrashNth, CrashIf: inc.CrashIf,
		HoldAt: inc.HoldAt, HoldNth: inc.HoldNth, HoldIf: inc.HoldIf,
	}
}

func (a *armRun) processConfig(p Process, r int, stream, consumer uint32) worker.Config {
	c := worker.Config{
		Role: p.Role, Stream: stream, Consumer: consumer, Rate: a.load.Rate, Window: a.load.Window,
		Client: system.ClientConfig{Settings: merged(a.arm.Client, p.Client)}, Params: p.Params, Listen: a.peers[p.Name],
	}
	if p.Group != "" {
		c.Client.Group = a.client + p.Group
	}
	if r == 0 {
		c.CrashAt, c.CrashNth, c.CrashIf = p.CrashAt, p.CrashNth, p.CrashIf
		c.HoldAt, c.HoldNth, c.HoldIf = p.HoldAt, p.HoldNth, p.HoldIf
	}
	return c
}

// complete adds what all workers of the arm are told.
func (a *armRun) complete(c worker.Config, name string) worker.Config {
	c.Worker, c.Journal = name, filepath.Join(a.folder, name+journalTail)
	c.Run, c.Arm, c.Header = a.tie.Run, a.tie.Arm, a.tie.Header
	c.Seed, c.Workload, c.Schema, c.Peers = a.header.Seed, a.header.Workload, a.schema, a.peers
	c.Params = merged(c.Params, map[string]string{worker.ParamTag: strconv.FormatUint(uint64(a.header.Tag()), 10)})
	c.Client.System, c.Client.Endpoints = a.system.Name(), a.endpoints
	c.Client.Destination, c.Client.Partitions = a.destination, a.load.Partitions
	if c.Client.ClientID == "" {
		c.Client.ClientID = a.client + name
	}
	if dsn, ok := a.home.(system.Connector); ok {
		c.Client.DSN = dsn.DSN(c.Client.ClientID, false)
	}
	for system, cluster := range a.with {
		if c.With == nil {
			c.With = map[string]worker.Endpoint{}
		}
		c.With[system] = endpoint(cluster, c.Client.ClientID)
	}
	return c
}

func endpoint(c system.Cluster, client string) worker.Endpoint {
	e := worker.Endpoint{Endpoints: c.Endpoints()}
	if dsn, ok := c.(system.Connector); ok {
		e.DSN = dsn.DSN(client, false)
	}
	return e
}

// merged returns a map of its own with all of both, b winning.
func merged(a, b map[string]string) map[string]string {
	m := maps.Clone(a)
	if m == nil {
		m = map[string]string{}
	}
	maps.Copy(m, b)
	return m
}

// crews lists the arm's processes, and then its load.
func (a *armRun) crews() []*crew {
	if a.producers == nil {
		return a.processes
	}
	return append(slices.Clone(a.processes), a.producers)
}

// crewOf returns the crew of that name, or nil.
func (a *armRun) crewOf(name string) *crew {
	for _, c := range a.crews() {
		if c.name == name {
			return c
		}
	}
	return nil
}

// record writes an event of the engine into the arm's ledger at once.
func (a *armRun) record(e ledger.Event) error {
	a.engine.Lock()
	defer a.engine.Unlock()
	if e.At == 0 {
		e.At = clock.Now()
	}
	a.events.w.Append(e)
	return a.events.flush()
}

// Counts returns what the arm's workers have reported so far.
func (a *armRun) Counts() Counts {
	var sum Counts
	for _, c := range a.crews() {
		sum = sum.add(c.Counts())
	}
	return sum
}

func (c Counts) plus(w worker.Counts) Counts {
	return c.add(Counts{
		Sent: int(w.Sent), Confirmed: int(w.Confirmed), Refused: int(w.Refused), InDoubt: int(w.InDoubt), Claimed: int(w.Claimed),
		Ordered: int(w.Ordered), Published: int(w.Published), Received: int(w.Received), Handled: int(w.Handled), Settled: int(w.Settled),
	})
}

func (c Counts) add(o Counts) Counts {
	return Counts{
		Sent: c.Sent + o.Sent, Confirmed: c.Confirmed + o.Confirmed, Refused: c.Refused + o.Refused,
		InDoubt: c.InDoubt + o.InDoubt, Claimed: c.Claimed + o.Claimed,
		Ordered: c.Ordered + o.Ordered, Published: c.Published + o.Published,
		Received: c.Received + o.Received, Handled: c.Handled + o.Handled, Settled: c.Settled + o.Settled,
	}
}

func (c Counts) minus(o Counts) Counts {
	return c.add(Counts{
		Sent: -o.Sent, Confirmed: -o.Confirmed, Refused: -o.Refused, InDoubt: -o.InDoubt, Claimed: -o.Claimed,
		Ordered: -o.Ordered, Published: -o.Published, Received: -o.Received, Handled: -o.Handled, Settled: -o.Settled,
	})
}

// fail notes a failure of the machine, which ends the run of the arm, and returns it.
func (a *armRun) fail(err error) error {
	a.mu.Lock()
	a.fault = errors.Join(a.fault, err)
	a.mu.Unlock()
	return err
}

func (a *armRun) machineFault() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fault
}

// note keeps that a worker did not end as planned: the arm is inconclusive.
func (a *armRun) note(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unwell = append(a.unwell, what)
}

func (a *armRun) ails() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.unwell)
}

// endLoad lets the arm's producers flush and end.
func (a *armRun) endLoad() {
	if a.producers != nil {
		a.producers.end()
	}
}

func (a *armRun) hasEnded() bool { return a.producers == nil || a.producers.hasEnded() }

// heal ends what has struck the arm's workers and was not healed, whatever becomes of ctx.
func (a *armRun) heal(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healCap)
	defer cancel()
	var errs []error
	for _, c := range a.crews() {
		_, err := c.heal(ctx, func(*strike) bool { return true })
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// open makes the arm's folder, its header and the engine's segment.
func (a *armRun) open() error {
	if err := os.MkdirAll(a.folder, 0o755); err != nil {
		return fmt.Errorf("create ledger folder: %w: %w", err, system.ErrEnvironment)
	}
	b, err := ledger.EncodeHeader(a.header)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(a.folder, headerFile), b); err != nil {
		return err
	}
	a.tie = tie(a.header, b)
	if a.events, err = createJournal(a.folder, a.segment("engine")); err != nil {
		return err
	}
	return a.record(ledger.Event{Kind: ledger.ClockSample, N: clock.Wall()})
}

// segment describes one that the engine writes.
func (a *armRun) segment(name string) ledger.Segment {
	s := a.tie
	s.Name, s.Role = name, name
	return s
}

// close ends the engine's segment; the ledger is then whole.
func (a *armRun) close() error {
	return errors.Join(a.record(ledger.Event{Kind: ledger.ClockSample, N: clock.Wall()}), a.events.close())
}

// settings names the arm's knobs, as the header records them.
func (a Arm) settings() map[string]string {
	all := map[string]string{}
	for prefix, m := range map[string]map[string]string{"client ": a.Client, "destination ": a.Destination, "node ": a.Node} {
		for k, v := range m {
			all[prefix+k] = v
		}
	}
	for name, m := range a.WithNode {
		for k, v := range m {
			all[name+" node "+k] = v
		}
	}
	for k, v := range a.Producer.Params {
		all["producer "+k] = v
	}
	for _, p := range a.Processes {
		for _, m := range []map[string]string{p.Client, p.Params} {
			for k, v := range m {
				all[p.Name+" "+k] = v
			}
		}
	}
	claim := a.Producer.Claim
	if claim == "" {
		claim = AtConfirm
	}
	all["application claims sent at"] = string(claim)
	return all
}

// expect is what a control must reproduce.
func (a Arm) expect() *ledger.Expect {
	if a.Break == nil {
		return nil
	}
	return &ledger.Expect{
		Anomaly: a.Break.Anomaly, Attribution: a.Break.Attribution,
		Knob: a.Break.Knob, Forces: a.Break.Forces, Place: a.Break.Place, Also: a.Break.Also,
	}
}

// background lists the processes that send beside the load: only whoever calls the load waits for an answer.
func (a Arm) background() []string {
	var names []string
	for _, p := range a.Processes {
		names = append(names, p.Name)
	}
	return names
}

// strikes names the strikes that an arm's own workers are to suffer.
func (a Arm) strikes() []string {
	var names []string
	add := func(crew, crash, hold string) {
		if crash != "" {
			names = append(names, "crash-"+crew)
		}
		if hold != "" {
			names = append(names, "hold-"+crew)
		}
	}
	for _, i := range a.Producer.Incarnations {
		add(producerCrew, i.CrashAt, i.HoldAt)
	}
	for _, p := range a.Processes {
		add(p.Name, p.CrashAt, p.HoldAt)
	}
	return unique(names)
}

// planned says of an arm's evidence how often each strike of its own workers must come, where that is more than once, and at
// which points they kill themselves.
func (a Arm) planned(e ledger.Evidence) (times map[string]int, endsAt map[string]string) {
	strike := func(name string) {
		if name != "" && slices.Contains(e.Bites, name) {
			if times == nil {
				times = map[string]int{}
			}
			times[name]++
		}
	}
	end := func(worker, point string) {
		if point != "" && slices.Contains(e.Ends, worker) {
			if endsAt == nil {
				endsAt = map[string]string{}
			}
			endsAt[worker] = point
		}
	}
	for n, i := range a.Producer.Incarnations {
		if i.CrashAt != "" {
			strike("crash-" + producerCrew)
		}
		if i.HoldAt != "" {
			strike("hold-" + producerCrew)
		}
		end(producerCrew+"-"+strconv.Itoa(n+1), i.CrashAt)
	}
	for _, p := range a.Processes {
		end(p.Name, p.CrashAt)
	}
	maps.DeleteFunc(times, func(_ string, n int) bool { return n < 2 })
	return times, endsAt
}

// has says whether an arm has a process, or with "producer" a load.
func (a Arm) has(process string) bool {
	if process == producerCrew {
		return !a.Producer.None
	}
	return slices.ContainsFunc(a.Processes, func(p Process) bool { return p.Name == process })
}

// groups lists the consumer groups of the arm's processes.
func (a *armRun) groups() []ledger.Group {
	var groups []ledger.Group
	for _, p := range a.arm.Processes {
		name := a.client + p.Group
		if p.Group != "" && !slices.ContainsFunc(groups, func(g ledger.Group) bool { return g.Name == name }) {
			groups = append(groups, ledger.Group{Name: name})
		}
	}
	return groups
}

// unique returns a list of its own in which each name is once.
func unique(names []string) []string {
	var out []string
	for _, n := range names {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}
