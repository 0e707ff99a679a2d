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
	buffered int64
	shutdown bool
	failure  error // what the worker said of itself
	killed   bool  // by Kill
	exit     error
	tail     string // of stderr
}

// End is how a worker ended.
type End struct {
	// Planned says that it ended as its configuration wanted.
	Planned bool
	// How is in words, as recorded in WorkerEnd: "exited", "killed itself at crash point buffered",
	// "killed by the engine", "died of itself: ...".
	How string
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
		p.point = l.Point
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

// Kill ends the process by SIGKILL, its children with it.
func (p *Process) Kill() {
	select {
	case <-p.done:
		return
	default:
	}
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	// The worker leads a process group of its own; a foreign client that it started is in it.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	_ = p.cmd.Process.Kill()
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
	if s := p.cmd.ProcessState; s != nil {
		e.CPU = s.UserTime() + s.SystemTime()
	}
	crash := p.config.End == EndKill || p.config.CrashAt != ""
	switch {
	case p.killed:
		e.How = "killed by the engine"
	case p.point != "" && signaled(p.cmd):
		e.How = "killed itself at crash point " + p.point
		e.Planned = crash || p.point == "command"
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
