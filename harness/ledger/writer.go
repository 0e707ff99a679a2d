package ledger

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
)

// Segment names one journal file and who wrote it.
type Segment struct {
	Schema int
	Name   string // file name without extension: "producer-1", "engine", "reader"
	Role   string // producer, consumer, engine, reader, ...
	Worker string `json:",omitempty"` // the worker that wrote it, as WorkerEnd names it
	// Run, Arm ("suite/scenario/repeat-0/arm") and Header (the SHA-256 of header.json, in hex) tie it to the arm that it was
	// written for. Older ledgers have none of them.
	Run    string `json:",omitempty"`
	Arm    string `json:",omitempty"`
	Header string `json:",omitempty"`
	Group  string `json:",omitempty"` // the consumer group of its consumers; not needed where the header names one group
}

const (
	// MaxText bounds Text and Detail of an event in bytes; Append cuts what is longer.
	MaxText = 16 << 10
	// MaxFrame bounds the batch of one frame in bytes. A frame that says to be longer is damaged.
	MaxFrame = 1 << 20
	// flushSize is the size of a batch from which Append flushes by itself.
	flushSize = 64 << 10
	// frameHead is [length uint32 LE][crc32c uint32 LE].
	frameHead = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Writer appends events to one segment. It is not safe for concurrent use: a segment has one
// writer, and clients that complete sends on several goroutines guard it with a mutex of their own.
//
// Events wait in memory until Flush, except that a batch past 64 KiB is flushed by Append. So
// Append is enough for what may be lost with the process (Complete, Stored); an Invoke counts
// only after a Flush, which the caller makes before it hands the messages to the client.
type Writer struct {
	w      io.Writer
	frame  uint64
	buf    []byte // frames not yet written: at most the segment frame and one open batch
	open   int    // where the open batch's frame head begins in buf
	enc    encoder
	err    error
	closed bool
}

// NewWriter returns a Writer that appends a segment to w. Schema is set to SchemaVersion. Nothing
// is written before the first Flush. The error is one of encoding the segment.
func NewWriter(w io.Writer, s Segment) (*Writer, error) {
	s.Schema = SchemaVersion
	head, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode segment %s: %w", s.Name, err)
	}
	if len(head) > MaxFrame {
		return nil, fmt.Errorf("encode segment: its name takes %d bytes", len(head))
	}
	wr := &Writer{w: w, buf: make([]byte, frameHead, flushSize+4*MaxText)}
	wr.buf = append(wr.buf, head...)
	wr.seal()
	wr.begin()
	return wr, nil
}

// begin opens an empty batch at the end of buf.
func (w *Writer) begin() {
	w.open = len(w.buf)
	w.enc.reset()
}

// seal fills in the head of the open frame.
func (w *Writer) seal() {
	body := w.buf[w.open+frameHead:]
	binary.LittleEndian.PutUint32(w.buf[w.open:], uint32(len(body)))
	binary.LittleEndian.PutUint32(w.buf[w.open+4:], crc32.Checksum(body, castagnoli))
	w.frame++
}

// Append adds one event to the batch in memory; it allocates nothing. After an error of an
// earlier write it does nothing: Flush returns that error.
func (w *Writer) Append(e Event) {
	if w.err != nil || w.closed {
		return
	}
	w.enc.append(&e)
	if len(w.enc.body) >= flushSize {
		_ = w.Flush() // the error stays and is returned by the next Flush or Close
	}
}

// Flush hands the batch to the underlying writer in one Write. An error stays: a segment whose
// write failed half-way takes nothing more, since whatever followed could not be told from damage.
func (w *Writer) Flush() error {
	if w.err != nil {
		return w.err
	}
	if w.enc.count > 0 {
		w.buf = append(w.buf, make([]byte, frameHead)...)
		w.buf = w.enc.appendBatch(w.buf, w.frame)
		w.seal()
	}
	if len(w.buf) == 0 {
		return nil
	}
	if _, err := w.w.Write(w.buf); err != nil {
		w.err = fmt.Errorf("write ledger frame %d: %w", w.frame, err)
		return w.err
	}
	w.buf = w.buf[:0]
	w.begin()
	return nil
}

// Close appends SegmentEnd and flushes. It does not close the underlying writer. Closing twice is
// no error.
func (w *Writer) Close() error {
	if w.closed {
		return w.err
	}
	w.Append(Event{Kind: SegmentEnd})
	w.closed = true
	return w.Flush()
}
