package netproxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

const (
	bufferSize = 64 << 10
	// maxFrame is a sanity limit: a longer one is not the protocol.
	maxFrame = 1 << 30
)

// conn is one relayed connection: one goroutine for each way.
type conn struct {
	link    *Link
	client  *net.TCPConn
	session Session

	once sync.Once
	done chan struct{} // closed by reset

	mu   sync.Mutex
	node *net.TCPConn // nil before the dial

	// pending are the requests without a response yet, in order. Guarded by turn, which is also held while
	// anything is written to the client.
	turn    sync.Mutex
	pending []waiting
}

// waiting is a request that waits for its response.
type waiting struct {
	Request
	rule   *Armed // DropResponse, HoldResponse or Answer
	answer []byte // of Answer
}

// reset ends both sides at once, from any goroutine.
func (c *conn) reset() {
	c.once.Do(func() {
		close(c.done)
		hardClose(c.client)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.node != nil {
			hardClose(c.node)
		}
	})
}

// run relays until both ways have ended.
func (c *conn) run() {
	defer c.reset() // after an orderly end there is nothing left to send: it only frees the sockets
	if !c.link.in.wait(c.done) {
		return
	}
	node, err := c.link.dial()
	if err != nil {
		c.link.log.Debug("node not reached", "link", c.link.name, "err", err)
		return
	}
	c.mu.Lock()
	c.node = node
	c.mu.Unlock()
	select {
	case <-c.done: // reset came while dialling and has not seen the socket
		hardClose(node)
		return
	default:
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.end(c.requests(), node) })
	wg.Go(func() { c.end(c.responses(), c.client) })
	wg.Wait()
	_ = c.client.Close()
	_ = node.Close()
}

// end passes on how one way ended: an orderly end as such, everything else as a reset.
func (c *conn) end(err error, to *net.TCPConn) {
	if !errors.Is(err, io.EOF) {
		if !errors.Is(err, net.ErrClosed) {
			c.link.log.Debug("connection reset", "link", c.link.name, "err", err)
		}
		c.reset()
		return
	}
	_ = to.CloseWrite() // fails only if the other side is gone, which its own way reports
}

// errReset ends a way because a rule or a cut says so.
var errReset = errors.New("reset by rule")

func (c *conn) requests() error {
	in := &frames{r: bufio.NewReaderSize(c.client, bufferSize), session: c.session, way: ToNode}
	for {
		if err := in.next(); err != nil {
			if errors.Is(err, io.EOF) && !c.link.in.wait(c.done) {
				return errReset
			}
			return err
		}
		r, more := c.session.Request(in.head, in.length)
		if more {
			whole, err := in.whole()
			if err != nil {
				return err
			}
			r, _ = c.session.Request(whole, in.length)
		}
		rule := c.link.pick(&r)
		if rule != nil && rule.rule.Action == HoldRequest {
			rule.done(r.Messages)
			select {
			case <-rule.released:
			case <-c.done:
				return errReset
			}
		}
		if !c.link.in.wait(c.done) {
			return errReset
		}
		if err := c.request(in, r, rule); err != nil {
			return err
		}
	}
}

// request forwards, drops or answers one request.
func (c *conn) request(in *frames, r Request, rule *Armed) error {
	size := int64(in.length)
	if rule != nil && !rule.isReleased() {
		switch rule.rule.Action {
		case DropRequest:
			if err := in.copy(io.Discard, nil); err != nil {
				return err
			}
			rule.done(r.Messages)
			c.link.count(r.Client, r.Kind, Counts{Dropped: 1, DroppedBytes: size, DroppedMessages: r.Messages})
			return nil
		case Answer:
			whole, err := in.whole()
			if err != nil {
				return err
			}
			answer, err := c.session.Answer(&r, whole, rule.rule.Code)
			if err != nil {
				return fmt.Errorf("answer %s: %w", r.Kind, err)
			}
			in.consumed()
			c.turn.Lock()
			defer c.turn.Unlock()
			c.pending = append(c.pending, waiting{Request: r, rule: rule, answer: answer})
			return c.answers()
		}
	}
	if !r.NoReply { // before the request leaves: its response may be faster than we are
		c.turn.Lock()
		c.pending = append(c.pending, waiting{Request: r, rule: rule})
		c.turn.Unlock()
	}
	if err := in.copy(c.node, func() bool { return c.link.in.wait(c.done) }); err != nil {
		return err
	}
	c.link.count(r.Client, r.Kind, Counts{Requests: 1, RequestBytes: size, Sent: r.Messages})
	return nil
}

// answers writes the answers of our own whose turn has come. c.turn is held.
func (c *conn) answers() error {
	for len(c.pending) > 0 && c.pending[0].answer != nil {
		w := c.pending[0]
		c.pending = c.pending[1:]
		if !c.link.out.wait(c.done) {
			return errReset
		}
		if _, err := c.client.Write(w.answer); err != nil {
			return err
		}
		w.rule.done(w.Messages)
		n := int64(len(w.answer))
		c.link.count(w.Client, w.Kind, Counts{Answered: 1, AnsweredBytes: n, Refused: w.Messages})
	}
	return nil
}

