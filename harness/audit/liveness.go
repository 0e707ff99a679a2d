package audit

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"conform/harness/ledger"
)

func init() {
	register(check{name: "liveness", version: 2, reports: []string{Unavailable}, start: func(a *auditor) any { return &livenessCheck{a} }})
}

// Latencies are kept in microseconds up to an hour, to three digits.
const maxLatency = int64(time.Hour / time.Microsecond)

// A slice of the load is cut into ticks: confirms nearer than a tick are not told apart when looking
// for gaps.
const (
	width = int64(BucketWidth)
	ticks = 25
	tick  = width / ticks
)

// slice is what completed in one slice of the load: about 1 KiB, so that an hour costs 15 MiB.
type slice struct {
	confirmed, refused, inDoubt int
	max                         int64 // ns
	latencies                   [latencyClasses]uint32
	busy                        uint32          // ticks with a confirm, a bit each
	edges                       [ticks][2]int64 // first and last confirm of each such tick
}

// latencyClasses is four a power of two, from 1 us to an hour: a median within an eighth. The
// percentiles of the whole are measured apart, and better.
const latencyClasses = 4 * 32

func latencyClass(ns int64) int {
	us := uint64(max(ns/1000, 1))
	top := bits.Len64(us) - 1
	return min(4*top+int(us<<2>>top&3), latencyClasses-1)
}

// median returns the middle of the class that holds the middle confirm.
func (s *slice) median() time.Duration {
	left := (s.confirmed + 1) / 2
	for c, n := range s.latencies {
		left -= int(n)
		if left <= 0 && n > 0 {
			low := float64(uint64(1)<<(c/4)) * (1 + float64(c%4)/4)
			mid := low * (1 + 1/float64(2*(4+c%4)))
			return min(time.Duration(mid*float64(time.Microsecond)), time.Duration(s.max))
		}
	}
	return 0
}

// pulse measures completions as they come, in any order.
type pulse struct {
	before, during, after *hdrhistogram.Histogram // nil while empty
	origin                int64                   // where the slices are counted from
	slices                map[int64]*slice
	last                  *slice
	lastNumber            int64
	firstSend, lastSend   int64 // of anything
	firstConfirm          int64 // of a send after the last strike
	confirmedBefore       int64
}

func newPulse(v *survey) *pulse {
	p := &pulse{slices: map[int64]*slice{}, firstSend: math.MaxInt64, firstConfirm: math.MaxInt64}
	if v.loadAt != math.MaxInt64 {
		p.origin = v.loadAt
	}
	return p
}

// slice returns the slice of a time, and the time within it.
func (p *pulse) slice(at int64) (*slice, int64) {
	since := at - p.origin
	n := since / width
	if since < 0 {
		n = (since - width + 1) / width
	}
	if p.last == nil || n != p.lastNumber {
		s := p.slices[n]
		if s == nil {
			s = new(slice)
			p.slices[n] = s
		}
		p.last, p.lastNumber = s, n
	}
	return p.last, since - n*width
}

func (p *pulse) send(at int64) {
	p.firstSend = min(p.firstSend, at)
	p.lastSend = max(p.lastSend, at)
}

// confirm takes the first confirm of a message. Before are those that came before the first strike, after
// those of sends made after the last heal, and during all others: what was in flight at the strike waited
// for its end, and says nothing of the time before it.
func (p *pulse) confirm(v *survey, sent, at int64) {
	s, within := p.slice(at)
	s.confirmed++
	t := min(max(within/tick, 0), ticks-1)
	if s.busy&(1<<t) == 0 {
		s.busy |= 1 << t
		s.edges[t] = [2]int64{at, at}
	}
	s.edges[t][0] = min(s.edges[t][0], at)
	s.edges[t][1] = max(s.edges[t][1], at)
	if sent != 0 {
		s.max = max(s.max, at-sent)
		s.latencies[latencyClass(at-sent)]++
	}
	if at < v.firstStrike {
		p.confirmedBefore++
	}
	if sent == 0 {
		return // when it was sent is not known
	}
	if sent > v.lastStrike {
		p.firstConfirm = min(p.firstConfirm, at)
	}
	h := &p.during
	switch {
	case at < v.firstStrike:
		h = &p.before
	case sent > v.lastHeal:
		h = &p.after
	}
	if *h == nil {
		*h = hdrhistogram.New(1, maxLatency, 3)
	}
	_ = (*h).RecordValue(min(max((at-sent)/1000, 0), maxLatency)) // in range, so it cannot fail
}

