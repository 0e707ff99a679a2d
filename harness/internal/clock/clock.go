//go:build unix

package clock

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// base pairs one reading of Go's monotonic clock with one of CLOCK_MONOTONIC. Go reads the same
// clock, but gives it out only relative to the start of the process and, unlike the system call
// behind unix.ClockGettime, without leaving user space: a recorded send reads the clock twice.
var base, offset = calibrate()

func calibrate() (time.Time, int64) {
	b := time.Now()
	best, off := int64(math.MaxInt64), int64(0)
	for range 16 { // the tightest pair is the one that was not interrupted
		before := time.Since(b)
		mono := system()
		after := time.Since(b)
		if width := int64(after - before); width < best {
			best, off = width, mono-int64(before+after)/2
		}
	}
	return b, off
}

func system() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		// The call cannot fail with a valid clock id; a wall clock would be a silent lie.
		panic("read monotonic clock: " + err.Error())
	}
	return ts.Nano()
}

// Now returns CLOCK_MONOTONIC in ns, to within a microsecond.
func Now() int64 { return int64(time.Since(base)) + offset }

// Wall returns the wall clock in Unix ns, for the pairing sampled at a run's start and end.
func Wall() int64 { return time.Now().UnixNano() }
