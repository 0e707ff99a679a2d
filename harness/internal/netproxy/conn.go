package netproxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
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

	// turn is held while anything is written to the client. It is taken before queue.
	turn    sync.Mutex
	queue   sync.Mutex
	pending []waiting // requests without a response yet, in order; guarded by queue
}

// waiting is a request that waits for its response.
type waiting struct {
	Request
	rule *Armed // DropResponse, HoldResponse or Answer

	answer []byte        // of Answer; nil = the node answers
	behind int           // how many later requests must be forwarded before it may go out
	ready  chan struct{} // closed when behind is 0
}

func (w *waiting) due() bool {
	select {
	case <-w.ready:
		return true
	case <-w.rule.released:
		return true
	default:
		return false
	}
}

// reset ends both sides at once, from any goroutine. It returns false if they have been ended before.
func (c *conn) reset() (first bool) {
	c.once.Do(func() {
		first = true
		close(c.done)
		hardClose(c.client)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.node != nil {
			hardClose(c.node)
		}
	})
	return first
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
	case <-c.done: // reset came during the dial and has not seen the socket
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
		case DropRequest, ResetRequest:
			if err := in.copy(io.Discard, nil); err != nil {
				return err
			}
			rule.done(r.Messages)
			c.link.count(r.Client, r.Kind, Counts{Dropped: 1, DroppedBytes: size, DroppedMessages: r.Messages})
			if rule.rule.Action == ResetRequest {
				return errReset
			}
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
			c.answer(waiting{Request: r, rule: rule, answer: answer, behind: rule.rule.Behind, ready: make(chan struct{})})
			return nil
		}
	}
	if !r.NoReply { // before the request leaves: its response may be faster than we are
		c.queue.Lock()
		c.pending = append(c.pending, waiting{Request: r, rule: rule})
		c.queue.Unlock()
	}
	if err := in.copy(c.node, func() bool { return c.link.in.wait(c.done) }); err != nil {
		return err
	}
	c.link.count(r.Client, r.Kind, Counts{Requests: 1, RequestBytes: size, Sent: r.Messages})
	c.forwarded(&r)
	return nil
}

// answer queues an answer of our own. Writing it is left to a goroutine, so that requests flow on whatever holds the
// client's side back.
func (c *conn) answer(w waiting) {
	if w.behind <= 0 {
		close(w.ready)
	}
	c.queue.Lock()
	c.pending = append(c.pending, w)
	c.queue.Unlock()
	c.link.wg.Go(func() {
		select {
		case <-w.ready:
		case <-w.rule.released:
		case <-c.done:
			return
		}
		c.turn.Lock()
		defer c.turn.Unlock()
		if err := c.answers(); err != nil {
			c.reset()
		}
	})
}

// forwarded tells the answers that wait for later requests that one has passed.
func (c *conn) forwarded(r *Request) {
	c.queue.Lock()
	defer c.queue.Unlock()
	for i := range c.pending {
		w := &c.pending[i]
		if w.answer == nil || w.behind <= 0 || !w.rule.picks(r) {
			continue
		}
		if w.behind--; w.behind == 0 {
			close(w.ready)
		}
	}
}

