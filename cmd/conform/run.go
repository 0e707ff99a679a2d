package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"conform/fixtures"
	"conform/harness"
	"conform/harness/host"
	"conform/reports"
)

// runFlags are the flags of `conform run`.
type runFlags struct {
	suites, scenarios []string
	seed              uint64
	runs, rate        int
	duration, timeout time.Duration
	out               string
	keep              bool
	timing            string
	images            imageFlags
	prepare, install  bool
	format            string
	json, quiet       bool
	allowSkip         []string
}

// runRoom is the room on disk that a run wants before it starts, in MiB: ledgers and logs.
const runRoom = 512

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run",
		Short: "run suites against real brokers and judge them",
		Long: `run starts a cluster for the chosen suites, puts every scenario's arms under load and fault, and judges the
ledgers. Reports, ledgers and broker logs are left in the output folder.

` + exitHelp,
		Example: `  conform run --prepare --install-docker --suite kafka-acks
  conform run --suite 'kafka-*' --version kafka:4.1.1 --runs 5
  conform run --suite kafka-acks --scenario leader-isolated --seed 7`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return a.doRun(c, f) },
	}
	fl := c.Flags()
	fl.StringArrayVar(&f.suites, "suite", nil, "suite to run; repeatable; a glob, or all")
	fl.StringArrayVar(&f.scenarios, "scenario", nil, "scenario to run, by name, suite/name or glob; repeatable (default: all)")
	fl.Uint64Var(&f.seed, "seed", 0, "seed of the plan, the payloads and the pacing (default: drawn and printed)")
	fl.IntVar(&f.runs, "runs", 1, "how often each scenario is run; results are then k of n")
	fl.IntVar(&f.rate, "rate", 0, "messages per second and arm (default: the scenario's)")
	fl.DurationVar(&f.duration, "duration", 0, "least length of each load, e.g. 30s")
	fl.DurationVar(&f.timeout, "timeout", 0, "bound of the whole run; past it everything is healed and removed")
	fl.StringVar(&f.out, "out", "", "output folder (default: conform-runs/TIME-RUN)")
	fl.BoolVar(&f.keep, "keep", false, "leave the last cluster up and print how to reach it")
	fl.StringVar(&f.timing, "timing", "short", "short: timing settings lowered (they are listed in the report); production: the broker's defaults")
	f.images.add(c)
	fl.BoolVar(&f.prepare, "prepare", false, "bring the images that are missing before the run")
	fl.BoolVar(&f.install, "install-docker", false, "with --prepare: install and start a container engine where there is none (root, Debian-like)")
	fl.StringVar(&f.format, "format", "text", "what is printed at the end: "+strings.Join(formatNames(), ", "))
	fl.BoolVar(&f.json, "json", false, "short for --format json")
	fl.BoolVar(&f.quiet, "quiet", false, "no progress")
	fl.StringArrayVar(&f.allowSkip, "allow-skip", nil, "with CI=true: scenario that may be not applicable, by name or glob; repeatable")
	for name, complete := range map[string]func() []string{
		"suite":        a.suiteNames,
		"timing":       func() []string { return []string{"short", "production"} },
		"format":       formatNames,
		"image-source": sourceNames,
	} {
		// The only error is a flag of another name, which a test would find.
		_ = c.RegisterFlagCompletionFunc(name, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return complete(), cobra.ShellCompDirectiveNoFileComp
		})
	}
	return c
}

// check refuses what can never work, before anything is touched.
func (f *runFlags) check(c *cobra.Command) error {
	if f.json {
		f.format = "json"
	}
	for _, bad := range []error{
		oneOf("timing", f.timing, "short", "production"),
		oneOf("format", f.format, formatNames()...),
		f.images.check(),
	} {
		if bad != nil {
			return bad
		}
	}
	switch {
	case f.out == "" && c.Flags().Changed("out"):
		return usagef("--out: want the name of a folder")
	case f.runs < 1:
		return usagef("--runs %d: want 1 or more", f.runs)
	case f.rate < 0 || (c.Flags().Changed("rate") && f.rate == 0):
		return usagef("--rate %d: want 1 message per second or more", f.rate)
	case f.duration < 0:
		return usagef("--duration %s: want a length of time", f.duration)
	case f.timeout < 0:
		return usagef("--timeout %s: want a length of time", f.timeout)
	case f.install && !f.prepare:
		return usagef("--install-docker needs --prepare: a run installs nothing unasked")
	}
	return nil
}

