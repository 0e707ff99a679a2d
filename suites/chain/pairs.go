package chain

// Pair is a guarded function and its unsafe twin, which differs from it in one line.
type Pair struct {
	Name    string // scenario of the catalogue, and which of its twins: "outbox/crash-between/commit-then-publish"
	Guarded string // function
	Unsafe  string // function
	Anomaly string // what the twin shows: "missing-effect", or with an attribution "missing-effect/settled-early"
	LookFor string // a query, metric or comparison by which the anomaly is found in a running system
}

// Pairs lists all pairs by name, in the order of the chain.
func Pairs() []Pair {
	return []Pair{
		{
			"outbox/crash-between/commit-then-publish", "PlaceOrder", "PlaceOrderThenPublish", "unpublished",
			"orders without an event: SELECT o.event_id FROM orders o LEFT JOIN outbox x USING (event_id) WHERE x.event_id IS NULL AND o.created_at < now() - interval '1 minute'; without an outbox, compare orders with the topic",
		},
		{
			"outbox/crash-between/publish-then-commit", "PlaceOrder", "PublishThenPlaceOrder", "published-uncommitted",
			"consumers that look up an order of an event and find none; xact_rollback in pg_stat_database growing beside a publish rate that does not fall",
		},
		{
			"outbox/relay-crash", "Relay", "RelayMarkFirst", "unpublished",
			"rows marked published whose event id is not in the topic: compare SELECT event_id FROM outbox WHERE published_at > now() - interval '1 hour' with the topic of that hour",
		},
		{
			"outbox/late-commit-gap/status", "Relay", "RelayPastLast", "unpublished",
			"SELECT * FROM outbox WHERE status = 'pending' AND seq < (SELECT max(seq) FROM outbox WHERE status = 'published') AND created_at < now() - interval '1 minute'",
		},
		{
			"outbox/late-commit-gap/horizon", "RelayBelowHorizon", "RelayPastCursor", "unpublished",
			"compare count(*) of the outbox below the relay's position with the number of events in the topic; long transactions: SELECT max(now() - xact_start) FROM pg_stat_activity",
		},
		{
			"outbox/concurrent-relays", "Relay", "RelayWithoutLanes", "reordered-store",
			"records of one key in the topic whose versions go back; consumers that report stale versions (UPDATE ... WHERE version < $1 changed no row)",
		},
		{
			"outbox/commit-in-doubt", "PlaceOrderSurely", "PlaceOrderBlindly", "duplicate-effect",
			"SELECT key, version, count(*) FROM orders GROUP BY key, version HAVING count(*) > 1; or orders of one customer, equal in content, seconds apart",
		},
		{
			"outbox/broker-outage", "RunRelay", "RunRelayGivingUp", "unpublished",
			"SELECT status, count(*), min(created_at) FROM outbox WHERE status <> 'published' GROUP BY status: a status that nobody takes up again is a loss; alarm on the age of the oldest pending row",
		},
		{
			"kafka-acks/swallowed-error", "Send", "SendOrLog", "lost/never-published",
			"record-error-rate and record-retry-rate of the producer above 0 while no row is written to the retry table; orders without an event in the topic",
		},
		{
			"kafka-acks/unbounded-retry", "SendInTime", "SendWhateverItTakes", "stall",
			"request threads in the producer's send, bufferpool-wait-ratio near 1, and requests in flight that grow while the broker is away",
		},
		{
			"kafka-acks/timeout-is-not-failure", "SendUntilConfirmed", "SendAgainAsNew", "duplicate-effect",
			"effects of one key and version under several event ids: SELECT key, version, count(DISTINCT event_id) FROM notifications GROUP BY key, version HAVING count(DISTINCT event_id) > 1",
		},
		{
			"kafka-consume/crash-after-business-commit", "ApplyOnce", "ApplyAlways", "duplicate-effect",
			"SELECT consumer, event_id, count(*) FROM notifications GROUP BY consumer, event_id HAVING count(*) > 1, after every restart and rebalance of consumers",
		},
		{
			"kafka-consume/commit-then-process", "Consume", "ConsumeSettleFirst", "missing-effect/settled-early",
			"events below the group's committed offset without an effect: compare the event ids of the topic up to kafka-consumer-groups --describe CURRENT-OFFSET with the inbox",
		},
		{
			"kafka-consume/failed-record-then-commit", "Consume", "ConsumeAndGoOn", "missing-effect/skipped",
			"errors in the consumer's log whose event ids are neither in the inbox nor among the dead letters, while the lag is 0",
		},
		{
			"kafka-consume/failed-record-then-commit/park", "ConsumeParking", "ConsumeAndGoOn", "missing-effect/skipped",
			"errors in the consumer's log whose event ids are neither in the inbox nor among the dead letters, while the lag is 0",
		},
		{
			"inbox/redelivery/check-then-write", "ApplyOnce", "ApplyUnlessSeen", "duplicate-effect",
			"SELECT consumer, event_id, count(*) FROM inbox_without_key GROUP BY consumer, event_id HAVING count(*) > 1; an inbox without a unique index",
		},
		{
			"inbox/redelivery/mark-before-work", "ApplyOnce", "ApplyAfterMark", "missing-effect/deduplicated-wrongly",
			"SELECT i.event_id FROM inbox i LEFT JOIN notifications n USING (consumer, event_id) WHERE n.event_id IS NULL",
		},
		{
			"inbox/redelivery/business-key", "ApplyByBusinessKey", "ApplyWithoutKey", "duplicate-effect",
			"SELECT consumer, event_id, count(*) FROM notifications GROUP BY consumer, event_id HAVING count(*) > 1; effect tables without a unique index on what they are the effect of",
		},
		{
			"inbox/separate-transaction/work-first", "ApplyThenRemember", "ApplyBeforeMark", "duplicate-effect",
			"SELECT n.event_id FROM notifications n LEFT JOIN inbox i USING (consumer, event_id) WHERE i.event_id IS NULL; xmin of the two rows of one event differs",
		},
		{
			"inbox/separate-transaction/mark-first", "ApplyOnce", "ApplyAfterMark", "missing-effect/deduplicated-wrongly",
			"SELECT i.event_id FROM inbox i LEFT JOIN notifications n USING (consumer, event_id) WHERE n.event_id IS NULL; xmin of the two rows of one event differs",
		},
		{
			"inbox/digest-conflict", "ApplyOnce", "ApplyAnyContent", "missing-effect/deduplicated-wrongly",
			"records of the topic with one event id and several contents; with digests in the inbox: SELECT event_id, count(DISTINCT digest) FROM dead_letter GROUP BY event_id",
		},
		{
			"inbox/two-consumers", "ApplyOnce", "ApplyForOneConsumer", "missing-effect/deduplicated-wrongly",
			"an inbox whose unique index lacks the consumer; SELECT consumer, count(*) FROM inbox_by_event GROUP BY consumer adds up to the events instead of each being the events",
		},
		{
			"inbox/purged", "PurgeInbox", "PurgeInboxEarly", "duplicate-effect",
			"min(received_at) of the inbox is younger than the retention of the topic, the oldest dead letter, or the backup that events may be replayed from",
		},
		{
			"inbox/setnx/work", "ApplyWithKey", "ApplyAfterSetNX", "missing-effect/deduplicated-wrongly",
			"keys of processed events without an effect: SCAN MATCH seen:*, and look their event ids up in the effect table",
		},
		{
			"inbox/setnx/expiry", "ApplyWithKey", "ApplyWhileKeyLives", "duplicate-effect",
			"evicted_keys and expired_keys of INFO stats above 0 where keys stand for what is done; TTL of the keys shorter than the retention of the topic; maxmemory-policy other than noeviction",
		},
		{
			"inbox/state-machine", "PayOrder", "PayOrderAnyway", "duplicate-effect",
			"updates of a state without the old state in the WHERE; SELECT event_id, count(*) FROM notifications GROUP BY event_id HAVING count(*) > 1",
		},
		{
			"state-order/old-after-new", "ApplyState", "OverwriteState", "stale-effect",
			"SELECT b.key FROM balances b JOIN orders o USING (key) GROUP BY b.key, b.version HAVING b.version < max(o.version), once the consumers have caught up",
		},
		{
			"external-effect/act-then-timeout/without-key", "Charge", "ChargeWithoutKey", "duplicate-effect",
			"payments of one order in the provider's book: several with one reference; requests without an Idempotency-Key in its log",
		},
		{
			"external-effect/act-then-timeout/timeout-is-failure", "Charge", "ChargeOrFail", "phantom-effect",
			"cancelled orders that the provider's book has a payment for: compare by reference, daily",
		},
		{
			"external-effect/inside-transaction", "PlacePaidOrder", "PlaceOrderAndPay", "duplicate-effect",
			"payments whose reference is no order, or several payments of one; pg_stat_activity: state = 'idle in transaction' while a remote call is made",
		},
		{
			"retry-deadletter/poison", "Retry", "RetryForever", "stall",
			"one event id in the log of failures again and again; lag that grows on one partition while its consumer is busy",
		},
		{
			"retry-deadletter/temporary", "Retry", "RetryNever", "missing-effect/skipped",
			"errors in the log at the time of an outage, and as many events fewer in the inbox than in the topic, with an empty dead letter",
		},
		{
			"retry-deadletter/unknown-outcome", "Retry", "RetryAsNew", "duplicate-effect",
			"SELECT key, version, count(*) FROM notifications GROUP BY key, version HAVING count(*) > 1: equal effects under several event ids",
		},
		{
			"retry-deadletter/replay", "Replay", "ReplayAsNew", "duplicate-effect",
			"events whose id is in no outbox, published after a replayed_at: SELECT event_id, replayed_at FROM dead_letter WHERE replayed_at IS NOT NULL",
		},
		{
			"retry-deadletter/record-of-failure/secret", "NewLetter", "NewLetterWithSecrets", "dead-letter-wrong",
			"SELECT event_id FROM dead_letter WHERE error ~* '(password|token|secret|authorization|bearer)'",
		},
		{
			"retry-deadletter/record-of-failure/fields", "NewLetter", "NewLetterWithoutTimes", "dead-letter-wrong",
			"SELECT event_id FROM dead_letter WHERE first_failed_at IS NULL OR last_failed_at IS NULL OR attempts = 0 OR class = '' OR error = ''",
		},
	}
}
