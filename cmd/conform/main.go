package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"conform/harness/system"
)

func main() { os.Exit(start(wired())) }

// start runs one command of this process and returns its exit code.
func start(b backend) int {
	// conform removes what it started by itself, also after a crash (the next run, doctor --clean).
	// A reaper container would need a privileged socket and would take --keep away.
	if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
		fmt.Fprintln(os.Stderr, "conform:", err)
		return exitEnvironment
	}
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		ends = append(ends, syscall.SIGHUP)
	}
	// A reader that is gone, as in `conform run | head`, must not end us before we have cleaned up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	defer context.AfterFunc(ctx, func() {
		stop() // from here on a second signal ends the process at once
		if len(os.Args) > 1 && os.Args[1] == "run" {
			_, _ = fmt.Fprintln(os.Stderr, "interrupted: healing and removing everything; interrupt again to stop at once (the next run or `conform doctor --clean` then removes what is left)")
		}
	})()
	a := &app{
		backend: b, stdout: patient{os.Stdout}, stderr: patient{os.Stderr}, stdin: os.Stdin,
		ci: os.Getenv("CI") == "true", columns: terminalColumns(),
	}
	return a.run(ctx, os.Args[1:])
}

// patient goes on quietly once nobody reads any more.
type patient struct{ w io.Writer }

func (p patient) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EIO) { // a pipe, or a terminal that hung up
		return len(b), nil
	}
	return n, err
}

// terminalColumns is the width of the terminal that stderr is, 0 if it is none that can move its
// cursor.
func terminalColumns() int {
	if os.Getenv("TERM") == "dumb" {
		return 0
	}
	return columns(os.Stderr)
}

// run runs one command and returns its exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	code := codeOf(err)
	var told *verdictError
	if err != nil && !errors.As(err, &told) {
		fmt.Fprintf(a.stderr, "conform: %s\n", system.Plain(err.Error()))
	}
	return code
}
