package netproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// dialTimeout bounds the connect to the node. It is on the same host: longer is a node that is not there.
const dialTimeout = 5 * time.Second

// ErrClosed is returned by methods of a link that was closed.
var ErrClosed = errors.New("link closed")

// Config describes a link.
type Config struct {
	Name string // for the log
	// Listen is the address to listen on, "127.0.0.1:0" if empty.
	Listen string
	Framer Framer
	// Upstream returns the address of the node, asked anew for each connection.
	Upstream func() string
	Log      *slog.Logger // nil = nothing is logged
}

// Link relays the connections of clients to one node. Its methods may be used from several goroutines.
type Link struct {
	name     string
	framer   Framer
	upstream func() string
	log      *slog.Logger
	addr     *net.TCPAddr
	reserved *reservation
	wg       sync.WaitGroup

	in, out gate // closed while a black hole is in place

	mu       sync.Mutex
	closed   bool
	listener *net.TCPListener // nil while connections are refused
	refusing int              // cuts of mode Refuse
	holes    int              // cuts of the other modes
	conns    map[*conn]struct{}
	rules    []*Armed
	counts   map[countKey]*Counts
}

// Open starts a link. Close must be called.
func Open(c Config) (*Link, error) {
	listen := c.Listen
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	listener, err := listenTCP(listen)
	if err != nil {
		return nil, fmt.Errorf("open link %s: %w", c.Name, err)
	}
	addr := listener.Addr().(*net.TCPAddr)
	reserved, err := reserve(addr)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open link %s: reserve %s: %w", c.Name, addr, err), listener.Close())
	}
	l := &Link{
		name: c.Name, framer: c.Framer, upstream: c.Upstream, log: c.Log,
		addr: addr, reserved: reserved,
		conns: map[*conn]struct{}{}, counts: map[countKey]*Counts{},
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serve(listener)
	return l, nil
}

// Addr returns the address that clients connect to, "127.0.0.1:PORT". It never changes.
func (l *Link) Addr() string { return l.addr.String() }

// Port returns the port of Addr.
func (l *Link) Port() int { return l.addr.Port }

// Close resets all connections and returns when every goroutine of the link has ended. It may run twice.
func (l *Link) Close() error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	l.stopListening()
	for c := range l.conns {
		c.reset()
	}
	for _, a := range l.rules {
		a.release()
	}
	l.rules = nil
	l.mu.Unlock()
	l.wg.Wait()
	if !first {
		return nil
	}
	if err := l.reserved.close(); err != nil {
		return fmt.Errorf("close link %s: %w", l.name, err)
	}
	return nil
}

// Armed returns how many rules and cuts are in place.
func (l *Link) Armed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.rules) + l.refusing + l.holes
}

// serve accepts from listener until it is closed. l.mu is held.
func (l *Link) serve(listener *net.TCPListener) {
	l.listener = listener
	l.wg.Go(func() {
		for {
			client, err := listener.AcceptTCP()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // out of descriptors and the like: the client sees a refusal, the link goes on
				l.log.Warn("accept failed", "link", l.name, "err", err)
				time.Sleep(10 * time.Millisecond)
				continue
			}
			l.accepted(client)
		}
	})
}

func (l *Link) accepted(client *net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.refusing > 0 {
		hardClose(client)
		return
	}
	c := &conn{link: l, client: client, session: l.framer.Open(), done: make(chan struct{})}
	l.conns[c] = struct{}{}
	l.wg.Go(func() {
		c.run()
		l.mu.Lock()
		delete(l.conns, c)
		l.mu.Unlock()
	})
}

// stopListening makes the kernel answer new connections by RST. l.mu is held.
func (l *Link) stopListening() {
	if l.listener != nil {
		_ = l.listener.Close() // the only error is that it is closed already
		l.listener = nil
	}
}

func (l *Link) dial() (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", l.upstream())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// hardClose closes with SO_LINGER 0, so that the peer sees a reset and not an orderly end.
func hardClose(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// Counts are what a link has seen. Messages are only counted for kinds whose framer can tell.
type Counts struct {
	Requests     int64 // frames forwarded to the node
	RequestBytes int64
	Sent         int64 // messages in them

	Responses     int64 // frames handed to the client
	ResponseBytes int64
	Confirmed     int64 // messages confirmed by them
	Refused       int64 // messages refused by them, those of Answered included

	Dropped         int64 // requests and responses that a rule swallowed
	DroppedBytes    int64
	DroppedMessages int64 // messages in swallowed requests, and confirmed by swallowed responses
	Answered        int64 // requests that the link answered itself
	AnsweredBytes   int64
}

func (c *Counts) add(o Counts) {
	c.Requests += o.Requests
	c.RequestBytes += o.RequestBytes
	c.Sent += o.Sent
	c.Responses += o.Responses
	c.ResponseBytes += o.ResponseBytes
	c.Confirmed += o.Confirmed
	c.Refused += o.Refused
	c.Dropped += o.Dropped
	c.DroppedBytes += o.DroppedBytes
	c.DroppedMessages += o.DroppedMessages
	c.Answered += o.Answered
	c.AnsweredBytes += o.AnsweredBytes
}

type countKey struct{ client, kind string }

// count adds o to what was seen of a client and kind.
func (l *Link) count(client, kind string, o Counts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := countKey{client, kind}
	c := l.counts[key]
	if c == nil {
		c = &Counts{}
		l.counts[key] = c
	}
	c.add(o)
}

// Counts sums what was seen of the clients whose id begins with client and of one kind; empty = any.
func (l *Link) Counts(client, kind string) Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	var sum Counts
	for key, c := range l.counts {
		if strings.HasPrefix(key.client, client) && (kind == "" || kind == key.kind) {
			sum.add(*c)
		}
	}
	return sum
}

// Clients lists the ids of the clients seen, sorted.
func (l *Link) Clients() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[string]struct{}{}
	for key := range l.counts {
		seen[key.client] = struct{}{}
	}
	return slices.Sorted(maps.Keys(seen))
}
