// Package mutate plants corruptions in a ledger: each is one way in which a broker, a client, an
// application or the recording itself can go wrong. Tests use them to show that every check fails
// when it must.
//
// It knows events and the codec, and nothing of the audit. It must not import os, net, os/exec, log
// or take the time from a clock; randomness is handed in.
//
//	journals := []mutate.Journal{engine, producer, reader}
//	m, _ := mutate.Lookup("lose-confirmed")
//	ok := m.Apply(rand.New(rand.NewPCG(1, 2)), &header, journals)
package mutate