func (a *app) doRun(c *cobra.Command, f runFlags) error {
	if err := f.check(c); err != nil {
		return err
	}
	chosen, err := chooseSuites(a.suites, f.suites)
	if err != nil {
		return err
	}
	if chosen, err = chooseScenarios(chosen, f.scenarios); err != nil {
		return err
	}
	versions, pinned, err := f.images.versionsOf(chosen)
	if err != nil {
		return err
	}
	if !c.Flags().Changed("seed") {
		if f.seed, err = drawSeed(); err != nil {
			return err
		}
	}
	id, err := drawID()
	if err != nil {
		return err
	}
	started := time.Now()
	if f.out == "" {
		f.out = filepath.Join("conform-runs", started.UTC().Format("20060102-150405")+"-"+id)
	}
	fmt.Fprintf(a.stderr, "seed %d, run %s, into %s\n", f.seed, id, f.out)

	ctx := c.Context()
	cfg := harness.Config{
		RunID: id, Suites: chosen, Seed: f.seed, Runs: f.runs, Out: f.out, Faults: a.faults, Versions: pinned,
		Timing: f.timing, Rate: f.rate, Duration: f.duration, Timeout: f.timeout, Keep: f.keep, Binary: buildVersion(),
		Command: f.command(c), Again: f.again(c), Machine: machineFacts(ctx), Log: a.log(),
	}
	if err := checkOut(f.out); err != nil { // before anything of other runs is swept away
		return err
	}
	if err := host.CheckDisk(ctx, f.out, runRoom); err != nil {
		return err
	}
	images, err := a.provide(ctx, f, versions)
	if err != nil {
		return interrupted(ctx, err)
	}
	cfg.Images = map[string]string{}
	for _, v := range versions {
		cfg.Images[v.System] = images[v.String()].Ref
	}
	for name, i := range images {
		cfg.Machine["image of "+name] = fmt.Sprintf("%s, %s (%s)", i.Ref, i.ID, i.Source)
	}
	if len(versions) > 0 {
		cfg.Reserve = func(ctx context.Context, mib int) (func(), error) { return a.reserve(ctx, int64(mib), a.log()) }
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	cfg.Worker = []string{self, "worker"}
	progress := newProgress(a.stderr, a.columns, f.quiet)
	cfg.Progress, cfg.Live = progress, progress.show

	result, runErr := a.backend.run(ctx, cfg)
	progress.end()
	doc := reports.New(result, reports.Options{CI: a.ci, AllowSkip: f.allowSkip, Notes: notes(runErr)})
	return a.conclude(doc, f.out, f.format, runErr)
}

// checkOut says why a folder cannot take a run, without making it.
func checkOut(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "run.json")); err == nil {
		return usagef("--out %s: it holds a run already", dir)
	}
	at := filepath.Clean(dir)
	for {
		info, err := os.Stat(at)
		switch parent := filepath.Dir(at); {
		case err == nil && !info.IsDir():
			return fmt.Errorf("make run folder %s: %s is not a folder", dir, at)
		case err == nil:
			if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
				return fmt.Errorf("make run folder %s: write to %s: %w", dir, at, err)
			}
			return nil
		case errors.Is(err, fs.ErrNotExist) && parent != at:
			at = parent
		case errors.Is(err, syscall.ENOTDIR) && parent != at:
			at = parent
		default:
			return fmt.Errorf("make run folder: %w", err)
		}
	}
}

