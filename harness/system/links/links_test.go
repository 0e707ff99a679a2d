package links

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"conform/harness/internal/netproxy"
	"conform/harness/system"
)

// framer is the protocol of these tests: frames of two bytes. A request is its kind ('p' or 'q') and its tag; a response its
// status ('y' or 'n') and that tag. A response to a 'p' confirms one message, or refuses it.
type framer struct{}

func (framer) Open() netproxy.Session           { return framer{} }
func (framer) CheckAnswer(string, string) error { return nil }
func (framer) Len(_ netproxy.Way, head []byte) (int, error) {
	if len(head) == 0 {
		return 0, nil
	}
	return 2, nil
}

func (framer) Request(frame []byte, length int) (netproxy.Request, bool) {
	if len(frame) < length {
		return netproxy.Request{}, true
	}
	r := netproxy.Request{Kind: string(frame[:1]), Client: "c", Tag: uint64(frame[1])}
	if r.Kind == "p" {
		r.Messages, r.State = 1, true
	}
	return r, false
}

func (framer) Tag(frame []byte) (uint64, bool) { return uint64(frame[len(frame)-1]), len(frame) == 2 }

func (framer) Judge(_ *netproxy.Request, response []byte) (confirmed, refused int64) {
	if response[0] == 'y' {
		return 1, 0
	}
	return 0, 1
}

func (framer) Answer(r *netproxy.Request, _ []byte, code string) ([]byte, error) {
	return []byte{code[0], byte(r.Tag)}, nil
}

// open starts a node that answers every request with status, and a link to it.
func open(t *testing.T, status byte) *netproxy.Link {
	t.Helper()
	node, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := node.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				b := make([]byte, 2)
				for {
					if _, err := io.ReadFull(c, b); err != nil {
						return
					}
					if _, err := c.Write([]byte{status, b[1]}); err != nil {
						return
					}
				}
			})
		}
	})
	link, err := netproxy.Open(netproxy.Config{Name: "n1", Framer: framer{}, Upstream: node.Addr().String})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = link.Close(), node.Close(); serving.Wait() })
	return link
}

// ask sends a request and returns the response, "" if the connection ends instead.
func ask(t *testing.T, link *netproxy.Link, request string) string {
	t.Helper()
	c, err := net.Dial("tcp", link.Addr())
	if err != nil {
		return ""
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, request); err != nil {
		return ""
	}
	b := make([]byte, 2)
	if _, err := io.ReadFull(c, b); err != nil {
		if errors.Is(err, net.ErrClosed) || strings.Contains(err.Error(), "timeout") {
			t.Fatal(err)
		}
		return ""
	}
	return string(b)
}

func evidence(t *testing.T, i system.Injection) system.Evidence {
	t.Helper()
	e, err := i.Evidence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestCut(t *testing.T) {
	link := open(t, 'y')
	c, err := net.Dial("tcp", link.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "q1"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	i, err := Cut(link, "n1", system.Reset, system.Both)
	if err != nil {
		t.Fatal(err)
	}
	if e := evidence(t, i); !e.Bit || e.Count != 1 || e.Detail != "1 connections reset on the link of n1" {
		t.Errorf("%+v", e)
	}
	if got := ask(t, link, "q2"); got != "" {
		t.Errorf("a link that is cut answers %q", got)
	}
	if err := i.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, link, "q3"); got != "y3" {
		t.Errorf("healed, it answers %q", got)
	}
	if i, err = Cut(open(t, 'y'), "n1", system.Reset, system.Both); err != nil {
		t.Fatal(err)
	}
	if e := evidence(t, i); e.Bit || !e.Idle || !strings.Contains(e.Detail, "nobody was connected") {
		t.Errorf("nobody was connected, and %+v", e)
	}
	if err := i.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := Cut(link, "n1", system.Reset, system.Inbound); !errors.Is(err, system.ErrUsage) {
		t.Errorf("half a reset: %v", err)
	}
	if i, err = Cut(link, "n1", system.BlackHole, system.Both); err != nil {
		t.Fatal(err)
	}
	if e := evidence(t, i); e.Bit || !strings.Contains(e.Detail, "held back") {
		t.Errorf("nothing was held back, and %+v", e)
	}
	if err := i.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestEdit(t *testing.T) {
	tests := []struct {
		name         string
		status       byte
		rule         netproxy.Rule
		confirms     string
		request, got string
		bit          bool
		detail       string
	}{
		{"a swallowed confirm", 'y', netproxy.Rule{Action: netproxy.DropResponse}, "p", "p1", "", true, `1 of 1 "p" of any client on the link of n1 passed on`},
		{"a swallowed refusal takes no confirm away", 'n', netproxy.Rule{Action: netproxy.DropResponse}, "p", "p1", "", false, "(0 messages)"},
		{"no confirm was meant", 'n', netproxy.Rule{Action: netproxy.DropResponse}, "", "p1", "", true, "(0 messages)"},
		{"a swallowed request", 'y', netproxy.Rule{Action: netproxy.ResetRequest}, "p", "p1", "", true, "never seen by the node"},
		{"a refusal in the node's name", 'y', netproxy.Rule{Action: netproxy.Answer, Code: "n"}, "p", "p1", "n1", true, "answered with n and not passed on"},
		{"another kind", 'y', netproxy.Rule{Action: netproxy.ResetRequest}, "p", "q1", "y1", false, "0 of 1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			link := open(t, test.status)
			i, err := Edit(link, "n1", system.WireRule{Kind: "p"}, test.rule, test.confirms)
			if err != nil {
				t.Fatal(err)
			}
			if got := ask(t, link, test.request); got != test.got {
				t.Errorf("answered %q, want %q", got, test.got)
			}
			if e := evidence(t, i); e.Bit != test.bit || !strings.Contains(e.Detail, test.detail) {
				t.Errorf("%+v, want %v and %q", e, test.bit, test.detail)
			}
			if err := i.Heal(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}
