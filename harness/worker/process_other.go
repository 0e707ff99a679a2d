//go:build unix && !linux

package worker

import "syscall"

// attributes: without Pdeathsig the end of stdin alone ends a worker whose engine is gone. A process
// group of its own keeps a terminal's Ctrl-C from reaching the worker before the engine has healed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// foreignAttributes keeps a foreign client in the worker's process group, which the engine kills as
// one.
func foreignAttributes() *syscall.SysProcAttr { return nil }