func latency(h *hdrhistogram.Histogram) Latency {
	us := func(v int64) time.Duration { return time.Duration(v) * time.Microsecond }
	if h == nil {
		return Latency{}
	}
	return Latency{
		Count: h.TotalCount(), P50: us(h.ValueAtQuantile(50)), P99: us(h.ValueAtQuantile(99)),
		P999: us(h.ValueAtQuantile(99.9)), Max: us(h.Max()),
	}
}

// unconfirmed takes the first Complete of a message that is no confirm.
func (p *pulse) unconfirmed(o ledger.Outcome, at int64) {
	s, _ := p.slice(at)
	if o == ledger.Failed {
		s.refused++
	} else {
		s.inDoubt++
	}
}

// maxSeries bounds the slices that are listed with the empty ones in between: 3 hours of load.
const maxSeries = 1 << 16

// series lists the slices from the first to the last, the empty ones too: a gap is to be seen.
func (p *pulse) series(loadAt int64) []Bucket {
	numbers := slices.Sorted(maps.Keys(p.slices))
	var out []Bucket
	for i, n := range numbers {
		at := func(n int64) time.Duration { return time.Duration(n*width + p.origin - loadAt) }
		if i > 0 && n-numbers[0] < maxSeries {
			for m := numbers[i-1] + 1; m < n; m++ {
				out = append(out, Bucket{At: at(m)})
			}
		}
		s := p.slices[n]
		out = append(out, Bucket{At: at(n), Confirmed: s.confirmed, Refused: s.refused, InDoubt: s.inDoubt, P50: s.median(), Max: time.Duration(s.max)})
	}
	return out
}

// liveness sums up. The longest gap runs from the last confirm at or before the first strike, or else
// from the strike or the first send, to the last send.
func (p *pulse) liveness(v *survey) Liveness {
	l := Liveness{Before: latency(p.before), During: latency(p.during), After: latency(p.after), FirstSuccess: -1, Series: p.series(v.loadAt)}
	if p.firstConfirm != math.MaxInt64 && v.lastStrike != math.MaxInt64 {
		l.FirstSuccess = time.Duration(p.firstConfirm - v.lastStrike)
	}
	if p.firstSend == math.MaxInt64 {
		return l
	}
	start := p.firstSend
	if v.firstStrike != math.MaxInt64 {
		start = max(start, v.firstStrike)
		if d := v.firstStrike - p.firstSend; d > 0 {
			l.RatePerSecond = float64(p.confirmedBefore) / time.Duration(d).Seconds()
		}
	} else if d := p.lastSend - p.firstSend; d > 0 {
		l.RatePerSecond = float64(p.confirmedBefore) / time.Duration(d).Seconds()
	}
	from := start
	gap := func(to int64) {
		to = min(to, p.lastSend)
		if d := time.Duration(to - from); to > start && d > l.LongestGap {
			l.LongestGap, l.GapFrom = d, from
		}
	}
	for _, n := range slices.Sorted(maps.Keys(p.slices)) {
		for t, s := range p.slices[n].edges {
			switch {
			case p.slices[n].busy&(1<<t) == 0:
				continue
			case s[0] > start:
				gap(s[0])
				from = s[1]
			case s[1] <= start:
				from = s[1]
			default:
				from = start // the tick of the strike itself
			}
		}
	}
	gap(math.MaxInt64)
	return l
}

// livenessCheck judges the longest gap where the promise bounds it.
type livenessCheck struct{ a *auditor }

func (c *livenessCheck) conclude() error {
	c.a.liveness = c.a.pulse.liveness(c.a.survey)
	bound := c.a.header.Promise.MaxUnavailable
	if bound <= 0 || c.a.liveness.LongestGap <= bound {
		return nil
	}
	gap := c.a.liveness
	key := findingKey{anomaly: Unavailable}
	c.a.findings.add(key, ledger.MessageID{}, "", func() string {
		return fmt.Sprintf("no confirm for %s from %s on, the promise bounds it by %s", gap.LongestGap.Round(time.Millisecond), c.a.survey.since(gap.GapFrom), bound)
	})
	f := c.a.findings.byKey[key]
	f.From, f.To = gap.GapFrom, gap.GapFrom+int64(gap.LongestGap)
	return nil
}
