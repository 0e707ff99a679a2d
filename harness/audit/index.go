package audit

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"

	"conform/harness/ledger"
)

// flags is all that the main pass keeps of one message: 2 bytes. They are in pages rather than one
// bitmap a flag, so that an event touches one cache line, and a hostile sequence number costs one
// page and not a gigabyte.
type flags uint16

const (
	completed       flags = 1 << iota // has a Complete
	confirmed                         // has a Complete OK
	refused                           // has a Complete Failed
	claimed                           // the caller was told "sent"
	placed                            // the confirm named a position
	belowStart                        // and it lies below the start of the log that was read at the end
	storedRaw                         // seen in that view of the store
	storedCommitted                   //
	storedDead                        //
	duplicated                        // found by the check of that name
	corrupted
	misrouted
	reordered
	conflicting
	transacted // a check of transactions has a finding on it
	passed     // met by the second pass of the check of order

	stored = storedRaw | storedCommitted | storedDead
)

const pageSize = 512

type page [pageSize]flags

// span is a run of messages of one stream that were invoked between the same two boundaries.
type span struct {
	from, to uint64
	epoch    int
}

// stream holds the messages of one producer incarnation.
type stream struct {
	id       uint32
	spans    []span
	pages    map[uint64]*page
	last     *page
	lastPage uint64
	// publishes is set by an invoke with a business event: a relay's. Where orders are written to a
	// database, streams without one are those of orders, and no sends.
	publishes bool
}

// flagsOf returns the flags of a message, to be changed in place.
func (s *stream) flagsOf(seq uint64) *flags {
	n := seq / pageSize
	if s.last == nil || s.lastPage != n {
		p := s.pages[n]
		if p == nil {
			p = new(page)
			s.pages[n] = p
		}
		s.last, s.lastPage = p, n
	}
	return &s.last[seq%pageSize]
}

// invoke adds messages from..to-1.
func (s *stream) invoke(sp span) {
	if n := len(s.spans); n > 0 && s.spans[n-1].to == sp.from && s.spans[n-1].epoch == sp.epoch {
		s.spans[n-1].to = sp.to
		return
	}
	s.spans = append(s.spans, sp)
}

// settleSpans sorts the spans and merges overlaps, so that each message is counted once.
func (s *stream) settleSpans() {
	slices.SortFunc(s.spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	out := s.spans[:0]
	var end uint64
	for _, sp := range s.spans {
		sp.from = max(sp.from, end)
		if sp.from < sp.to {
			out = append(out, sp)
			end = sp.to
		}
	}
	s.spans = out
}

// invoked says whether a message was invoked. The spans are settled.
func (s *stream) invoked(seq uint64) bool {
	_, found := slices.BinarySearchFunc(s.spans, seq, func(sp span, seq uint64) int {
		switch {
		case sp.to <= seq:
			return -1
		case sp.from > seq:
			return 1
		}
		return 0
	})
	return found
}

// partition is what the final read found in one partition of one destination.
type partition struct {
	destination uint16
	number      int32
	pages       map[int64]*positions
	last        *positions
	lastPage    int64
	views       [3]viewRead
	newest      map[uint32]uint64 // stream -> highest seq among first occurrences so far, + 1
}

// viewRead counts what was read of a partition in one view.
type viewRead struct {
	count     int   // records
	low, high int64 // lowest and highest position read, while count > 0
}

// positions holds pageSize positions: a fingerprint of the record there, and which views have it.
type positions struct {
	prints [pageSize]uint32
	views  [3][pageSize / 64]uint64
}

// fingerprint tells records apart: content, identity and key. Two that differ look alike once in 2^32.
func fingerprint(e *ledger.Event) uint32 {
	x := e.Digest ^ bits.RotateLeft64(e.Seq, 21)*0x9e3779b97f4a7c15
	x ^= (uint64(e.Stream)<<32 | uint64(e.Key)) * 0xbf58476d1ce4e5b9
	return uint32(x ^ x>>32)
}

// sighting is how a Stored event relates to what was read before.
type sighting int

const (
	fresh    sighting = iota // nothing was known of this position
	otherway                 // the same record at the same position, first time in this view
	again                    // the same record at the same position in the same view: a second read
	clash                    // another record stood at this position
)

// see records a Stored event. Without a position every record is a fresh one.
func (p *partition) see(e *ledger.Event) sighting {
	read := &p.views[e.View]
	if e.Pos.Offset < 0 {
		read.count++
		return fresh
	}
	n := e.Pos.Offset / pageSize
	if p.last == nil || p.lastPage != n {
		pg := p.pages[n]
		if pg == nil {
			pg = new(positions)
			p.pages[n] = pg
		}
		p.last, p.lastPage = pg, n
	}
	i := e.Pos.Offset % pageSize
	word, bit := i/64, uint64(1)<<(i%64)
	known := p.last.views[0][word] | p.last.views[1][word] | p.last.views[2][word]
	mine := p.last.views[e.View][word]&bit != 0
	if !mine {
		p.last.views[e.View][word] |= bit
		if read.count == 0 || e.Pos.Offset < read.low {
			read.low = e.Pos.Offset
		}
		if read.count == 0 || e.Pos.Offset > read.high {
			read.high = e.Pos.Offset
		}
		read.count++
	}
	mark := fingerprint(e)
	switch {
	case known&bit == 0:
		p.last.prints[i] = mark
		return fresh
	case p.last.prints[i] != mark:
		return clash
	case mine:
		return again
	default:
		return otherway
	}
}

type partitionKey struct {
	destination uint16
	number      int32
}

// index is the working memory of the main pass: about 7 bytes a message.
type index struct {
	streams    map[uint32]*stream
	last       *stream
	partitions map[partitionKey]*partition
	lastPart   *partition
}

func newIndex() *index {
	return &index{streams: map[uint32]*stream{}, partitions: map[partitionKey]*partition{}}
}

func (x *index) stream(id uint32) *stream {
	if x.last != nil && x.last.id == id {
		return x.last
	}
	s := x.streams[id]
	if s == nil {
		s = &stream{id: id, pages: map[uint64]*page{}}
		x.streams[id] = s
	}
	x.last = s
	return s
}

func (x *index) partition(pos ledger.Position) *partition {
	if p := x.lastPart; p != nil && p.destination == pos.Destination && p.number == pos.Partition {
		return p
	}
	key := partitionKey{pos.Destination, pos.Partition}
	p := x.partitions[key]
	if p == nil {
		p = &partition{destination: pos.Destination, number: pos.Partition, pages: map[int64]*positions{}, newest: map[uint32]uint64{}}
		x.partitions[key] = p
	}
	x.lastPart = p
	return p
}

// ordered returns the streams by number.
func (x *index) ordered() []*stream {
	out := make([]*stream, 0, len(x.streams))
	for _, id := range slices.Sorted(maps.Keys(x.streams)) {
		out = append(out, x.streams[id])
	}
	return out
}

// walk visits every message that has a flag, in order of identity.
func (x *index) walk(visit func(s *stream, seq uint64, f flags)) {
	for _, s := range x.ordered() {
		s.walk(func(seq uint64, f flags) { visit(s, seq, f) })
	}
}

func (s *stream) walk(visit func(seq uint64, f flags)) {
	for _, n := range slices.Sorted(maps.Keys(s.pages)) {
		for i, f := range s.pages[n] {
			if f != 0 {
				visit(n*pageSize+uint64(i), f)
			}
		}
	}
}
