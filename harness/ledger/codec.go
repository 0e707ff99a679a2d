package ledger

import (
	"encoding/binary"
	"errors"
)

// The codec of schema 1. A segment is a row of frames [length uint32 LE][crc32c uint32 LE][body].
// The body of the first frame is the Segment as JSON. Every other body is a batch:
//
//	uvarint  number of the frame in the segment (the segment's own frame is 0)
//	uvarint  set of the kinds in the batch, bit k for Kind k
//	uvarint  number of events
//	events
//
// An event is its kind, a uvarint of the fields that differ from what is expected, and those
// fields. Expected are: the stream of the event before, its seq + 1, its time; zero otherwise.
// Nothing is expected across batches, so a damaged one takes only its own events along.
const (
	fAt = 1 << iota
	fSeq
	fSent
	fOffset
	fDigest
	fKey
	fFlags
	fPartition
	fStream
	fTo
	fEventID
	fText
	fDetail
	fN
	fDestination
	fConsumer
	fAttempt
	fLow
	fCount
	fieldsEnd
)

// A byte of small fields: outcome 2 bits, claim 2, view 3, foreign 1.
func packFlags(e *Event) byte {
	b := byte(e.Outcome)&3 | byte(e.Claim)&3<<2 | byte(e.View)&7<<4
	if e.Foreign {
		b |= 1 << 7
	}
	return b
}

// prediction is what the next event of a batch is expected to hold.
type prediction struct {
	at      int64
	stream  uint32
	seq     uint64
	offset  int64
	eventID uint64
}

// after sets what is expected after e.
func (p *prediction) after(e *Event) {
	p.at = e.At
	p.stream = e.Stream
	p.seq = e.Seq + 1
	if e.Kind == Invoke && e.To > e.Seq {
		p.seq = e.To
	}
	if e.Pos.Offset != 0 {
		p.offset = e.Pos.Offset
	}
	if e.EventID != 0 {
		p.eventID = e.EventID
	}
}

type encoder struct {
	prediction
	body  []byte
	count int
	kinds uint64
	texts []string
}

func (c *encoder) reset() {
	c.prediction = prediction{}
	c.body = c.body[:0]
	c.count = 0
	c.kinds = 0
	c.texts = c.texts[:0]
}

func (c *encoder) appendBatch(dst []byte, frame uint64) []byte {
	dst = binary.AppendUvarint(dst, frame)
	dst = binary.AppendUvarint(dst, c.kinds)
	dst = binary.AppendUvarint(dst, uint64(c.count))
	return append(dst, c.body...)
}

