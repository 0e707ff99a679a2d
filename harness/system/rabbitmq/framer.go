package rabbitmq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"conform/harness/internal/netproxy"
	"conform/harness/system"
)

// Names of frames in a system.WireRule. Methods of other classes are named "class.method", e.g. "queue.declare".
const (
	KindPublish = "publish" // basic.publish with its content
	KindAck     = "ack"     // basic.ack of a consumer
	KindNack    = "nack"    // basic.nack of a consumer
	KindReject  = "reject"  // basic.reject of a consumer
	KindConfirm = "confirm" // basic.ack or basic.nack of the node, for one publish or for many
	KindDeliver = "deliver" // basic.deliver with its content
	KindReturn  = "return"  // basic.return with its content
)

// The types of frames (AMQP 0-9-1, section 2.3.5).
const (
	frameMethod = 1
	frameHeader = 2
	frameBody   = 3

	frameHead  = 7 // type, channel, size
	frameExtra = 8 // head and the end octet
	// gather is the longest message that passes as one frame of the link: it must fit the relay's buffer. The frames of a
	// longer one pass one by one.
	gather = 48 << 10
)

// method is a class and a method id.
type method struct{ class, id uint16 }

var (
	connectionStartOk = method{10, 11}
	channelOpenOk     = method{20, 11}
	basicPublish      = method{60, 40}
	basicReturn       = method{60, 50}
	basicDeliver      = method{60, 60}
	basicGetOk        = method{60, 71}
	basicAck          = method{60, 80}
	basicNack         = method{60, 120}
)

// kinds names the methods that a client or a node sends.
var kinds = map[method]string{
	{10, 10}: "connection.start", connectionStartOk: "connection.start-ok", {10, 20}: "connection.secure", {10, 21}: "connection.secure-ok",
	{10, 30}: "connection.tune", {10, 31}: "connection.tune-ok", {10, 40}: "connection.open", {10, 41}: "connection.open-ok",
	{10, 50}: "connection.close", {10, 51}: "connection.close-ok", {10, 60}: "connection.blocked", {10, 61}: "connection.unblocked",
	{20, 10}: "channel.open", channelOpenOk: "channel.open-ok", {20, 20}: "channel.flow", {20, 21}: "channel.flow-ok",
	{20, 40}: "channel.close", {20, 41}: "channel.close-ok",
	{40, 10}: "exchange.declare", {40, 11}: "exchange.declare-ok", {40, 20}: "exchange.delete", {40, 21}: "exchange.delete-ok",
	{50, 10}: "queue.declare", {50, 11}: "queue.declare-ok", {50, 20}: "queue.bind", {50, 21}: "queue.bind-ok",
	{50, 30}: "queue.purge", {50, 31}: "queue.purge-ok", {50, 40}: "queue.delete", {50, 41}: "queue.delete-ok",
	{50, 50}: "queue.unbind", {50, 51}: "queue.unbind-ok",
	{60, 10}: "qos", {60, 11}: "qos-ok", {60, 20}: "consume", {60, 21}: "consume-ok", {60, 30}: "cancel", {60, 31}: "cancel-ok",
	basicPublish: KindPublish, basicReturn: KindReturn, basicDeliver: KindDeliver, {60, 70}: "get", basicGetOk: "get-ok", {60, 72}: "get-empty",
	basicAck: KindAck, {60, 90}: KindReject, {60, 110}: "recover", {60, 111}: "recover-ok", basicNack: KindNack,
	{85, 10}: "confirm.select", {85, 11}: "confirm.select-ok",
}

// knownKind says whether a rule can pick such frames.
func knownKind(kind string) bool {
	if kind == KindConfirm {
		return true
	}
	for _, name := range kinds {
		if name == kind {
			return true
		}
	}
	return false
}

// framer knows the frames of AMQP 0-9-1: type, channel and size, then the content, then an end octet. A method that carries
// a message passes as one frame of the link with the message's header and body, as long as it is not too large for that.
type framer struct{}

func (framer) Open() netproxy.Session { return &session{channels: map[uint16]*confirms{}} }

// CheckAnswer refuses: the protocol's refusals close the channel and so say something about all of its messages.
func (framer) CheckAnswer(kind, code string) error {
	return fmt.Errorf("answer %s with %s: AMQP has no refusal of one request: %w", kind, code, system.ErrUsage)
}

