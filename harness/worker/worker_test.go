package worker_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/system/memory"
	"conform/harness/worker"
)

const tag = 9

// The test binary is its own worker: TestMain runs it as one when it is started with this argument.
const asWorker = "run-as-worker"

func init() {
	worker.Register("producer", worker.ProducerRole(memory.Clients{}))
	worker.Register("consumer", worker.ConsumerRole(memory.Clients{}, nil))
	worker.Register("deaf", func(_ context.Context, s *worker.Session) error {
		_ = s.Ready(context.Background())
		select {} // neither stops nor listens to its context
	})
	worker.Register("broken", func(context.Context, *worker.Session) error {
		return fmt.Errorf("open client: no route: %w", system.ErrEnvironment)
	})
	worker.Register("panics", func(context.Context, *worker.Session) error { panic("a bug in a role") })
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asWorker {
		if err := worker.Main(context.Background(), os.Args[2:], os.Stdin, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == asForeign {
		foreignMain(os.Args[2])
		os.Exit(0)
	}
	// Under the race detector every process sleeps for a second before it exits, to let others report.
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	goleak.VerifyTestMain(m,
		goleak.IgnoreCurrent(), // a library of a client that is measured has a caretaker of its own
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"), // idle, to the container engine
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
	)
}

func argv(t testing.TB) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, asWorker}
}

type bench struct {
	cluster system.Cluster
	config  worker.Config
}

