package rocketmq

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"conform/harness/internal/netproxy"
	"conform/harness/system"
)

// Names of requests in a system.WireRule. Others are "code-N" by RocketMQ's request code.
const (
	KindSend           = "send" // also of transactions' half messages, and of the client's own retries
	KindPull           = "pull"
	KindUpdateOffset   = "update-offset"
	KindSendBack       = "send-back" // a consumer wants the message later
	KindEndTransaction = "end-transaction"
	KindHeartbeat      = "heartbeat"
	// KindAnswer is what a client answers to a question of the broker.
	KindAnswer = "answer"
	// KindQuestion is what a broker asks or tells a client of its own accord, e.g. for the state of a transaction.
	KindQuestion = "question"
)

// kinds are the names of requests by code (org.apache.rocketmq.remoting.protocol.RequestCode).
var kinds = map[int]string{
	codeSend: KindSend, 310: KindSend, 320: KindSend, // SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE
	codePull: KindPull, codeUpdateOffset: KindUpdateOffset, codeQueryOffset: "query-offset",
	34: KindHeartbeat, 35: "unregister-client", 36: KindSendBack, 37: KindEndTransaction, 38: "consumer-list",
	41: "lock-queues", 42: "unlock-queues", codeRoute: "route", codeMaxOffset: "max-offset", codeMinOffset: "min-offset",
}

// knownKind says whether a rule can pick such requests.
func knownKind(kind string) bool {
	for _, name := range kinds {
		if name == kind {
			return true
		}
	}
	return slices.Contains([]string{KindAnswer, KindQuestion}, kind)
}

// framer knows the frames of RocketMQ's remoting protocol with headers in JSON, as the Go client writes them: a length of 4
// bytes, a type of one byte and the header's length of three, the header, the body. The client of a send is its producer
// group and that of a pull its consumer group, which the adapter makes of the client id.
type framer struct{}

func (framer) Open() netproxy.Session { return &session{} }

// CheckAnswer refuses: no scenario needs it.
func (framer) CheckAnswer(kind, code string) error {
	return fmt.Errorf("answer %s with %s: not supported: %w", kind, code, system.ErrUsage)
}

// session is the framer's state of one connection: who its requests were from last, for those that do not say.
type session struct{ client string }

func (s *session) Len(_ netproxy.Way, head []byte) (int, error) {
	if len(head) < headAll {
		return 0, nil
	}
	all, header := binary.BigEndian.Uint32(head), binary.BigEndian.Uint32(head[headFrame:])
	if all < 4 || all > maxFrame || header&0xffffff+4 > all {
		return 0, fmt.Errorf("frame of %d bytes with a header of %d is not RocketMQ's", all, header&0xffffff)
	}
	return int(all) + headFrame, nil
}

// readHeader reads the header of a frame; false if more of the frame is needed, or if it is of another type than JSON.
func readHeader(frame []byte) (c command, ok bool) {
	if len(frame) < headAll || frame[headFrame] != 0 {
		return c, false
	}
	n := int(binary.BigEndian.Uint32(frame[headFrame:]) & 0xffffff)
	if len(frame) < headAll+n {
		return c, false
	}
	return c, json.Unmarshal(frame[headAll:headAll+n], &c) == nil
}

func (s *session) Request(frame []byte, length int) (netproxy.Request, bool) {
	c, ok := readHeader(frame)
	if !ok {
		return netproxy.Request{Kind: "unknown", NoReply: true}, len(frame) < length
	}
	if c.Flag&flagResponse != 0 {
		return netproxy.Request{Kind: KindAnswer, Client: s.client, NoReply: true}, false
	}
	r := netproxy.Request{Kind: kinds[c.Code], Tag: uint64(uint32(c.Opaque)), NoReply: c.Flag&flagOneWay != 0}
	if r.Kind == "" {
		r.Kind = fmt.Sprintf("code-%d", c.Code)
	}
	for _, field := range []string{"producerGroup", "a", "consumerGroup", "group"} { // "a" is the producer's group in version 2
		if group, ok := c.Fields[field]; ok {
			s.client = plainName(group)
			break
		}
	}
	r.Client = s.client
	if r.Kind == KindSend {
		r.Messages = 1
		if !r.NoReply {
			r.State = true
		}
	}
	return r, false
}

func (s *session) Tag(frame []byte) (uint64, bool) {
	c, ok := readHeader(frame)
	return uint64(uint32(c.Opaque)), ok
}

// Judge takes SEND_OK alone for a confirm. The statuses that say that something has not happened in time, though the message
// is in the log, are neither confirm nor refusal.
func (s *session) Judge(_ *netproxy.Request, response []byte) (confirmed, refused int64) {
	c, ok := readHeader(response)
	if !ok {
		return 0, 0
	}
	switch c.Code {
	case answerOK:
		return 1, 0
	case answerFlushDiskTimeout, answerFlushSlaveTimeout, answerSlaveNotAvailable:
		return 0, 0
	default:
		return 0, 1
	}
}

var _ netproxy.Announcer = (*session)(nil)

// Announce describes what a broker asks of its own accord.
func (s *session) Announce(frame []byte) (netproxy.Request, int64, int64, bool) {
	c, ok := readHeader(frame)
	if !ok || c.Flag&flagResponse != 0 {
		return netproxy.Request{}, 0, 0, false
	}
	return netproxy.Request{Kind: KindQuestion, NoReply: c.Flag&flagOneWay != 0}, 0, 0, true
}

func (s *session) Answer(*netproxy.Request, []byte, string) ([]byte, error) {
	return nil, fmt.Errorf("answer a request: %w", system.ErrUsage)
}
