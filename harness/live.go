package harness

import (
	"sync"
	"time"
)

// live tells a terminal where the run stands.
type live struct {
	tell func(Live)
	mu   sync.Mutex
	now  Live
}

const liveEvery = 250 * time.Millisecond

func (l *live) set(change func(*Live)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.now)
	if l.tell != nil {
		l.tell(l.now)
	}
}

func (l *live) phase(name string) { l.set(func(n *Live) { n.Phase = name }) }
func (l *live) step(name string)  { l.set(func(n *Live) { n.Step = name }) }
func (l *live) fault(what string) { l.set(func(n *Live) { n.Fault = what }) }

// watch tells the counts of a wave until the returned function is called.
func (l *live) watch(w *wave) (stop func()) {
	if l.tell == nil {
		return func() {}
	}
	done := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		tick := time.NewTicker(liveEvery)
		defer tick.Stop()
		var recent []int // confirmed, over the last second
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			c := w.counts()
			recent = append(recent, c.Confirmed)
			recent = recent[max(0, len(recent)-1-int(time.Second/liveEvery)):]
			span := time.Duration(len(recent)-1) * liveEvery
			l.set(func(n *Live) {
				n.Counts, n.Elapsed = c, w.sinceLoad()
				if span > 0 {
					n.Rate = float64(c.Confirmed-recent[0]) / span.Seconds()
				}
			})
		}
	})
	return func() { close(done); g.Wait() }
}
