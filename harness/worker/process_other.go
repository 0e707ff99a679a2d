//go:build unix && !linux

package worker

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// attributes: without Pdeathsig the end of stdin alone ends a worker whose engine is gone. A process
// group of its own keeps a terminal's Ctrl-C from reaching the worker before the engine has healed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// foreignAttributes keeps a foreign client in the worker's process group, which the engine kills as
// one.
func foreignAttributes() *syscall.SysProcAttr { return nil }

// stateOf returns the state of a process as ps says it: one that begins with "T" is stopped.
func stateOf(pid int) (string, error) {
	b, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return strings.TrimSpace(string(b)), err
}