func setup(t testing.TB) bench {
	t.Helper()
	c, err := memory.System{}.Start(t.Context(), system.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	if err := c.Create(t.Context(), system.DestinationSpec{Name: "d", Partitions: 2, Leader: c.Nodes()[0]}); err != nil {
		t.Fatal(err)
	}
	return bench{cluster: c, config: worker.Config{
		Role: "producer", Worker: "producer-1", Journal: filepath.Join(t.TempDir(), "producer-1.journal"), Seed: 3, Stream: 1,
		Client:   system.ClientConfig{System: "memory", Endpoints: c.Endpoints(), ClientID: "d.p1", Destination: "d", Partitions: 2},
		Workload: ledger.Workload{Keys: 8, PayloadSize: 160}, Rate: 2000,
		Params: map[string]string{worker.ParamTag: strconv.Itoa(tag)},
	}}
}

// run starts a worker and, unless it is to end by itself, stops it once it has sent that many.
func run(t *testing.T, c worker.Config, stopAfter int64) (worker.End, worker.Counts) {
	t.Helper()
	p := begin(t, c)
	if stopAfter > 0 {
		await(t, p, func(n worker.Counts) bool { return n.Sent >= stopAfter || n.Received >= stopAfter })
		p.Stop()
	}
	return finish(t, p), p.Counts()
}

func begin(t *testing.T, c worker.Config) *worker.Process {
	t.Helper()
	p, err := worker.Start(t.Context(), argv(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill(); <-p.Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := p.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	p.Begin()
	return p
}

func await(t *testing.T, p *worker.Process, reached func(worker.Counts) bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		changed := p.Changed()
		if reached(p.Counts()) {
			return
		}
		select {
		case <-changed:
		case <-p.Done():
			if !reached(p.Counts()) {
				t.Fatalf("worker %s at %+v", p.End().How, p.Counts())
			}
			return
		case <-deadline:
			t.Fatalf("stands at %+v", p.Counts())
		}
	}
}

func finish(t *testing.T, p *worker.Process) worker.End {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the worker does not end")
	}
	return p.End()
}

type journal struct {
	invoked  map[uint64]bool
	outcomes map[uint64]ledger.Outcome
	claimed  map[uint64]bool
	events   []ledger.Event
	closed   bool
	damage   []error
}

func readJournal(t *testing.T, path string) journal {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := ledger.NewReader(f, filepath.Base(path))
	if err != nil {
		t.Fatal(err)
	}
	j := journal{invoked: map[uint64]bool{}, outcomes: map[uint64]ledger.Outcome{}, claimed: map[uint64]bool{}}
	for {
		var e ledger.Event
		err := r.Next(&e)
		if errors.Is(err, io.EOF) {
			j.closed = r.Closed()
			return j
		}
		var damage *ledger.DamageError
		if errors.As(err, &damage) {
			j.damage = append(j.damage, err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		j.events = append(j.events, e)
		switch e.Kind {
		case ledger.Invoke:
			for seq := e.Seq; seq < e.To; seq++ {
				j.invoked[seq] = true
			}
		case ledger.Complete:
			if _, twice := j.outcomes[e.Seq]; twice {
				t.Errorf("send %d completed twice", e.Seq)
			}
			if !j.invoked[e.Seq] || e.Sent > e.At || e.Sent <= 0 {
				t.Errorf("send %d completed at %d, sent at %d, invoked %v", e.Seq, e.At, e.Sent, j.invoked[e.Seq])
			}
			j.outcomes[e.Seq] = e.Outcome
			if e.Claim == ledger.ClaimSent {
				j.claimed[e.Seq] = true
			}
		case ledger.Claimed:
			j.claimed[e.Seq] = true
		}
	}
}

func stored(t *testing.T, b bench) map[uint64]bool {
	t.Helper()
	seqs := map[uint64]bool{}
	err := b.cluster.(system.StoreReader).ReadStore(t.Context(), "d", 0, tag, func(e ledger.Event) {
		if e.Kind == ledger.Stored {
			if e.Stream != 1 {
				t.Errorf("stored %+v", e)
			}
			seqs[e.Seq] = true
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return seqs
}

func TestProducerFlushesAndExits(t *testing.T) {
	b := setup(t)
	end, counts := run(t, b.config, 500)
	if !end.Planned || end.How != "exited" || end.Err != nil {
		t.Errorf("end %+v", end)
	}
	j := readJournal(t, b.config.Journal)
	if !j.closed || len(j.damage) > 0 {
		t.Errorf("journal closed %v, damage %v", j.closed, j.damage)
	}
	if counts.Sent < 500 || counts.Confirmed != counts.Sent || counts.Claimed != counts.Sent {
		t.Errorf("counts %+v", counts)
	}
	in := stored(t, b)
	if int64(len(j.outcomes)) != counts.Sent || len(in) != len(j.outcomes) {
		t.Errorf("%d sent, %d completed, %d stored", counts.Sent, len(j.outcomes), len(in))
	}
}

func TestProducerKeepsItsRate(t *testing.T) {
	b := setup(t)
	p := begin(t, b.config)
	await(t, p, func(n worker.Counts) bool { return n.Sent > 0 })
	first, begun := p.Counts().Sent, time.Now()
	await(t, p, func(n worker.Counts) bool { return n.Sent >= first+1000 })
	took := time.Since(begun)
	if rate := float64(p.Counts().Sent-first) / took.Seconds(); rate < 1500 || rate > 2500 {
		t.Errorf("asked for 2000/s, got %.0f/s", rate)
	}
	p.SetRate(100)
	time.Sleep(100 * time.Millisecond)
	first, begun = p.Counts().Sent, time.Now()
	await(t, p, func(n worker.Counts) bool { return n.Sent >= first+50 })
	if rate := 50 / time.Since(begun).Seconds(); rate > 200 {
		t.Errorf("asked for 100/s, got %.0f/s", rate)
	}
	p.Stop()
	finish(t, p)
}

func TestWindowHoldsSendsBack(t *testing.T) {
	b := setup(t)
	b.config.Window = 50
	p := begin(t, b.config)
	await(t, p, func(n worker.Counts) bool { return n.Confirmed >= 100 })
	leader := b.cluster.Nodes()[0]
	pauser := b.cluster.(system.Pauser)
	if _, err := pauser.Pause(t.Context(), leader); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	if n := p.Counts(); n.Sent-n.Confirmed > 50 || n.Sent == n.Confirmed {
		t.Errorf("in flight %d with a window of 50", n.Sent-n.Confirmed)
	}
	before := p.Counts().Sent
	if err := pauser.Resume(t.Context(), leader); err != nil {
		t.Fatal(err)
	}
	await(t, p, func(n worker.Counts) bool { return n.Confirmed > before+100 })
	p.Stop()
	finish(t, p)
}

func TestEndingsWithRecordsBuffered(t *testing.T) {
	for _, tc := range []struct {
		end, claim string
		how        string
		lost       bool // what was claimed is missing
		closed     bool
	}{
		{worker.EndFlush, worker.ClaimAtConfirm, "exited", false, true},
		{worker.EndExit, worker.ClaimAtConfirm, "exited without a flush", false, true},
		{worker.EndExit, worker.ClaimAtEnqueue, "exited without a flush", true, true},
		{worker.EndKill, worker.ClaimAtConfirm, "killed itself at crash point buffered", false, false},
		{worker.EndKill, worker.ClaimAtEnqueue, "killed itself at crash point buffered", true, false},
	} {
		t.Run(tc.end+"/"+tc.claim, func(t *testing.T) {
			b := setup(t)
			b.config.Messages, b.config.End, b.config.Claim = 300, tc.end, tc.claim
			b.config.Client.Settings = map[string]string{"linger.ms": "5000"}
			end, counts := run(t, b.config, 0)
			if !end.Planned || end.How != tc.how || end.Err != nil {
				t.Errorf("end %+v", end)
			}
			if tc.end != worker.EndFlush && end.Buffered == 0 {
				t.Error("nothing was buffered")
			}
			j := readJournal(t, b.config.Journal)
			if counts.Sent != 300 || len(j.invoked) != 300 || len(j.damage) > 0 || j.closed != tc.closed {
				t.Errorf("sent %d, invoked %d, damage %v, closed %v", counts.Sent, len(j.invoked), j.damage, j.closed)
			}
			in := stored(t, b)
			missing := 0
			for seq := range j.claimed {
				if !in[seq] {
					missing++
				}
			}
			if (missing > 0) != tc.lost {
				t.Errorf("%d claimed, %d of them missing", len(j.claimed), missing)
			}
		})
	}
}

// A SIGKILL at any moment leaves no record that was not invoked.
func TestKilledProducerMakesNoPhantom(t *testing.T) {
	b := setup(t)
	b.config.Rate = 0
	p := begin(t, b.config)
	await(t, p, func(n worker.Counts) bool { return n.Sent > 5000 })
	p.Kill()
	if end := finish(t, p); end.Planned || end.How != "killed by the engine" {
		t.Errorf("end %+v", end)
	}
	j := readJournal(t, b.config.Journal)
	for seq := range stored(t, b) {
		if !j.invoked[seq] {
			t.Fatalf("%d is stored and was never invoked", seq)
		}
	}
	if j.closed {
		t.Error("the journal of a killed worker was closed in order")
	}
}

func TestDeafWorkerIsKilled(t *testing.T) {
	b := setup(t)
	b.config.Role = "deaf"
	p := begin(t, b.config)
	p.Stop()
	select {
	case <-p.Done():
		t.Fatal("it stopped")
	case <-time.After(100 * time.Millisecond):
	}
	p.Kill()
	finish(t, p)
}

func TestFailuresAreTold(t *testing.T) {
	b := setup(t)
	for role, want := range map[string]struct {
		text string
		env  bool
	}{
		"broken":  {"no route", true},
		"panics":  {"exit status 2", false},
		"unknown": {"none of that name", false},
	} {
		c := b.config
		c.Role, c.Journal = role, filepath.Join(t.TempDir(), "j")
		p, err := worker.Start(t.Context(), argv(t), c)
		if err != nil {
			t.Fatal(err)
		}
		err = p.Ready(t.Context())
		if err == nil || !strings.Contains(err.Error(), want.text) || errors.Is(err, system.ErrEnvironment) != want.env {
			t.Errorf("role %s: error %v", role, err)
		}
		if end := finish(t, p); end.Planned || end.Err == nil {
			t.Errorf("role %s: end %+v", role, end)
		}
	}
	if _, err := worker.Start(t.Context(), []string{"/no/such/program"}, b.config); !errors.Is(err, system.ErrEnvironment) {
		t.Errorf("a program that is not there: error %v", err)
	}
}

func TestJournalThatCannotBeWritten(t *testing.T) {
	// A limit on the size of files stands for a disk that is full.
	b := setup(t)
	self := argv(t)
	limited := append([]string{"/bin/sh", "-c", `trap '' XFSZ; ulimit -f 16; exec "$@"`, "sh"}, self...)
	p, err := worker.Start(t.Context(), limited, b.config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill(); <-p.Done() })
	if err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Begin()
	end := finish(t, p)
	if end.Planned || !errors.Is(end.Err, system.ErrEnvironment) {
		t.Errorf("end %+v", end)
	}
	if j := readJournal(t, b.config.Journal); len(j.invoked) == 0 {
		t.Error("nothing that was recorded can be read")
	}
}

// A worker must not outlive its engine, even if its role hangs and its engine was killed.
func TestWorkerEndsWithItsEngine(t *testing.T) {
	for _, role := range []string{"producer", "deaf"} {
		t.Run(role, func(t *testing.T) {
			b := setup(t)
			b.config.Role = role
			self := argv(t)
			cmd := exec.Command(self[0], append(self[1:], role)...)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, _ := json.Marshal(b.config)
			if _, err := in.Write(append(line, '\n')); err != nil {
				t.Fatal(err)
			}
			if l, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.Contains(l, "startup_complete") {
				t.Fatalf("first line %q, error %v", l, err)
			}
			_, _ = io.WriteString(in, `{"cmd":"start"}`+"\n"+`{"cmd":"no-such"}`+"\nnot json\n")
			time.Sleep(50 * time.Millisecond)
			_ = in.Close()
			ended := make(chan struct{})
			go func() { _ = cmd.Wait(); close(ended) }()
			select {
			case <-ended:
			case <-time.After(5 * time.Second):
				t.Error("it lives on")
				_ = cmd.Process.Signal(syscall.SIGKILL)
				<-ended
			}
		})
	}
}

func TestConsumerAndItsCrashPoints(t *testing.T) {
	const sent = 600
	for _, tc := range []struct {
		point   string
		nth     int
		settled bool
	}{
		{"", 0, true},
		{worker.PointAfterFetch, 1, false},
		{worker.PointBeforeSettle, 1, false},
		{worker.PointAfterSettle, 1, true},
	} {
		t.Run("at "+tc.point, func(t *testing.T) {
			b := setup(t)
			b.config.Messages, b.config.Rate = sent, 0
			run(t, b.config, 0)
			c := b.config
			c.Role, c.Worker, c.Consumer = "consumer", "consumer-1", 1
			c.Journal = filepath.Join(t.TempDir(), "consumer-1.journal")
			c.Client.Group, c.CrashAt, c.CrashNth = "g", tc.point, tc.nth
			stopAfter := int64(0)
			if tc.point == "" {
				stopAfter = sent
			}
			end, _ := run(t, c, stopAfter)
			if !end.Planned {
				t.Errorf("end %+v", end)
			}
			j := readJournal(t, c.Journal)
			received, settled := 0, 0
			for _, e := range j.events {
				switch e.Kind {
				case ledger.Received:
					received++
					if e.Stream != 1 || e.Consumer != 1 {
						t.Fatalf("received %+v", e)
					}
				case ledger.Settled:
					settled++
				}
			}
			if received == 0 || (settled > 0) != tc.settled {
				t.Errorf("%d received, %d settles recorded", received, settled)
			}
		})
	}
}

func TestRegisterTwicePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("two roles of one name were registered")
		}
	}()
	worker.Register("producer", nil)
}
