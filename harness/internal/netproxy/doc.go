// Package netproxy is the relay that stands between clients and a node: in place from a
// connection's first byte, harmless until a cut or a rule is armed, and counting all the time.
//
// It knows sockets and frames, and nothing of brokers: the adapter gives a [Framer] for its protocol.
// It must not import any other package of this module.
//
//	l, err := netproxy.Open(netproxy.Config{Name: "kafka-1", Framer: framer, Upstream: func() string { return hostPort }})
//	addr := l.Addr()  // "127.0.0.1:40123": the same until Close, whatever happens to the node
//	armed, err := l.Arm(netproxy.Rule{Kind: "produce", Client: "guarded", Nth: 20, Action: netproxy.DropResponse})
//	armed.Hits()      // the evidence
//	armed.Heal()
//
// What a cut is true to. Refuse is a host that is up without the process: connections are reset, a new one is answered
// by RST. A black hole is a cable that is out: bytes already taken stay in the sockets' buffers, nobody is told, and after
// the heal they flow on, as TCP's retransmission has it, even if the client closed its end meanwhile (a request it gave up
// on may still reach the node, as in a real network). One thing differs: the kernel completes a new connection on
// loopback, so a client that connects into a black hole waits for its first answer instead of its handshake.
package netproxy
