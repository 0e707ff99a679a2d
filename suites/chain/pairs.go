package chain

// Pair is a guarded function and its unsafe twin, which differs from it in one line.
type Pair struct {
	Name    string // scenario of the catalogue, and which of its twins: "outbox/crash-between/commit-then-publish"
	Guarded string // function
	Unsafe  string // function
	Anomaly string // what the twin shows: "missing-effect", or with an attribution "missing-effect/settled-early"
	LookFor string // what to watch or compare in a running system, in words
	Query   string // returns what is wrong, and no row otherwise; "" where the database alone does not show it
}

// Pairs lists all pairs by name, in the order of the chain.
func Pairs() []Pair {
	return []Pair{
		{
			Name: "outbox/crash-between/commit-then-publish", Guarded: "PlaceOrder", Unsafe: "PlaceOrderThenPublish",
			Anomaly: "unpublished",
			LookFor: "orders without an event, older than a minute; where there is no outbox, compare the orders with the topic",
			Query:   noEvent,
		},
		{
			Name: "outbox/crash-between/publish-then-commit", Guarded: "PlaceOrder", Unsafe: "PublishThenPlaceOrder",
			Anomaly: "published-uncommitted",
			LookFor: "consumers that look up the order of an event and find none; xact_rollback of pg_stat_database grows and the publish rate does not fall",
		},
		{
			Name: "outbox/relay-crash", Guarded: "Relay", Unsafe: "RelayMarkFirst",
			Anomaly: "unpublished",
			LookFor: "rows marked published whose event id is not in the topic: compare an hour of both",
		},
		{
			Name: "outbox/late-commit-gap/status", Guarded: "Relay", Unsafe: "RelayPastLast",
			Anomaly: "unpublished",
			LookFor: "pending rows behind published ones of their lane, older than a minute",
			Query:   overtaken,
		},
		{
			Name: "outbox/late-commit-gap/horizon", Guarded: "RelayBelowHorizon", Unsafe: "RelayPastCursor",
			Anomaly: "unpublished",
			LookFor: "fewer events in the topic than rows in the outbox below the relay's position; transactions that stay open: SELECT max(now() - xact_start) FROM pg_stat_activity",
		},
		{
			Name: "outbox/concurrent-relays", Guarded: "Relay", Unsafe: "RelayWithoutLanes",
			Anomaly: "reordered-store",
			LookFor: "events of a key published out of turn; records of one key in the topic whose versions go back; consumers that find events stale",
			Query:   outOfTurn,
		},
		{
			Name: "outbox/commit-in-doubt", Guarded: "PlaceOrderSurely", Unsafe: "PlaceOrderBlindly",
			Anomaly: "duplicate-effect",
			LookFor: "orders of one customer that are equal in content, seconds apart",
			Query:   twoOrders,
		},
		{
			Name: "outbox/broker-outage", Guarded: "RunRelay", Unsafe: "RunRelayGivingUp",
			Anomaly: "unpublished",
			LookFor: "rows of a status that nobody takes up again; alarm on the age of the oldest pending row, not on failures",
			Query:   givenUp,
		},
		{
			Name: "kafka-acks/swallowed-error", Guarded: "Send", Unsafe: "SendOrLog",
			Anomaly: "lost/never-published",
			LookFor: "record-error-rate and record-retry-rate of the producer above 0 while no row is written to the retry table; orders without an event in the topic",
		},
		{
			Name: "kafka-acks/unbounded-retry", Guarded: "SendInTime", Unsafe: "SendWhateverItTakes",
			Anomaly: "stall",
			LookFor: "request threads in the producer's send, bufferpool-wait-ratio near 1, and requests in flight that grow while the broker is away",
		},
		{
			Name: "kafka-acks/timeout-is-not-failure", Guarded: "SendUntilConfirmed", Unsafe: "SendAgainAsNew",
			Anomaly: "duplicate-effect",
			LookFor: "equal effects under several event ids",
			Query:   twoEvents,
		},
		{
			Name: "kafka-consume/crash-after-business-commit", Guarded: "ApplyOnce", Unsafe: "ApplyAlways",
			Anomaly: "duplicate-effect",
			LookFor: "events with several effects, after each restart and rebalance of consumers",
			Query:   twoEffects,
		},
		{
			Name: "kafka-consume/commit-then-process", Guarded: "Consume", Unsafe: "ConsumeSettleFirst",
			Anomaly: "missing-effect/settled-early",
			LookFor: "events below the group's committed offset without an effect: compare the event ids of the topic up to kafka-consumer-groups --describe CURRENT-OFFSET with the inbox",
		},
		{
			Name: "kafka-consume/failed-record-then-commit", Guarded: "Consume", Unsafe: "ConsumeAndGoOn",
			Anomaly: "missing-effect/skipped",
			LookFor: "errors in the consumer's log whose event ids are neither in the inbox nor among the dead letters, while the lag is 0",
		},
		{
			Name: "kafka-consume/failed-record-then-commit/park", Guarded: "ConsumeParking", Unsafe: "ConsumeAndGoOn",
			Anomaly: "missing-effect/skipped",
			LookFor: "errors in the consumer's log whose event ids are neither in the inbox nor among the dead letters, while the lag is 0",
		},
		{
			Name: "rabbitmq-acks/multiple-flag", Guarded: "ConsumeInParallel", Unsafe: "ConsumeInParallelUpTo",
			Anomaly: "missing-effect/settled-early",
			LookFor: "acks with multiple=true in consumers that work in parallel; after a crash, event ids that are in no inbox and in no queue",
		},
		{
			Name: "rabbitmq-acks/stale-tag", Guarded: "SettleHere", Unsafe: "SettleAnywhere",
			Anomaly: "missing-effect/settled-early",
			LookFor: "channels closed with PRECONDITION_FAILED - unknown delivery tag after a reconnect: where the tag was known, another delivery was settled in silence",
		},
		{
			Name: "rabbitmq-acks/nack-loop", Guarded: "ConsumeCounting", Unsafe: "ConsumeReturning",
			Anomaly: "stall",
			LookFor: "rabbitmq_global_messages_redelivered_total that grows while nothing is acknowledged; one event id in the log of failures again and again",
		},
		{
			Name: "rabbitmq-ordering/dead-letter-and-return", Guarded: "ConsumeInKeyOrder", Unsafe: "ConsumeInTurn",
			Anomaly: "stale-effect",
			LookFor: "states older than the newest event of their key after each use of the retry queue; x-death headers of messages whose key has newer effects",
			Query:   oldState,
		},
		{
			Name: "rabbitmq-deadletter/ack-then-republish", Guarded: "ConsumeMoving", Unsafe: "ConsumeMovingLate",
			Anomaly: "missing-effect/settled-early",
			LookFor: "error handlers that ack and then publish; after a crash, event ids that failed and are in no inbox, no queue and no dead-letter queue",
		},
		{
			Name: "inbox/redelivery/check-then-write", Guarded: "ApplyOnce", Unsafe: "ApplyUnlessSeen",
			Anomaly: "duplicate-effect",
			LookFor: "an inbox without a unique index; events with several effects",
			Query:   twoEffects,
		},
		{
			Name: "inbox/redelivery/mark-before-work", Guarded: "ApplyOnce", Unsafe: "ApplyAfterMark",
			Anomaly: "missing-effect/deduplicated-wrongly",
			LookFor: "events that the inbox has and the effects have not",
			Query:   noEffect,
		},
		{
			Name: "inbox/redelivery/business-key", Guarded: "ApplyByBusinessKey", Unsafe: "ApplyWithoutKey",
			Anomaly: "duplicate-effect",
			LookFor: "effect tables without a unique index on what they are the effect of; events with several effects",
			Query:   twoEffects,
		},
		{
			Name: "inbox/separate-transaction/work-first", Guarded: "ApplyThenRemember", Unsafe: "ApplyBeforeMark",
			Anomaly: "duplicate-effect",
			LookFor: "events with several effects; the xmin of an effect and of its inbox row differ",
			Query:   twoEffects,
		},
		{
			Name: "inbox/separate-transaction/mark-first", Guarded: "ApplyOnce", Unsafe: "ApplyAfterMark",
			Anomaly: "missing-effect/deduplicated-wrongly",
			LookFor: "events that the inbox has and the effects have not; the xmin of an effect and of its inbox row differ",
			Query:   noEffect,
		},
		{
			Name: "inbox/digest-conflict", Guarded: "ApplyOnce", Unsafe: "ApplyAnyContent",
			Anomaly: "missing-effect/deduplicated-wrongly",
			LookFor: "records of the topic with one event id and several contents",
		},
		{
			Name: "inbox/two-consumers", Guarded: "ApplyOnce", Unsafe: "ApplyForOneConsumer",
			Anomaly: "missing-effect/deduplicated-wrongly",
			LookFor: "an inbox whose unique index lacks the consumer: the rows of all consumers add up to the number of events",
		},
		{
			Name: "inbox/purged", Guarded: "PurgeInbox", Unsafe: "PurgeInboxEarly",
			Anomaly: "duplicate-effect",
			LookFor: "min(received_at) of the inbox is younger than what events may be replayed from: the topic, the dead letters, a backup",
			Query:   twoEffects,
		},
		{
			Name: "inbox/setnx/work", Guarded: "ApplyWithKey", Unsafe: "ApplyAfterSetNX",
			Anomaly: "missing-effect/deduplicated-wrongly",
			LookFor: "keys of processed events without an effect: SCAN MATCH seen:*, and look their event ids up in the effect table",
		},
		{
			Name: "inbox/setnx/expiry", Guarded: "ApplyWithKey", Unsafe: "ApplyWhileKeyLives",
			Anomaly: "duplicate-effect",
			LookFor: "evicted_keys and expired_keys of INFO stats above 0 where keys stand for what is done; TTL of the keys shorter than the retention of the topic; maxmemory-policy other than noeviction",
			Query:   twoEffects,
		},
		{
			Name: "inbox/state-machine", Guarded: "PayOrder", Unsafe: "PayOrderAnyway",
			Anomaly: "duplicate-effect",
			LookFor: "updates of a state without the old state in the WHERE; events with several effects",
			Query:   twoEffects,
		},
		{
			Name: "state-order/old-after-new", Guarded: "ApplyState", Unsafe: "OverwriteState",
			Anomaly: "stale-effect",
			LookFor: "states older than the newest event of their key, once the consumers have caught up",
			Query:   oldState,
		},
		{
			Name: "external-effect/act-then-timeout/without-key", Guarded: "Charge", Unsafe: "ChargeWithoutKey",
			Anomaly: "duplicate-effect",
			LookFor: "payments of one order in the provider's book: several with one reference; requests without an Idempotency-Key in its log",
		},
		{
			Name: "external-effect/act-then-timeout/timeout-is-failure", Guarded: "Charge", Unsafe: "ChargeOrFail",
			Anomaly: "phantom-effect",
			LookFor: "cancelled orders that the provider's book has a payment for: compare by reference, daily",
		},
		{
			Name: "external-effect/inside-transaction", Guarded: "PlacePaidOrder", Unsafe: "PlaceOrderAndPay",
			Anomaly: "duplicate-effect",
			LookFor: "payments whose reference is no order, or several payments of one; remote calls between BEGIN and COMMIT of a business transaction",
		},
		{
			Name: "retry-deadletter/poison", Guarded: "Retry", Unsafe: "RetryForever",
			Anomaly: "stall",
			LookFor: "one event id in the log of failures again and again; lag that grows on one partition while its consumer is busy",
		},
		{
			Name: "retry-deadletter/temporary", Guarded: "Retry", Unsafe: "RetryNever",
			Anomaly: "missing-effect/skipped",
			LookFor: "errors in the log at the time of an outage, and as many events fewer in the inbox than in the topic, with an empty dead letter",
		},
		{
			Name: "retry-deadletter/unknown-outcome", Guarded: "Retry", Unsafe: "RetryAsNew",
			Anomaly: "duplicate-effect",
			LookFor: "equal effects under several event ids",
			Query:   twoEvents,
		},
		{
			Name: "retry-deadletter/replay", Guarded: "Replay", Unsafe: "ReplayAsNew",
			Anomaly: "duplicate-effect",
			LookFor: "equal effects under several event ids; events in the topic whose id is in no outbox",
			Query:   twoEvents,
		},
		{
			Name: "retry-deadletter/record-of-failure/secret", Guarded: "NewLetter", Unsafe: "NewLetterWithSecrets",
			Anomaly: "dead-letter-wrong",
			LookFor: "dead letters whose error has a password or a token",
			Query:   openSecrets,
		},
		{
			Name: "rocketmq-consume/shutdown", Guarded: "Consume", Unsafe: "ConsumeHandingOver",
			Anomaly: "missing-effect/settled-early",
			LookFor: "events without an effect from the seconds before each deployment; listeners that hand messages to an executor and return CONSUME_SUCCESS",
		},
		{
			Name: "rocketmq-transaction/crash-before-end", Guarded: "CheckInTable", Unsafe: "CheckInMemory",
			Anomaly: "unpublished",
			LookFor: "committed orders without an effect, most of them from the seconds before a producer's restart; a checkLocalTransaction that reads a map",
		},
		{
			Name: "rocketmq-transaction/rolled-back", Guarded: "CheckInTable", Unsafe: "CheckHopefully",
			Anomaly: "published-uncommitted",
			LookFor: "consumers that look up the order of an event and find none; a checkLocalTransaction whose last line returns COMMIT",
		},
		{
			Name: "rocketmq-delay/in-memory", Guarded: "SendDelayed", Unsafe: "SendOnWheel",
			Anomaly: "missing-effect/never-published",
			LookFor: "timers (time.AfterFunc, a ScheduledExecutorService) that publish when they fire: what they hold is gone with each restart, and no queue shows it",
		},
		{
			Name: "delay-task/restart", Guarded: "PlaceTimedOrder", Unsafe: "PlaceOrderOnWheel",
			Anomaly: "missing-effect/never-published",
			LookFor: "orders that are unpaid for longer than the delay, most of them from the time before a restart: timers that nobody has written down",
			Query:   neverDue,
		},
		{
			Name: "delay-task/paid-meanwhile", Guarded: "CancelUnpaid", Unsafe: "CancelUnchecked",
			Anomaly: "stale-effect",
			LookFor: "cancelled orders that the book of payments has: compare by reference; updates of a state without the old state in the WHERE",
		},
		{
			Name: "delay-task/cancelled-or-moved", Guarded: "ScanTasks", Unsafe: "ScanWithoutClaim",
			Anomaly: "stale-effect",
			LookFor: "effects of tasks that were called off: the time of the effect is later than that of the cancellation",
		},
		{
			Name: "delay-task/two-scanners/no-lease", Guarded: "ScanTasks", Unsafe: "ScanWithoutClaim",
			Anomaly: "duplicate-effect",
			LookFor: "events with several effects since a second scanner runs",
			Query:   twoEffects,
		},
		{
			Name: "delay-task/two-scanners/no-fence", Guarded: "Remind", Unsafe: "RemindUnfenced",
			Anomaly: "duplicate-effect",
			LookFor: "events with several effects whose task was claimed more than once: SELECT event_id FROM delay_task WHERE fence > 1",
			Query:   twoEffects,
		},
		{
			Name: "delay-task/scanner-killed", Guarded: "ScanTasks", Unsafe: "ScanUnclaimed",
			Anomaly: "missing-effect/never-published",
			LookFor: "tasks that are claimed for longer than the lease; alarm on the age of the oldest",
			Query:   heldForEver,
		},
		{
			Name: "delay-task/out-of-date", Guarded: "Remind", Unsafe: "RemindHoweverLate",
			Anomaly: "expired-delivered",
			LookFor: "a burst of reminders right after each outage; tasks whose effect is later than their use",
		},
		{
			Name: "delay-task/clock-skew", Guarded: "ScanTasks", Unsafe: "ScanByOwnClock",
			Anomaly: "early",
			LookFor: "scanners that compare due times with a time they send along; chronyc tracking on each of them",
		},
		{
			Name: "delay-task/kafka-timestamp", Guarded: "PlaceTimedOrder", Unsafe: "PlaceOrderInLog",
			Anomaly: "early",
			LookFor: "records whose CreateTime is later than the time at which their consumer has handled them",
		},
		{
			Name: "reconcile/report-only", Guarded: "Reconcile", Unsafe: "ReportOnly",
			Anomaly: "missing-effect",
			LookFor: "discrepancies that are found again in every run: compare the reports of two days",
			Query:   unrepaired,
		},
		{
			Name: "reconcile/behind", Guarded: "Reconcile", Unsafe: "ReconcileByAge",
			Anomaly: "dead-letter-wrong",
			LookFor: "repairs that rise and fall with the consumers' lag; events in the topic again whose first record had its effect",
		},
		{
			Name: "retry-deadletter/record-of-failure/fields", Guarded: "NewLetter", Unsafe: "NewLetterWithoutTimes",
			Anomaly: "dead-letter-wrong",
			LookFor: "dead letters that do not say since when, how often or why",
			Query:   missingFields,
		},
	}
}

