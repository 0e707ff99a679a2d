package harness

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/system"
)

// What a run folder holds:
//
//	lock                                     held while the run lasts
//	run.json                                 the Result as it was before anything was run
//	result.json                              the Result so far, replaced after each scenario
//	ledger/SUITE/SCENARIO/repeat-0/ARM/      header.json and one .journal file per writer
//	logs/SYSTEM-1/NODE.log                   what the nodes of the first cluster logged
const (
	lockFile    = "lock"
	runFile     = "run.json"
	resultFile  = "result.json"
	ledgerDir   = "ledger"
	logsDir     = "logs"
	headerFile  = "header.json"
	journalTail = ".journal"
)

// folder is a run folder that this process has locked.
type folder struct {
	dir  string
	lock *os.File
}

// openFolder creates and locks a run folder. One that holds a run, or is locked, is an ErrUsage:
// two runs in one folder would mix their ledgers.
func openFolder(dir string) (*folder, error) {
	if dir == "" {
		return nil, fmt.Errorf("open run folder: no name is given: %w", system.ErrUsage)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create run folder: %w: %w", err, system.ErrEnvironment)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock run folder: %w: %w", err, system.ErrEnvironment)
	}
	f := &folder{dir: dir, lock: lock}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock run folder %s: another run is using it: %w", dir, system.ErrUsage), lock.Close())
	}
	if _, err := os.Stat(filepath.Join(dir, runFile)); err == nil {
		return nil, errors.Join(fmt.Errorf("open run folder %s: it holds a run already: %w", dir, system.ErrUsage), lock.Close())
	}
	return f, nil
}

func (f *folder) close() error { return f.lock.Close() }

// save replaces a JSON file in one step, so that a reader never sees half of it.
func (f *folder) save(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return writeFile(filepath.Join(f.dir, name), append(b, '\n'))
}

// writeFile writes a file in one step; a failed write leaves nothing beside what was there.
func writeFile(path string, b []byte) error {
	tmp := path + ".tmp"
	err := os.WriteFile(tmp, b, 0o644)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		return nil
	}
	if removeErr := os.Remove(tmp); removeErr != nil && !errors.Is(removeErr, os.ErrNotExist) {
		err = errors.Join(err, removeErr)
	}
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("write %s: the disk is full: free some room there and run again, or write elsewhere (--out DIR): %w: %w", path, syscall.ENOSPC, system.ErrEnvironment)
	}
	return fmt.Errorf("save the run: %w: %w", err, system.ErrEnvironment) // err names the file
}

// tie says what ties the segments of an arm to its header, of which b is the file.
func tie(h ledger.Header, b []byte) ledger.Segment {
	sum := sha256.Sum256(b)
	return ledger.Segment{Run: h.Run, Arm: armPath(h), Header: hex.EncodeToString(sum[:])}
}

// armPath names an arm's run within its ledger: the end of its folder's path.
func armPath(h ledger.Header) string {
	return fmt.Sprintf("%s/%s/repeat-%d/%s", h.Suite, h.Scenario, h.Repeat, h.Arm)
}

// armFolder returns the folder of one arm's ledger, relative to the run folder.
func armFolder(suite, scenario string, repeat int, arm string) string {
	return filepath.Join(ledgerDir, suite, scenario, fmt.Sprintf("repeat-%d", repeat), arm)
}

// journal is a segment that the engine writes itself.
type journal struct {
	f *os.File
	w *ledger.Writer
}

func createJournal(dir string, s ledger.Segment) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, s.Name+journalTail), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("create journal %s: %w: %w", s.Name, err, system.ErrEnvironment)
	}
	w, err := ledger.NewWriter(f, s)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &journal{f: f, w: w}, nil
}

func (j *journal) flush() error {
	if err := j.w.Flush(); err != nil {
		return fmt.Errorf("record in %s: %w: %w", j.f.Name(), err, system.ErrEnvironment)
	}
	return nil
}

