package main

import (
	"context"
	"errors"
	"fmt"

	"conform/fixtures"
	"conform/harness"
	"conform/harness/system"
	"conform/reports"
)

// The exit codes. If several apply the first of this list is used.
const (
	exitInterrupted  = 130 // stopped by a signal: healed and removed, the ledger is kept
	exitUsage        = 2   // a flag, a name or a configuration that can never work
	exitEnvironment  = 4   // our own failure: engine, image, disk, memory, a broker that never became ready
	exitBroken       = 1   // a promise is broken
	exitInconclusive = 3   // not known: evidence is missing, a control missed, a ledger is damaged
	exitOK           = 0   // every promise judged was kept, and every control broke as named
)

// exitHelp explains the codes to users.
const exitHelp = `Exit codes, the first that applies:
  130  interrupted: healed and removed, the ledger is kept
    2  usage or configuration
    4  the environment failed
    1  a promise is broken
    3  inconclusive
    0  every promise judged was kept, and every control broke as named`

// usageError is a mistake on the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// verdictError carries the verdict of what was judged and printed; there is nothing more to
// say about it.
type verdictError struct{ code int }

func (e *verdictError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// codeOf maps an error to its exit code. Errors of unknown kind are ours: the environment.
func codeOf(err error) int {
	var (
		verdict *verdictError
		usage   *usageError
		unknown *fixtures.UnknownError
	)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, harness.ErrInterrupted), errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &usage), errors.As(err, &unknown), errors.Is(err, system.ErrUsage):
		return exitUsage
	case errors.As(err, &verdict):
		return verdict.code
	default:
		return exitEnvironment
	}
}

// verdictOfRun maps a run to its exit code: nil for 0.
func verdictOfRun(d reports.Document) error {
	if failedOurselves(d) {
		return &verdictError{exitEnvironment}
	}
	return verdictOf(d)
}

// verdictOf maps what was judged to its exit code: nil for 0. What failed around it while it was
// recorded is no failure of judging it again.
func verdictOf(d reports.Document) error {
	code := exitOK
	switch {
	case d.Status == "fail":
		code = exitBroken
	case d.Status == "inconclusive", d.Counts.Pass+d.Counts.Observed == 0:
		code = exitInconclusive
	}
	if code == exitOK {
		return nil
	}
	return &verdictError{code}
}

// failedOurselves says whether our own environment kept a scenario from a verdict.
func failedOurselves(d reports.Document) bool {
	for _, s := range d.Suites {
		for _, sc := range s.Scenarios {
			if sc.Error != "" {
				return true
			}
		}
	}
	return false
}
