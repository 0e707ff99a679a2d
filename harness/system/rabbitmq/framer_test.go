package rabbitmq

import (
	"bytes"
	"encoding/binary"
	"testing"

	"conform/harness/internal/netproxy"
)

func frame(kind byte, channel uint16, payload ...[]byte) []byte {
	body := bytes.Join(payload, nil)
	b := binary.BigEndian.AppendUint16([]byte{kind}, channel)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	return append(append(b, body...), 0xce)
}

func call(channel uint16, m method, args ...[]byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, m.class)
	b = binary.BigEndian.AppendUint16(b, m.id)
	return frame(frameMethod, channel, append([][]byte{b}, args...)...)
}

// message is a method with a content of size bytes in bodies of at most piece bytes.
func message(channel uint16, m method, size, piece int) []byte {
	b := call(channel, m, make([]byte, 20))
	header := binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, uint64(size))
	b = append(b, frame(frameHeader, channel, header, []byte{0, 0})...)
	for left := size; left > 0; left -= piece {
		b = append(b, frame(frameBody, channel, bytes.Repeat([]byte{'x'}, min(left, piece)))...)
	}
	return b
}

func confirm(channel uint16, m method, tag uint64, multiple bool) []byte {
	args := binary.BigEndian.AppendUint64(nil, tag)
	flag := byte(0)
	if multiple {
		flag = 1
	}
	return call(channel, m, args, []byte{flag})
}

func TestLenGathersMessages(t *testing.T) {
	s := framer{}.Open()
	whole := map[string]struct {
		way netproxy.Way
		b   []byte
	}{
		"publish":           {netproxy.ToNode, message(1, basicPublish, 160, 4096)},
		"empty message":     {netproxy.ToNode, message(1, basicPublish, 0, 4096)},
		"several bodies":    {netproxy.ToNode, message(3, basicPublish, 10000, 4096)},
		"deliver":           {netproxy.ToClient, message(1, basicDeliver, 160, 4096)},
		"heartbeat":         {netproxy.ToNode, frame(8, 0)},
		"protocol header":   {netproxy.ToNode, []byte("AMQP\x00\x00\x09\x01")},
		"method":            {netproxy.ToClient, confirm(1, basicAck, 7, false)},
		"publish of a node": {netproxy.ToClient, call(1, basicPublish, make([]byte, 9))},
	}
	for name, c := range whole {
		for n := range len(c.b) { // whatever has come so far, the answer is "more" or the truth
			if got, err := s.Len(c.way, c.b[:n]); err != nil || got != 0 && got != len(c.b) {
				t.Errorf("%s: %d of %d bytes: length %d, error %v", name, n, len(c.b), got, err)
			}
		}
		more := append(bytes.Clone(c.b), message(1, basicPublish, 10, 10)...)
		if got, err := s.Len(c.way, more); err != nil || got != len(c.b) {
			t.Errorf("%s: length %d of %d, error %v", name, got, len(c.b), err)
		}
	}
	large := message(1, basicPublish, gather+1, 1<<17)
	if got, err := s.Len(netproxy.ToNode, large[:gather]); err != nil || got != len(call(1, basicPublish, make([]byte, 20))) {
		t.Errorf("a message that is too large is %d bytes, error %v", got, err)
	}
	alone := append(call(1, basicPublish, make([]byte, 20)), frame(8, 0)...)
	alone = append(alone, make([]byte, 30)...)
	if got, err := s.Len(netproxy.ToNode, alone); err != nil || got != len(alone)-38 {
		t.Errorf("a publish without its message is %d bytes, error %v", got, err)
	}
	if _, err := s.Len(netproxy.ToNode, []byte("GET / HTTP/1.1")); err == nil {
		t.Error("another protocol passes")
	}
}

