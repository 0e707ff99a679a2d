package worker

import "conform/harness/internal/clock"

// Now returns CLOCK_MONOTONIC in ns, the time of all events, for roles of a suite's own.
func Now() int64 { return clock.Now() }
