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
	"sync"

	"conform/harness/internal/clock"
	"conform/harness/ledger"
	"conform/harness/system"
)

// A foreign client is a program in any language that speaks lines of JSON, see PROTOCOL.md. The
// worker that starts it keeps the ledger on its behalf and marks the events as foreign: their times
// are those at which its lines were read.

// foreignLine is a line that a foreign client writes; the names are those of Kafka's
// VerifiableProducer and VerifiableConsumer.
type foreignLine struct {
	Name      string          `json:"name"`
	Key       string          `json:"key"`
	Value     string          `json:"value"`
	Topic     string          `json:"topic"`
	Partition int32           `json:"partition"`
	Offset    int64           `json:"offset"`
	Exception string          `json:"exception"`
	Message   string          `json:"message"`
	Refused   bool            `json:"refused"` // ours: the broker, or the client before anything was sent, said no
	Success   bool            `json:"success"`
	Error     string          `json:"error"`
	Offsets   []foreignPlace  `json:"offsets"`
	Parts     json.RawMessage `json:"partitions"`
}

type foreignPlace struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// The lines of a foreign client.
const (
	lineSent      = "producer_send_success"
	lineFailed    = "producer_send_error"
	lineFlushed   = "flush_complete"
	lineRecord    = "record_data"
	lineCommitted = "offsets_committed"
	lineAssigned  = "partitions_assigned"
	lineRevoked   = "partitions_revoked"
)

// foreignConfig is the first line that a foreign client reads.
type foreignConfig struct {
	Endpoints []string          `json:"endpoints"`
	ClientID  string            `json:"client_id"`
	Topic     string            `json:"topic"`
	Group     string            `json:"group,omitempty"`
	Settings  map[string]string `json:"settings,omitempty"`
}

// foreignCommand is a further line that it reads.
type foreignCommand struct {
	Cmd       string `json:"cmd"` // send, flush
	Topic     string `json:"topic,omitempty"`
	Partition int32  `json:"partition,omitempty"`
	Key       string `json:"key,omitempty"`
	Value     string `json:"value,omitempty"`
}

// foreign is a running foreign client.
type foreign struct {
	cmd   *exec.Cmd
	in    *lineWriter
	stdin io.Closer
	done  chan struct{} // closed once it is gone and all its lines are read
	ready chan struct{} // closed by startup_complete

	mu  sync.Mutex
	err error
}

// startForeign starts argv, configures it and hands every line it writes to see.
func startForeign(argv []string, c system.ClientConfig, see func(foreignLine)) (*foreign, error) {
	if len(argv) == 0 {
		return nil, fmt.Errorf("start foreign client: no command line: %w", system.ErrUsage)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = foreignAttributes()
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = grace
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start foreign client: %w: %w", err, system.ErrEnvironment)
	}
	out, outWrite, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start foreign client: %w: %w", err, system.ErrEnvironment)
	}
	cmd.Stdout = outWrite
	f := &foreign{cmd: cmd, in: &lineWriter{w: stdin}, stdin: stdin, done: make(chan struct{}), ready: make(chan struct{})}
	started := make(chan error, 1)
	go f.attend(out, outWrite, started, see)
	if err := <-started; err != nil {
		<-f.done
		return nil, fmt.Errorf("start foreign client: %w: %w", err, system.ErrEnvironment)
	}
	err = f.in.write(foreignConfig{Endpoints: c.Endpoints, ClientID: c.ClientID, Topic: c.Destination, Group: c.Group, Settings: c.Settings})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("configure foreign client: %w: %w", err, system.ErrEnvironment), f.end(context.Background()))
	}
	return f, nil
}

func (f *foreign) attend(out, theirs *os.File, started chan<- error, see func(foreignLine)) {
	runtime.LockOSThread() // where the kernel ends it with its parent, that is the thread that started it
	defer runtime.UnlockOSThread()
	defer close(f.done)
	err := f.cmd.Start()
	_ = theirs.Close()
	started <- err
	if err != nil {
		_ = out.Close()
		return
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		f.listen(out, see)
	}()
	err = f.cmd.Wait()
	<-read
	_ = out.Close()
	f.mu.Lock()
	f.err = err
	f.mu.Unlock()
}

