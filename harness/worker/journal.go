package worker

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"conform/harness/ledger"
	"conform/harness/system"
)

// journal is the worker's own segment. Sends complete on the client's goroutines, so appending is
// guarded; a flush is one write(2) without an fsync: the page cache survives SIGKILL.
type journal struct {
	mu   sync.Mutex
	f    *os.File
	w    *ledger.Writer
	path string
}

func openJournal(c Config) (*journal, error) {
	f, err := os.OpenFile(c.Journal, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("create journal: %w: %w", err, system.ErrEnvironment)
	}
	w, err := ledger.NewWriter(f, ledger.Segment{Name: c.Worker, Role: c.Role, Worker: c.Worker, Group: c.Client.Group, Run: c.Run, Arm: c.Arm, Header: c.Header})
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &journal{f: f, w: w, path: c.Journal}, nil
}

func (j *journal) append(e ledger.Event) {
	j.mu.Lock()
	j.w.Append(e)
	j.mu.Unlock()
}

func (j *journal) flush() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.wrap(j.w.Flush())
}

// appendNow appends e and flushes, so that it stands before whatever the caller does next.
func (j *journal) appendNow(e ledger.Event) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.w.Append(e)
	return j.wrap(j.w.Flush())
}

func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return errors.Join(j.wrap(j.w.Close()), j.f.Close())
}

// wrap makes a failed write the machine's failure: nothing about the broker follows from it.
func (j *journal) wrap(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("record in %s: the disk is full (what is recorded so far can be audited): free some room there and run again, or write elsewhere (--out DIR): %w: %w", j.path, syscall.ENOSPC, system.ErrEnvironment)
	}
	return fmt.Errorf("record in %s: %w: %w", j.path, err, system.ErrEnvironment)
}
