-- The tables of the reference code: the orders service's first, then the consumers'. Both stand in one schema, set by
-- search_path, so that one snapshot shows both ends of the chain; in a real system they are two databases.
-- Containers of events are named in the singular (outbox, inbox), business rows in the plural.

-- One order, made by the event of the same id.
CREATE TABLE orders (
	event_id   bigint PRIMARY KEY,
	key        bigint NOT NULL,
	version    bigint NOT NULL,
	amount     bigint NOT NULL,
	wish       bigint, -- what its asker calls it, whatever event came of it
	state      text NOT NULL DEFAULT 'new' CHECK (state IN ('new', 'paid', 'cancelled')),
	created_at timestamptz NOT NULL DEFAULT now()
);

-- What became of the transaction of an order whose message the broker holds back, for whoever is asked.
CREATE TABLE order_fate (
	event_id   bigint PRIMARY KEY,
	fate       text NOT NULL CHECK (fate IN ('committed', 'rolled back')),
	decided_at timestamptz NOT NULL DEFAULT now()
);

-- What is to be published. seq is drawn when the row is inserted, not when it commits: a lower one may become visible after
-- a higher one. xid is the transaction that wrote the row, and tells which rows can no longer be overtaken.
CREATE TABLE outbox (
	seq          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	xid          xid8 NOT NULL DEFAULT pg_current_xact_id(),
	lane         integer NOT NULL GENERATED ALWAYS AS ((key % 8)::integer) STORED,
	event_id     bigint NOT NULL UNIQUE,
	key          bigint NOT NULL,
	version      bigint NOT NULL,
	amount       bigint NOT NULL,
	body         bytea NOT NULL,
	status       text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'published', 'given up')),
	created_at   timestamptz NOT NULL DEFAULT now(),
	published_at timestamptz
);
CREATE INDEX outbox_pending ON outbox (lane, seq) WHERE status = 'pending';
CREATE INDEX outbox_published ON outbox (lane, seq) WHERE status = 'published';
CREATE INDEX outbox_written ON outbox (xid, seq);

-- Who holds the row of a lane is the only one to publish the keys of that lane. nothing_at is when a relay began that found
-- nothing to publish there although a row was pending: it will not find that one later either.
CREATE TABLE relay_lane (lane integer PRIMARY KEY, nothing_at timestamptz);
INSERT INTO relay_lane SELECT generate_series(0, 7);

-- How far a relay got that keeps a position instead of a status in each row.
CREATE TABLE relay_cursor (
	one boolean PRIMARY KEY DEFAULT true CHECK (one),
	xid xid8 NOT NULL DEFAULT '0',
	seq bigint NOT NULL DEFAULT 0
);
INSERT INTO relay_cursor DEFAULT VALUES;

-- What a consumer has processed.
CREATE TABLE inbox (
	consumer    text NOT NULL,
	event_id    bigint NOT NULL,
	digest      bytea NOT NULL,
	received_at timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (consumer, event_id)
);
CREATE INDEX inbox_received ON inbox (received_at);

-- Unsafe: two consumers of one event are taken for one.
CREATE TABLE inbox_by_event (
	consumer    text NOT NULL,
	event_id    bigint PRIMARY KEY,
	digest      bytea NOT NULL,
	received_at timestamptz NOT NULL DEFAULT now()
);

-- Unsafe: only code keeps an event from being here twice.
CREATE TABLE inbox_without_key (
	consumer    text NOT NULL,
	event_id    bigint NOT NULL,
	digest      bytea NOT NULL,
	received_at timestamptz NOT NULL DEFAULT now()
);

-- An effect that nothing but the consumer keeps from happening twice, like a mail that is sent.
CREATE TABLE notifications (
	id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	consumer   text NOT NULL,
	event_id   bigint NOT NULL,
	key        bigint NOT NULL,
	version    bigint NOT NULL,
	amount     bigint NOT NULL,
	created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX notifications_event ON notifications (event_id);

-- The same with a business key: the table itself refuses a second effect.
CREATE TABLE receipts (
	consumer   text NOT NULL,
	event_id   bigint NOT NULL,
	key        bigint NOT NULL,
	version    bigint NOT NULL,
	amount     bigint NOT NULL,
	created_at timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (consumer, event_id)
);

-- A state: of the events of a key only the newest counts.
CREATE TABLE balances (
	key      bigint PRIMARY KEY,
	version  bigint NOT NULL,
	amount   bigint NOT NULL,
	event_id bigint NOT NULL
);

-- Payments to be made, written with the order that wants them.
CREATE TABLE payment_intents (
	event_id   bigint PRIMARY KEY,
	key        bigint NOT NULL,
	version    bigint NOT NULL,
	amount     bigint NOT NULL,
	status     text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'paid', 'refused', 'in doubt')),
	attempts   integer NOT NULL DEFAULT 0,
	updated_at timestamptz NOT NULL DEFAULT now()
);

