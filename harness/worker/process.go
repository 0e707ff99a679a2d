package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"conform/harness/system"
)

// Process is a running worker, as the engine sees it. Its methods may be called from several
// goroutines.
type Process struct {
	config Config
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	write  sync.Mutex

	ready chan struct{} // closed by startup_complete
	done  chan struct{} // closed once the process is gone and all it wrote is read

	mu       sync.Mutex
	counts   Counts
	changed  chan struct{} // closed and replaced with every change of counts
	point    string        // crash point reached
	pointAt  int64
	held     Held
	buffered int64
	shutdown bool
	failure  error // what the worker said of itself
	killed   bool  // by Kill
	struck   bool  // that was the plan
	exit     error
	tail     string // of stderr
}

// End is how a worker ended.
type End struct {
	// Planned says that it ended as its configuration wanted.
	Planned bool
	// How is in words, as recorded in WorkerEnd: "exited", "killed itself at crash point buffered",
	// "killed by the plan", "killed by the engine", "died of itself: ...".
	How string
	// Point is the crash point at which it killed itself, and PointAt when, in ns of CLOCK_MONOTONIC.
	Point   string
	PointAt int64
	// Err is set where the worker failed: it wraps system.ErrEnvironment if the machine did.
	Err error
	// Buffered is how many sends its client held when it ended without a flush.
	Buffered int64
	Pid      int
	CPU      time.Duration // user and system time it took
}

// Start starts `argv... ROLE` and hands it its configuration. ctx bounds the start only; the caller
// must see the process end, by Stop, End or Kill and then Done. The error wraps
// system.ErrEnvironment.
func Start(ctx context.Context, argv []string, c Config) (*Process, error) {
	if len(argv) == 0 {
		return nil, fmt.Errorf("start worker %s: no command line: %w", c.Worker, system.ErrUsage)
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	cmd := exec.Command(argv[0], append(append([]string{}, argv[1:]...), c.Role)...)
	cmd.SysProcAttr = attributes()
	stderr := &tailWriter{limit: 4 << 10}
	cmd.Stderr = stderr
	cmd.WaitDelay = grace // a foreign client that outlives the worker must not hold its stderr for ever
	// Pipes of our own: those of exec are closed by Wait, which would race with the reader.
	in, inWrite, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start worker %s: %w: %w", c.Worker, err, system.ErrEnvironment)
	}
	outRead, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start worker %s: %w: %w", c.Worker, err, system.ErrEnvironment), in.Close(), inWrite.Close())
	}
	cmd.Stdin, cmd.Stdout = in, out
	p := &Process{
		config: c, cmd: cmd, stdin: inWrite,
		ready: make(chan struct{}), done: make(chan struct{}), changed: make(chan struct{}),
	}
	started := make(chan error, 1)
	go p.attend(outRead, stderr, started, in, out)
	if err := <-started; err != nil {
		<-p.done
		return nil, fmt.Errorf("start worker %s: %w: %w", c.Worker, err, system.ErrEnvironment)
	}
	c.Client.Log = nil
	if err := p.tell(c); err != nil {
		p.Kill()
		<-p.done
		return nil, fmt.Errorf("configure worker %s: %w: %w", c.Worker, err, system.ErrEnvironment)
	}
	return p, nil
}

// attend starts the process, reads what it says and waits for its end, all on one thread: where the
// kernel ends a worker with its parent, the parent is the thread that started it.
func (p *Process) attend(out *os.File, stderr *tailWriter, started chan<- error, theirs ...*os.File) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.done)
	err := p.cmd.Start()
	for _, f := range theirs {
		_ = f.Close()
	}
	started <- err
	if err != nil {
		_, _ = out.Close(), p.stdin.Close()
		return
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.listen(out)
	}()
	err = p.cmd.Wait()
	<-read
	_, _ = out.Close(), p.closeStdin()
	p.mu.Lock()
	p.exit, p.tail = err, stderr.String()
	p.mu.Unlock()
}