func (f *foreign) listen(out io.Reader, see func(foreignLine)) {
	sc := bufio.NewScanner(out)
	sc.Buffer(make([]byte, 0, 64<<10), 16<<20)
	for sc.Scan() {
		var l foreignLine
		if json.Unmarshal(sc.Bytes(), &l) != nil {
			continue
		}
		if l.Name == evStartup {
			select {
			case <-f.ready:
			default:
				close(f.ready)
			}
			continue
		}
		see(l)
	}
	_, _ = io.Copy(io.Discard, out)
}

// await waits for startup_complete.
func (f *foreign) await(ctx context.Context) error {
	select {
	case <-f.ready:
		return nil
	case <-f.done:
		return fmt.Errorf("start foreign client: it ended before it was ready: %w", f.failure())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (f *foreign) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// end closes the client's stdin and waits for it, until ctx ends: then it is killed.
func (f *foreign) end(ctx context.Context) error {
	_ = f.stdin.Close()
	select {
	case <-f.done:
	case <-ctx.Done():
		_ = f.cmd.Process.Kill()
		<-f.done
	}
	if err := f.failure(); err != nil {
		return fmt.Errorf("end foreign client: %w", err)
	}
	return nil
}

// ForeignProducerRole returns the role of a producer in another language, started as argv. It is
// told what to send, and paced, ended and crashed as a native one is.
func ForeignProducerRole(argv ...string) Role {
	return func(ctx context.Context, s *Session) error {
		s.foreign = true
		return ProducerRole(foreignClients{argv: argv})(ctx, s)
	}
}

type foreignClients struct{ argv []string }

// OpenProducer implements system.Clients.
func (c foreignClients) OpenProducer(ctx context.Context, cfg system.ClientConfig) (system.Producer, error) {
	p := &foreignProducer{open: map[ledger.MessageID]func(system.Receipt){}, topic: cfg.Destination}
	f, err := startForeign(c.argv, cfg, p.see)
	if err != nil {
		return nil, err
	}
	p.f = f
	if err := f.await(ctx); err != nil {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return nil, errors.Join(err, f.end(ended))
	}
	return p, nil
}

// OpenConsumer implements system.Clients; foreign consumers work by themselves and are observed,
// see ForeignConsumerRole.
func (foreignClients) OpenConsumer(context.Context, system.ClientConfig) (system.Consumer, error) {
	return nil, errors.ErrUnsupported
}

type foreignProducer struct {
	f     *foreign
	topic string

	mu      sync.Mutex
	open    map[ledger.MessageID]func(system.Receipt)
	flushed chan struct{} // closed by flush_complete; nil = nobody waits
}

// Send implements system.Producer.
func (p *foreignProducer) Send(_ context.Context, m system.Message, done func(system.Receipt)) {
	p.mu.Lock()
	p.open[m.ID] = done
	p.mu.Unlock()
	err := p.f.in.write(foreignCommand{Cmd: "send", Topic: p.topic, Partition: m.Partition, Key: string(m.Key), Value: string(m.Payload)})
	if err != nil { // how much of the line it got is unknown
		p.finish(m.ID, system.Receipt{Offset: -1, Err: "foreign client gone"})
	}
}

func (p *foreignProducer) see(l foreignLine) {
	switch l.Name {
	case lineFlushed:
		p.mu.Lock()
		if p.flushed != nil {
			close(p.flushed)
			p.flushed = nil
		}
		p.mu.Unlock()
	case lineSent, lineFailed:
		h, ok := ledger.ParsePayload([]byte(l.Value))
		if !ok {
			return // it does not say which message is meant
		}
		r := system.Receipt{Outcome: ledger.OK, Offset: l.Offset}
		if l.Name == lineFailed {
			r = system.Receipt{Offset: -1, Err: l.Exception}
			if r.Err == "" {
				r.Err = "error without a class"
			}
			if l.Refused {
				r.Outcome = ledger.Failed
			}
		}
		p.finish(h.ID, r)
	}
}

func (p *foreignProducer) finish(id ledger.MessageID, r system.Receipt) {
	p.mu.Lock()
	done := p.open[id]
	delete(p.open, id)
	p.mu.Unlock()
	if done != nil { // only the first answer to a send counts
		done(r)
	}
}

// Flush implements system.Producer.
func (p *foreignProducer) Flush(ctx context.Context) error {
	p.mu.Lock()
	if p.flushed == nil {
		p.flushed = make(chan struct{})
	}
	flushed := p.flushed
	p.mu.Unlock()
	if err := p.f.in.write(foreignCommand{Cmd: "flush"}); err != nil {
		return fmt.Errorf("flush foreign client: %w", err)
	}
	select {
	case <-flushed:
		return nil
	case <-p.f.done:
		return fmt.Errorf("flush foreign client: it is gone: %w", errors.Join(p.f.failure(), io.EOF))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close implements system.Producer: what is not answered is in doubt.
func (p *foreignProducer) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	err := p.f.end(ctx)
	p.mu.Lock()
	left := p.open
	p.open = map[ledger.MessageID]func(system.Receipt){}
	p.mu.Unlock()
	for _, done := range left {
		done(system.Receipt{Offset: -1, Err: "client closed"})
	}
	return err
}

// ForeignConsumerRole returns the role of a consumer in another language, started as argv. It
// polls and settles by itself; what it tells is recorded. Kafka's VerifiableConsumer with --verbose
// tells enough.
func ForeignConsumerRole(argv ...string) Role {
	return func(ctx context.Context, s *Session) error {
		s.foreign = true
		o := observer{s: s}
		f, err := startForeign(argv, s.Config.Client, o.see)
		if err != nil {
			return err
		}
		ended, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		if err := f.await(ctx); err != nil {
			cancel()
			return errors.Join(err, f.end(ended))
		}
		if err := s.Ready(ctx); err != nil {
			cancel()
			return errors.Join(err, f.end(ended))
		}
		select {
		case <-s.Stopping():
			stop, cancelStop := context.WithTimeout(ended, grace)
			defer cancelStop()
			return f.end(stop)
		case <-f.done:
			return fmt.Errorf("foreign client ended by itself: %w", errors.Join(f.failure(), io.EOF))
		case <-ctx.Done():
			cancel()
			return errors.Join(context.Cause(ctx), f.end(ended))
		}
	}
}

type observer struct{ s *Session }

func (o observer) see(l foreignLine) {
	c, now := o.s.Config, clock.Now()
	switch l.Name {
	case lineRecord:
		o.s.Record(received(c, system.Delivery{Key: []byte(l.Key), Payload: []byte(l.Value), Partition: l.Partition, Offset: l.Offset}, now))
		o.s.received.Add(1)
	case lineCommitted:
		for _, p := range l.Offsets {
			e := ledger.Event{
				Kind: ledger.Settled, Consumer: c.Consumer, At: now, Text: "commit", Detail: l.Error,
				Pos: ledger.Position{Destination: c.Destination, Partition: p.Partition, Offset: p.Offset},
			}
			if l.Success {
				e.Outcome = ledger.OK
				o.s.settled.Add(1)
			}
			o.s.Record(e)
		}
	case lineAssigned, lineRevoked:
		var places []foreignPlace
		if json.Unmarshal(l.Parts, &places) != nil {
			return
		}
		e := ledger.Event{Kind: ledger.Assigned, Consumer: c.Consumer, At: now}
		if l.Name == lineRevoked {
			e.Kind = ledger.Revoked
		}
		for _, p := range places {
			e.Pos = ledger.Position{Destination: c.Destination, Partition: p.Partition}
			o.s.Record(e)
		}
	}
}