-- The payment service's book, as it was when it was last read in.
CREATE TABLE payment_book (
	id        bigint PRIMARY KEY,
	reference bigint NOT NULL, -- event id
	refund    boolean NOT NULL DEFAULT false
);

-- What is to be done about an order when it is due. fence grows with each claim, so that who was frozen past its lease is known.
CREATE TABLE delay_task (
	event_id     bigint PRIMARY KEY,
	key          bigint NOT NULL,
	version      bigint NOT NULL,
	amount       bigint NOT NULL,
	due_at       timestamptz NOT NULL,
	useful_until timestamptz, -- null = for ever
	status       text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'claimed', 'done', 'skipped', 'cancelled')),
	fence        bigint NOT NULL DEFAULT 0,
	claimed_by   text,
	leased_until timestamptz
);
CREATE INDEX delay_task_open ON delay_task (due_at) WHERE status IN ('pending', 'claimed');

-- Events that a producer could not hand to the broker, for the resend job.
CREATE TABLE retry_queue (
	event_id        bigint PRIMARY KEY,
	key             bigint NOT NULL,
	version         bigint NOT NULL,
	amount          bigint NOT NULL,
	body            bytea NOT NULL,
	attempts        integer NOT NULL DEFAULT 0,
	next_at         timestamptz NOT NULL DEFAULT now(),
	first_failed_at timestamptz NOT NULL,
	last_failed_at  timestamptz NOT NULL,
	error           text NOT NULL
);
CREATE INDEX retry_queue_due ON retry_queue (next_at);

-- How often an event has failed so far, where the broker does not count.
CREATE TABLE failure (
	consumer        text NOT NULL,
	event_id        bigint NOT NULL,
	attempts        integer NOT NULL,
	first_failed_at timestamptz NOT NULL,
	PRIMARY KEY (consumer, event_id)
);

-- What a reconciliation suspects, has found and has repaired. While suspected_at is set it does not agree.
CREATE TABLE discrepancy (
	kind         text NOT NULL,
	event_id     bigint NOT NULL,
	suspected_at timestamptz,
	found_at     timestamptz,
	repaired_at  timestamptz,
	PRIMARY KEY (kind, event_id)
);

-- How often it has compared everything.
CREATE TABLE reconciliation (
	one  boolean PRIMARY KEY DEFAULT true CHECK (one),
	runs bigint NOT NULL DEFAULT 0
);
INSERT INTO reconciliation DEFAULT VALUES;

-- Events that wait elsewhere for their next turn: the later ones of their key must not overtake them.
CREATE TABLE parked (
	consumer text NOT NULL,
	event_id bigint NOT NULL,
	key      bigint NOT NULL,
	version  bigint NOT NULL,
	PRIMARY KEY (consumer, event_id)
);
CREATE INDEX parked_key ON parked (consumer, key, version);

-- Events that were given up, with all that a person needs to decide. The digest is part of the key because two payloads
-- under one event id are two letters.
CREATE TABLE dead_letter (
	consumer        text NOT NULL,
	event_id        bigint NOT NULL,
	digest          bytea NOT NULL,
	key             bigint NOT NULL,
	version         bigint NOT NULL,
	amount          bigint NOT NULL,
	body            bytea NOT NULL,
	destination     text NOT NULL,
	class           text NOT NULL,
	attempts        integer NOT NULL,
	first_failed_at timestamptz,
	last_failed_at  timestamptz,
	error           text NOT NULL,
	quarantined_at  timestamptz NOT NULL DEFAULT now(),
	replayed_at     timestamptz,
	PRIMARY KEY (consumer, event_id, digest)
);
