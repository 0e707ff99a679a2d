package netproxy

import (
	"sync"
	"sync/atomic"
)

// gate holds frames back while at least one cut has it closed. The zero value is open.
type gate struct {
	closed atomic.Int32 // how many cuts hold it closed
	mu     sync.Mutex
	opened chan struct{} // closed when the gate opens; nil while open
	held   int64         // frames and connections that had to wait, ever
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed.Add(1) == 1 {
		g.opened = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed.Add(-1) == 0 {
		close(g.opened)
		g.opened = nil
	}
}

func (g *gate) waited() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held
}

// wait returns true once the gate is open, false when done was closed first.
func (g *gate) wait(done <-chan struct{}) bool {
	if g.closed.Load() == 0 {
		return true
	}
	g.mu.Lock()
	opened := g.opened
	if opened != nil {
		g.held++
	}
	g.mu.Unlock()
	if opened == nil {
		return true
	}
	select {
	case <-opened:
		return true
	case <-done:
		return false
	}
}
