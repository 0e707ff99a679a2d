//go:build unix && !linux

package worker

import "syscall"

// attributes: without Pdeathsig the end of stdin alone ends a worker whose engine is gone. A process
// group of its own keeps a terminal's Ctrl-C from reaching the worker before the engine has healed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
