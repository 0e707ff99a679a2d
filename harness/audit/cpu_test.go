//go:build unix

package audit

import (
	"syscall"
	"time"
)

// cpuTime returns the processor time of this process so far: what a benchmark took, however busy the
// machine is with other things.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