// close ends the segment; it is on the disk when close returns.
func (j *journal) close() error {
	err := errors.Join(j.w.Close(), j.f.Sync(), j.f.Close())
	if err != nil {
		return fmt.Errorf("record in %s: %w: %w", j.f.Name(), err, system.ErrEnvironment)
	}
	return nil
}

// readHeader reads an arm's header, and returns what its segments must say of it.
func readHeader(dir string) (ledger.Header, ledger.Segment, error) {
	b, err := os.ReadFile(filepath.Join(dir, headerFile))
	if err != nil {
		return ledger.Header{}, ledger.Segment{}, fmt.Errorf("read ledger header: %w", err)
	}
	h, err := ledger.DecodeHeader(b)
	if err != nil {
		return ledger.Header{}, ledger.Segment{}, fmt.Errorf("read ledger header %s: %w", filepath.Join(dir, headerFile), err)
	}
	return h, tie(h, b), nil
}

// strangers says which segments of an arm's folder were written for another header, another arm or
// another run. tied is false if none of them says what it was written for, as before ties were recorded.
func strangers(dir string, want ledger.Segment) (found []string, tied bool, err error) {
	names, err := segments(dir)
	if err != nil {
		return nil, false, err
	}
	var untied []string
	for _, name := range names {
		s, err := describe(filepath.Join(dir, name))
		if err != nil {
			return nil, false, err
		}
		switch {
		case s.Schema == 0: // its description is damaged, as the audit finds too
		case s.Run == "" && s.Arm == "" && s.Header == "":
			untied = append(untied, fmt.Sprintf("segment %s does not say which arm it was written for, as others here do", name))
		case s.Run != want.Run || s.Arm != want.Arm:
			found, tied = append(found, fmt.Sprintf("segment %s was written for %s of run %s", name, s.Arm, s.Run)), true
		case s.Header != want.Header:
			found, tied = append(found, fmt.Sprintf("segment %s was written for another %s than the one beside it", name, headerFile)), true
		default:
			tied = true
		}
	}
	if tied {
		found = append(found, untied...)
	}
	return found, tied, nil
}

// describe reads what a segment says of itself.
func describe(path string) (ledger.Segment, error) {
	f, err := os.Open(path)
	if err != nil {
		return ledger.Segment{}, fmt.Errorf("open segment: %w", err)
	}
	defer func() { _ = f.Close() }()
	r, err := ledger.NewReader(f, filepath.Base(path))
	if err != nil {
		return ledger.Segment{}, err
	}
	return r.Segment(), nil
}

// openLedger opens the segments in an arm's folder, in the order of their names, as the audit
// wants them, over and over. closeAll closes whatever was opened.
func openLedger(dir string) (open audit.Open, closeAll func() error) {
	var files []*os.File
	closeAll = func() error {
		var errs []error
		for _, f := range files {
			errs = append(errs, f.Close())
		}
		files = nil
		return errors.Join(errs...)
	}
	open = func() ([]audit.Source, error) {
		names, err := segments(dir)
		if err != nil {
			return nil, err
		}
		var sources []audit.Source
		for _, name := range names {
			f, err := os.Open(filepath.Join(dir, name))
			if err != nil {
				return nil, fmt.Errorf("open segment: %w", err)
			}
			files = append(files, f)
			sources = append(sources, audit.Source{Name: name, R: f})
		}
		return sources, nil
	}
	return open, closeAll
}

func segments(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list ledger: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), journalTail) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// armFolders finds every arm's ledger of a run folder, relative to it and sorted: every folder with a
// header or a segment, and those that cannot be looked into.
func armFolders(dir string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(filepath.Join(dir, ledgerDir), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			path = filepath.Join(path, headerFile)
		}
		if base := filepath.Base(path); base == headerFile || strings.HasSuffix(base, journalTail) {
			rel, err := filepath.Rel(dir, filepath.Dir(path))
			if err != nil {
				return err
			}
			dirs = append(dirs, rel)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for ledgers: %w", err)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs), nil
}
