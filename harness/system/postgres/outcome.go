package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"conform/harness/ledger"
)

// The error codes the adapter knows by name (https://www.postgresql.org/docs/18/errcodes-appendix.html).
const (
	codeCompletionUnknown = "40003" // statement_completion_unknown
	codeResolutionUnknown = "08007" // transaction_resolution_unknown
	codeDuplicateSchema   = "42P06"
	codeReservedName      = "42939"
	codeZeroLengthName    = "42601" // syntax_error: a zero-length delimited identifier
)

// The classes of errors that are no code of the server's, as they stand in the ledger.
const (
	ClassLost       = "connection-lost" // after the request may have been sent, and before its reply came
	ClassTimeout    = "timeout"         // the caller's context ended
	ClassNotSent    = "not-sent"        // nothing of the request left the client
	ClassRolledBack = "rolled-back"     // COMMIT answered ROLLBACK
	ClassShutdown   = "shutdown"        // the server ends, crashes or starts
	ClassResources  = "out-of-resources"
	ClassOther      = "other" // none of the above: not of pgx, or of its use
)

// CommitOutcome says what an error of pgx's Tx.Commit means for the transaction.
//
//	error                                              outcome  why
//	none                                               OK       the server answered COMMIT
//	pgx.ErrTxCommitRollback                            Failed   it answered ROLLBACK: a statement had failed before [1]
//	pgconn.SafeToRetry: nothing was written            Failed   the server has no COMMIT, and rolls back when the connection ends
//	pgconn.ConnectError                                Failed   there was no connection to send anything on
//	server error, severity ERROR, but not the below    Failed   40001, 40P01, deferred 23xxx, 57014, ...: the server has aborted the
//	                                                            transaction [2]; after the commit record it may not answer ERROR,
//	                                                            it could only PANIC [3]
//	  40003, 08xxx                                     InDoubt  they say that the result is not known [4]
//	  XXxxx                                            InDoubt  an internal error may say anything
//	server error, severity FATAL or PANIC              InDoubt  57P01 admin_shutdown, 57P02 crash_shutdown, 57P05, ...: the session
//	                                                            ends, before or after the commit record; waiting for a standby it is
//	                                                            committed here already [5]
//	connection lost, context ended, all else           InDoubt  the server may have read the COMMIT
//	pgx.ErrTxClosed                                    InDoubt  an earlier Commit or Rollback decided; its own result counts
//
// [1] https://www.postgresql.org/docs/18/sql-commit.html and pgx's ErrTxCommitRollback.
// [2] https://www.postgresql.org/docs/18/protocol-flow.html: ErrorResponse; severities: runtime-config-logging, Table 19.2.
// [3] src/backend/access/transam/xact.c: "cannot abort transaction %u, it was already committed".
// [4] https://www.postgresql.org/docs/18/errcodes-appendix.html, classes 08 and 40.
// [5] src/backend/replication/syncrep.c: "The transaction has already committed locally, but might not have been
// replicated to the standby."
func CommitOutcome(err error) ledger.Outcome {
	var server *pgconn.PgError
	var connect *pgconn.ConnectError
	switch {
	case err == nil:
		return ledger.OK
	case errors.Is(err, pgx.ErrTxClosed):
		return ledger.InDoubt
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return ledger.Failed
	case errors.As(err, &connect):
		return ledger.Failed
	case errors.As(err, &server):
		return serverOutcome(server)
	case pgconn.SafeToRetry(err):
		return ledger.Failed
	default:
		return ledger.InDoubt
	}
}

// StatementOutcome says what an error of a statement outside of BEGIN means: it commits by itself, so the table of
// CommitOutcome holds. pgx.ErrNoRows is OK: the statement was done. Inside of a transaction no statement's error leaves
// anything in doubt: as long as COMMIT was not sent, nothing is committed.
func StatementOutcome(err error) ledger.Outcome {
	if errors.Is(err, pgx.ErrNoRows) {
		return ledger.OK
	}
	return CommitOutcome(err)
}

func serverOutcome(e *pgconn.PgError) ledger.Outcome {
	severity := e.SeverityUnlocalized
	if severity == "" {
		severity = e.Severity
	}
	switch {
	case severity != "ERROR",
		e.Code == codeCompletionUnknown,
		e.Code == codeResolutionUnknown,
		strings.HasPrefix(e.Code, "08"),
		strings.HasPrefix(e.Code, "XX"):
		return ledger.InDoubt
	default:
		return ledger.Failed
	}
}

// ErrorClass names an error for the ledger: a Class constant or the server's code, e.g. "40001". It is empty for nil.
func ErrorClass(err error) string {
	code := sqlState(err)
	switch {
	case err == nil:
		return ""
	case strings.HasPrefix(code, "57P"): // operator intervention: admin_shutdown, crash_shutdown, cannot_connect_now, ...
		return ClassShutdown
	case strings.HasPrefix(code, "53"), strings.HasPrefix(code, "58"): // insufficient resources, system error
		return ClassResources
	case code != "":
		return code
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return ClassRolledBack
	case pgconn.SafeToRetry(err):
		return ClassNotSent
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ClassTimeout
	case lost(err):
		return ClassLost
	default:
		return ClassOther
	}
}

// lost says whether err tells of a connection that broke, or that could not be made.
func lost(err error) bool {
	var network net.Error
	var connect *pgconn.ConnectError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.As(err, &network) || errors.As(err, &connect)
}

// IsEnvironment says whether an error is the machine's or the server's size, and no statement about a transaction: no
// connection, disk or memory left (classes 53 and 58). A server that ends or a lost connection is not, it may be a fault
// of the plan.
func IsEnvironment(err error) bool { return ErrorClass(err) == ClassResources }

// sqlState returns the server's code, or "" if the error is not the server's.
func sqlState(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}
