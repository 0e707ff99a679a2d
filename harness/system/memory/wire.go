package memory

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Frames are [length uint32 LE][kind byte][body]. Requests of one connection are answered in order,
// a frame of the same kind each.
const (
	kindHello    byte = iota + 1 // client id, destination -> node number of its leader, or -1
	kindProduce                  // records -> status and offset of each
	kindFetch                    // group, partition, offset -> records; offset -1 = the committed one
	kindCommit                   // group, partition, offset -> nothing
	kindPosition                 // group, partition -> committed offset, -1 = none, and end
	maxFrame     = 16 << 20
	maxFetch     = 500
	produceBatch = 500
)

var errFrame = errors.New("malformed frame")

type frame struct {
	b []byte
}

func newFrame(kind byte) *frame { return &frame{b: []byte{0, 0, 0, 0, kind}} }

func (f *frame) uint(v uint64)  { f.b = binary.AppendUvarint(f.b, v) }
func (f *frame) int(v int64)    { f.b = binary.AppendVarint(f.b, v) }
func (f *frame) byte(v byte)    { f.b = append(f.b, v) }
func (f *frame) bytes(v []byte) { f.uint(uint64(len(v))); f.b = append(f.b, v...) }

func (f *frame) sealed() []byte {
	binary.LittleEndian.PutUint32(f.b, uint32(len(f.b)-4))
	return f.b
}

func readFrame(r *bufio.Reader) (byte, *body, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n == 0 || n > maxFrame {
		return 0, nil, fmt.Errorf("read frame of %d bytes: %w", n, errFrame)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, err
	}
	return b[0], &body{b: b[1:]}, nil
}

// body reads fields; after the first that is not there it is bad and gives zeroes.
type body struct {
	b   []byte
	bad bool
}

func (f *body) uint() uint64 {
	v, n := binary.Uvarint(f.b)
	return v + f.skip(n)
}

func (f *body) int() int64 {
	v, n := binary.Varint(f.b)
	return v + int64(f.skip(n))
}

func (f *body) skip(n int) uint64 {
	if n <= 0 {
		f.bad, f.b = true, nil
		return 0
	}
	f.b = f.b[n:]
	return 0
}

func (f *body) byte() byte {
	if len(f.b) == 0 {
		f.bad = true
		return 0
	}
	v := f.b[0]
	f.b = f.b[1:]
	return v
}

func (f *body) bytes() []byte {
	n := f.uint()
	if n > uint64(len(f.b)) {
		f.bad, f.b = true, nil
		return nil
	}
	v := f.b[:n:n]
	f.b = f.b[n:]
	return v
}

func (f *body) err() error {
	if f.bad {
		return errFrame
	}
	return nil
}
