// Package audit judges a ledger: it finds anomalies, weighs them against the recorded promise
// and the recorded evidence, and returns a Verdict that is plain data.
//
// It is pure: no os, net, os/exec, clock or log. A verdict is never a panic, an exit or a log
// line; an error is about us (a ledger that cannot be read), never about the broker.
//
// Business events, from an order's commit to its effect, are told apart from the messages that carry
// them: several messages of one event id are one event, and several event ids of one act (see
// ledger.Resent) are one act. What consumers did is judged in the order of time, across processes.
//
// A ledger is read in passes: one over the rare events (strikes, heals, ends of reads), the main one
// with a few bits a message, and further ones only if something was found.
//
//	open := func() ([]audit.Source, error) { ... } // all segments, from their beginning
//	v, err := audit.Audit(header, open)
//	if err == nil && v.Arm == audit.Held { ... }
package audit
