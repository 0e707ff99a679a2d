package ledger

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// A payload is text, so that it can be read in a topic browser:
//
//	conform arm=1a2b3c4d id=00000001/0000000000000007 event=0000000000000000 check=5e6f7a8b|filler
//
// All numbers are hexadecimal and of fixed width. check covers what stands before it. The filler is
// a pure function of (seed, stream, seq), so the audit can tell any byte of it.
const (
	payloadMark  = "conform arm="
	payloadID    = " id="
	payloadSlash = "/"
	payloadEvent = " event="
	payloadCheck = " check="
	payloadEnd   = "|"

	offTag    = len(payloadMark)
	offStream = offTag + 8 + len(payloadID)
	offSeq    = offStream + 8 + len(payloadSlash)
	offEvent  = offSeq + 16 + len(payloadEvent)
	offCheck  = offEvent + 16 + len(payloadCheck)

	// MinPayload is the least size of a payload in bytes: its header without filler.
	MinPayload = offCheck + 8 + len(payloadEnd)
)

// PayloadHeader is what can be read off a payload alone.
type PayloadHeader struct {
	Tag     uint32 // of the arm, see Tag
	ID      MessageID
	EventID uint64
}

// Purposes keep the draws from one seed apart.
const (
	purposeKey    = 0x6b65793a636f6e66
	purposeFiller = 0x66696c6c65723a63
)

// mix is the finalizer of splitmix64: a bijection that spreads every bit.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

func draw(seed, purpose uint64, id MessageID) uint64 {
	return mix(mix(seed^purpose) + mix(uint64(id.Stream)<<32^bits.RotateLeft64(id.Seq, 17)+purpose))
}

// template is a payload's header with all numbers 0.
const template = payloadMark + "00000000" + payloadID + "00000000" + payloadSlash + "0000000000000000" +
	payloadEvent + "0000000000000000" + payloadCheck + "00000000" + payloadEnd

// AppendPayload appends the payload of a message, size bytes long and at least MinPayload, to dst.
func AppendPayload(dst []byte, seed uint64, tag uint32, id MessageID, eventID uint64, size int) []byte {
	size = max(size, MinPayload)
	dst = slices.Grow(dst, size)
	b := dst[len(dst) : len(dst)+size]
	copy(b, template)
	putHex32(b[offTag:], tag)
	putHex32(b[offStream:], id.Stream)
	putHex64(b[offSeq:], id.Seq)
	putHex64(b[offEvent:], eventID)
	putHex32(b[offCheck:], headerCheck(tag, id, eventID))
	x := draw(seed, purposeFiller, id)
	fill := b[MinPayload:]
	for ; len(fill) >= 8; fill = fill[8:] {
		x += 0x9e3779b97f4a7c15
		binary.LittleEndian.PutUint64(fill, letters(mix(x)))
	}
	if len(fill) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], letters(mix(x+0x9e3779b97f4a7c15)))
		copy(fill, last[:])
	}
	return dst[:len(dst)+size]
}

// letters turns the low half of each byte into a letter a..p.
func letters(x uint64) uint64 { return x&0x0f0f0f0f0f0f0f0f + 0x6161616161616161 }

// headerCheck guards the identity: a payload whose header was altered must not pass for another
// message.
func headerCheck(tag uint32, id MessageID, eventID uint64) uint32 {
	x := mix(uint64(tag)<<32 | uint64(id.Stream))
	x = mix(x + id.Seq)
	x = mix(x ^ eventID)
	return uint32(x ^ x>>32)
}

// ParsePayload reads the header of a payload. It is not ok if anything about the header is not
// exactly as AppendPayload writes it; the filler is not looked at, Digest covers that.
func ParsePayload(b []byte) (PayloadHeader, bool) {
	if len(b) < MinPayload ||
		string(b[:offTag]) != payloadMark ||
		string(b[offTag+8:offStream]) != payloadID ||
		string(b[offStream+8:offSeq]) != payloadSlash ||
		string(b[offSeq+16:offEvent]) != payloadEvent ||
		string(b[offEvent+16:offCheck]) != payloadCheck ||
		string(b[offCheck+8:MinPayload]) != payloadEnd {
		return PayloadHeader{}, false
	}
	tag, ok1 := parseHex(b[offTag : offTag+8])
	stream, ok2 := parseHex(b[offStream : offStream+8])
	seq, ok3 := parseHex(b[offSeq : offSeq+16])
	event, ok4 := parseHex(b[offEvent : offEvent+16])
	check, ok5 := parseHex(b[offCheck : offCheck+8])
	h := PayloadHeader{Tag: uint32(tag), ID: MessageID{Stream: uint32(stream), Seq: seq}, EventID: event}
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || uint32(check) != headerCheck(h.Tag, h.ID, h.EventID) {
		return PayloadHeader{}, false
	}
	return h, true
}

func putHex32(b []byte, v uint32) { binary.BigEndian.PutUint64(b, spreadHex(v)) }

func putHex64(b []byte, v uint64) {
	putHex32(b, uint32(v>>32))
	putHex32(b[8:], uint32(v))
}

