// Package ledger is the record of a run: what clients were asked to send, what the broker
// answered, what the application claimed, what was stored, delivered and applied, and which
// faults struck when.
//
// It knows events, identities, payloads and the journal codec. It is pure: it reads and
// writes through io.Reader and io.Writer and must not import os, net, os/exec, log or take
// the time from a clock.
//
//	w, _ := ledger.NewWriter(file, ledger.Segment{Name: "producer-1", Role: "producer"})
//	w.Append(ledger.Event{Kind: ledger.Invoke, Stream: 1, Seq: 0, To: 64, At: now})
//	w.Flush() // one write(2); a SIGKILL after it cannot take the frame back
package ledger
