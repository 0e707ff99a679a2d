package chain

import (
	"math/rand/v2"
	"time"
)

// Backoff says how long to wait between attempts: First, doubled each time, at most Max. The part Jitter (0 to 1) of it is
// random, so that clients that failed together do not come back together. Libraries draw it from a source of their own;
// here it comes from Seed, another one for each process, so that a run can be repeated.
type Backoff struct {
	First, Max time.Duration
	Jitter     float64
	Seed       uint64
}

// Delay returns the wait after the given failed attempt, from 1, of a piece of work.
func (b Backoff) Delay(work uint64, attempt int) time.Duration {
	if b.First == 0 {
		b.First, b.Max, b.Jitter = 100*time.Millisecond, 10*time.Second, 0.5
	}
	d := b.Max
	if shift := attempt - 1; shift < 32 && b.First<<shift < b.Max {
		d = b.First << shift
	}
	random := rand.New(rand.NewPCG(b.Seed^work, uint64(attempt)))
	return d - time.Duration(b.Jitter*random.Float64()*float64(d))
}
