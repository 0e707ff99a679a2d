package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"conform/harness/ledger"
)

func init() {
	register(check{name: "dead-letter", version: 3, reports: []string{DeadLetterLost, DeadLetterWrong}, start: func(a *auditor) any { return &deadLetterCheck{a: a} }})
}

// deadLetterCheck finds events that a consumer gave up and that are nowhere, dead letters of events that
// nothing ever failed on, and records of failure that do not tell what a person needs, or tell a secret.
type deadLetterCheck struct {
	a        *auditor
	exceeded []ledger.MessageID // given up by the broker for having been delivered too often
}

// stored looks at what the broker wrote into a message that it dead-lettered. What an application has published there
// itself is another message, that stands for an event.
func (c *deadLetterCheck) stored(s *segment, e *ledger.Event, seen sighting, m *flags) {
	if e.View != ledger.ViewDeadLetter || e.Detail == "" || m == nil || e.EventID != 0 || seen != fresh {
		return
	}
	if strings.Contains(e.Detail, `"delivery_limit"`) {
		c.exceeded = append(c.exceeded, e.ID())
	}
	if faults := deathFaults(e.Detail, c.a.header.Destinations[e.Pos.Destination].Name); len(faults) > 0 {
		id, pos := e.ID(), e.Pos
		c.a.findings.add(findingKey{anomaly: DeadLetterWrong}, id, "", func() string {
			return fmt.Sprintf("%s: the broker's record of %s in the dead-letter queue (%s): %s", s.title(), id, place(pos), strings.Join(faults, ", "))
		})
	}
}

// deathFaults says what is wrong with a broker's record of a dead letter of a destination.
func deathFaults(detail, destination string) []string {
	var r ledger.DeathRecord
	if err := json.Unmarshal([]byte(detail), &r); err != nil {
		return []string{"it is unreadable"}
	}
	if r == (ledger.DeathRecord{}) {
		return []string{"there is none"}
	}
	var out []string
	if r.Queue != destination && !strings.HasPrefix(r.Queue, destination+".") {
		out = append(out, fmt.Sprintf("it says that it was in %q, which is not the queue that it was sent to", r.Queue))
	}
	if !slices.Contains([]string{"expired", "rejected", "maxlen", "delivery_limit"}, r.Reason) {
		out = append(out, fmt.Sprintf("an unknown reason %q", r.Reason))
	}
	if r.Count < 1 {
		out = append(out, "no count")
	}
	if r.Time == "" {
		out = append(out, "no time")
	}
	return out
}

func (c *deadLetterCheck) row(s *segment, e *ledger.Event) {
	if e.Kind != ledger.Effect || tableOf(e.Text) != ledger.TableDeadLetter {
		return
	}
	if faults := recordFaults(e.Detail); len(faults) > 0 {
		id := identity(e.EventID)
		c.a.findings.add(findingKey{anomaly: DeadLetterWrong}, id, "", func() string {
			return fmt.Sprintf("%s: the dead letter of event %s: %s", s.title(), id, strings.Join(faults, ", "))
		})
	}
}

// recordFaults says what is wrong with a record of failure.
func recordFaults(detail string) []string {
	var r ledger.FailureRecord
	if err := json.Unmarshal([]byte(detail), &r); err != nil {
		return []string{"its record of failure is unreadable"}
	}
	var out []string
	for _, field := range []struct{ name, value string }{
		{"event_id", r.EventID},
		{"destination", r.Destination},
		{"class", r.Class},
		{"first_failed_at", r.FirstFailed},
		{"last_failed_at", r.LastFailed},
		{"error", r.Error},
	} {
		if strings.TrimSpace(field.value) == "" {
			out = append(out, "no "+field.name)
		}
	}
	if r.Class != "" && !slices.Contains([]string{"temporary", "permanent", "unknown"}, r.Class) {
		out = append(out, fmt.Sprintf("an unknown class %q", r.Class))
	}
	if r.Attempts < 1 {
		out = append(out, "no attempts")
	}
	if r.Secret {
		out = append(out, "a secret")
	}
	return out
}

func (c *deadLetterCheck) conclude() error {
	if !c.a.chained() {
		return nil
	}
	for _, id := range c.exceeded {
		if n := c.a.deliveries.times(id); n < 2 && c.a.tally.received > 0 {
			c.a.findings.add(findingKey{anomaly: DeadLetterWrong}, id, "", func() string {
				return fmt.Sprintf("%s was given up for having been delivered too often, and was delivered %d times", id, n)
			})
		}
	}
	readable := c.a.snapshotOf(ledger.TableDeadLetter) || slices.ContainsFunc(c.a.header.Destinations, func(d ledger.Destination) bool { return d.DeadLetter })
	for key := range c.a.survey.ends {
		readable = readable || key.view == ledger.ViewDeadLetter
	}
	c.a.business.walk(func(event uint64, f *facts) {
		id := identity(event)
		switch {
		case f.any(givenUp) && !f.any(deadLetter|applied) && readable:
			c.a.findings.add(findingKey{anomaly: DeadLetterLost}, id, "", func() string {
				return fmt.Sprintf("event %s was given up by its consumer, and is not among the dead letters", id)
			})
		case !f.any(deadLetter):
		case f.any(applied) && !f.any(givenUp|failed):
			c.a.findings.add(findingKey{anomaly: DeadLetterWrong}, id, "", func() string {
				return fmt.Sprintf("event %s is among the dead letters, its work ended well and never failed", id)
			})
		default:
			if allowed, _ := c.a.letterOf(event, *f); !allowed {
				c.a.findings.add(findingKey{anomaly: DeadLetterWrong}, id, "", func() string {
					return fmt.Sprintf("event %s is among the dead letters, and nothing of what was done to it puts it there", id)
				})
			}
		}
	})
	return nil
}

// alwaysJudged: where dead letters are read they count as ends, so that a wrong one is judged wherever effects are.
func (a *auditor) alwaysJudged(f *Finding) bool {
	return f.Anomaly == DeadLetterWrong && slices.Contains(a.header.Tables, ledger.TableDeadLetter) && slices.Contains(a.header.Promise.Places, "effect")
}

// letterOf says whether a business event may be among the dead letters, and whether that is then an end like its effect.
func (a *auditor) letterOf(event uint64, f facts) (allowed, ends bool) {
	l := a.header.Chain.Letters
	switch {
	case l == nil, f&byBroker != 0, slices.Contains(l.Events, event):
		return true, true
	case slices.Contains(l.Passing, event):
		return true, false
	}
	if a.otherLetters < 0 {
		a.otherLetters = 0
		a.business.walk(func(event uint64, f *facts) {
			if f.any(deadLetter) && *f&byBroker == 0 && !slices.Contains(l.Events, event) && !slices.Contains(l.Passing, event) {
				a.otherLetters++
			}
		})
	}
	few := a.otherLetters <= l.Others
	return few, few
}
