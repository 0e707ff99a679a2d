package reports

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// chart is the timeline of one repeat: confirmed rate and latency of every arm over the steps
// of the plan. All numbers are SVG user units.
type chart struct {
	Width, Height int
	Bottom        float64 // of the lanes
	Lanes         []lane
	Bands         []band
	Marks         []mark
	Ticks         []tick
	Legend        []key
	Words         string // the same for who cannot see it
}

type lane struct {
	Title       string
	Top, Bottom float64
	Grid        []tick
	Lines       []line
}

type line struct {
	Class string // arm-0, arm-1, ...
	Path  string
}

type band struct{ X, W float64 }

type mark struct {
	X, Y  float64
	Label string
	Kind  string
	Words string
}

type tick struct {
	At    float64
	Label string
}

type key struct {
	Class, Name string
	X           float64
}

// The chart's layout.
const (
	chartWidth  = 880
	chartLeft   = 64.0
	chartRight  = 868.0
	markTop     = 34.0
	laneHeight  = 104.0
	laneGap     = 34.0
	firstLane   = 82.0
	minLatency  = 0.1 // ms, the floor of the logarithmic lane
	labelHeight = 15.0
)

// newChart draws a repeat. It returns nil when nothing was recorded over time.
func newChart(r Repeat) *chart {
	var end Millis
	for _, a := range r.Arms {
		for _, b := range a.Liveness.Series {
			end = max(end, b.At)
		}
	}
	if end == 0 {
		return nil
	}
	for _, s := range r.Steps {
		end = max(end, s.At)
	}
	x := func(at Millis) float64 {
		return math.Round(10*(chartLeft+(chartRight-chartLeft)*float64(at)/float64(end))) / 10
	}

	bottom := firstLane + 2*laneHeight + laneGap
	c := &chart{Width: chartWidth, Height: int(bottom) + 26, Bottom: bottom}
	rate, latency := lane{Title: "confirmed per second", Top: firstLane}, lane{Title: "send to confirm, p50", Top: firstLane + laneHeight + laneGap}
	rate.Bottom, latency.Bottom = rate.Top+laneHeight, latency.Top+laneHeight

	highest, slowest := 1.0, 10.0
	for _, a := range r.Arms {
		for i, b := range a.Liveness.Series {
			highest = max(highest, perSecond(a.Liveness.Series, i))
			slowest = max(slowest, millis(b.P50))
		}
	}
	highest = niceCeil(highest)
	decades := math.Ceil(math.Log10(slowest / minLatency))
	yRate := func(v float64) float64 { return rate.Bottom - laneHeight*v/highest }
	yLatency := func(v float64) float64 {
		return latency.Bottom - laneHeight*math.Log10(max(v, minLatency)/minLatency)/decades
	}
	for _, f := range []float64{0, 0.5, 1} {
		rate.Grid = append(rate.Grid, tick{yRate(f * highest), count(int(f * highest))})
	}
	for d := range int(decades) + 1 {
		v := minLatency * math.Pow(10, float64(d))
		latency.Grid = append(latency.Grid, tick{yLatency(v), words(time.Duration(v * float64(time.Millisecond)))})
	}
	for i, a := range r.Arms {
		class := fmt.Sprintf("arm-%d", i%4)
		var up, down pen
		for j, b := range a.Liveness.Series {
			up.to(x(b.At), yRate(perSecond(a.Liveness.Series, j)))
			if b.Confirmed == 0 {
				down.lift()
				continue
			}
			down.to(x(b.At), yLatency(millis(b.P50)))
		}
		rate.Lines = append(rate.Lines, line{class, up.String()})
		latency.Lines = append(latency.Lines, line{class, down.String()})
		c.Legend = append(c.Legend, key{Class: class, Name: a.Name + " (" + a.Role + ")", X: chartLeft + float64(i)*210})
	}
	c.Lanes = []lane{rate, latency}

	healed := map[string]Millis{}
	for _, s := range r.Steps {
		if s.Kind == "heal" {
			if _, name, ok := strings.Cut(s.Words, `heal "`); ok {
				healed[strings.TrimSuffix(name, `"`)] = s.At
			}
		}
	}
	var told []string
	row, last := 0, -100.0
	for i, s := range r.Steps {
		if !s.Reached {
			continue
		}
		if s.Kind == "inject" {
			until, ok := healed[s.Name]
			if !ok {
				until = end
			}
			c.Bands = append(c.Bands, band{x(s.At), max(2, x(until)-x(s.At))})
		}
		// Marks that would cover each other move to the second row.
		if x(s.At)-last < labelHeight+3 {
			row = 1 - row
		} else {
			row = 0
		}
		last = x(s.At)
		c.Marks = append(c.Marks, mark{X: x(s.At), Y: markTop + float64(row)*(labelHeight+1), Label: strconv.Itoa(i + 1), Kind: s.Kind, Words: s.Words})
		told = append(told, fmt.Sprintf("%d at %s %s", i+1, s.At, s.Name))
	}
	step := niceCeil(time.Duration(end).Seconds() / 8)
	for v := 0.0; v <= time.Duration(end).Seconds(); v += step {
		c.Ticks = append(c.Ticks, tick{x(Millis(v * float64(time.Second))), strconv.FormatFloat(v, 'f', -1, 64) + " s"})
	}
	c.Words = "Steps: " + strings.Join(told, "; ") + "."
	return c
}

// perSecond is the confirmed rate of one slice, from the distance to its neighbour.
func perSecond(series []Bucket, i int) float64 {
	width := Millis(time.Second)
	if len(series) > 1 {
		j := min(i, len(series)-2)
		width = series[j+1].At - series[j].At
	}
	if width <= 0 {
		return 0
	}
	return float64(series[i].Confirmed) / time.Duration(width).Seconds()
}

func millis(m Millis) float64 { return float64(m) / float64(time.Millisecond) }

// niceCeil is the next of 1, 2, 5 times a power of ten.
func niceCeil(v float64) float64 {
	if v <= 0 {
		return 1
	}
	base := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if v <= m*base {
			return m * base
		}
	}
	return 10 * base
}

// pen writes an SVG path.
type pen struct {
	b    strings.Builder
	down bool
}

func (p *pen) to(x, y float64) {
	cmd, dot := "M", "h0" // a lone point is a dot
	if p.down {
		cmd, dot = "L", ""
	}
	p.down = true
	fmt.Fprintf(&p.b, "%s%.1f %.1f%s", cmd, x, y, dot)
}

func (p *pen) lift()          { p.down = false }
func (p *pen) String() string { return p.b.String() }
