package audit

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"conform/harness/ledger"
)

func init() {
	register(check{name: "liveness", version: 1, reports: []string{Unavailable}, start: func(a *auditor) any { return &livenessCheck{a} }})
}

// Latencies are kept in microseconds up to an hour, to three digits.
const maxLatency = int64(time.Hour / time.Microsecond)

// bucket is how finely confirms are sorted by time: gaps shorter than that are not told apart.
const bucket = int64(10 * time.Millisecond)

// pulse measures confirms as they come, in any order.
type pulse struct {
	before, during, after *hdrhistogram.Histogram // nil while empty
	buckets               map[int64]*[2]int64     // time / bucket -> first and last confirm in it
	lastBucket            int64
	lastSpan              *[2]int64
	firstSend, lastSend   int64 // of anything
	firstConfirm          int64 // of a send after the last strike
	confirmedBefore       int64
}

func newPulse() *pulse {
	return &pulse{buckets: map[int64]*[2]int64{}, firstSend: math.MaxInt64, firstConfirm: math.MaxInt64}
}

func (p *pulse) send(at int64) {
	p.firstSend = min(p.firstSend, at)
	p.lastSend = max(p.lastSend, at)
}

// confirm takes the first confirm of a message. A send is before, during or after by when it was
// sent: before the first strike, after the last heal, or in between.
func (p *pulse) confirm(v *survey, sent, at int64) {
	b := at / bucket
	if p.lastSpan == nil || b != p.lastBucket {
		s := p.buckets[b]
		if s == nil {
			s = &[2]int64{at, at}
			p.buckets[b] = s
		}
		p.lastBucket, p.lastSpan = b, s
	}
	p.lastSpan[0] = min(p.lastSpan[0], at)
	p.lastSpan[1] = max(p.lastSpan[1], at)
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
	case sent < v.firstStrike:
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

// liveness sums up. The longest gap runs from the last confirm at or before the first strike, or else
// from the strike or the first send, to the last send.
func (p *pulse) liveness(v *survey) Liveness {
	l := Liveness{Before: latency(p.before), During: latency(p.during), After: latency(p.after), FirstSuccess: -1}
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
	for _, b := range slices.Sorted(maps.Keys(p.buckets)) {
		s := p.buckets[b]
		if s[0] > start {
			gap(s[0])
		}
		if s[1] <= start || s[0] > start {
			from = s[1]
		} else {
			from = start // the bucket of the strike itself
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
