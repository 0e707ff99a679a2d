package main

import (
	"context"
	"io"
	"log/slog"

	"conform/faults"
	"conform/harness"
	"conform/harness/audit"
	"conform/harness/host"
	"conform/harness/ledger"
	"conform/harness/system"
	"conform/suites"
)

// backend is what the commands call. It is one value so that tests can add a suite that needs
// no engine.
type backend struct {
	suites  []harness.Suite
	faults  map[string]system.Fault
	run     func(context.Context, harness.Config) (harness.Result, error)
	audit   func(dir string, known []harness.Suite) (harness.Result, error)
	story   func(dir string, id ledger.MessageID, arm string) ([]audit.Story, error)
	prepare func(context.Context, host.Options) (host.Images, error)
	sweep   func(context.Context) ([]host.Stray, error)
	clean   func(context.Context) ([]host.Stray, error)
	doctor  func(context.Context, host.DoctorOptions) []host.Finding
	reserve func(ctx context.Context, mib int64, log *slog.Logger) (release func(), err error)
}

// wired is the real one.
func wired() backend {
	return backend{
		suites: suites.All(), faults: faults.All(),
		run: harness.Run, audit: harness.AuditDir, story: harness.Story,
		prepare: host.Prepare, sweep: host.Sweep, clean: host.Clean, doctor: host.Doctor, reserve: host.Reserve,
	}
}

// app is one call of conform.
type app struct {
	backend
	stdin          io.Reader
	stdout, stderr io.Writer
	ci             bool // nobody watches: what is skipped must be listed
	columns        int  // of the terminal that stderr is, 0 = it is none
	verbose        bool
}

func (a *app) log() *slog.Logger {
	level := slog.LevelWarn
	if a.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: level}))
}
