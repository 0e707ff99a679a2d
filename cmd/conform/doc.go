// Command conform proves, against real brokers in containers and under injected faults, what
// a messaging promise is worth: whether the safe configuration holds, and whether the unsafe
// one breaks as named.
//
// It is the only package that reads the environment and flags, handles signals and exits. It
// wires suites, faults, adapters, engine and reports together and judges nothing itself.
//
//	conform run --prepare --install-docker --suite kafka-acks
package main
