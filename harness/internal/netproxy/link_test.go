package netproxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The protocol of these tests. A request is [length u32][tag u32][kind byte][reply byte][client 2 bytes][body], a response
// [length u32][tag u32][status byte][body]; every request is one message. Kind 'p' is judged by its response.
type testFramer struct{}

func (testFramer) Open() Session { return testSession{} }

func (testFramer) CheckAnswer(kind, _ string) error {
	if kind != "p" {
		return errors.New("only p can be answered")
	}
	return nil
}

type testSession struct{}

func (testSession) Len(_ Way, head []byte) (int, error) {
	if len(head) < 4 {
		return 0, nil
	}
	return int(binary.BigEndian.Uint32(head)), nil
}

func (testSession) Request(frame []byte, length int) (Request, bool) {
	if len(frame) < 12 {
		return Request{}, len(frame) < length
	}
	r := Request{
		Kind: string(frame[8]), Client: string(frame[10:12]), Tag: uint64(binary.BigEndian.Uint32(frame[4:])),
		NoReply: frame[9] == 0, Messages: 1,
	}
	if r.Kind == "p" {
		r.State = true
	}
	return r, r.Kind == "p" && len(frame) < length
}

func (testSession) Tag(frame []byte) (uint64, bool) {
	if len(frame) < 8 {
		return 0, false
	}
	return uint64(binary.BigEndian.Uint32(frame[4:])), true
}

func (testSession) Judge(_ *Request, response []byte) (confirmed, refused int64) {
	if response[8] == 0 {
		return 1, 0
	}
	return 0, 1
}

func (testSession) Answer(r *Request, _ []byte, code string) ([]byte, error) {
	return response(uint32(r.Tag), 1, []byte(code)), nil
}

func request(tag uint32, kind byte, reply bool, client string, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(12+len(body)))
	b = binary.BigEndian.AppendUint32(b, tag)
	b = append(b, kind, 0)
	if reply {
		b[9] = 1
	}
	return append(append(b, client...), body...)
}

func response(tag uint32, status byte, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(9+len(body)))
	b = binary.BigEndian.AppendUint32(b, tag)
	return append(append(b, status), body...)
}

func readFrame(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(head))
	copy(frame, head)
	_, err := io.ReadFull(r, frame[4:])
	return frame, err
}

// node echoes the body of each request that wants a reply, and remembers all tags.
type node struct {
	listener net.Listener
	wg       sync.WaitGroup
	mu       sync.Mutex
	tags     []uint32
	conns    []net.Conn
}

func newNode(t *testing.T) *node {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{listener: l}
	n.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.mu.Lock()
			n.conns = append(n.conns, c)
			n.mu.Unlock()
			n.wg.Go(func() { n.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		n.mu.Lock()
		for _, c := range n.conns {
			_ = c.Close()
		}
		n.mu.Unlock()
		n.wg.Wait()
	})
	return n
}

func (n *node) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		f, err := readFrame(r)
		if err != nil {
			return
		}
		tag := binary.BigEndian.Uint32(f[4:])
		n.mu.Lock()
		n.tags = append(n.tags, tag)
		n.mu.Unlock()
		if f[9] == 0 {
			continue
		}
		if _, err := c.Write(response(tag, 0, f[12:])); err != nil {
			return
		}
	}
}

func (n *node) seen() []uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]uint32(nil), n.tags...)
}

func newLink(t *testing.T) (*Link, *node) {
	t.Helper()
	n := newNode(t)
	l, err := Open(Config{Name: "n", Framer: testFramer{}, Upstream: func() string { return n.listener.Addr().String() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(l.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
	return l, n
}

func dial(t *testing.T, l *Link) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

func write(t *testing.T, c net.Conn, frames ...[]byte) {
	t.Helper()
	for _, f := range frames {
		if _, err := c.Write(f); err != nil {
			t.Fatal(err)
		}
	}
}

// read expects a response with the tag and status.
func read(t *testing.T, c net.Conn, tag uint32, status byte) []byte {
	t.Helper()
	f, err := readFrame(c)
	if err != nil {
		t.Fatalf("read response %d: %v", tag, err)
	}
	if got := binary.BigEndian.Uint32(f[4:]); got != tag || f[8] != status {
		t.Fatalf("response %d with status %d, want %d with %d", got, f[8], tag, status)
	}
	return f[9:]
}

func wantReset(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := readFrame(c)
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("read: %v, want a reset", err)
	}
}

// eventually waits for a state that another goroutine reaches.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not reached: " + what)
		}
	}
}

