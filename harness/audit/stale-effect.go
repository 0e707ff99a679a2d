package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"conform/harness/ledger"
)

func init() {
	register(check{name: StaleEffect, version: 3, reports: []string{StaleEffect}, start: func(a *auditor) any { return &staleCheck{a} }})
}

// staleCheck finds keys whose state at the end is older than one that had been applied. If the newer
// one was never applied, its effect is missing; the older one does not stand over it. And it finds effects of what was
// called off, by a word that was accepted: whoever was at work on it knew the older state only.
type staleCheck struct{ a *auditor }

func (c *staleCheck) conclude() error {
	if !c.a.chained() {
		return nil
	}
	for _, event := range slices.Sorted(maps.Keys(c.a.business.calledOff)) {
		if f := c.a.business.of(event); !f.any(effectBit) {
			continue
		}
		id := identity(event)
		c.a.findings.add(findingKey{anomaly: StaleEffect}, id, "", func() string {
			return fmt.Sprintf("there is an effect of event %s, though it had been called off before anybody was at work on it", id)
		})
	}
	stale := map[statePlace]state{} // the newest one that was applied
	behind, err := c.a.behind()
	if err != nil {
		return err
	}
	for _, x := range behind {
		if !x.there || c.a.business.of(x.event).of(x.table)&applied == 0 {
			continue
		}
		at := statePlace{x.table, x.key}
		if old, ok := stale[at]; !ok || x.version > old.version {
			stale[at] = x
		}
	}
	places := slices.SortedFunc(maps.Keys(stale), func(a, b statePlace) int {
		return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.key, b.key))
	})
	for _, at := range places {
		x := stale[at]
		c.a.findings.add(findingKey{anomaly: StaleEffect}, identity(x.event), "", func() string {
			return fmt.Sprintf("%s: %s stands at version %d, of event %s, though the newer event %s had been applied", c.a.business.effects[at.table].Name, ledger.KeyName(at.key), x.row.version, identity(x.row.event), identity(x.event))
		})
		c.a.findings.alsoOf(findingKey{anomaly: StaleEffect}, identity(x.row.event))
	}
	return nil
}
