package reports

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"conform/harness/audit"
)

// words writes a duration for people: 85 µs, 412 ms, 3.1 s, 12 min 3 s.
func words(d time.Duration) string {
	switch {
	case d < 0:
		return "never"
	case d == 0:
		return "0"
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 10*time.Millisecond:
		return strconv.FormatFloat(float64(d.Microseconds())/1000, 'f', 1, 64) + " ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	default:
		d = d.Round(time.Second)
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	}
}

// count writes a whole number with thousands separated: 12,345.
func count[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plural writes "1 scenario" or "3 scenarios".
func plural(n int, noun string) string {
	if stem, y := strings.CutSuffix(noun, "y"); n != 1 && y {
		noun = stem + "ies"
	} else if n != 1 {
		noun += "s"
	}
	return count(n) + " " + noun
}

func statusWord(s audit.Status) string {
	switch s {
	case audit.Pass:
		return "pass"
	case audit.Fail:
		return "fail"
	case audit.NotApplicable:
		return "not-applicable"
	case audit.Observed:
		return "observed"
	default:
		return "inconclusive"
	}
}

func resultWord(r audit.ArmResult) string {
	switch r {
	case audit.Held:
		return "held"
	case audit.Broke:
		return "broke"
	case audit.Reproduced:
		return "reproduced"
	case audit.Missed:
		return "missed"
	default:
		return "inconclusive"
	}
}

// why says where in the chain an attributed message was lost.
func why(attribution string) string {
	if m := audit.MeaningOf(attribution); m != "" {
		return "It " + m + "."
	}
	return ""
}

// stages are the stations of a message, in order.
var stages = []string{"order commit", "publish", "accept", "confirm", "replicate", "fetch", "business commit", "settle"}

// windows says which link of the chain each window is: the index of the stage before it.
var windows = map[string]struct {
	After int
	Words string
}{
	"W1": {0, "after the order's commit, before the publish"},
	"W2": {2, "accepted by the broker, before the confirm came back"},
	"W3": {3, "after the confirm, in storage or replication"},
	"W4": {5, "fetched, before the business commit"},
	"W5": {6, "after the business commit, before the settle"},
	"W6": {5, "settled before the business commit"},
}

// brokenLink says at which link of the chain an attributed loss stands: the index of the stage
// it did not get past. ok is false for anomalies that are no loss.
func brokenLink(anomaly, attribution string) (stage int, ok bool) {
	switch attribution {
	case "never-published":
		return 0, true
	case "client-buffer":
		return 1, true
	case "broker", "unroutable", "expired", "overflowed", "dead-letter-dropped":
		return 3, true
	case "skipped", "deduplicated-wrongly", "settled-early":
		return 5, true
	}
	if anomaly == "lost" {
		return 3, true
	}
	return 0, false
}

// kind says what a step did by its words, which end in what plan.Step.String calls the act.
func kind(stepWords string) string {
	act := stepWords[strings.LastIndex(stepWords, ": ")+1:]
	act = strings.TrimSpace(act)
	switch {
	case act == "go on":
		return "wait"
	case strings.HasPrefix(act, `heal "`):
		return "heal"
	case strings.Contains(act, " on "):
		return "inject"
	default:
		return "act"
	}
}

// Window says in words where in the chain a window is; it is empty for an unknown one.
func Window(name string) string { return windows[name].Words }