func (c *encoder) append(e *Event) {
	var set uint64
	flags := packFlags(e)
	mark := func(differs bool, bit uint64) {
		if differs {
			set |= bit
		}
	}
	mark(e.At != c.at, fAt)
	mark(e.Seq != c.seq, fSeq)
	mark(e.Sent != 0, fSent)
	mark(e.Pos.Offset != 0, fOffset)
	mark(e.Digest != 0, fDigest)
	mark(e.Key != 0, fKey)
	mark(flags != 0, fFlags)
	mark(e.Pos.Partition != 0, fPartition)
	mark(e.Stream != c.stream, fStream)
	mark(e.To != 0, fTo)
	mark(e.EventID != 0, fEventID)
	mark(e.Text != "", fText)
	mark(e.Detail != "", fDetail)
	mark(e.N != 0, fN)
	mark(e.Pos.Destination != 0, fDestination)
	mark(e.Consumer != 0, fConsumer)
	mark(e.Attempt != 0, fAttempt)
	mark(e.Low != 0, fLow)
	mark(e.Count != 0, fCount)

	b := append(c.body, byte(e.Kind))
	b = binary.AppendUvarint(b, set)
	// Differences wrap around: they come back whole whatever the values are.
	if set&fAt != 0 {
		b = binary.AppendVarint(b, e.At-c.at)
	}
	if set&fSeq != 0 {
		b = binary.AppendVarint(b, int64(e.Seq-c.seq))
	}
	if set&fSent != 0 {
		b = binary.AppendVarint(b, e.At-e.Sent)
	}
	if set&fOffset != 0 {
		b = binary.AppendVarint(b, e.Pos.Offset-c.offset)
	}
	if set&fDigest != 0 {
		b = binary.LittleEndian.AppendUint64(b, e.Digest)
	}
	if set&fKey != 0 {
		b = binary.AppendUvarint(b, uint64(e.Key))
	}
	if set&fFlags != 0 {
		b = append(b, flags)
	}
	if set&fPartition != 0 {
		b = binary.AppendVarint(b, int64(e.Pos.Partition))
	}
	if set&fStream != 0 {
		b = binary.AppendUvarint(b, uint64(e.Stream))
	}
	if set&fTo != 0 {
		b = binary.AppendVarint(b, int64(e.To-e.Seq))
	}
	if set&fEventID != 0 {
		b = binary.AppendVarint(b, int64(e.EventID-c.eventID))
	}
	if set&fText != 0 {
		b = c.appendText(b, e.Text)
	}
	if set&fDetail != 0 {
		b = c.appendText(b, e.Detail)
	}
	if set&fN != 0 {
		b = binary.AppendVarint(b, e.N)
	}
	if set&fDestination != 0 {
		b = binary.AppendUvarint(b, uint64(e.Pos.Destination))
	}
	if set&fConsumer != 0 {
		b = binary.AppendUvarint(b, uint64(e.Consumer))
	}
	if set&fAttempt != 0 {
		b = binary.AppendUvarint(b, uint64(e.Attempt))
	}
	if set&fLow != 0 {
		b = binary.AppendVarint(b, e.Low)
	}
	if set&fCount != 0 {
		b = binary.AppendVarint(b, e.Count)
	}
	c.body = b
	c.count++
	c.kinds |= 1 << (e.Kind & 63)
	c.after(e)
}

// maxTexts bounds the texts of a batch that can be referred to again, so that the search for one
// stays short.
const maxTexts = 32

