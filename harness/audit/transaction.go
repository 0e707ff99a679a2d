package audit

import (
	"fmt"

	"conform/harness/ledger"
)

func init() {
	register(check{name: "transaction", version: 1, reports: []string{AbortedRead, TornTxn, EarlyRead}, start: func(a *auditor) any { return &transactionCheck{a} }})
}

// transactionCheck compares what the committed view shows, in the final read and to consumers, with
// how each transaction ended. A transaction whose end is in doubt may be there or not, but whole.
type transactionCheck struct{ a *auditor }

func (c *transactionCheck) received(s *segment, e *ledger.Event) {
	if e.View != ledger.ViewCommitted || e.Stream == 0 {
		return
	}
	t := c.a.survey.txnOf(e.ID())
	if t == nil {
		return
	}
	id, at := e.ID(), e.At
	switch {
	case t.outcome == ledger.Failed:
		*c.a.index.stream(e.Stream).flagsOf(e.Seq) |= transacted
		c.a.findings.add(findingKey{anomaly: AbortedRead}, id, "", func() string {
			return fmt.Sprintf("%s: %s was delivered at %s though its transaction was aborted", s.title(), id, c.a.survey.since(at))
		})
	case e.At < t.sent:
		*c.a.index.stream(e.Stream).flagsOf(e.Seq) |= transacted
		sent := t.sent
		c.a.findings.add(findingKey{anomaly: EarlyRead}, id, "", func() string {
			return fmt.Sprintf("%s: %s was delivered at %s, before the commit of its transaction was asked for at %s", s.title(), id, c.a.survey.since(at), c.a.survey.since(sent))
		})
	}
}

func (c *transactionCheck) conclude() error {
	if !c.a.survey.committed || len(c.a.survey.txns) == 0 {
		return nil
	}
	c.a.index.walk(func(s *stream, seq uint64, f flags) {
		id := ledger.MessageID{Stream: s.id, Seq: seq}
		t := c.a.survey.txnOf(id)
		switch {
		case t == nil || t.seen == 0:
		case t.outcome == ledger.Failed && f&storedCommitted != 0:
			*s.flagsOf(seq) |= transacted
			c.a.findings.add(findingKey{anomaly: AbortedRead}, id, "", func() string {
				return fmt.Sprintf("%s is in the committed view though its transaction (%d..%d) was aborted", id, t.from, t.to-1)
			})
		case t.outcome != ledger.Failed && c.missing(f):
			*s.flagsOf(seq) |= transacted
			c.a.findings.add(findingKey{anomaly: TornTxn}, id, "", func() string {
				return fmt.Sprintf("%s is not in the committed view, %d others of its transaction (%d..%d) are", id, t.seen, t.from, t.to-1)
			})
		}
	})
	return nil
}

// missing says whether a message ought to be in the committed view beside the others of its
// transaction, and is not. What the raw view lacks too is lost or expired, and not torn; where that
// was not read, a confirm above the start of the log must do.
func (c *transactionCheck) missing(f flags) bool {
	switch {
	case f&storedCommitted != 0:
		return false
	case c.a.primary == ledger.ViewRaw:
		return f&storedRaw != 0
	default:
		return f&confirmed != 0 && f&placed != 0 && f&belowStart == 0
	}
}
