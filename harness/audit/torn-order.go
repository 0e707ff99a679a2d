package audit

import (
	"fmt"

	"conform/harness/ledger"
)

func init() {
	register(check{name: "torn-order", version: 1, reports: []string{TornTxn, Corrupted}, start: func(a *auditor) any { return &tornOrderCheck{a} }})
}

// tornOrderCheck finds business events with a row in the table of orders and none in the outbox, or the other way round, where
// one transaction writes both, and rows of the two that are not their event's.
type tornOrderCheck struct{ a *auditor }

func (c *tornOrderCheck) conclude() error {
	chain := c.a.header.Chain
	if !c.a.chained() {
		return nil
	}
	odd, err := c.a.oddRows()
	if err != nil {
		return err
	}
	for _, x := range odd {
		if c.a.business.table(x.table) >= 0 {
			continue
		}
		id := identity(x.event)
		c.a.findings.add(findingKey{anomaly: Corrupted}, id, "", func() string {
			return fmt.Sprintf("%s has a row of event %s under %s, version %d, which is not the event's", x.table, id, ledger.KeyName(x.key), x.version)
		})
	}
	if !chain.Outbox || chain.Orders == "" || chain.Orders == ledger.TableOutbox {
		return nil
	}
	c.a.business.walk(func(event uint64, f *facts) {
		there, lacks := chain.Orders, ledger.TableOutbox
		switch *f & (rowFound | outboxFound) {
		case rowFound:
		case outboxFound:
			there, lacks = lacks, there
		default:
			return
		}
		id := identity(event)
		c.a.findings.add(findingKey{anomaly: TornTxn}, id, "", func() string {
			return fmt.Sprintf("event %s has a row in %s and none in %s: one transaction writes both", id, there, lacks)
		})
	})
	return nil
}

// unmarked says how many rows of the outbox are not marked although the broker has accepted their event, in words.
func (a *auditor) unmarked() string {
	n, first := 0, uint64(0)
	if a.chained() && a.header.Chain.Published != "" {
		a.business.walk(func(event uint64, f *facts) {
			if *f&unmarked != 0 && (*f&(accepted|inStore) != 0 || f.any(delivered)) {
				if n == 0 {
					first = event
				}
				n++
			}
		})
	}
	if q := a.survey.quiet; n == 0 || q == nil || q.Outcome != ledger.OK {
		return ""
	}
	return fmt.Sprintf("%d rows of %s do not say %q though their events were accepted and nothing was left to do, first that of event %s", n, ledger.TableOutbox, a.header.Chain.Published, identity(first))
}
