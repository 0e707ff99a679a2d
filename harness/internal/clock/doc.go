// Package clock reads CLOCK_MONOTONIC: nanoseconds that are comparable across the processes of
// one host. It is the only place where a ledger's time is taken; ledger and audit stay pure.
//
// It must not import anything of ours.
//
//	at := clock.Now()
package clock
