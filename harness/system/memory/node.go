package memory

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"

	"conform/harness/system"
)

// node is one member: a listener whose address stays for the cluster's life, so that a killed and
// restarted node is found where it was.
type node struct {
	c       *cluster
	number  int
	name    string
	address string
	wg      sync.WaitGroup

	mu     sync.Mutex
	l      net.Listener
	resume *sync.Cond
	down   bool
	life   int // how often it was started
	paused bool
	closed bool
	conns  map[net.Conn]bool
	cut    *cut
	rules  []*rule
	counts map[string]*system.WireCounts
}

// Name returns "memory-1" and so on.
func (n *node) Name() string { return n.name }

func newNode(c *cluster, number int) (*node, error) {
	n := &node{
		c: c, number: number, name: fmt.Sprintf("memory-%d", number+1), address: "127.0.0.1:0",
		conns: map[net.Conn]bool{}, counts: map[string]*system.WireCounts{},
	}
	n.resume = sync.NewCond(&n.mu)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.listen(); err != nil {
		return nil, err
	}
	n.address = n.l.Addr().String()
	return n, nil
}

// listen opens the node's address; n.mu is held.
func (n *node) listen() error {
	l, err := net.Listen("tcp", n.address)
	if err != nil {
		return fmt.Errorf("listen for a node: %w: %w", err, system.ErrEnvironment)
	}
	n.l = l
	n.wg.Go(func() { n.accept(l) })
	return nil
}

func (n *node) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		n.mu.Lock()
		refuse := n.down || n.closed
		if !refuse {
			n.conns[conn] = true
			n.wg.Go(func() { n.serve(conn) })
		}
		n.mu.Unlock()
		if refuse {
			reset(conn)
		}
	}
}

// reset ends a connection by RST, as a dead process's kernel does for what it has not read.
func reset(conn net.Conn) {
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = conn.Close()
}

func (n *node) serve(conn net.Conn) {
	defer func() {
		n.mu.Lock()
		delete(n.conns, conn)
		n.mu.Unlock()
		_ = conn.Close()
	}()
	r := bufio.NewReaderSize(conn, 64<<10)
	s := &serving{n: n, conn: conn}
	for {
		kind, b, err := readFrame(r)
		if err != nil {
			return
		}
		if !n.up() {
			return
		}
		reply, err := s.answer(kind, b)
		if err != nil {
			return
		}
		if reply == nil {
			continue
		}
		s.waiting = append(s.waiting, reply.sealed()...)
		if s.hold > 0 {
			s.hold--
			continue
		}
		if _, err := conn.Write(s.waiting); err != nil {
			return
		}
		s.waiting = s.waiting[:0]
	}
}

// up waits while the node is paused and says whether it is there then.
func (n *node) up() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.paused && !n.down && !n.closed {
		n.resume.Wait()
	}
	return !n.down && !n.closed
}

// resetAll resets all connections; n.mu is held.
func (n *node) resetAll() int {
	k := len(n.conns)
	for conn := range n.conns {
		reset(conn)
	}
	return k
}

func (n *node) close() {
	n.mu.Lock()
	n.closed = true
	n.resume.Broadcast()
	n.resetAll()
	_ = n.l.Close()
	n.mu.Unlock()
	n.wg.Wait()
}

// serving is one connection.
type serving struct {
	n      *node
	conn   net.Conn
	client string
	dest   string

	// A refusal that is held back until so many later requests have passed; answers keep their order.
	hold    int
	waiting []byte
}

func (s *serving) answer(kind byte, b *body) (*frame, error) {
	in, out := s.n.swallows()
	if in {
		return nil, nil
	}
	var reply *frame
	var err error
	switch kind {
	case kindHello:
		s.client, s.dest = string(b.bytes()), string(b.bytes())
		reply = newFrame(kindHello)
		reply.int(s.n.c.leaderNumber(s.dest))
	case kindProduce:
		reply, err = s.produce(b)
	case kindFetch:
		reply = s.n.c.fetch(s.dest, string(b.bytes()), int32(b.int()), b.int())
	case kindCommit:
		s.n.c.commit(s.dest, string(b.bytes()), int32(b.int()), b.int())
		reply = newFrame(kindCommit)
	case kindPosition:
		reply = s.n.c.position(s.dest, string(b.bytes()), int32(b.int()))
	default:
		return nil, errFrame
	}
	if err != nil {
		return nil, err
	}
	if b.bad || reply == nil && (kind == kindFetch || kind == kindPosition) {
		return nil, errFrame
	}
	if out {
		return nil, nil
	}
	return reply, nil
}

func (s *serving) produce(b *body) (*frame, error) {
	flags := b.byte()
	count := int(b.uint())
	idempotent, silent := flags&1 != 0, flags&2 != 0
	hit := s.n.match(s.client)
	s.n.count(s.client, func(w *system.WireCounts) {
		if hit == nil || !hit.refuse {
			w.Sent += int64(count)
		}
	})
	reply := newFrame(kindProduce)
	reply.uint(uint64(count))
	var confirmed, refused int64
	c := s.n.c
	c.mu.Lock()
	d := c.destinations[s.dest]
	for range count {
		part, seq := int32(b.int()), b.uint()
		rec := record{key: b.bytes(), payload: b.bytes()}
		status, offset := statusNotLeader, int64(-1)
		switch {
		case b.bad || d == nil || int(part) >= len(d.parts) || part < 0:
			c.mu.Unlock()
			return nil, errFrame
		case hit != nil && hit.refuse:
			status = statusRefused
		case d.leader == s.n:
			status, offset = d.store(s.client, idempotent, part, seq, rec)
		}
		if status == statusOK {
			confirmed++
		} else {
			refused++
		}
		reply.byte(status)
		reply.int(offset)
	}
	c.mu.Unlock()
	if hit != nil && hit.refuse {
		s.hold = hit.w.Behind
	}
	if hit != nil && !hit.refuse {
		reset(s.conn) // the response stays here
		return nil, net.ErrClosed
	}
	if silent {
		return nil, nil
	}
	s.n.count(s.client, func(w *system.WireCounts) { w.Confirmed += confirmed; w.Refused += refused })
	return reply, nil
}

func (n *node) count(client string, f func(*system.WireCounts)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.counts[client]
	if w == nil {
		w = &system.WireCounts{}
		n.counts[client] = w
	}
	f(w)
}

func (n *node) countsOf(prefix string) system.WireCounts {
	n.mu.Lock()
	defer n.mu.Unlock()
	var sum system.WireCounts
	for client, w := range n.counts {
		if strings.HasPrefix(client, prefix) {
			sum.Sent += w.Sent
			sum.Confirmed += w.Confirmed
			sum.Refused += w.Refused
		}
	}
	return sum
}
