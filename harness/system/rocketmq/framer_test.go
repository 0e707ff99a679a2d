package rocketmq

import (
	"encoding/binary"
	"testing"

	"conform/harness/internal/netproxy"
)

func frame(t *testing.T, c command, body string) []byte {
	t.Helper()
	b, err := appendFrame(nil, c, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFramesAreMeasured(t *testing.T) {
	s := framer{}.Open()
	b := frame(t, command{Code: codeSend}, "body")
	for n := range headAll {
		if got, err := s.Len(netproxy.ToNode, b[:n]); got != 0 || err != nil {
			t.Errorf("%d bytes: got %d, %v", n, got, err)
		}
	}
	if got, err := s.Len(netproxy.ToNode, b[:headAll]); got != len(b) || err != nil {
		t.Errorf("got %d, %v, want %d", got, err, len(b))
	}
	for _, bad := range [][]byte{
		binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 3), 0),
		binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 100), 97),
		[]byte("GET / HTTP/1.1\r\n"),
	} {
		if _, err := s.Len(netproxy.ToNode, bad); err == nil {
			t.Errorf("%q is no frame", bad)
		}
	}
}

func TestRequestsAreDescribed(t *testing.T) {
	s := framer{}.Open()
	for _, tt := range []struct {
		name    string
		request command
		want    netproxy.Request
	}{
		{
			"send",
			command{Code: codeSend, Opaque: 7, Fields: map[string]string{"producerGroup": "run|arm|p1"}},
			netproxy.Request{Kind: KindSend, Client: "run.arm.p1", Tag: 7, Messages: 1, State: true},
		},
		{
			"send v2",
			command{Code: 310, Opaque: -1, Fields: map[string]string{"a": "p2"}},
			netproxy.Request{Kind: KindSend, Client: "p2", Tag: 1<<32 - 1, Messages: 1, State: true},
		},
		{
			"one-way",
			command{Code: codeSend, Flag: flagOneWay, Opaque: 8, Fields: map[string]string{"producerGroup": "p1"}},
			netproxy.Request{Kind: KindSend, Client: "p1", Tag: 8, Messages: 1, NoReply: true},
		},
		{
			"pull",
			command{Code: codePull, Opaque: 9, Fields: map[string]string{"consumerGroup": "g"}},
			netproxy.Request{Kind: KindPull, Client: "g", Tag: 9},
		},
		{"heartbeat of the same connection", command{Code: 34, Opaque: 10}, netproxy.Request{Kind: KindHeartbeat, Client: "g", Tag: 10}},
		{"answer", command{Code: 0, Flag: flagResponse, Opaque: 11}, netproxy.Request{Kind: KindAnswer, Client: "g", NoReply: true}},
		{"other", command{Code: 999, Opaque: 12}, netproxy.Request{Kind: "code-999", Client: "g", Tag: 12}},
	} {
		b := frame(t, tt.request, "body")
		if _, more := s.Request(b[:20], len(b)); !more {
			t.Errorf("%s: described by its beginning", tt.name)
		}
		if got, more := s.Request(b, len(b)); more || got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestResponsesAreJudged(t *testing.T) {
	s := framer{}.Open()
	for code, want := range map[int][2]int64{
		answerOK: {1, 0}, answerSystemError: {0, 1}, answerSystemBusy: {0, 1}, answerTopicNotExist: {0, 1},
		answerFlushDiskTimeout: {0, 0}, answerFlushSlaveTimeout: {0, 0}, answerSlaveNotAvailable: {0, 0},
	} {
		b := frame(t, command{Code: code, Flag: flagResponse, Opaque: 7}, "")
		if tag, ok := s.Tag(b); tag != 7 || !ok {
			t.Errorf("tag %d, %t", tag, ok)
		}
		if confirmed, refused := s.Judge(&netproxy.Request{}, b); [2]int64{confirmed, refused} != want {
			t.Errorf("answer %d: %d confirmed, %d refused", code, confirmed, refused)
		}
	}
}

func TestBrokersQuestionsAreAnnounced(t *testing.T) {
	s := framer{}.Open().(netproxy.Announcer)
	if _, _, _, ok := s.Announce(frame(t, command{Flag: flagResponse, Opaque: 7}, "")); ok {
		t.Error("a response is an announcement")
	}
	r, _, _, ok := s.Announce(frame(t, command{Code: 39, Opaque: 7}, ""))
	if !ok || r.Kind != KindQuestion {
		t.Errorf("got %+v, %t", r, ok)
	}
}

func FuzzFrames(f *testing.F) {
	b, err := appendFrame(nil, command{Code: codeSend, Opaque: 7, Fields: map[string]string{"producerGroup": "p1"}}, []byte("body"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(_ *testing.T, b []byte) {
		s := framer{}.Open()
		n, err := s.Len(netproxy.ToNode, b)
		if err != nil || n == 0 || n > len(b) {
			return
		}
		r, _ := s.Request(b[:n], n)
		_, _ = s.Tag(b[:n])
		s.Judge(&r, b[:n])
		s.(netproxy.Announcer).Announce(b[:n])
	})
}