// appendText writes 0, length, bytes for a new text, or 1 + its number for one of this batch.
func (c *encoder) appendText(b []byte, s string) []byte {
	if len(s) > MaxText {
		s = s[:MaxText]
	}
	for i, t := range c.texts {
		if t == s {
			return binary.AppendUvarint(b, uint64(i)+1)
		}
	}
	if len(c.texts) < maxTexts {
		c.texts = append(c.texts, s)
	}
	b = append(b, 0)
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

var errMalformed = errors.New("malformed batch")

// decoder reads one batch of schema 1.
type decoder struct {
	prediction
	b     []byte
	pos   int
	left  uint64 // events still in the batch
	frame uint64
	kinds uint64
	texts []string
	known map[string]string // texts of earlier batches, so that each is allocated once
}

func (d *decoder) reset(body []byte) error {
	d.prediction = prediction{}
	d.texts = d.texts[:0]
	d.b, d.pos = body, 0
	var ok bool
	if d.frame, ok = d.uvarint(); !ok {
		return errMalformed
	}
	if d.kinds, ok = d.uvarint(); !ok {
		return errMalformed
	}
	if d.left, ok = d.uvarint(); !ok || d.left == 0 || d.left > uint64(len(body)) {
		d.left = 0
		return errMalformed
	}
	return nil
}

// uvarint moves pos rather than re-slicing b: a slice in a heap object costs a write barrier each
// time.
func (d *decoder) uvarint() (uint64, bool) {
	if d.pos < len(d.b) && d.b[d.pos] < 0x80 {
		v := uint64(d.b[d.pos])
		d.pos++
		return v, true
	}
	if b := d.b[d.pos:]; len(b) >= 4 { // most numbers of more bytes have two to four
		v := uint64(b[0]&0x7f) | uint64(b[1]&0x7f)<<7
		if b[1] < 0x80 {
			d.pos += 2
			return v, true
		}
		v |= uint64(b[2]&0x7f) << 14
		if b[2] < 0x80 {
			d.pos += 3
			return v, true
		}
		if b[3] < 0x80 {
			d.pos += 4
			return v | uint64(b[3])<<21, true
		}
	}
	return d.longUvarint()
}

func (d *decoder) longUvarint() (uint64, bool) {
	var v uint64
	var shift uint
	for i, b := range d.b[d.pos:] {
		if b < 0x80 {
			if shift == 63 && b > 1 {
				return 0, false
			}
			d.pos += i + 1
			return v | uint64(b)<<shift, true
		}
		if shift == 63 {
			return 0, false
		}
		v |= uint64(b&0x7f) << shift
		shift += 7
	}
	return 0, false
}

func (d *decoder) varint() (int64, bool) {
	u, ok := d.uvarint()
	return int64(u>>1) ^ -int64(u&1), ok
}

// next reads one event; the caller has checked that one is left.
func (d *decoder) next(e *Event) error {
	*e = Event{At: d.at, Stream: d.stream, Seq: d.seq}
	if d.pos == len(d.b) {
		return errMalformed
	}
	e.Kind = Kind(d.b[d.pos])
	d.pos++
	set, ok := d.uvarint()
	if !ok || set >= fieldsEnd {
		return errMalformed
	}
	good := true
	uv := func() uint64 {
		v, ok := d.uvarint()
		good = good && ok
		return v
	}
	sv := func() int64 {
		v, ok := d.varint()
		good = good && ok
		return v
	}
	if set&fAt != 0 {
		e.At = d.at + sv()
	}
	if set&fSeq != 0 {
		e.Seq = d.seq + uint64(sv())
	}
	if set&fSent != 0 {
		e.Sent = e.At - sv()
	}
	if set&fOffset != 0 {
		e.Pos.Offset = d.offset + sv()
	}
	if set&fDigest != 0 {
		if len(d.b)-d.pos < 8 {
			return errMalformed
		}
		e.Digest = binary.LittleEndian.Uint64(d.b[d.pos:])
		d.pos += 8
	}
	if set&fKey != 0 {
		e.Key = uint32(uv())
	}
	if set&fFlags != 0 {
		if d.pos == len(d.b) {
			return errMalformed
		}
		f := d.b[d.pos]
		d.pos++
		e.Outcome, e.Claim, e.View, e.Foreign = Outcome(f&3), Claim(f>>2&3), View(f>>4&7), f>>7 == 1
	}
	if set&^(1<<7-1) != 0 { // the rarer fields
		if set&fPartition != 0 {
			e.Pos.Partition = int32(sv())
		}
		if set&fStream != 0 {
			e.Stream = uint32(uv())
		}
		if set&fTo != 0 {
			e.To = e.Seq + uint64(sv())
		}
		if set&fEventID != 0 {
			e.EventID = d.eventID + uint64(sv())
		}
		if set&fText != 0 {
			e.Text, ok = d.text()
			good = good && ok
		}
		if set&fDetail != 0 {
			e.Detail, ok = d.text()
			good = good && ok
		}
		if set&fN != 0 {
			e.N = sv()
		}
		if set&fDestination != 0 {
			e.Pos.Destination = uint16(uv())
		}
		if set&fConsumer != 0 {
			e.Consumer = uint32(uv())
		}
		if set&fAttempt != 0 {
			e.Attempt = uint32(uv())
		}
		if set&fLow != 0 {
			e.Low = sv()
		}
		if set&fCount != 0 {
			e.Count = sv()
		}
	}
	if !good {
		return errMalformed
	}
	d.left--
	if d.left == 0 && d.pos != len(d.b) {
		return errMalformed
	}
	d.after(e)
	return nil
}

// maxKnown bounds the texts kept across batches: hostile ledgers may hold nothing but new ones.
const maxKnown = 1 << 14

func (d *decoder) text() (string, bool) {
	i, ok := d.uvarint()
	if !ok || i > uint64(len(d.texts)) {
		return "", false
	}
	if i > 0 {
		return d.texts[i-1], true
	}
	n, ok := d.uvarint()
	if !ok || n > MaxText || n > uint64(len(d.b)-d.pos) {
		return "", false
	}
	b := d.b[d.pos : d.pos+int(n)]
	s, seen := d.known[string(b)]
	if !seen {
		s = string(b)
		if len(d.known) < maxKnown {
			if d.known == nil {
				d.known = make(map[string]string)
			}
			d.known[s] = s
		}
	}
	d.pos += int(n)
	if len(d.texts) < maxTexts {
		d.texts = append(d.texts, s)
	}
	return s, true
}
