package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"conform/harness/ledger"
)

// unsent is an error as pgconn makes them when nothing was written.
type unsent struct{}

func (unsent) Error() string     { return "write failed" }
func (unsent) SafeToRetry() bool { return true }

func serverError(severity, code string) error {
	return &pgconn.PgError{SeverityUnlocalized: severity, Code: code}
}

func TestOutcomeOfError(t *testing.T) {
	reset := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	for _, tc := range []struct {
		name        string
		err         error
		outcome     ledger.Outcome
		class       string
		environment bool
	}{
		{"none", nil, ledger.OK, "", false},
		{"answered rollback", pgx.ErrTxCommitRollback, ledger.Failed, ClassRolledBack, false},
		{"transaction over before", pgx.ErrTxClosed, ledger.InDoubt, ClassOther, false},
		{"serialization failure", serverError("ERROR", "40001"), ledger.Failed, "40001", false},
		{"deadlock", serverError("ERROR", "40P01"), ledger.Failed, "40P01", false},
		{"deferred constraint", serverError("ERROR", "23505"), ledger.Failed, "23505", false},
		{"cancelled by the server", serverError("ERROR", "57014"), ledger.Failed, "57014", false},
		{"completion unknown", serverError("ERROR", "40003"), ledger.InDoubt, "40003", false},
		{"resolution unknown", serverError("ERROR", "08007"), ledger.InDoubt, "08007", false},
		{"internal error", serverError("ERROR", "XX000"), ledger.InDoubt, "XX000", false},
		{"disk full", serverError("ERROR", "53100"), ledger.Failed, ClassResources, true},
		{"too many connections", serverError("FATAL", "53300"), ledger.InDoubt, ClassResources, true},
		{"connection refused", connectError(t), ledger.Failed, ClassLost, false},
		{"input/output error", serverError("PANIC", "58030"), ledger.InDoubt, ClassResources, true},
		{"admin shutdown", serverError("FATAL", "57P01"), ledger.InDoubt, ClassShutdown, false},
		{"crash shutdown", serverError("FATAL", "57P02"), ledger.InDoubt, ClassShutdown, false},
		{"old server without V field", &pgconn.PgError{Severity: "ERROR", Code: "40001"}, ledger.Failed, "40001", false},
		{"severity missing", &pgconn.PgError{Code: "40001"}, ledger.InDoubt, "40001", false},
		{"nothing written", unsent{}, ledger.Failed, ClassNotSent, false},
		{"reset", reset, ledger.InDoubt, ClassLost, false},
		{"end of stream", io.ErrUnexpectedEOF, ledger.InDoubt, ClassLost, false},
		{"deadline", context.DeadlineExceeded, ledger.InDoubt, ClassTimeout, false},
		{"cancelled by the caller", context.Canceled, ledger.InDoubt, ClassTimeout, false},
		{"anything else", errors.New("what"), ledger.InDoubt, ClassOther, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, err := range []error{tc.err, wrap(tc.err)} {
				if got := CommitOutcome(err); got != tc.outcome {
					t.Errorf("CommitOutcome(%v) = %v, want %v", err, got, tc.outcome)
				}
				if got := StatementOutcome(err); got != tc.outcome {
					t.Errorf("StatementOutcome(%v) = %v, want %v", err, got, tc.outcome)
				}
				if got := ErrorClass(err); got != tc.class {
					t.Errorf("ErrorClass(%v) = %q, want %q", err, got, tc.class)
				}
				if got := IsEnvironment(err); got != tc.environment {
					t.Errorf("IsEnvironment(%v) = %v", err, got)
				}
			}
		})
	}
	if got := StatementOutcome(pgx.ErrNoRows); got != ledger.OK {
		t.Errorf("StatementOutcome(ErrNoRows) = %v", got)
	}
}

// connectError is a real one: nothing listens on port 1.
func connectError(t *testing.T) error {
	t.Helper()
	_, err := pgconn.Connect(t.Context(), "postgres://nobody@127.0.0.1:1/nothing?sslmode=disable")
	return err
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("place order: %w", err)
}