// The queries by which an anomaly is found in the tables of Schema. Yours have other names.
const (
	unrepaired = `SELECT kind, count(*), min(found_at) FROM discrepancy WHERE repaired_at IS NULL AND found_at IS NOT NULL GROUP BY kind`

	neverDue = `SELECT event_id FROM orders o WHERE state = 'new' AND NOT EXISTS (SELECT FROM delay_task t WHERE t.event_id = o.event_id)`

	heldForEver = `SELECT event_id, claimed_by FROM delay_task WHERE status = 'claimed' AND leased_until < clock_timestamp()`

	noEvent = `SELECT o.event_id FROM orders o LEFT JOIN outbox x USING (event_id) WHERE x.event_id IS NULL`

	overtaken = `SELECT event_id FROM outbox o WHERE status = 'pending'
	AND seq < (SELECT max(seq) FROM outbox p WHERE p.lane = o.lane AND p.status = 'published')`

	outOfTurn = `SELECT a.event_id FROM outbox a JOIN outbox b USING (key)
WHERE a.version < b.version AND a.published_at > b.published_at`

	givenUp = `SELECT event_id, created_at FROM outbox WHERE status NOT IN ('pending', 'published')`

	twoOrders = `SELECT key, version, array_agg(event_id) FROM orders GROUP BY key, version HAVING count(*) > 1`

	twoEvents = `SELECT key, version, array_agg(event_id) FROM notifications
GROUP BY key, version, consumer HAVING count(DISTINCT event_id) > 1`

	twoEffects = `SELECT consumer, event_id, count(*) FROM notifications GROUP BY consumer, event_id HAVING count(*) > 1`

	noEffect = `SELECT i.consumer, i.event_id FROM inbox i LEFT JOIN notifications n USING (consumer, event_id) WHERE n.event_id IS NULL`

	oldState = `SELECT b.key, b.version, max(o.version) FROM balances b JOIN orders o USING (key)
GROUP BY b.key, b.version HAVING b.version < max(o.version)`

	openSecrets = `SELECT event_id FROM dead_letter WHERE error ~ '://[^:@/]*:[^*@]+@' OR error ~* '(bearer|basic) +[^*]'`

	missingFields = `SELECT event_id FROM dead_letter WHERE first_failed_at IS NULL OR last_failed_at IS NULL
	OR attempts = 0 OR '' IN (class, destination, error)`
)
