package worker

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// attributes lets the kernel end the worker with the engine, however that ends. Closing stdin
// says the same on every platform, but needs the worker's cooperation. A process group of its own
// keeps a terminal's Ctrl-C from reaching the worker before the engine has healed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// foreignAttributes keeps a foreign client in the worker's process group, which the engine kills as
// one, and ends it with the worker.
func foreignAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// stateOf returns the state of a process as the kernel says it: "T" is stopped.
func stateOf(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The name before it is in parentheses and may hold anything.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) == 0 {
		return "", fmt.Errorf("read state of pid %d: %q", pid, b)
	}
	return fields[0], nil
}