// spreadHex returns the eight hexadecimal digits of v as the bytes of a word, the first one highest.
func spreadHex(v uint32) uint64 {
	x := uint64(v)
	x = (x | x<<16) & 0x0000ffff0000ffff
	x = (x | x<<8) & 0x00ff00ff00ff00ff
	x = (x | x<<4) & 0x0f0f0f0f0f0f0f0f
	// A byte of 10 or more becomes a letter: adding 6 carries into its bit 4.
	letter := (x + 0x0606060606060606) >> 4 & 0x0101010101010101
	return x + 0x3030303030303030 + letter*('a'-'0'-10)
}

func parseHex(b []byte) (uint64, bool) {
	var v uint64
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 | uint64(c-'0')
		case c >= 'a' && c <= 'f':
			v = v<<4 | uint64(c-'a'+10)
		default:
			return 0, false
		}
	}
	return v, true
}

// Digest returns the xxHash64 of a payload as read.
func Digest(b []byte) uint64 { return xxhash.Sum64(b) }

// KeyOf returns the key of a message, a number below keys. keys = 0 counts as 1.
func KeyOf(seed uint64, id MessageID, keys uint32) uint32 {
	if keys <= 1 {
		return 0
	}
	hi, _ := bits.Mul64(draw(seed, purposeKey, id), uint64(keys))
	return uint32(hi)
}

// eventSeqBits is how much of an event id numbers the events of one stream.
const eventSeqBits = 40

// EventID returns the id of the business event that the order-writing (or, where no database starts the
// chain, the sending) incarnation stream numbers seq, from 0 and below 2^40 - 1. It is never 0.
func EventID(stream uint32, seq uint64) uint64 { return uint64(stream)<<eventSeqBits | seq + 1 }

// SplitEventID returns what EventID was made of. Of an id that EventID cannot have made it is stream 0.
func SplitEventID(id uint64) (stream uint32, seq uint64) {
	seq = id & (1<<eventSeqBits - 1)
	if seq == 0 || id>>eventSeqBits > 1<<24-1 {
		return 0, 0
	}
	return uint32(id >> eventSeqBits), seq - 1
}

// VersionOf returns the version of its key's state that an event of generated load makes. It grows
// strictly with the events of one key as long as one stream writes them.
func VersionOf(eventID uint64) int64 {
	_, seq := SplitEventID(eventID)
	return int64(seq) + 1
}

// EventOf returns the business event of a message: eventID, or, if that is 0, the message itself.
func EventOf(id MessageID, eventID uint64) uint64 {
	if eventID != 0 {
		return eventID
	}
	return EventID(id.Stream, id.Seq)
}

// KeyOfEvent returns the key of a business event, the same for all messages that carry it.
func KeyOfEvent(seed, eventID uint64, keys uint32) uint32 {
	stream, seq := SplitEventID(eventID)
	return KeyOf(seed, MessageID{Stream: stream, Seq: seq}, keys)
}

// NoKey is the Key of a record whose key cannot be read.
const NoKey = ^uint32(0)

const keyMark = "key-"

// KeyName returns the key as it is sent: "key-0000002a".
func KeyName(key uint32) string {
	var b [len(keyMark) + 8]byte
	copy(b[:], keyMark)
	putHex32(b[len(keyMark):], key)
	return string(b[:])
}

// ParseKey reads what KeyName wrote.
func ParseKey(s string) (uint32, bool) {
	if len(s) != len(keyMark)+8 || s[:len(keyMark)] != keyMark {
		return NoKey, false
	}
	var digits [8]byte
	copy(digits[:], s[len(keyMark):])
	v, ok := parseHex(digits[:])
	if !ok {
		return NoKey, false
	}
	return uint32(v), true
}

// PartitionOf returns the partition of a key, below partitions. partitions <= 0 counts as 1.
func PartitionOf(key uint32, partitions int) int32 {
	if partitions <= 1 {
		return 0
	}
	return int32(uint64(key) % uint64(partitions))
}

// Tag returns the arm tag, never 0: records that carry another one belong to another arm, scenario
// or run.
func Tag(run, suite, scenario, arm string, repeat int) uint32 {
	b := make([]byte, 0, 128)
	for _, s := range []string{run, suite, scenario, arm} {
		b = strconv.AppendQuote(b, s)
	}
	b = strconv.AppendInt(b, int64(repeat), 10)
	h := xxhash.Sum64(b)
	return max(1, uint32(h^h>>32))
}

// StoredRecord returns the Stored event of a record as read from a store at time at: its identity if
// the payload tells it and carries tag, else Stream 0 with the reason as Text.
func StoredRecord(tag uint32, view View, pos Position, key, payload []byte, at int64) Event {
	e := Event{Kind: Stored, View: view, Pos: pos, Digest: Digest(payload), Key: NoKey, At: at}
	if k, ok := ParseKey(string(key)); ok {
		e.Key = k
	}
	h, ok := ParsePayload(payload)
	switch {
	case !ok:
		e.Text = TextUnreadable
	case h.Tag != tag:
		e.Text = TextForeign
	default:
		e.Stream, e.Seq, e.EventID = h.ID.Stream, h.ID.Seq, h.EventID
	}
	return e
}

// The texts of a Stored event with Stream 0.
const (
	TextUnreadable = "unreadable identity"
	TextForeign    = "foreign: of another arm or run"
)
