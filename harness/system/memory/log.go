package memory

import (
	"maps"
	"slices"

	"conform/harness/internal/clock"
)

type record struct {
	key, payload []byte
}

// destination is one topic. It is guarded by the cluster's mutex.
type destination struct {
	name   string
	bug    string
	leader *node // nil = nobody
	epoch  int32
	parts  []*partition
	groups map[string][]int64 // committed positions
	seen   int                // records, for bugs that happen now and then
}

type partition struct {
	records []record
	late    []lateRecord      // confirmed and not yet stored
	held    map[string]record // by key, to be stored behind the next one
	clients map[string]*progress
}

type lateRecord struct {
	record
	due int64
}

// progress is what a partition knows of one idempotent client: the offsets of what it has sent.
type progress struct{ offsets []int64 }

// The answers to one record.
const (
	statusOK        byte = iota
	statusNotLeader      // retriable
	statusGap            // retriable: a predecessor of an idempotent client's record is missing
	statusRefused        // retriable, by an armed rule
	statusAborted        // for good
)

// store takes one record of a client and returns status and offset (-1 = not said). seq numbers
// the client's records in this partition.
func (d *destination) store(client string, idempotent bool, part int32, seq uint64, r record) (byte, int64) {
	d.settle()
	p := d.parts[part]
	c := p.clients[client]
	if c == nil {
		c = &progress{}
		p.clients[client] = c
	}
	if idempotent {
		next := uint64(len(c.offsets))
		switch {
		case seq > next:
			return statusGap, -1
		case seq < next && d.bug != DuplicateOnReconnect:
			return statusOK, c.offsets[seq]
		}
	}
	again := idempotent && seq < uint64(len(c.offsets))
	status, offset := d.put(p, part, r)
	if !again {
		c.offsets = append(c.offsets, offset)
	}
	return status, offset
}

func (d *destination) put(p *partition, part int32, r record) (byte, int64) {
	d.seen++
	odd := d.seen%everyNth == 0
	key := string(r.key)
	switch {
	case d.bug == ConfirmBeforeStore:
		p.late = append(p.late, lateRecord{record: r, due: clock.Now() + storeDelay})
		return statusOK, int64(len(p.records) + len(p.late) - 1)
	case d.bug == ReorderKey && odd && p.held[key].payload == nil:
		p.held[key] = r
		return statusOK, -1
	case d.bug == CorruptPayload && odd:
		r.payload = slices.Clone(r.payload)
		r.payload[len(r.payload)-1] ^= 1
	case d.bug == Misroute && odd:
		other := d.parts[(int(part)+1)%len(d.parts)]
		other.records = append(other.records, r)
		return statusOK, -1
	case d.bug == LeakAborted && odd:
		p.records = append(p.records, r)
		return statusAborted, -1
	}
	p.records = append(p.records, r)
	offset := int64(len(p.records) - 1)
	if h, ok := p.held[key]; ok {
		delete(p.held, key)
		p.records = append(p.records, h)
	}
	return statusOK, offset
}

// settle stores what is due.
func (d *destination) settle() {
	if d.bug != ConfirmBeforeStore {
		return
	}
	now := clock.Now()
	for _, p := range d.parts {
		n := 0
		for n < len(p.late) && p.late[n].due <= now {
			p.records = append(p.records, p.late[n].record)
			n++
		}
		p.late = p.late[n:]
	}
}

// finish stores what a bug still holds back for good; a read calls it.
func (d *destination) finish() {
	d.settle()
	for _, p := range d.parts {
		for _, key := range slices.Sorted(maps.Keys(p.held)) {
			p.records = append(p.records, p.held[key])
		}
		clear(p.held)
	}
}

// crash is what the death of a node does to a destination with a bug.
func (d *destination) crash() {
	d.settle()
	for _, p := range d.parts {
		p.late = nil
		if d.bug == LoseConfirmed {
			p.records = p.records[:max(0, len(p.records)-lostTail)]
		}
	}
}
