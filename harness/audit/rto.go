package audit

import (
	"fmt"
	"math"
	"time"

	"conform/harness/ledger"
)

func init() {
	register(check{name: RTO, version: 1, reports: []string{RTO}, start: func(a *auditor) any { return &rtoCheck{a} }})
}

// rtoCheck judges the time from the last strike to the first success where the promise bounds it. Sends
// must have been tried for so long.
type rtoCheck struct{ a *auditor }

func (c *rtoCheck) conclude() error {
	bound, strike, p := int64(c.a.header.Promise.MaxRTO), c.a.survey.lastStrike, c.a.pulse
	if bound <= 0 || strike == math.MaxInt64 {
		return nil
	}
	until := min(p.firstConfirm, max(p.lastSend, strike))
	if until-strike <= bound {
		return nil
	}
	key := findingKey{anomaly: RTO}
	c.a.findings.add(key, ledger.MessageID{}, "", func() string {
		took := time.Duration(until - strike)
		if p.firstConfirm == math.MaxInt64 {
			return fmt.Sprintf("no send made after the last strike was confirmed, for %s; the promise bounds it by %s", took, time.Duration(bound))
		}
		return fmt.Sprintf("the first send made after the last strike was confirmed %s after it, the promise bounds it by %s", took, time.Duration(bound))
	})
	c.a.findings.during(key, strike, until)
	return nil
}
