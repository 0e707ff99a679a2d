package audit

import (
	"fmt"

	"conform/harness/ledger"
)

func init() {
	register(check{name: Phantom, version: 1, reports: []string{Phantom, Resurrected}, start: func(a *auditor) any { return &phantomCheck{a} }})
}

// phantomCheck finds stored messages that nobody sent, or that were definitely refused. A message in
// doubt may be there or not.
type phantomCheck struct{ a *auditor }

func (c *phantomCheck) conclude() error {
	c.a.index.walk(func(s *stream, seq uint64, f flags) {
		if key, is := strayAs(f, s.invoked(seq)); is {
			id := ledger.MessageID{Stream: s.id, Seq: seq}
			c.a.findings.add(key, id, "", func() string {
				if key.anomaly == Phantom {
					return fmt.Sprintf("%s is stored, and no invoke covers it", id)
				}
				return fmt.Sprintf("%s is stored, and was refused", id)
			})
		}
	})
	return nil
}

// strayAs says whether a message is stored that should not be.
func strayAs(f flags, invoked bool) (findingKey, bool) {
	switch {
	case f&stored == 0:
		return findingKey{}, false
	case !invoked:
		return findingKey{anomaly: Phantom}, true
	case f&refused != 0 && f&confirmed == 0:
		return findingKey{anomaly: Resurrected}, true
	}
	return findingKey{}, false
}
