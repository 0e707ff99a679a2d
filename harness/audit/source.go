package audit

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

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
	file      string
	closed    bool
	killed    bool // planned
	damage    []*ledger.DamageError
	stores    bool // holds Stored events
	sends     bool // holds Invoke or Complete events
	consumes  bool // holds events of consumers
	handles   bool // holds Handled events
	snapshots bool // holds rows of a final snapshot
	length    int64
}

// of says whether a worker of that name wrote the segment.
func (s *segment) of(worker string) bool { return s.Worker == worker || s.Name == worker }

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
		s.closed, s.length = r.Closed(), r.Length()
		s.stores = r.Has(ledger.Stored)
		s.sends = r.Has(ledger.Invoke) || r.Has(ledger.Complete)
		s.consumes = slices.ContainsFunc(consumed, r.Has)
		s.handles = r.Has(ledger.Handled)
		s.snapshots = slices.ContainsFunc([]ledger.Kind{ledger.Effect, ledger.OutboxRow, ledger.InboxRow}, r.Has)
	}
	return segments, nil
}

// consumed lists the kinds that consumers write.
var consumed = []ledger.Kind{ledger.Received, ledger.Handled, ledger.Settled, ledger.Assigned, ledger.Revoked}

// apart lists all other kinds. The main pass need not decode what merge does.
func apart() []ledger.Kind {
	var out []ledger.Kind
	for k := ledger.Invoke; k <= ledger.Dropped; k++ {
		if !slices.Contains(consumed, k) {
			out = append(out, k)
		}
	}
	return out
}

// merge makes one pass over the consumers' events of all segments, those that earlier passes know, in
// the order of time. Damage that those passes did not meet is added.
func merge(open Open, segments []*segment, see func(s *segment, e *ledger.Event)) error {
	sources, err := open()
	if err != nil {
		return fmt.Errorf("open ledger: %w", err)
	}
	type lane struct {
		s *segment
		r *ledger.Reader
		e ledger.Event
	}
	next := func(l *lane) (bool, error) {
		for {
			err := l.r.Next(&l.e)
			var damage *ledger.DamageError
			switch {
			case errors.Is(err, io.EOF):
				return false, nil
			case errors.As(err, &damage):
				if !slices.ContainsFunc(l.s.damage, func(d *ledger.DamageError) bool { return d.Offset == damage.Offset }) {
					l.s.damage = append(l.s.damage, damage)
				}
			case err != nil:
				return false, err
			default:
				switch l.e.Kind {
				case ledger.Received, ledger.Handled, ledger.Settled, ledger.Assigned, ledger.Revoked:
					return true, nil
				}
			}
		}
	}
	var lanes []*lane
	for i, src := range sources {
		if i >= len(segments) || !segments[i].consumes {
			continue
		}
		r, err := ledger.NewReader(src.R, src.Name)
		if err != nil {
			return err
		}
		r.Only(consumed...)
		l := &lane{s: segments[i], r: r}
		more, err := next(l)
		if err != nil {
			return err
		}
		if more {
			lanes = append(lanes, l)
		}
	}
	// There are few lanes: the lowest is looked for, and kept while it stays below the second.
	for len(lanes) > 0 {
		first, limit := 0, int64(math.MaxInt64)
		for i, l := range lanes[1:] {
			switch {
			case l.e.At < lanes[first].e.At:
				limit, first = lanes[first].e.At, i+1
			case l.e.At < limit:
				limit = l.e.At
			}
		}
		l := lanes[first]
		for {
			see(l.s, &l.e)
			more, err := next(l)
			if err != nil {
				return err
			}
			if !more {
				lanes = slices.Delete(lanes, first, first+1)
				break
			}
			if l.e.At > limit {
				break
			}
		}
	}
	return nil
}