// answers writes the answers of our own whose turn has come. c.turn is held.
func (c *conn) answers() error {
	for {
		c.queue.Lock()
		if len(c.pending) == 0 || c.pending[0].answer == nil || !c.pending[0].due() {
			c.queue.Unlock()
			return nil
		}
		w := c.pending[0]
		c.pending = c.pending[1:]
		c.queue.Unlock()
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
}

func (c *conn) responses() error {
	in := &frames{r: bufio.NewReaderSize(c.node, bufferSize), session: c.session, way: ToClient}
	continuer, _ := c.session.(Continuer)
	announcer, _ := c.session.(Announcer)
	var (
		within  bool   // an earlier frame of a response that a rule acts on has come
		dropped Counts // what was swallowed of it
	)
	for {
		if err := in.next(); err != nil {
			if errors.Is(err, io.EOF) && !c.link.out.wait(c.done) {
				return errReset
			}
			return err
		}
		if announcer != nil {
			announced, err := c.announcement(in, announcer)
			if err != nil {
				return err
			}
			if announced {
				continue
			}
		}
		w, err := c.take(in)
		if err != nil {
			return err
		}
		more := continuer != nil && continuer.More()
		var counts Counts
		if w.State != nil {
			whole, err := in.whole()
			if err != nil {
				return err
			}
			counts.Confirmed, counts.Refused = c.session.Judge(&w.Request, whole)
		}
		// A response that was swallowed in part is swallowed whole, even if the rule is healed meanwhile.
		dropping := within && dropped.DroppedBytes > 0
		if w.rule != nil && (dropping || !w.rule.isReleased()) {
			switch w.rule.rule.Action {
			case DropResponse:
				if err := in.copy(io.Discard, nil); err != nil {
					return err
				}
				dropped.DroppedBytes += int64(in.length)
				dropped.DroppedMessages += counts.Confirmed
				if within = more; more {
					continue
				}
				w.rule.done(dropped.DroppedMessages)
				dropped.Dropped = 1
				c.link.count(w.Client, w.Kind, dropped)
				return errReset
			case HoldResponse:
				if !within {
					w.rule.done(w.Messages)
				}
				within = more
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
		if err := c.respond(in, w, counts, more); err != nil {
			return err
		}
	}
}

// announcement passes the current frame on, drops it or holds it if it is an announcement; false if it is none.
func (c *conn) announcement(in *frames, announcer Announcer) (bool, error) {
	whole, err := in.whole()
	if err != nil {
		return false, err
	}
	r, confirmed, refused, ok := announcer.Announce(whole)
	if !ok {
		return false, nil
	}
	r.announced = true
	if rule := c.link.pick(&r); rule != nil && !rule.isReleased() {
		if rule.rule.Action == DropResponse {
			in.consumed()
			rule.done(confirmed)
			c.link.count(r.Client, r.Kind, Counts{Dropped: 1, DroppedBytes: int64(len(whole)), DroppedMessages: confirmed})
			return true, errReset
		}
		rule.done(r.Messages)
		select {
		case <-rule.released:
		case <-c.done:
			return true, errReset
		}
	}
	if !c.link.out.wait(c.done) {
		return true, errReset
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	if _, err := c.client.Write(whole); err != nil {
		return true, err
	}
	in.consumed()
	c.link.count(r.Client, r.Kind, Counts{Responses: 1, ResponseBytes: int64(len(whole)), Confirmed: confirmed, Refused: refused})
	return true, nil
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
	c.queue.Lock()
	defer c.queue.Unlock()
	for _, w := range c.pending {
		if w.Tag == tag && w.answer == nil {
			return w, nil // it keeps its place until it is written: see overtaken
		}
	}
	return waiting{}, nil
}

// overtaken returns an answer of our own that must be written before the response to tag, or nil.
func (c *conn) overtaken(tag uint64) *waiting {
	c.queue.Lock()
	defer c.queue.Unlock()
	var first *waiting
	for i := range c.pending {
		w := c.pending[i]
		if w.answer == nil && w.Tag == tag {
			return first
		}
		if w.answer != nil && first == nil {
			first = &w
		}
	}
	return nil
}

// written forgets the request whose response was written.
func (c *conn) written(tag uint64) {
	c.queue.Lock()
	defer c.queue.Unlock()
	c.pending = slices.DeleteFunc(c.pending, func(w waiting) bool { return w.Tag == tag && w.answer == nil })
}

func (c *conn) respond(in *frames, w waiting, counts Counts, more bool) error {
	for {
		first := c.overtaken(w.Tag)
		if first == nil {
			break
		}
		select {
		case <-first.ready:
		case <-first.rule.released:
		case <-c.done:
			return errReset
		}
		c.turn.Lock()
		err := c.answers()
		c.turn.Unlock()
		if err != nil {
			return err
		}
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	if err := in.copy(c.client, func() bool { return c.link.out.wait(c.done) }); err != nil {
		return err
	}
	counts.ResponseBytes = int64(in.length)
	if more {
		c.link.count(w.Client, w.Kind, counts)
		return nil
	}
	counts.Responses = 1
	c.link.count(w.Client, w.Kind, counts)
	c.written(w.Tag)
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
