// Package chain is reference code for the way of an order from its database commit to its effect: outbox and relay,
// producer, consumer, inbox, payment, retry and dead letter. Compare your own with it.
//
// Each pattern is one short function. Beside it stand its unsafe twins: the same code with one line changed, which is
// marked in both ("// safe: why" and "// unsafe: what goes wrong"). A test proves that nothing else differs, and runs
// both against a real PostgreSQL: the first holds, the second shows its anomaly. Pairs lists them.
//
// Read work.go first: it has the one idea that the others share. Then
//
//	orders.go    an order and its event            inbox.go    at most one effect for an event
//	relay.go     from the outbox to the broker     state.go    the newest state wins
//	producer.go  sending without an outbox         redis.go    the same with SETNX
//	consume.go   fetch, process, settle            payment.go  effects outside of the database
//	delay.go     what is to be done later          retry.go    errors, retries, dead letters
//	                                               reconcile.go both ends compared, and repaired
//
// It knows PostgreSQL (pgx) and, for redis.go, Redis or Valkey. It must not import the engine or an adapter: brokers come
// as a Publisher and a Subscriber, crashes and halts as a Point.
//
//	s := &chain.Service{Name: "mailer", DB: pool, Publisher: broker}
//	err := chain.PlaceOrder(ctx, s, event)
//	n, err := chain.Relay(ctx, s)
//	err = chain.Consume(ctx, s, subscription, chain.ApplyOnce)
package chain