func TestClientIsTheConnectionName(t *testing.T) {
	long := func(s string) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...) }
	entry := func(name string, kind byte, value []byte) []byte {
		return append(append([]byte{byte(len(name))}, name...), append([]byte{kind}, value...)...)
	}
	inner := append(entry("basic.nack", 't', []byte{1}), entry("connection_name", 'S', long("wrong"))...)
	table := bytes.Join([][]byte{
		entry("capabilities", 'F', long(string(inner))), entry("n", 'I', make([]byte, 4)), entry("d", 'd', make([]byte, 8)),
		entry("a", 'A', long("xyz")), entry("connection_name", 'S', long("scenario.guarded.p1")), entry("z", 'V', nil),
	}, nil)
	s := framer{}.Open()
	start := call(0, connectionStartOk, long(string(table)), []byte{5}, []byte("PLAIN"))
	if _, more := s.Request(start[:20], len(start)); !more {
		t.Error("half a start-ok is enough")
	}
	if r, _ := s.Request(start, len(start)); r.Client != "scenario.guarded.p1" || r.Kind != "connection.start-ok" {
		t.Errorf("request %+v", r)
	}
	publish := message(1, basicPublish, 10, 10)
	want := netproxy.Request{Kind: KindPublish, Client: "scenario.guarded.p1", NoReply: true, Messages: 1}
	if r, more := s.Request(publish[:15], len(publish)); more || r != want {
		t.Errorf("request %+v, more %t", r, more)
	}
	if r, _ := s.Request(confirm(1, basicAck, 3, false), 0); r.Kind != KindAck || r.Messages != 1 {
		t.Errorf("a consumer's ack is %+v", r)
	}
}

func TestConfirmsAreCountedOnce(t *testing.T) {
	s := framer{}.Open().(*session)
	for i, c := range []struct {
		frame              []byte
		confirmed, refused int64
	}{
		{confirm(1, basicAck, 1, false), 1, 0},
		{confirm(1, basicAck, 3, false), 1, 0},
		{confirm(1, basicAck, 3, false), 0, 0},
		{confirm(1, basicAck, 5, true), 3, 0}, // 2, 4 and 5
		{confirm(1, basicNack, 6, false), 0, 1},
		{confirm(1, basicNack, 9, true), 0, 3},
		{confirm(1, basicAck, 9, true), 0, 0},
		{confirm(2, basicAck, 4, true), 4, 0}, // another channel
	} {
		r, confirmed, refused, ok := s.Announce(c.frame)
		if !ok || r.Kind != KindConfirm || confirmed != c.confirmed || refused != c.refused {
			t.Errorf("%d: %+v confirms %d and refuses %d (%t), want %d and %d", i, r, confirmed, refused, ok, c.confirmed, c.refused)
		}
	}
	if _, _, _, ok := s.Announce(call(1, channelOpenOk, make([]byte, 4))); ok {
		t.Error("channel.open-ok is announced")
	}
	if _, confirmed, _, _ := s.Announce(confirm(1, basicAck, 2, true)); confirmed != 2 {
		t.Errorf("%d confirmed on a new channel", confirmed)
	}
	if r, _, _, ok := s.Announce(message(1, basicDeliver, 5, 5)); !ok || r.Kind != KindDeliver || r.Messages != 1 {
		t.Errorf("a delivery is %+v (%t)", r, ok)
	}
	if len(s.channels[2].some) > 0 || len(s.channels[1].some) > 0 {
		t.Error("confirms pile up")
	}
}

// FuzzFramer: nothing that a peer sends makes the framer panic or look beyond what is there.
func FuzzFramer(f *testing.F) {
	for _, b := range [][]byte{
		message(1, basicPublish, 160, 4096), message(1, basicDeliver, 0, 1), confirm(1, basicAck, 7, true), frame(8, 0),
		call(0, connectionStartOk, []byte{0, 0, 0, 20}, []byte("\x0fconnection_nameS\x00\x00\x00\x01c")), []byte("AMQP\x00\x00\x09\x01"),
		call(1, channelOpenOk, make([]byte, 4)),
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, way := range []netproxy.Way{netproxy.ToNode, netproxy.ToClient} {
			s := framer{}.Open().(*session)
			for rest := b; len(rest) > 0; {
				n, err := s.Len(way, rest)
				if err != nil || n == 0 {
					break
				}
				if n < frameExtra {
					t.Fatalf("frame of %d bytes", n)
				}
				one := rest[:min(n, len(rest))]
				if way == netproxy.ToNode {
					if r, more := s.Request(one, n); more && len(one) == n {
						t.Fatalf("%+v wants more than all", r)
					}
				} else if _, confirmed, refused, _ := s.Announce(one); confirmed < 0 || refused < 0 {
					t.Fatalf("%d confirmed, %d refused", confirmed, refused)
				}
				rest = rest[len(one):]
			}
		}
	})
}
