package clock

import (
	"testing"
	"time"
)

// What two processes compare is each one's Now, so it must be the system's own clock.
func TestNowIsTheSystemsMonotonicClock(t *testing.T) {
	for range 3 {
		before := system()
		now := Now()
		after := system()
		if now < before-1000 || now > after+1000 {
			t.Errorf("Now() = %d, outside of %d..%d by more than a microsecond", now, before, after)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}
