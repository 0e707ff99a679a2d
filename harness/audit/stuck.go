package audit

import (
	"fmt"
	"time"

	"conform/harness/ledger"
)

func init() {
	register(check{name: Stuck, version: 1, reports: []string{Stuck}, start: func(a *auditor) any { return &stuckCheck{a} }})
}

// stuckCheck reports a drain that ended because nothing moved any more.
type stuckCheck struct{ a *auditor }

func (c *stuckCheck) conclude() error {
	q := c.a.survey.quiet
	if q == nil || q.Outcome != ledger.Failed {
		return nil
	}
	key := findingKey{anomaly: Stuck}
	c.a.findings.add(key, ledger.MessageID{}, "", func() string {
		return fmt.Sprintf("nothing moved for %s, and it is not drained: %s", time.Duration(q.N), q.Detail)
	})
	c.a.findings.during(key, q.At-q.N, q.At)
	return nil
}