// session is the framer's state of one connection. The client is written by requests and read by announcements.
type session struct {
	client   atomic.Pointer[string]
	channels map[uint16]*confirms // of announcements only
}

// confirms is what was confirmed of one channel: all tags up to base, and those above it that are in some.
type confirms struct {
	base uint64
	some map[uint64]struct{}
}

// take returns how many messages a confirm is the first one for.
func (c *confirms) take(tag uint64, multiple bool) int64 {
	if tag <= c.base || tag > math.MaxInt64 {
		return 0
	}
	if multiple {
		n := int64(tag - c.base)
		for t := range c.some {
			if t <= tag {
				n--
				delete(c.some, t)
			}
		}
		c.base = tag
		c.shift()
		return n
	}
	if _, again := c.some[tag]; again {
		return 0
	}
	c.some[tag] = struct{}{}
	c.shift()
	return 1
}

func (c *confirms) shift() {
	for {
		if _, ok := c.some[c.base+1]; !ok {
			return
		}
		c.base++
		delete(c.some, c.base)
	}
}

func (s *session) Len(way netproxy.Way, head []byte) (int, error) {
	if len(head) < frameExtra {
		return 0, nil
	}
	if head[0] == 'A' { // the protocol header, from either side
		return 8, nil
	}
	n, err := frameLen(head)
	if err != nil || head[0] != frameMethod || n < frameExtra+4 {
		return n, err
	}
	if len(head) < frameHead+4 {
		return 0, nil
	}
	m, _ := methodOf(head)
	content := way == netproxy.ToNode && m == basicPublish ||
		way == netproxy.ToClient && (m == basicDeliver || m == basicReturn || m == basicGetOk)
	if !content {
		return n, nil
	}
	total, more, err := messageLen(head, n)
	switch {
	case err != nil:
		return 0, err
	case total > gather || more > gather:
		return n, nil
	case more > len(head):
		return 0, nil
	default:
		return total, nil
	}
}

// frameLen is the length of the AMQP frame that begins with head, which has 8 bytes or more.
func frameLen(head []byte) (int, error) {
	size := binary.BigEndian.Uint32(head[3:])
	if !slices.Contains([]byte{frameMethod, frameHeader, frameBody, 4, 8}, head[0]) || size > 1<<28 {
		return 0, fmt.Errorf("frame of type %d and %d bytes is not AMQP's", head[0], size)
	}
	return int(size) + frameExtra, nil
}

// messageLen is the length of a method frame of n bytes with the header and body frames behind it. more is how many bytes
// of head are needed to tell; the answer is good if head has them. A method whose message is not where it should be stands
// alone.
func messageLen(head []byte, n int) (total, more int, err error) {
	const sizeAt = frameHead + 2 + 2 // class, weight
	more = n + sizeAt + 8
	if len(head) < more {
		return n, more, nil
	}
	header := head[n:]
	if header[0] != frameHeader || header[1] != head[1] || header[2] != head[2] {
		return n, more, nil
	}
	length, err := frameLen(header)
	if err != nil {
		return 0, more, err
	}
	total = n + length
	left := binary.BigEndian.Uint64(header[sizeAt:])
	for left > 0 {
		more = total + frameExtra
		if more > gather || len(head) < more {
			return total, more, nil
		}
		body := head[total:]
		if body[0] != frameBody || body[1] != head[1] || body[2] != head[2] {
			return n, more, nil
		}
		length, err := frameLen(body)
		if err != nil {
			return 0, more, err
		}
		total += length
		left -= min(left, uint64(length-frameExtra))
	}
	return total, more, nil
}

// methodOf reads the method of a frame; false if it is none or too short.
func methodOf(frame []byte) (method, bool) {
	if len(frame) < frameHead+4 || frame[0] != frameMethod {
		return method{}, false
	}
	return method{binary.BigEndian.Uint16(frame[frameHead:]), binary.BigEndian.Uint16(frame[frameHead+2:])}, true
}

// kindOf names a frame.
func kindOf(frame []byte) string {
	m, ok := methodOf(frame)
	switch {
	case ok && kinds[m] != "":
		return kinds[m]
	case ok:
		return "unknown"
	case len(frame) > 0 && frame[0] == 'A':
		return "protocol-header"
	case len(frame) > 0 && frame[0] == 8:
		return "heartbeat"
	default:
		return "content"
	}
}

