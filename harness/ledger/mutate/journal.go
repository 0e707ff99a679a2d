package mutate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"conform/harness/ledger"
)

// Journal is one segment in memory. SegmentEnd is one of its events, so that it can be taken away.
type Journal struct {
	Segment ledger.Segment
	Events  []ledger.Event
	// Damage, if set, alters the encoded segment.
	Damage func([]byte) []byte
}

// Clone returns a copy that shares no events.
func (j Journal) Clone() Journal {
	j.Events = slices.Clone(j.Events)
	return j
}

// batch is how many events Encode puts into one frame, so that small histories have several.
const batch = 16

// Encode returns the segment as a Writer would have written it, damaged if Damage is set.
func (j Journal) Encode() ([]byte, error) {
	var b bytes.Buffer
	w, err := ledger.NewWriter(&b, j.Segment)
	if err != nil {
		return nil, err
	}
	for i, e := range j.Events {
		w.Append(e)
		if i%batch == batch-1 {
			if err := w.Flush(); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Flush(); err != nil {
		return nil, err
	}
	if j.Damage != nil {
		return j.Damage(b.Bytes()), nil
	}
	return b.Bytes(), nil
}

// Decode reads a whole segment; damage is an error.
func Decode(r io.Reader, name string) (Journal, error) {
	rd, err := ledger.NewReader(r, name)
	if err != nil {
		return Journal{}, err
	}
	j := Journal{Segment: rd.Segment()}
	for {
		var e ledger.Event
		err := rd.Next(&e)
		if errors.Is(err, io.EOF) {
			return j, nil
		}
		if err != nil {
			return Journal{}, fmt.Errorf("decode segment: %w", err)
		}
		j.Events = append(j.Events, e)
	}
}