func TestPipelining(t *testing.T) {
	l, _ := newLink(t)
	c := dial(t, l)
	const n = 2000
	var wg sync.WaitGroup
	wg.Go(func() {
		var b []byte
		for i := range uint32(n) {
			b = append(b, request(i, 'p', true, "c1", []byte(fmt.Sprint("body ", i)))...)
		}
		for len(b) > 0 { // pieces that end anywhere
			k := min(len(b), 777)
			if _, err := c.Write(b[:k]); err != nil {
				t.Error(err)
				return
			}
			b = b[k:]
		}
	})
	for i := range uint32(n) {
		if got := string(read(t, c, i, 0)); got != fmt.Sprint("body ", i) {
			t.Fatalf("body %q", got)
		}
	}
	wg.Wait()
	want := Counts{Requests: n, Sent: n, Responses: n, Confirmed: n}
	eventually(t, "all is counted", func() bool {
		got := l.Counts("c", "p")
		got.RequestBytes, got.ResponseBytes = 0, 0
		return got == want
	})
	if other := l.Counts("d", ""); other != (Counts{}) {
		t.Errorf("counted %+v of a client that never came", other)
	}
}

func TestNoReplyIsCountedAndNeverPicked(t *testing.T) {
	l, n := newLink(t)
	drop, err := l.Arm(Rule{Kind: "p", Action: DropResponse})
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, l)
	write(t, c, request(1, 'p', false, "c0", nil), request(2, 'p', false, "c0", nil))
	eventually(t, "both arrive", func() bool { return len(n.seen()) == 2 })
	eventually(t, "both are counted", func() bool { return l.Counts("c0", "p").Sent == 2 })
	if h := drop.Hits(); h != (Hits{}) {
		t.Errorf("hits %+v", h)
	}
	write(t, c, request(3, 'p', true, "c0", nil))
	wantReset(t, c)
	if h := drop.Hits(); h != (Hits{Seen: 1, Picked: 1, Done: 1, Messages: 1}) {
		t.Errorf("hits %+v", h)
	}
}

func TestDropResponseExactlyOnce(t *testing.T) {
	l, n := newLink(t)
	drop, err := l.Arm(Rule{Kind: "p", Client: "c", Nth: 3, Action: DropResponse})
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, l)
	write(t, c, request(9, 'x', true, "c1", nil))
	read(t, c, 9, 0)
	for i := range uint32(2) {
		write(t, c, request(i, 'p', true, "c1", nil))
		read(t, c, i, 0)
	}
	write(t, c, request(2, 'p', true, "c1", nil))
	wantReset(t, c)
	if got := n.seen(); len(got) != 4 {
		t.Errorf("the node saw %v", got)
	}
	c = dial(t, l)
	for i := range uint32(10) {
		write(t, c, request(i, 'p', true, "c1", nil))
		read(t, c, i, 0)
	}
	if h := drop.Hits(); h != (Hits{Seen: 13, Picked: 1, Done: 1, Messages: 1}) {
		t.Errorf("hits %+v", h)
	}
	eventually(t, "all is counted", func() bool { return l.Counts("c1", "p").Confirmed == 12 })
	if k := l.Counts("c1", "p"); k.Sent != 13 || k.Dropped != 1 || k.DroppedMessages != 1 {
		t.Errorf("counts %+v", k)
	}
	drop.Heal()
	drop.Heal()
	if l.Armed() != 0 {
		t.Error("a healed rule is in place")
	}
}