func (s *session) name() string {
	if p := s.client.Load(); p != nil {
		return *p
	}
	return ""
}

// Request describes a frame of the client. None has a response of its own: confirms come when the node likes, for many.
func (s *session) Request(frame []byte, length int) (netproxy.Request, bool) {
	m, ok := methodOf(frame)
	if ok && m == connectionStartOk && len(frame) < length {
		return netproxy.Request{}, true
	}
	if ok && m == connectionStartOk {
		if name := connectionName(frame[frameHead+4:]); name != "" {
			s.client.Store(&name)
		}
	}
	r := netproxy.Request{Kind: kindOf(frame), Client: s.name(), NoReply: true}
	switch r.Kind {
	case KindPublish, KindAck, KindNack, KindReject:
		r.Messages = 1
	}
	return r, false
}

// Announce describes deliveries, returns and confirms. Everything else answers one method of the client.
func (s *session) Announce(frame []byte) (r netproxy.Request, confirmed, refused int64, ok bool) {
	m, isMethod := methodOf(frame)
	if !isMethod {
		return r, 0, 0, false
	}
	channel := binary.BigEndian.Uint16(frame[1:])
	r = netproxy.Request{Kind: kinds[m], Client: s.name()}
	switch m {
	case channelOpenOk: // tags begin at 1 again
		delete(s.channels, channel)
		return r, 0, 0, false
	case basicDeliver, basicReturn, basicGetOk:
		r.Messages = 1
		return r, 0, 0, true
	case basicAck, basicNack:
		args := frame[frameHead+4:]
		if len(args) < 9 {
			return r, 0, 0, false
		}
		c := s.channels[channel]
		if c == nil {
			c = &confirms{some: map[uint64]struct{}{}}
			s.channels[channel] = c
		}
		r.Kind = KindConfirm
		r.Messages = c.take(binary.BigEndian.Uint64(args), args[8]&1 != 0)
		if m == basicAck {
			return r, r.Messages, 0, true
		}
		return r, 0, r.Messages, true
	default:
		return r, 0, 0, false
	}
}

// Tag pairs nothing.
func (*session) Tag([]byte) (uint64, bool) { return 0, true }

// Judge is never asked.
func (*session) Judge(*netproxy.Request, []byte) (confirmed, refused int64) { return 0, 0 }

// Answer is never asked, see CheckAnswer.
func (*session) Answer(*netproxy.Request, []byte, string) ([]byte, error) {
	return nil, errors.New("no request has an answer of its own")
}

// connectionName reads the property "connection_name" from the table that begins args, or returns "".
func connectionName(args []byte) string {
	table, _, ok := block(args)
	for ok && len(table) > 0 {
		n := int(table[0])
		if len(table) < 1+n+1 {
			return ""
		}
		name, kind := string(table[1:1+n]), table[1+n]
		table = table[1+n+1:]
		if name == "connection_name" && kind == 'S' {
			value, _, _ := block(table)
			return string(value)
		}
		table, ok = skipValue(kind, table)
	}
	return ""
}

// block reads a length of 4 bytes and so many bytes.
func block(b []byte) (content, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := binary.BigEndian.Uint32(b)
	if uint64(n) > uint64(len(b)-4) {
		return nil, nil, false
	}
	return b[4 : 4+n], b[4+n:], true
}

// fixed are the sizes of the values of a table that have one (https://www.rabbitmq.com/amqp-0-9-1-errata).
var fixed = map[byte]int{
	'V': 0, 't': 1, 'b': 1, 'B': 1, 's': 2, 'u': 2, 'U': 2, 'I': 4, 'i': 4, 'f': 4, 'D': 5, 'l': 8, 'L': 8, 'd': 8, 'T': 8,
}

func skipValue(kind byte, b []byte) (rest []byte, ok bool) {
	if n, is := fixed[kind]; is {
		if len(b) < n {
			return nil, false
		}
		return b[n:], true
	}
	switch kind {
	case 'S', 'x', 'A', 'F':
		_, rest, ok = block(b)
		return rest, ok
	}
	return nil, false
}
