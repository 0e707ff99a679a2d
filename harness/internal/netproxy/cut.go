package netproxy

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Mode says how a link is cut.
type Mode uint8

// The modes.
const (
	Refuse  Mode = iota + 1 // connections are reset, new ones are answered by RST
	Hole                    // bytes stop in both directions, connections stay
	HoleIn                  // bytes to the node stop
	HoleOut                 // bytes from the node stop
)

// Cut is a cut in place.
type Cut struct {
	link  *Link
	mode  Mode
	once  sync.Once
	err   error
	inAt  int64 // what the gates had held at the start
	outAt int64

	mu     sync.Mutex
	ended  bool
	resets int64 // connections reset at the start
	final  int64
}

// Cut cuts the link. Cuts may overlap: the link is whole when all of them are healed.
func (l *Link) Cut(mode Mode) (*Cut, error) {
	c := &Cut{link: l, mode: mode, inAt: l.in.waited(), outAt: l.out.waited()}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	switch mode {
	case Refuse:
		l.refusing++
		l.stopListening()
		for conn := range l.conns {
			if conn.reset() {
				c.resets++
			}
		}
	case Hole, HoleIn, HoleOut:
		l.holes++
		if mode != HoleOut {
			l.in.shut()
		}
		if mode != HoleIn {
			l.out.shut()
		}
	default:
		return nil, fmt.Errorf("cut link %s: no such mode %d", l.name, mode)
	}
	return c, nil
}

// Bitten returns how much the cut has done: connections that it reset, or frames and connections that had to wait.
// Refused new connections are not counted, the kernel answers them. It stays valid after Heal.
func (c *Cut) Bitten() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return c.final
	}
	return c.bitten()
}

func (c *Cut) bitten() int64 {
	switch c.mode {
	case Refuse:
		return c.resets
	case HoleIn:
		return c.link.in.waited() - c.inAt
	case HoleOut:
		return c.link.out.waited() - c.outAt
	default:
		return c.link.in.waited() - c.inAt + c.link.out.waited() - c.outAt
	}
}

// Heal ends the cut. Held bytes flow on. It may run twice.
func (c *Cut) Heal() error {
	c.once.Do(func() {
		c.mu.Lock()
		c.final, c.ended = c.bitten(), true
		c.mu.Unlock()
		c.err = c.link.heal(c.mode)
	})
	return c.err
}

func (l *Link) heal(mode Mode) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if mode != Refuse {
		l.holes--
		if mode != HoleOut {
			l.in.open()
		}
		if mode != HoleIn {
			l.out.open()
		}
		return nil
	}
	l.refusing--
	if l.refusing > 0 || l.closed {
		return nil
	}
	var errs error
	for range 50 { // the port is reserved: only sockets of the last listener can be in the way, and briefly
		listener, err := listenTCP(l.addr.String())
		if err == nil {
			l.serve(listener)
			return nil
		}
		errs = errors.Join(errs, err)
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("heal link %s: %w", l.name, errs)
}
