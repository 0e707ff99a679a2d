package rocketmq

import (
	"context"
	"encoding/json"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"conform/harness/ledger"
	"conform/harness/system"
)

// server speaks as much of the protocol as a producer needs: a name server and a broker in one, whose answers to sends are
// scripted.
type server struct {
	t        *testing.T
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	answers []command // to sends, in turn; the last one stays
	sends   []command
	conns   []net.Conn
}

// silent is an answer that does not come.
const silent = -1

func newServer(t *testing.T, answers ...command) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, listener: l, answers: answers}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			s.wg.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		s.mu.Lock()
		for _, c := range s.conns { // the library leaves the one to the name server open
			_ = c.Close()
		}
		s.mu.Unlock()
		s.wg.Wait()
	})
	return s
}

func (s *server) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	c := &connection{conn: conn}
	for {
		request, _, err := c.read()
		if err != nil {
			return
		}
		answer, body := s.answer(request)
		if answer.Code == silent || request.Flag&flagOneWay != 0 {
			continue
		}
		answer.Opaque, answer.Flag, answer.Language = request.Opaque, flagResponse, "JAVA"
		frame, err := appendFrame(nil, answer, body)
		if err != nil {
			s.t.Error(err)
			return
		}
		if _, err := conn.Write(frame); err != nil {
			return
		}
	}
}

func (s *server) answer(request command) (command, []byte) {
	switch request.Code {
	case codeRoute:
		body, err := json.Marshal(map[string]any{
			"brokerDatas": []any{map[string]any{
				"brokerName": groupName, "cluster": clusterName, "brokerAddrs": map[string]string{masterID: s.listener.Addr().String()},
			}},
			"queueDatas": []any{map[string]any{"brokerName": groupName, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}},
		})
		if err != nil {
			s.t.Error(err)
		}
		return command{}, body
	case codeSend:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sends = append(s.sends, request)
		answer := s.answers[0]
		if len(s.answers) > 1 {
			s.answers = s.answers[1:]
		}
		return answer, nil
	default:
		return command{}, nil
	}
}

func (s *server) seen() []command {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]command(nil), s.sends...)
}

// stored is the answer to a send that was taken.
func stored(code int) command {
	return command{Code: code, Fields: map[string]string{"msgId": "x", "queueId": "2", "queueOffset": "7"}}
}

// sendOne sends one message to queue 2 and returns how that ended, once a flush has waited for it.
func sendOne(t *testing.T, s *server, settings map[string]string) system.Receipt {
	t.Helper()
	p, err := Clients{}.OpenProducer(t.Context(), system.ClientConfig{
		DSN: s.listener.Addr().String(), ClientID: "run.arm.p1", Destination: "run.arm", Settings: settings,
	})
	if err != nil {
		t.Fatal(err)
	}
	var receipts []system.Receipt
	p.Send(t.Context(), system.Message{Key: []byte("k"), Payload: []byte("payload"), Partition: 2}, func(r system.Receipt) {
		time.Sleep(10 * time.Millisecond)
		receipts = append(receipts, r)
	})
	if err := p.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	if len(receipts) != 1 {
		t.Fatalf("the send ended %d times", len(receipts))
	}
	return receipts[0]
}

func TestSends(t *testing.T) {
	full := command{Code: answerSystemError, Remark: "in-sync replicas not enough"}
	for name, tt := range map[string]struct {
		answers  []command
		settings map[string]string
		want     system.Receipt
		attempts int
	}{
		"confirmed":   {[]command{stored(0)}, nil, system.Receipt{Outcome: ledger.OK, Offset: 7}, 1},
		"not flushed": {[]command{stored(answerFlushDiskTimeout)}, nil, system.Receipt{Offset: -1, Err: "FLUSH_DISK_TIMEOUT"}, 1},
		"not replicated, unheeded": {
			[]command{stored(answerFlushSlaveTimeout)}, map[string]string{"status": "ignored", "retries": "3"}, system.Receipt{Offset: -1}, 1,
		},
		"refused":    {[]command{full}, nil, system.Receipt{Outcome: ledger.Failed, Offset: -1, Err: "IN_SYNC_REPLICAS_NOT_ENOUGH"}, 1},
		"unanswered": {[]command{{Code: silent}}, map[string]string{"timeout.ms": "50"}, system.Receipt{Offset: -1, Err: "timeout"}, 1},
		"confirmed at last": {
			[]command{{Code: silent}, stored(answerFlushSlaveTimeout), full, stored(0)},
			map[string]string{"timeout.ms": "50", "retries": "3", "backoff.ms": "1"},
			system.Receipt{Outcome: ledger.OK, Offset: 7},
			4,
		},
		"refused after doubt": { // the first one may be stored
			[]command{{Code: silent}, full},
			map[string]string{"timeout.ms": "50", "retries": "1", "backoff.ms": "1"},
			system.Receipt{Offset: -1, Err: "IN_SYNC_REPLICAS_NOT_ENOUGH"},
			2,
		},
		"refused each time": {
			[]command{full},
			map[string]string{"retries": "2", "backoff.ms": "1"},
			system.Receipt{Outcome: ledger.Failed, Offset: -1, Err: "IN_SYNC_REPLICAS_NOT_ENOUGH"},
			3,
		},
		"one-way": {[]command{stored(0)}, map[string]string{"mode": "one-way"}, system.Receipt{Offset: -1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, tt.answers...)
			if got := sendOne(t, s, tt.settings); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			for range 100 { // nobody waits for a one-way send
				if len(s.seen()) >= tt.attempts {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			sends := s.seen()
			if len(sends) != tt.attempts {
				t.Fatalf("%d attempts, want %d", len(sends), tt.attempts)
			}
			for _, c := range sends {
				if c.Fields["topic"] != "run|arm" || c.Fields["queueId"] != "2" || c.Fields["producerGroup"] != "run|arm|p1" {
					t.Errorf("sent %v", c.Fields)
				}
			}
		})
	}
}

func TestPropertiesOfMessages(t *testing.T) {
	s := newServer(t, stored(0))
	sendOne(t, s, map[string]string{"wait": "false", "delay.ms": "5000", "delay.level": "2"})
	properties := s.seen()[0].Fields["properties"]
	for name, value := range map[string]string{"WAIT": "false", "TIMER_DELAY_MS": "5000", "DELAY": strconv.Itoa(2), "KEYS": "k"} {
		if !strings.Contains(properties, name+"\x01"+value) {
			t.Errorf("%s=%s is not among %q", name, value, properties)
		}
	}
}

func TestNobodyToSendTo(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // nobody listens there
	s := &server{listener: l}
	if got := sendOne(t, s, nil); got.Outcome != ledger.Failed {
		t.Errorf("got %+v: nothing was sent", got)
	}
}
