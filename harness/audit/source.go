package audit

import (
	"errors"
	"fmt"
	"io"

	"conform/harness/ledger"
)

// Source is one segment of a ledger.
type Source struct {
	Name string // file name, used in damage reports and witnesses
	R    io.Reader
	// Killed says that its writer was killed as planned: a missing SegmentEnd and a torn last frame are
	// then no damage. A WorkerEnd in the ledger says the same.
	Killed bool
}

// Open returns all segments of one arm from their beginning, in a fixed order. Audit and Tell read a
// ledger more than once and call it for each pass; the caller closes what it opened.
type Open func() ([]Source, error)

// segment is what a pass learned about one segment as a whole.
type segment struct {
	ledger.Segment
	file   string
	closed bool
	killed bool // planned
	damage []*ledger.DamageError
	stores bool // holds Stored events
	sends  bool // holds Invoke or Complete events
}

// title is how witnesses name the segment.
func (s *segment) title() string {
	if s.Name != "" {
		return s.Name
	}
	return s.file
}

// scan makes one pass over all segments in order, or over the batches that hold one of kinds. see is
// given each event, which it must not keep a pointer to.
func scan(open Open, see func(s *segment, e *ledger.Event), kinds ...ledger.Kind) ([]*segment, error) {
	sources, err := open()
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	segments := make([]*segment, 0, len(sources))
	var e ledger.Event
	for _, src := range sources {
		r, err := ledger.NewReader(src.R, src.Name)
		if err != nil {
			return nil, err
		}
		if len(kinds) > 0 {
			r.Only(kinds...)
		}
		s := &segment{Segment: r.Segment(), file: src.Name, killed: src.Killed}
		segments = append(segments, s)
		for {
			err := r.Next(&e)
			if err == nil {
				see(s, &e)
				continue
			}
			var damage *ledger.DamageError
			if errors.As(err, &damage) {
				s.damage = append(s.damage, damage)
				continue
			}
			if errors.Is(err, io.EOF) {
				break
			}
			return nil, err
		}
		s.closed = r.Closed()
		s.stores = r.Has(ledger.Stored)
		s.sends = r.Has(ledger.Invoke) || r.Has(ledger.Complete)
	}
	return segments, nil
}
