package audit

import (
	"errors"

	"conform/harness/ledger"
)

// Audit judges one arm by its recorded promise and evidence. The error is about us: a segment that
// cannot be opened or read, or is of another schema. Damage is no error but a reason in the Verdict.
func Audit(h ledger.Header, open Open) (Verdict, error) {
	return Verdict{}, errors.ErrUnsupported
}

// Tell returns the whole story of one message, with the injections, heals and position's present
// occupant around it.
func Tell(h ledger.Header, open Open, id ledger.MessageID) (Story, error) {
	return Story{}, errors.ErrUnsupported
}

// Compare says where the caller's promise and check versions differ from the recorded ones.
func Compare(h ledger.Header, promise ledger.Promise, checks map[string]int) []string { return nil }

// Checks returns the names and versions of the checks of this binary.
func Checks() map[string]int { return nil }
