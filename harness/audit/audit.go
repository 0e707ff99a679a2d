package audit

import (
	"errors"
	"io"

	"conform/harness/ledger"
)

// Source is one segment of a ledger.
type Source struct {
	Name string // file name, used in damage reports and witnesses
	R    io.Reader
	// Killed says that its writer was killed as planned: a missing SegmentEnd and a torn last frame are
	// then no damage. A WorkerEnd in the ledger says the same.
	Killed bool
}

// Open returns all segments of one arm from their beginning, in a fixed order. Audit and Tell read a
// ledger more than once and call it for each pass; the caller closes what it opened.
type Open func() ([]Source, error)

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