func (c *conn) responses() error {
	in := &frames{r: bufio.NewReaderSize(c.node, bufferSize), session: c.session, way: ToClient}
	for {
		if err := in.next(); err != nil {
			if errors.Is(err, io.EOF) && !c.link.out.wait(c.done) {
				return errReset
			}
			return err
		}
		w, err := c.take(in)
		if err != nil {
			return err
		}
		var counts Counts
		if w.State != nil {
			whole, err := in.whole()
			if err != nil {
				return err
			}
			counts.Confirmed, counts.Refused = c.session.Judge(&w.Request, whole)
		}
		if w.rule != nil && !w.rule.isReleased() {
			switch w.rule.rule.Action {
			case DropResponse:
				if err := in.copy(io.Discard, nil); err != nil {
					return err
				}
				w.rule.done(counts.Confirmed)
				c.link.count(w.Client, w.Kind,
					Counts{Dropped: 1, DroppedBytes: int64(in.length), DroppedMessages: counts.Confirmed})
				return errReset
			case HoldResponse:
				w.rule.done(w.Messages)
				select {
				case <-w.rule.released:
				case <-c.done:
					return errReset
				}
			}
		}
		if !c.link.out.wait(c.done) {
			return errReset
		}
		if err := c.respond(in, w, counts); err != nil {
			return err
		}
	}
}

// take removes the request that a response belongs to from the pending ones.
func (c *conn) take(in *frames) (waiting, error) {
	tag, ok := c.session.Tag(in.head)
	if !ok {
		whole, err := in.whole()
		if err != nil {
			return waiting{}, err
		}
		if tag, ok = c.session.Tag(whole); !ok {
			return waiting{}, nil // nothing pairs it: pass it on uncounted
		}
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	for i, w := range c.pending {
		if w.Tag == tag && w.answer == nil {
			// It keeps its place until it is written, so that no answer of our own overtakes it.
			c.pending[i].rule = nil
			return w, nil
		}
	}
	return waiting{}, nil
}

func (c *conn) respond(in *frames, w waiting, counts Counts) error {
	c.turn.Lock()
	defer c.turn.Unlock()
	if err := in.copy(c.client, func() bool { return c.link.out.wait(c.done) }); err != nil {
		return err
	}
	counts.Responses, counts.ResponseBytes = 1, int64(in.length)
	c.link.count(w.Client, w.Kind, counts)
	for i := range c.pending {
		if c.pending[i].Tag == w.Tag && c.pending[i].answer == nil {
			c.pending = append(c.pending[:i], c.pending[i+1:]...)
			break
		}
	}
	return c.answers()
}

// frames cuts one way of a connection into frames. Frames that fit the buffer are never copied.
type frames struct {
	r       *bufio.Reader
	session Session
	way     Way

	length  int    // of the current frame
	head    []byte // the part of it that is in the buffer, all of it if gathered
	scratch []byte // for whole frames that do not fit the buffer
	large   bool   // the current frame was gathered in scratch and is consumed from r
}

// next waits for the beginning of the next frame. io.EOF: there is none.
func (f *frames) next() error {
	f.large = false
	want := 1
	for {
		if _, err := f.r.Peek(want); err != nil {
			if errors.Is(err, io.EOF) && f.r.Buffered() > 0 {
				return io.ErrUnexpectedEOF
			}
			return err
		}
		head, _ := f.r.Peek(f.r.Buffered())
		n, err := f.session.Len(f.way, head)
		if err != nil {
			return fmt.Errorf("read frame: %w", err)
		}
		if n < 0 || n > maxFrame {
			return fmt.Errorf("read frame: length %d", n)
		}
		if n > 0 {
			f.length, f.head = n, head[:min(n, len(head))]
			return nil
		}
		want = len(head) + 1
	}
}

// whole gathers the current frame. It is valid until copy, consumed or next.
func (f *frames) whole() ([]byte, error) {
	if len(f.head) == f.length {
		return f.head, nil
	}
	if f.length <= f.r.Size() {
		b, err := f.r.Peek(f.length)
		if err != nil {
			return nil, cutShort(err)
		}
		f.head = b
		return b, nil
	}
	if cap(f.scratch) < f.length {
		f.scratch = make([]byte, f.length)
	}
	f.scratch = f.scratch[:f.length]
	if _, err := io.ReadFull(f.r, f.scratch); err != nil {
		return nil, cutShort(err)
	}
	f.head, f.large = f.scratch, true
	return f.head, nil
}

// consumed forgets the current, gathered frame.
func (f *frames) consumed() {
	if !f.large {
		_, _ = f.r.Discard(f.length)
	}
}

// copy writes the current frame to w and consumes it. Before each further piece of a frame that is not gathered, pass is
// asked; false ends the copy.
func (f *frames) copy(w io.Writer, pass func() bool) error {
	if len(f.head) == f.length {
		_, err := w.Write(f.head)
		f.consumed()
		return err
	}
	for left := f.length; left > 0; {
		if _, err := f.r.Peek(1); err != nil {
			return cutShort(err)
		}
		if pass != nil && !pass() {
			return errReset
		}
		piece, _ := f.r.Peek(min(left, f.r.Buffered()))
		if _, err := w.Write(piece); err != nil {
			return err
		}
		_, _ = f.r.Discard(len(piece))
		left -= len(piece)
	}
	return nil
}

// cutShort makes an end within a frame no orderly one.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