// conclude writes and prints the reports of a run, also of one that failed half-way, and maps
// it to an exit code: a broken promise is printed even when the environment failed too.
func (a *app) conclude(doc reports.Document, out, format string, runErr error) error {
	if len(doc.Suites) == 0 && runErr != nil {
		return runErr
	}
	writeErr := writeReports(doc, out)
	if err := a.print(doc, format); err != nil {
		return err
	}
	if writeErr == nil && format == "text" {
		fmt.Fprintf(a.stdout, "reports: %s\n", filepath.Join(out, "report.html"))
	}
	if runErr != nil {
		return runErr
	}
	if writeErr != nil {
		return writeErr
	}
	return verdictOfRun(doc)
}

// interrupted makes an error that a signal caused say so.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, harness.ErrInterrupted) {
		return fmt.Errorf("%w: %w", harness.ErrInterrupted, err)
	}
	return err
}

func notes(err error) []string {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, harness.ErrInterrupted):
		return []string{"the run was interrupted: what follows is what had been judged by then"}
	default:
		return []string{"the run ended early by a failure of our own: " + err.Error()}
	}
}

// provide brings the images of the versions. Without --prepare and
// without a wish about their source only what is here is taken: a run downloads nothing unasked.
func (a *app) provide(ctx context.Context, f runFlags, versions []fixtures.Version) (host.Images, error) {
	if len(versions) == 0 {
		return nil, nil
	}
	source, err := host.ParseSource(f.images.source)
	if err != nil {
		return nil, err
	}
	if !f.prepare && f.images.source == "" {
		source = host.Local
	}
	images, err := a.prepare(ctx, host.Options{
		InstallEngine: f.install, Systems: versions, Source: source, Images: f.images.own, Progress: a.unlessQuiet(f.quiet), Log: a.log(),
	})
	if err != nil {
		return nil, err
	}
	removed, err := a.sweep(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range removed {
		fmt.Fprintf(a.stderr, "removed what run %s had left: %s %s\n", s.Run, s.Kind, s.Name)
	}
	return images, nil
}

func (a *app) unlessQuiet(quiet bool) io.Writer {
	if quiet {
		return nil
	}
	return a.stderr
}

// command is the line that repeats the run, with nothing in it that is only true of this one.
func (f *runFlags) command(c *cobra.Command) string {
	parts := []string{"conform", "run"}
	add := func(flag string, values ...string) {
		for _, v := range values {
			parts = append(parts, "--"+flag, quote(v))
		}
	}
	add("suite", f.suites...)
	add("scenario", f.scenarios...)
	add("seed", strconv.FormatUint(f.seed, 10))
	if f.runs > 1 {
		add("runs", strconv.Itoa(f.runs))
	}
	return strings.Join(append(parts, f.again(c)...), " ")
}

// again lists those flags that a run of one scenario needs to be like this one.
func (f *runFlags) again(c *cobra.Command) []string {
	var parts []string
	add := func(flag string, values ...string) {
		for _, v := range values {
			parts = append(parts, "--"+flag, quote(v))
		}
	}
	if f.rate > 0 {
		add("rate", strconv.Itoa(f.rate))
	}
	if f.duration > 0 {
		add("duration", f.duration.String())
	}
	if c.Flags().Changed("timing") {
		add("timing", f.timing)
	}
	add("version", f.images.versions...)
	for _, system := range slices.Sorted(maps.Keys(f.images.own)) {
		add("image", system+"="+f.images.own[system])
	}
	return parts
}

// quote makes a word safe to paste into a shell.
func quote(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=@,", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func drawSeed() (uint64, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("draw seed: %w", err)
	}
	return binary.LittleEndian.Uint64(b[:]) >> 16, nil // 48 bits: short enough to type
}

func drawID() (string, error) {
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("draw run id: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

func (a *app) suiteNames() []string {
	names := []string{"all"}
	for _, s := range a.suites {
		names = append(names, s.Name)
	}
	return names
}