func TestAnswerKeepsItsTurn(t *testing.T) {
	l, n := newLink(t)
	hold, err := l.Arm(Rule{Kind: "x", Action: HoldResponse})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := l.Arm(Rule{Kind: "p", Action: Answer, Code: "no"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Arm(Rule{Kind: "x", Action: Answer, Code: "no"}); err == nil {
		t.Error("an answer that the framer cannot make was armed")
	}
	c := dial(t, l)
	write(t, c, request(1, 'x', true, "c1", nil), request(2, 'p', true, "c1", nil), request(3, 'p', true, "c1", nil))
	eventually(t, "the later request passes", func() bool { return len(n.seen()) == 2 })
	eventually(t, "the response is held", func() bool { return hold.Hits().Done == 1 })
	if answer.Hits().Done != 0 {
		t.Error("the answer overtook an earlier response")
	}
	hold.Heal()
	read(t, c, 1, 0)
	if got := string(read(t, c, 2, 1)); got != "no" {
		t.Errorf("answer %q", got)
	}
	read(t, c, 3, 0)
	if got := n.seen(); len(got) != 2 || got[1] != 3 {
		t.Errorf("the node saw %v", got)
	}
	eventually(t, "the answer is counted", func() bool { return l.Counts("c1", "p").Refused == 1 })
}

func TestAnswerBehind(t *testing.T) {
	l, n := newLink(t)
	answer, err := l.Arm(Rule{Kind: "p", Action: Answer, Code: "no", Behind: 2})
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, l)
	write(t, c, request(1, 'p', true, "c1", nil), request(2, 'p', true, "c1", nil), request(3, 'x', true, "c1", nil))
	eventually(t, "the later ones pass", func() bool { return len(n.seen()) == 2 })
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if f, err := readFrame(c); err == nil {
		t.Fatalf("response %v before the second later request", f)
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	write(t, c, request(4, 'p', true, "c1", nil))
	for _, want := range []struct {
		tag    uint32
		status byte
	}{{1, 1}, {2, 0}, {3, 0}, {4, 0}} {
		read(t, c, want.tag, want.status)
	}
	if h := answer.Hits(); h.Done != 1 {
		t.Errorf("hits %+v", h)
	}
}

func TestAnswerBehindIsReleasedByHeal(t *testing.T) {
	l, _ := newLink(t)
	answer, err := l.Arm(Rule{Kind: "p", Action: Answer, Code: "no", Behind: 5})
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, l)
	write(t, c, request(1, 'p', true, "c1", nil), request(2, 'p', true, "c1", nil))
	eventually(t, "both are seen", func() bool { return answer.Hits().Seen == 2 })
	answer.Heal()
	read(t, c, 1, 1)
	read(t, c, 2, 0)
}

func TestDropAndHoldRequest(t *testing.T) {
	l, n := newLink(t)
	drop, err := l.Arm(Rule{Kind: "p", Count: 2, Action: DropRequest})
	if err != nil {
		t.Fatal(err)
	}
	hold, err := l.Arm(Rule{Kind: "x", Action: HoldRequest})
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, l)
	for i := range uint32(3) {
		write(t, c, request(i, 'p', true, "c1", nil))
	}
	read(t, c, 2, 0)
	if h := drop.Hits(); h.Done != 2 {
		t.Errorf("hits %+v", h)
	}
	write(t, c, request(5, 'x', true, "c1", nil), request(6, 'p', true, "c1", nil))
	eventually(t, "the request is held", func() bool { return hold.Hits().Done == 1 })
	if got := n.seen(); len(got) != 1 {
		t.Errorf("the node saw %v", got)
	}
	hold.Heal()
	read(t, c, 5, 0)
	read(t, c, 6, 0)
}

func TestRefuseAndBack(t *testing.T) {
	l, _ := newLink(t)
	addr := l.Addr()
	c := dial(t, l)
	write(t, c, request(1, 'p', true, "c1", nil))
	read(t, c, 1, 0)
	cut, err := l.Cut(Refuse)
	if err != nil {
		t.Fatal(err)
	}
	wantReset(t, c)
	for range 20 {
		if c, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
			if err == nil {
				_ = c.Close()
			}
			t.Fatalf("dial: %v, want a refusal", err)
		}
	}
	if other, err := net.Listen("tcp", addr); err == nil {
		_ = other.Close()
		t.Error("another process could take the port")
	}
	second, err := l.Cut(Refuse)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cut.Heal(), cut.Heal()); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		_ = c.Close()
		t.Fatal("the second cut was healed with the first")
	}
	if err := second.Heal(); err != nil {
		t.Fatal(err)
	}
	c = dial(t, l)
	write(t, c, request(2, 'p', true, "c1", nil))
	read(t, c, 2, 0)
	if cut.Bitten() != 1 || second.Bitten() != 0 || l.Armed() != 0 {
		t.Errorf("bitten %d and %d, armed %d", cut.Bitten(), second.Bitten(), l.Armed())
	}
}

func TestBlackHole(t *testing.T) {
	for mode, reaches := range map[Mode]int{Hole: 1, HoleIn: 1, HoleOut: 2} {
		l, n := newLink(t)
		c := dial(t, l)
		write(t, c, request(1, 'p', true, "c1", nil))
		read(t, c, 1, 0)
		cut, err := l.Cut(mode)
		if err != nil {
			t.Fatal(err)
		}
		write(t, c, request(2, 'p', true, "c1", nil))
		eventually(t, "something is held", func() bool { return cut.Bitten() > 0 })
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
		if f, err := readFrame(c); err == nil {
			t.Errorf("mode %d: response %v", mode, f)
		}
		if got := len(n.seen()); got != reaches {
			t.Errorf("mode %d: the node saw %d requests, want %d", mode, got, reaches)
		}
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		late := dial(t, l)
		write(t, late, request(7, 'p', true, "c2", nil))
		if err := errors.Join(cut.Heal(), cut.Heal()); err != nil {
			t.Fatal(err)
		}
		read(t, c, 2, 0)
		read(t, late, 7, 0)
	}
}