// listen reads events until the worker's stdout ends.
func (p *Process) listen(r io.Reader) {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 64<<10), 1<<20)
	for sc.Scan() {
		var l line
		if json.Unmarshal(sc.Bytes(), &l) != nil {
			continue // a library's print on stdout is no event
		}
		p.note(l)
		if l.Name == evShutdown {
			_ = p.closeStdin()
		}
	}
	_, _ = io.Copy(io.Discard, r) // a line too long to be ours must not block the worker
}

func (p *Process) note(l line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.Counts != nil {
		p.counts = *l.Counts
	}
	switch l.Name {
	case evStartup:
		select {
		case <-p.ready:
		default:
			close(p.ready)
		}
	case evBuffered:
		p.buffered = l.Count
	case evCrash:
		p.point, p.pointAt = l.Point, l.Mono
	case evHeld:
		p.held = Held{Point: l.Point, At: l.Mono, Times: p.held.Times + 1}
	case evReleased:
		p.held.Point = ""
	case evError:
		err := errors.New(l.Message)
		switch l.Class {
		case "environment":
			err = fmt.Errorf("%w: %w", err, system.ErrEnvironment)
		case "usage":
			err = fmt.Errorf("%w: %w", err, system.ErrUsage)
		}
		p.failure = fmt.Errorf("worker %s: %w", p.config.Worker, err)
	case evShutdown:
		p.shutdown = true
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Process) tell(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	p.write.Lock()
	defer p.write.Unlock()
	_, err = p.stdin.Write(append(b, '\n'))
	return err
}

func (p *Process) closeStdin() error {
	p.write.Lock()
	defer p.write.Unlock()
	return p.stdin.Close()
}

// Ready waits until the worker's client is open. The error says how the worker ended before that,
// or is the cause of ctx's end.
func (p *Process) Ready(ctx context.Context) error {
	select {
	case <-p.ready:
		return nil
	case <-p.done:
		end := p.End()
		if end.Err != nil {
			return end.Err
		}
		return fmt.Errorf("start worker %s: it %s before it was ready", p.config.Worker, end.How)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Begin lets the worker work. A worker that is gone already is no error, here and below: its end is
// told by End.
func (p *Process) Begin() { _ = p.tell(command{Cmd: cmdStart}) }

// SetRate changes the worker's pace, in messages per second; 0 = as fast as its window allows.
func (p *Process) SetRate(perSecond int) { _ = p.tell(command{Cmd: cmdRate, Rate: perSecond}) }

// Stop asks the worker to send no more, flush and end.
func (p *Process) Stop() { _ = p.tell(command{Cmd: cmdStop}) }

// Finish asks the worker to end without a flush.
func (p *Process) Finish() { _ = p.tell(command{Cmd: cmdEnd}) }

// Crash asks the worker to kill itself.
func (p *Process) Crash() { _ = p.tell(command{Cmd: cmdKill}) }

// Release lets go of the worker where it is held at its hold point.
func (p *Process) Release() { _ = p.tell(command{Cmd: cmdRelease}) }

// Held is where a worker is held.
type Held struct {
	Point string // empty = it is not held
	At    int64  // since when it was last held, in ns of CLOCK_MONOTONIC
	Times int    // how often it was held so far
}

// Held tells whether the worker is held at its hold point.
func (p *Process) Held() Held {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Kill ends the process by SIGKILL, its children with it.
func (p *Process) Kill() { p.kill(false) }

// Strike is a Kill that the plan wants: the worker has then ended as planned. It waits for its end
// and returns the proof, or false if it had ended before.
func (p *Process) Strike() (proof string, struck bool) {
	p.kill(true)
	end := p.End()
	if end.How != killedByPlan {
		return "it " + end.How + " before it could be killed", false
	}
	return fmt.Sprintf("pid %d is gone: %s", end.Pid, p.cmd.ProcessState), true
}

const killedByPlan = "killed by the plan"

func (p *Process) kill(planned bool) {
	select {
	case <-p.done:
		return
	default:
	}
	p.mu.Lock()
	p.killed, p.struck = true, p.struck || planned
	p.mu.Unlock()
	p.signal(syscall.SIGKILL)
	_ = p.cmd.Process.Kill()
}

// signal sends a signal to the worker and its children: it leads a process group of its own, and a
// foreign client that it started is in it.
func (p *Process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// Freeze stops the process by SIGSTOP, its children with it, and returns the proof once it is stopped.
func (p *Process) Freeze(ctx context.Context) (proof string, err error) {
	p.signal(syscall.SIGSTOP)
	return p.await(ctx, true)
}

// Thaw lets a frozen process go on, and returns once it does.
func (p *Process) Thaw(ctx context.Context) error {
	p.signal(syscall.SIGCONT)
	_, err := p.await(ctx, false)
	return err
}

// await waits until the process is stopped, or not stopped any more.
func (p *Process) await(ctx context.Context, stopped bool) (string, error) {
	pid := p.cmd.Process.Pid
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		state, err := stateOf(pid)
		if err == nil && strings.HasPrefix(state, "T") == stopped {
			return fmt.Sprintf("pid %d is in state %s", pid, state), nil
		}
		select {
		case <-tick.C:
		case <-p.done:
			if stopped {
				return "", fmt.Errorf("freeze worker %s: it %s", p.config.Worker, p.End().How)
			}
			return "", nil
		case <-ctx.Done():
			return "", fmt.Errorf("wait for worker %s, which is in state %q: %w", p.config.Worker, state, context.Cause(ctx))
		}
	}
}

// Done is closed once the process is gone.
func (p *Process) Done() <-chan struct{} { return p.done }

// Counts returns what the worker has last reported.
func (p *Process) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// Changed returns a channel that is closed with the next report.
func (p *Process) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// End tells how the worker ended. It waits for Done.
func (p *Process) End() End {
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	e := End{Buffered: p.buffered, Pid: p.cmd.Process.Pid}
	gone := signaled(p.cmd)
	if s := p.cmd.ProcessState; s != nil {
		e.CPU = s.UserTime() + s.SystemTime()
	}
	crash := p.config.End == EndKill || p.config.CrashAt != ""
	switch {
	case p.point != "" && gone: // whoever else may have wanted to kill it
		e.How = "killed itself at crash point " + p.point
		e.Planned = crash || p.point == "command"
		e.Point, e.PointAt = p.point, p.pointAt
	case p.killed && p.struck && gone:
		e.How, e.Planned = killedByPlan, true
	case p.killed && gone:
		e.How = "killed by the engine"
	case p.failure != nil:
		e.How, e.Err = "died of itself: "+p.failure.Error(), p.failure
	case p.shutdown && p.exit == nil:
		e.How = "exited"
		if p.config.End == EndExit {
			e.How = "exited without a flush"
		}
		e.Planned = !crash
		if crash {
			e.How += ", its crash point was never reached"
		}
	default:
		e.How = "died of itself"
		if p.exit != nil {
			e.How += ": " + p.exit.Error()
		}
		if p.tail != "" {
			e.How += ": " + lastLine(p.tail)
		}
		e.Err = fmt.Errorf("worker %s %s", p.config.Worker, e.How)
	}
	return e
}

func signaled(cmd *exec.Cmd) bool {
	if cmd.ProcessState == nil {
		return false
	}
	ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// tailWriter keeps the last bytes of a worker's stderr.
type tailWriter struct {
	mu    sync.Mutex
	b     []byte
	limit int
}

// Write keeps b and forgets what is older than the limit.
func (t *tailWriter) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if len(t.b) > t.limit {
		t.b = append(t.b[:0], t.b[len(t.b)-t.limit:]...)
	}
	return len(b), nil
}

// String returns what is kept.
func (t *tailWriter) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
