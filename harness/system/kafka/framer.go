package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"conform/harness/internal/netproxy"
	"conform/harness/system"
)

// KindProduce is the name of produce requests in a system.WireRule. Other requests are named likewise after the
// protocol: "fetch", "find-coordinator", "offset-commit".
const KindProduce = "produce"

const keyProduce = 0

// kinds are the names of requests by API key.
var kinds = func() []string {
	names := make([]string, kmsg.MaxKey+1)
	for key := range names {
		names[key] = kebab(kmsg.NameForKey(int16(key)))
	}
	return names
}()

// kebab turns "OffsetCommit" into "offset-commit" and "DescribeACLs" into "describe-acls".
func kebab(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 && unicode.IsLower(runes[i-1]) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// framer knows Kafka's frames: a length of 4 bytes, then for requests API key, version, correlation id and client id
// (https://kafka.apache.org/protocol#protocol_messages). It looks into produce requests and their responses only.
type framer struct{}

func (framer) Open() netproxy.Session { return &session{} }

// CheckAnswer allows the refusal of produce requests by any code of the protocol but success.
func (framer) CheckAnswer(kind, code string) error {
	if kind != KindProduce {
		return fmt.Errorf("only %s requests can be refused, not %q: %w", KindProduce, kind, system.ErrUsage)
	}
	_, err := refusal(code)
	return err
}

// refusal finds an error code by its name in the protocol, e.g. "NOT_LEADER_OR_FOLLOWER".
func refusal(name string) (int16, error) {
	if name == "NOT_LEADER_OR_FOLLOWER" { // renamed in Kafka 2.6; the client library keeps the old name
		name = kerr.NotLeaderForPartition.Message
	}
	for code := int16(-1); code < math.MaxInt8; code++ {
		if e := kerr.TypedErrorForCode(code); e != nil && e.Message == name {
			return code, nil
		}
	}
	return 0, fmt.Errorf("unknown error code %q: %w", name, system.ErrUsage)
}

// session is the framer's state of one connection. The client id is the only state: it seldom changes, and keeping it
// saves an allocation for each request.
type session struct{ client string }

// part names one partition of a produce request. Topic holds the name, or from version 13 on the 16 bytes of the id.
type part struct {
	topic     string
	partition int32
}

// produced is what is remembered of a produce request until its response.
type produced struct {
	version  int16
	messages map[part]int64
}

func (s *session) Len(_ netproxy.Way, head []byte) (int, error) {
	if len(head) < 4 {
		return 0, nil
	}
	n := int32(binary.BigEndian.Uint32(head))
	if n < 4 {
		return 0, fmt.Errorf("frame of %d bytes is not Kafka's", n)
	}
	return int(n) + 4, nil
}

func (s *session) Request(frame []byte, length int) (netproxy.Request, bool) {
	whole := len(frame) == length
	h, ok := readHeader(frame)
	if !ok {
		return netproxy.Request{}, !whole
	}
	if string(h.client) != s.client {
		s.client = string(h.client)
	}
	r := netproxy.Request{Kind: "unknown", Client: s.client, Tag: uint64(uint32(h.correlation))}
	if h.key >= 0 && int(h.key) < len(kinds) {
		r.Kind = kinds[h.key]
	}
	if h.key != keyProduce {
		return r, false
	}
	if !whole {
		return r, true
	}
	var p kmsg.ProduceRequest
	if err := readProduce(&p, h, frame); err != nil {
		return r, false // the broker will say what is wrong with it
	}
	r.NoReply = p.Acks == 0
	sent := &produced{version: h.version, messages: map[part]int64{}}
	for i := range p.Topics {
		t := &p.Topics[i]
		topic := topicKey(t.Topic, t.TopicID)
		for j := range t.Partitions {
			n := countRecords(t.Partitions[j].Records)
			sent.messages[part{topic, t.Partitions[j].Partition}] = n
			r.Messages += n
		}
	}
	if !r.NoReply {
		r.State = sent
	}
	return r, false
}

func (s *session) Tag(frame []byte) (uint64, bool) {
	if len(frame) < 8 {
		return 0, false
	}
	return uint64(binary.BigEndian.Uint32(frame[4:])), true
}

func (s *session) Judge(r *netproxy.Request, response []byte) (confirmed, refused int64) {
	sent := r.State.(*produced)
	p := kmsg.ProduceResponse{Version: sent.version}
	body := response[8:]
	if p.IsFlexible() {
		if body = skipTags(body); body == nil {
			return 0, 0
		}
	}
	if err := p.UnsafeReadFrom(body); err != nil {
		return 0, 0
	}
	for i := range p.Topics {
		t := &p.Topics[i]
		topic := topicKey(t.Topic, t.TopicID)
		for j := range t.Partitions {
			n := sent.messages[part{topic, t.Partitions[j].Partition}]
			switch t.Partitions[j].ErrorCode {
			case 0, kerr.DuplicateSequenceNumber.Code: // a duplicate is in the log: clients take it as a success
				confirmed += n
			default:
				refused += n
			}
		}
	}
	return confirmed, refused
}

func (s *session) Answer(_ *netproxy.Request, request []byte, code string) ([]byte, error) {
	errorCode, err := refusal(code)
	if err != nil {
		return nil, err
	}
	h, ok := readHeader(request)
	if !ok || h.key != keyProduce {
		return nil, errors.New("not a produce request")
	}
	var in kmsg.ProduceRequest
	if err := readProduce(&in, h, request); err != nil {
		return nil, fmt.Errorf("read produce request: %w", err)
	}
	out := kmsg.ProduceResponse{Version: h.version}
	out.Default()
	for i := range in.Topics {
		t := kmsg.NewProduceResponseTopic()
		t.Topic, t.TopicID = in.Topics[i].Topic, in.Topics[i].TopicID
		for j := range in.Topics[i].Partitions {
			p := kmsg.NewProduceResponseTopicPartition()
			p.Partition = in.Topics[i].Partitions[j].Partition
			p.ErrorCode = errorCode
			p.BaseOffset, p.LogAppendTime, p.LogStartOffset = -1, -1, -1
			t.Partitions = append(t.Partitions, p)
		}
		out.Topics = append(out.Topics, t)
	}
	frame := make([]byte, 8, 256)
	binary.BigEndian.PutUint32(frame[4:], uint32(h.correlation))
	if out.IsFlexible() {
		frame = append(frame, 0) // no tagged fields in the header
	}
	frame = out.AppendTo(frame)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame, nil
}

// header is the beginning of a request.
type header struct {
	key, version int16
	correlation  int32
	client       []byte
	rest         int // where what follows the client id begins
}

func readHeader(frame []byte) (header, bool) {
	const fixed = 4 + 2 + 2 + 4 + 2
	if len(frame) < fixed {
		return header{}, false
	}
	h := header{
		key:         int16(binary.BigEndian.Uint16(frame[4:])),
		version:     int16(binary.BigEndian.Uint16(frame[6:])),
		correlation: int32(binary.BigEndian.Uint32(frame[8:])),
		rest:        fixed,
	}
	if n := int(int16(binary.BigEndian.Uint16(frame[12:]))); n > 0 {
		if len(frame) < fixed+n {
			return header{}, false
		}
		h.client = frame[fixed : fixed+n]
		h.rest += n
	}
	return h, true
}

// readProduce reads the body of a produce request without copying its records.
func readProduce(p *kmsg.ProduceRequest, h header, frame []byte) error {
	p.Version = h.version
	body := frame[h.rest:]
	if p.IsFlexible() {
		if body = skipTags(body); body == nil {
			return errors.New("damaged header")
		}
	}
	return p.UnsafeReadFrom(body)
}

// skipTags skips the tagged fields at the end of a flexible header. It returns nil if they are damaged.
func skipTags(b []byte) []byte {
	uvarint := func() (int, bool) {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > math.MaxInt32 {
			return 0, false
		}
		b = b[n:]
		return int(v), true
	}
	count, ok := uvarint()
	for ; ok && count > 0; count-- {
		if _, ok = uvarint(); !ok {
			break
		}
		var size int
		if size, ok = uvarint(); ok {
			if ok = size <= len(b); ok {
				b = b[size:]
			}
		}
	}
	if !ok {
		return nil
	}
	return b
}

// topicKey names a topic by its name or, where only the id is sent, by that.
func topicKey(name string, id [16]byte) string {
	if name != "" {
		return name
	}
	return string(id[:])
}

// countRecords sums the record counts of the batches in records, by their headers alone (message format v2).
func countRecords(records []byte) int64 {
	const (
		lengthAt  = 8  // of what follows the length field
		magicAt   = 16 // 2
		recordsAt = 57
		headerEnd = 61
	)
	var n int64
	for len(records) >= headerEnd && records[magicAt] == 2 {
		n += int64(int32(binary.BigEndian.Uint32(records[recordsAt:])))
		size := int(int32(binary.BigEndian.Uint32(records[lengthAt:]))) + lengthAt + 4
		if size < headerEnd || size > len(records) {
			break
		}
		records = records[size:]
	}
	return n
}

func knownKind(kind string) bool { return slices.Contains(kinds, kind) }