func TestCloseWhileHeld(t *testing.T) {
	l, _ := newLink(t)
	if _, err := l.Cut(Hole); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Arm(Rule{Kind: "p", Action: HoldRequest}); err != nil {
		t.Fatal(err)
	}
	c := dial(t, l)
	write(t, c, request(1, 'p', true, "c1", nil))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Cut(Hole); !errors.Is(err, ErrClosed) {
		t.Errorf("cut of a closed link: %v", err)
	}
	if _, err := l.Arm(Rule{Action: DropRequest}); !errors.Is(err, ErrClosed) {
		t.Errorf("rule on a closed link: %v", err)
	}
}

func TestLargeFrames(t *testing.T) {
	l, _ := newLink(t)
	c := dial(t, l)
	body := bytes.Repeat([]byte("0123456789abcdef"), 200_000) // 3.2 MB, far beyond the buffer
	for i, kind := range []byte{'p', 'x', 'p', 'x'} {
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Write(request(uint32(i), kind, true, "c1", body)); err != nil {
				t.Error(err)
			}
		})
		if got := read(t, c, uint32(i), 0); !bytes.Equal(got, body) {
			t.Fatalf("kind %c: body differs", kind)
		}
		wg.Wait()
	}
	drop, err := l.Arm(Rule{Kind: "x", Action: DropRequest})
	if err != nil {
		t.Fatal(err)
	}
	write(t, c, request(8, 'x', true, "c1", body), request(9, 'p', true, "c1", []byte("small")))
	if got := string(read(t, c, 9, 0)); got != "small" || drop.Hits().Done != 1 {
		t.Errorf("body %q, hits %+v", got, drop.Hits())
	}
}

func TestSlowPeerDoesNotHoldOthers(t *testing.T) {
	l, _ := newLink(t)
	slow, quick := dial(t, l), dial(t, l)
	body := make([]byte, 1<<20)
	var wg sync.WaitGroup
	wg.Go(func() { // it never reads: all buffers on its way fill up
		for i := range uint32(64) {
			if _, err := slow.Write(request(i, 'p', true, "s1", body)); err != nil {
				return
			}
		}
	})
	for i := range uint32(100) {
		write(t, quick, request(i, 'p', true, "q1", nil))
		read(t, quick, i, 0)
	}
	_ = slow.Close()
	wg.Wait()
}

func TestHalfClose(t *testing.T) {
	l, _ := newLink(t)
	c := dial(t, l)
	write(t, c, request(1, 'p', true, "c1", []byte("last")))
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := string(read(t, c, 1, 0)); got != "last" {
		t.Errorf("body %q", got)
	}
	if _, err := readFrame(c); !errors.Is(err, io.EOF) {
		t.Errorf("after the half-close: %v, want an orderly end", err)
	}
}

func TestNodeGone(t *testing.T) {
	n := newNode(t)
	var mu sync.Mutex
	upstream := n.listener.Addr().String()
	l, err := Open(Config{Name: "n", Framer: testFramer{}, Upstream: func() string {
		mu.Lock()
		defer mu.Unlock()
		return upstream
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	mu.Lock()
	upstream = gone.Addr().String()
	mu.Unlock()
	if c, err := net.Dial("tcp", l.Addr()); err == nil { // the reset may be faster than the dial
		if _, err := readFrame(c); err == nil {
			t.Error("a node that is not there answered")
		}
		_ = c.Close()
	}
	mu.Lock()
	upstream = n.listener.Addr().String()
	mu.Unlock()
	c := dial(t, l)
	write(t, c, request(1, 'p', true, "c1", nil))
	read(t, c, 1, 0)
}

func TestTruncatedFrameResets(t *testing.T) {
	l, n := newLink(t)
	c := dial(t, l)
	write(t, c, request(1, 'p', true, "c1", bytes.Repeat([]byte("x"), 100))[:50])
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	wantReset(t, c)
	if got := n.seen(); len(got) != 0 {
		t.Errorf("the node saw %v", got)
	}
}

func TestTakenPort(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, err = Open(Config{Name: "kafka-1", Listen: other.Addr().String(), Framer: testFramer{}})
	if err == nil || !strings.Contains(err.Error(), "kafka-1") {
		t.Errorf("a taken port: %v", err)
	}
}
