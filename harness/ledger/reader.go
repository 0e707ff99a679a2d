package ledger

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// ErrSchema marks a header or segment of a schema that this package does not read.
var ErrSchema = errors.New("unknown ledger schema")

// DamageError is a part of a segment that cannot be read. What is whole on either side of it is
// still delivered.
type DamageError struct {
	File   string
	Offset int64 // of the damaged frame, in bytes from the start of the segment
	Reason string
	// Tail is set where the segment ends within a frame: what a writer that was killed, or whose disk
	// was full, leaves behind.
	Tail bool
}

// Error names the file and the offset.
func (e *DamageError) Error() string {
	return fmt.Sprintf("ledger %s is damaged at byte %d: %s", e.File, e.Offset, e.Reason)
}

// Reader reads one segment.
type Reader struct {
	r       *bufio.Reader
	name    string
	segment Segment
	want    uint64 // kinds whose batches are decoded
	offset  int64  // of the next frame
	frame   uint64 // number of the next frame
	buf     []byte
	dec     decoder
	pending error // to be returned by Next before anything else
	seen    uint64
	closed  bool
	ended   bool
}

// NewReader returns a Reader of the segment in r; name is used in errors. A damaged or missing
// segment frame is no error here: the first Next reports it. The error wraps ErrSchema for a
// segment of another schema, or is one of r.
func NewReader(r io.Reader, name string) (*Reader, error) {
	rd := &Reader{r: bufio.NewReader(r), name: name, want: ^uint64(0), frame: 1}
	body, damage, err := rd.readFrame()
	switch {
	case errors.Is(err, io.EOF):
		rd.pending = &DamageError{File: name, Reason: "the segment is empty", Tail: true}
		rd.ended = true
	case err != nil:
		return nil, err
	case damage != nil:
		rd.pending = damage
	default:
		if err := json.Unmarshal(body, &rd.segment); err != nil {
			rd.pending = &DamageError{File: name, Reason: "the segment's description is not JSON: " + err.Error()}
			break
		}
		if !readable(rd.segment.Schema) {
			return nil, fmt.Errorf("read ledger %s: schema %d, this binary reads %d: %w", name, rd.segment.Schema, SchemaVersion, ErrSchema)
		}
	}
	return rd, nil
}

// readable says whether a schema can be read: the current one and the one before it. The codecs of
// all readable schemas are dispatched in nextBatch; there is one so far.
func readable(schema int) bool { return schema == SchemaVersion }

// Segment says what the segment is and who wrote it; it is zero if that part is damaged.
func (r *Reader) Segment() Segment { return r.segment }

// Only makes Next skip the batches that hold none of kinds. A batch is skipped whole, so Next may
// still return other kinds. Skipping a batch costs its checksum only.
func (r *Reader) Only(kinds ...Kind) {
	r.want = 0
	for _, k := range kinds {
		r.want |= 1 << (k & 63)
	}
}

// Closed says whether SegmentEnd was the last event so far: at the end of the segment, whether it
// was closed in order.
func (r *Reader) Closed() bool { return r.closed }

// Has says whether a whole batch so far, skipped or not, held an event of kind k.
func (r *Reader) Has(k Kind) bool { return r.seen&(1<<(k&63)) != 0 }

// Length returns the bytes of the segment up to where the Reader is: at the end, unless damage kept it from
// finding the next frame, the whole length.
func (r *Reader) Length() int64 { return r.offset }

// Next reads the next event into e, reusing nothing of it. It returns io.EOF at the end, and a
// *DamageError for a part that cannot be read, after which Next goes on behind it, or at the end
// if there is no telling where the next frame begins. A batch is delivered whole or not at all.
func (r *Reader) Next(e *Event) error {
	for {
		if r.pending != nil {
			err := r.pending
			r.pending = nil
			return err
		}
		if r.dec.left > 0 {
			// The batch's checksum is right, so an error here means that it was written so.
			if err := r.dec.next(e); err != nil {
				r.dec.left = 0
				return &DamageError{File: r.name, Offset: r.offset, Reason: err.Error()}
			}
			r.closed = e.Kind == SegmentEnd
			return nil
		}
		if r.ended {
			return io.EOF
		}
		if err := r.nextBatch(); err != nil {
			return err
		}
	}
}

// nextBatch makes the next wanted batch current.
func (r *Reader) nextBatch() error {
	start := r.offset
	body, damage, err := r.readFrame()
	if errors.Is(err, io.EOF) {
		r.ended = true
		return io.EOF
	}
	if err != nil {
		return err
	}
	if damage != nil {
		r.closed = false
		r.frame++ // the damaged one; a wrong guess shows up as a gap
		return damage
	}
	if err := r.dec.reset(body); err != nil {
		r.frame++
		r.dec.left = 0
		return &DamageError{File: r.name, Offset: start, Reason: err.Error()}
	}
	r.seen |= r.dec.kinds
	expected := r.frame
	r.frame = max(expected, r.dec.frame+1)
	if r.dec.kinds&r.want == 0 || r.dec.frame < expected {
		r.dec.left = 0
		r.closed = false
	}
	if r.dec.frame != expected {
		return &DamageError{File: r.name, Offset: start, Reason: fmt.Sprintf("frame %d stands where frame %d is due", r.dec.frame, expected)}
	}
	return nil
}

// readFrame reads one frame and checks its sum. A frame that is whole in length but damaged in
// content is skipped; after one whose length makes no sense nothing more can be read.
func (r *Reader) readFrame() ([]byte, *DamageError, error) {
	start := r.offset
	var head [frameHead]byte
	n, err := io.ReadFull(r.r, head[:])
	r.offset += int64(n)
	if errors.Is(err, io.EOF) {
		return nil, nil, io.EOF
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		r.ended = true
		return nil, &DamageError{File: r.name, Offset: start, Reason: "the segment ends within a frame head", Tail: true}, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read ledger %s: %w", r.name, err)
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size == 0 || size > MaxFrame {
		r.ended = true
		return nil, &DamageError{File: r.name, Offset: start, Reason: fmt.Sprintf("a frame of %d bytes makes no sense; what follows it cannot be found", size)}, nil
	}
	if cap(r.buf) < int(size) {
		r.buf = make([]byte, int(size)+int(size)/4)
	}
	body := r.buf[:size]
	n, err = io.ReadFull(r.r, body)
	r.offset += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		r.ended = true
		return nil, &DamageError{File: r.name, Offset: start, Reason: fmt.Sprintf("the segment ends within a frame: %d of %d bytes", n, size), Tail: true}, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read ledger %s: %w", r.name, err)
	}
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		return nil, &DamageError{File: r.name, Offset: start, Reason: fmt.Sprintf("the checksum of a frame of %d bytes is wrong", size)}, nil
	}
	return body, nil, nil
}
