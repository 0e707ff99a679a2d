package container

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
)

// The labels on everything conform makes.
const (
	LabelRun   = "conform.run"   // run id
	LabelHost  = "conform.host"  // machine and process namespace of the owner
	LabelBoot  = "conform.boot"  // boot of that machine
	LabelPID   = "conform.pid"   // process id of the owner
	LabelStart = "conform.start" // start time of that process, opaque
	LabelKeep  = "conform.keep"  // "true": left on purpose by a run with --keep
)

// ErrNotOwned is returned by [ParseOwner] for labels that are not conform's.
var ErrNotOwned = errors.New("object carries no conform labels")

// runID is what the engine accepts inside a name.
var runID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// Owner is the process an object belongs to. A process id alone is used again after a reboot or by a later process, so
// the boot and the process's start time belong to it.
type Owner struct {
	Run   string // run id: letters, digits, '_', '.', '-'
	Host  string // machine and process namespace
	Boot  string // boot id of the machine
	PID   int
	Start string // start time of the process, in the platform's own unit
	Keep  bool   // the objects are meant to outlive the process (--keep)
}

// Life says whether an owner still runs.
type Life int

// The lives of an owner. Only objects of a Dead one are strays.
const (
	Unknown Life = iota // another machine or process namespace: cannot be told from here
	Alive
	Dead
)

// String is the word for reports.
func (l Life) String() string {
	switch l {
	case Alive:
		return "alive"
	case Dead:
		return "dead"
	default:
		return "unknown"
	}
}

// NewOwner describes the current process as the owner of a run.
func NewOwner(run string) (Owner, error) {
	if !runID.MatchString(run) {
		return Owner{}, fmt.Errorf("name owner: run id %q has characters other than letters, digits, '_', '.' and '-'", run)
	}
	m, err := thisMachine()
	if err != nil {
		return Owner{}, fmt.Errorf("name owner: %w", err)
	}
	pid := os.Getpid()
	start, ok := startOf(pid)
	if !ok {
		return Owner{}, errors.New("name owner: no start time of this process")
	}
	return Owner{Run: run, Host: m.host, Boot: m.boot, PID: pid, Start: start}, nil
}

// Labels is the owner as labels. [ParseOwner] reads them back.
func (o Owner) Labels() map[string]string {
	l := map[string]string{
		LabelRun:   o.Run,
		LabelHost:  o.Host,
		LabelBoot:  o.Boot,
		LabelPID:   strconv.Itoa(o.PID),
		LabelStart: o.Start,
	}
	if o.Keep {
		l[LabelKeep] = "true"
	}
	return l
}

// ParseOwner reads an owner from an object's labels. The error is ErrNotOwned when there is no run label, and says which
// label is damaged otherwise.
func ParseOwner(labels map[string]string) (Owner, error) {
	run, ok := labels[LabelRun]
	if !ok {
		return Owner{}, ErrNotOwned
	}
	pid, err := strconv.Atoi(labels[LabelPID])
	if err != nil {
		return Owner{Run: run}, fmt.Errorf("read label %s: %w", LabelPID, err)
	}
	return Owner{
		Run:   run,
		Host:  labels[LabelHost],
		Boot:  labels[LabelBoot],
		PID:   pid,
		Start: labels[LabelStart],
		Keep:  labels[LabelKeep] == "true",
	}, nil
}

// Life finds out whether the owner's process still runs. An owner of another machine, or of another process namespace of
// this one, is Unknown: its process cannot be seen from here.
func (o Owner) Life() (Life, error) {
	m, err := thisMachine()
	if err != nil {
		return Unknown, fmt.Errorf("look for owner of run %s: %w", o.Run, err)
	}
	return o.life(m, startOf), nil
}

// life is the decision of Life on given facts.
func (o Owner) life(here machine, startOf func(pid int) (string, bool)) Life {
	switch {
	case o.Host != here.host:
		return Unknown
	case o.Boot != here.boot:
		return Dead
	}
	if start, ok := startOf(o.PID); ok && start == o.Start {
		return Alive
	}
	return Dead
}

// machine tells apart machines, process namespaces and boots.
type machine struct{ host, boot string }

// name is the engine-wide name of an object of the run.
func (o Owner) name(name string) string { return "conform-" + o.Run + "-" + name }
