package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"conform/harness/system"
)

// grace is how long a worker whose engine is gone may take to stop before it kills itself.
const grace = 2 * time.Second

// errEngineGone is the cause of a session whose stdin ended: the engine is dead, or has had enough.
var errEngineGone = errors.New("the engine closed stdin")

// errExit is returned by a role that wants the process to end without another word.
var errExit = errors.New("exit at once")

// Main runs one worker: argv holds its role, stdin its configuration and commands, a line each;
// stdout takes its events, stderr its log. It returns once the worker has ended. Errors wrap
// system.ErrUsage or system.ErrEnvironment where they are the caller's or the machine's, and have
// been told on stdout.
//
// When stdin ends, the worker stops at once, or kills itself two seconds later if its role does
// not return: a worker never outlives its engine.
func Main(ctx context.Context, argv []string, stdin io.Reader, stdout, stderr io.Writer) error {
	out := &lineWriter{w: stdout}
	err := run(ctx, argv, bufio.NewReader(stdin), out, stderr)
	if err != nil {
		l := newLine(evError)
		l.Message = err.Error()
		switch {
		case errors.Is(err, system.ErrEnvironment):
			l.Class = "environment"
		case errors.Is(err, system.ErrUsage):
			l.Class = "usage"
		default:
			l.Class = "client"
		}
		return errors.Join(err, out.write(l))
	}
	return nil
}

func run(ctx context.Context, argv []string, stdin *bufio.Reader, out *lineWriter, stderr io.Writer) error {
	if len(argv) != 1 {
		return fmt.Errorf("start worker: one role is wanted (%s): %w", strings.Join(Roles(), ", "), system.ErrUsage)
	}
	role, err := lookup(argv[0])
	if err != nil {
		return err
	}
	var c Config
	if err := readLine(stdin, &c); err != nil {
		return fmt.Errorf("read worker configuration: %w: %w", err, system.ErrUsage)
	}
	log := slog.New(slog.NewTextHandler(stderr, nil)).With("worker", c.Worker)
	c.Client.Log = log
	j, err := openJournal(c)
	if err != nil {
		return err
	}
	s := newSession(c, log, out, j)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	listening := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(listening)
		listen(s, stdin, cancel, ended)
	}()
	keeping := make(chan error, 1)
	keepCtx, endKeep := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		err := s.keep(keepCtx)
		if err != nil {
			cancel(err)
		}
		keeping <- err
	}()

	err = role(ctx, s)
	atOnce := errors.Is(err, errExit)
	if atOnce {
		err = nil
	}
	if errors.Is(err, context.Canceled) {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
	}
	endKeep()
	// A journal that failed explains whatever else failed.
	if keepErr := <-keeping; keepErr != nil {
		err = keepErr
	}
	if closeErr := j.close(); err == nil {
		err = closeErr
	}
	close(ended)
	if err != nil {
		return err
	}
	if err := s.progress(s.Counts()); err != nil {
		return err
	}
	if err := out.write(newLine(evShutdown)); err != nil {
		return err
	}
	if atOnce { // before the client's own goroutines send what it still holds
		return nil
	}
	// The engine answers by closing stdin. A read of stdin cannot be interrupted, so an engine that
	// does not answer leaves the listener to end with the process.
	select {
	case <-listening:
	case <-time.After(grace):
	}
	return nil
}

// listen obeys the commands on stdin until it ends, and then sees to it that the worker does too.
func listen(s *Session, stdin *bufio.Reader, cancel context.CancelCauseFunc, ended <-chan struct{}) {
	for {
		var c command
		err := readLine(stdin, &c)
		if err == nil {
			if err := s.obey(c); err != nil {
				s.Log.Error("command refused", "error", err)
			}
			continue
		}
		if !errors.Is(err, io.EOF) {
			s.Log.Error("command not understood", "error", err)
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				continue
			}
		}
		cancel(errEngineGone)
		select {
		case <-ended:
		case <-time.After(grace):
			_ = s.journal.flush()
			_ = killSelf()
		}
		return
	}
}

func readLine(r *bufio.Reader, v any) error {
	b, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}
