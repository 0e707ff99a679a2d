package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"conform/harness/internal/clock"
	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/worker"
)

// armRun is one arm while it runs: its ledger folder and its producers.
type armRun struct {
	arm         Arm
	folder      string // absolute
	destination string
	client      string // client id prefix, unique on the cluster
	header      ledger.Header
	load        Load
	argv        []string
	system      System
	endpoints   []string
	flushCap    time.Duration

	engine sync.Mutex // guards events
	events *journal   // the engine's own segment

	stop     chan struct{} // closed when the load ends
	stopOnce sync.Once
	ended    chan struct{} // closed once all producers have ended

	mu      sync.Mutex
	counts  Counts // of ended producers
	current *worker.Process
	fault   error    // of the machine, as a worker saw it
	unwell  []string // producers that did not end as planned
}

func (a *armRun) incarnations() []Incarnation {
	if len(a.arm.Producer.Incarnations) > 0 {
		return a.arm.Producer.Incarnations
	}
	return []Incarnation{{}}
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

// Counts returns what the arm's producers have reported so far.
func (a *armRun) Counts() Counts {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.counts
	if a.current != nil {
		c = c.plus(a.current.Counts())
	}
	return c
}

func (c Counts) plus(w worker.Counts) Counts {
	return Counts{
		Sent: c.Sent + int(w.Sent), Confirmed: c.Confirmed + int(w.Confirmed), Refused: c.Refused + int(w.Refused),
		InDoubt: c.InDoubt + int(w.InDoubt), Claimed: c.Claimed + int(w.Claimed),
	}
}

func (c Counts) minus(o Counts) Counts {
	return Counts{
		Sent: c.Sent - o.Sent, Confirmed: c.Confirmed - o.Confirmed, Refused: c.Refused - o.Refused,
		InDoubt: c.InDoubt - o.InDoubt, Claimed: c.Claimed - o.Claimed,
	}
}

// start starts incarnation i and waits until its client is open.
func (a *armRun) start(ctx context.Context, i int) (*worker.Process, error) {
	inc := a.incarnations()[i]
	name := "producer-" + strconv.Itoa(i+1)
	c := worker.Config{
		Role: a.system.Producer, Worker: name, Journal: filepath.Join(a.folder, name+journalTail),
		Seed: a.header.Seed, Stream: uint32(i + 1),
		Client: system.ClientConfig{
			System: a.system.Name(), Endpoints: a.endpoints, ClientID: a.client + "p" + strconv.Itoa(i+1),
			Destination: a.destination, Partitions: a.load.Partitions, Settings: a.arm.Client,
		},
		Workload: a.header.Workload, Rate: a.load.Rate, Window: a.load.Window, Messages: inc.Messages,
		Claim: string(a.arm.Producer.Claim), End: string(inc.End),
		Params: map[string]string{worker.ParamTag: strconv.FormatUint(uint64(a.header.Tag()), 10)},
	}
	p, err := worker.Start(ctx, a.argv, c)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	a.current = p
	a.mu.Unlock()
	if err := p.Ready(ctx); err != nil {
		p.Kill()
		return nil, errors.Join(fmt.Errorf("open client of arm %s: %w", a.arm.Name, err), a.finish(p, i, "its client was not open in time"))
	}
	return p, nil
}

// drive runs the arm's producers one after the other, the first of which is started and waits, and
// returns once all have ended. After the load's end none is started any more, and one that does not
// flush within the cap is killed: its sends stay in doubt. When ctx ends, all are killed at once.
func (a *armRun) drive(ctx context.Context, first *worker.Process) error {
	defer close(a.ended)
	p := first
	for i := range a.incarnations() {
		if i > 0 {
			select {
			case <-a.stop:
				return nil
			case <-ctx.Done():
				return nil
			default:
			}
			var err error
			if p, err = a.start(ctx, i); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return a.fail(err)
			}
		}
		p.Begin()
		// One that is to end by its own count is left to it until the load ends.
		note := a.attend(ctx, p)
		if err := a.finish(p, i, note); err != nil {
			return a.fail(err)
		}
	}
	return nil
}

// attend waits for a producer's end and returns why it was killed, if it was.
func (a *armRun) attend(ctx context.Context, p *worker.Process) (note string) {
	select {
	case <-p.Done():
		return ""
	case <-a.stop:
		p.Stop()
	case <-ctx.Done():
		p.Kill()
		<-p.Done()
		return "the run was ended"
	}
	flushed := time.NewTimer(a.flushCap)
	defer flushed.Stop()
	select {
	case <-p.Done():
		return ""
	case <-flushed.C:
		note = fmt.Sprintf("stuck, it did not end within %s", a.flushCap)
	case <-ctx.Done():
		note = "the run was ended"
	}
	p.Kill()
	<-p.Done()
	return note
}

// finish records how producer i ended, with a note where it was killed. The error is the machine's.
func (a *armRun) finish(p *worker.Process, i int, note string) error {
	end := p.End()
	if !end.Planned && note != "" {
		end.How += ": " + note
	}
	a.mu.Lock()
	a.counts = a.counts.plus(p.Counts())
	a.current = nil
	name := "producer-" + strconv.Itoa(i+1)
	if !end.Planned {
		a.unwell = append(a.unwell, fmt.Sprintf("%s of arm %s %s", name, a.arm.Name, end.How))
	}
	a.mu.Unlock()
	e := ledger.Event{Kind: ledger.WorkerEnd, Text: name, Detail: end.How, N: end.Buffered}
	if end.Planned {
		e.Outcome = ledger.OK
	}
	err := a.record(e)
	if errors.Is(end.Err, system.ErrEnvironment) {
		err = errors.Join(end.Err, err)
	}
	return err
}

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

// endLoad lets the arm's producers flush and end.
func (a *armRun) endLoad() { a.stopOnce.Do(func() { close(a.stop) }) }

func (a *armRun) hasEnded() bool {
	select {
	case <-a.ended:
		return true
	default:
		return false
	}
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
	if a.events, err = createJournal(a.folder, ledger.Segment{Name: "engine", Role: "engine"}); err != nil {
		return err
	}
	return a.record(ledger.Event{Kind: ledger.ClockSample, N: clock.Wall()})
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
		Knob: a.Break.Knob, Forces: a.Break.Forces, Place: a.Break.Place,
	}
}
