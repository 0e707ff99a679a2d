package worker

import "syscall"

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
