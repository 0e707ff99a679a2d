package audit

import (
	"slices"
	"strings"

	"conform/harness/ledger"
)

// A check finds one or a few anomalies of one place. Each is a file of its own that registers
// itself; registration order does not matter.
type check struct {
	name    string
	version int      // raised whenever the same ledger may be judged otherwise
	reports []string // the anomalies it can report
	start   func(a *auditor) any
}

// What start returns may implement these. All are called in the order of the ledger, once an event.
type (
	// storedObserver sees each record of the final read once a view, with how it relates to what was
	// read before; m are the flags of its message, or nil if its identity is unreadable.
	storedObserver interface {
		stored(s *segment, e *ledger.Event, seen sighting, m *flags)
	}
	receivedObserver interface {
		received(s *segment, e *ledger.Event)
	}
	// businessObserver sees each row of the final snapshot, before it is counted.
	businessObserver interface {
		row(s *segment, e *ledger.Event)
	}
	// concluder sums up after the main pass, when all flags are set.
	concluder interface{ conclude() error }
)

var checks []check

func register(c check) {
	checks = append(checks, c)
	slices.SortFunc(checks, func(a, b check) int { return strings.Compare(a.name, b.name) })
}

// The rules of evidence have a version among those of the checks, raised whenever the same ledger may be
// found to prove more or less. Ledgers that name none are of version 1; since version 2 they hold the end
// positions at quiescence and the length of what each worker wrote, since version 3 Expect.Also may name attributions.
const (
	// EvidenceRules is the name of the rules of evidence among the checks.
	EvidenceRules   = "evidence"
	evidenceVersion = 3
)

// Checks returns the names and versions of the checks of this binary, and of its rules of evidence.
func Checks() map[string]int {
	out := make(map[string]int, len(checks)+1)
	out[EvidenceRules] = evidenceVersion
	for _, c := range checks {
		out[c.name] = c.version
	}
	return out
}
