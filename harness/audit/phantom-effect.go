package audit

import (
	"fmt"

	"conform/harness/ledger"
)

func init() {
	register(check{name: PhantomEffect, version: 4, reports: []string{PhantomEffect}, start: func(a *auditor) any { return &phantomEffectCheck{a} }})
}

// phantomEffectCheck finds effects of business events that did not happen:
//
//	nobody ever asked for it (no transaction, no invoke, no row)  phantom-effect
//	its transaction was rolled back, or has no row where it must  phantom-effect
//	the application's last word was that it failed                phantom-effect
//	that last word was that it is called off                      stale-effect, of another check
//	a row of it is of another key, or version             phantom-effect
//	in doubt, and nothing says that it did not happen             it may have
type phantomEffectCheck struct{ a *auditor }

func (c *phantomEffectCheck) conclude() error {
	a := c.a
	if !a.chained() || len(a.business.effects) == 0 {
		return nil
	}
	a.business.walk(func(event uint64, f *facts) {
		if !f.any(effectBit) {
			return
		}
		id, why := identity(event), ""
		switch {
		case a.business.calledOff[event]:
			return
		case *f&toldFailed != 0 && *f&told == 0:
			why = "the application took it for failed"
		case a.uncommitted(*f):
			why = "its transaction was not committed"
		case *f&(ordered|rowFound|published) == 0 && !a.invoked(id):
			why = "nobody ever asked for it"
		default:
			return
		}
		a.findings.add(findingKey{anomaly: PhantomEffect}, id, "", func() string {
			return fmt.Sprintf("there is an effect of event %s, and %s", id, why)
		})
	})
	odd, err := a.oddRows()
	if err != nil {
		return err
	}
	for _, x := range odd {
		if a.business.table(x.table) < 0 {
			continue
		}
		id := identity(x.event)
		a.findings.add(findingKey{anomaly: PhantomEffect}, id, "", func() string {
			return fmt.Sprintf("%s has a row of event %s under %s, version %d, which is not the event's", x.table, id, ledger.KeyName(x.key), x.version)
		})
	}
	return nil
}

// invoked says whether an invoke covers an identity.
func (a *auditor) invoked(id ledger.MessageID) bool {
	s := a.index.streams[id.Stream]
	return s != nil && s.invoked(id.Seq)
}
