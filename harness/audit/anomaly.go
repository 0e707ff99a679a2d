package audit

import "slices"

// Anomaly is one row of the table of anomalies.
type Anomaly struct {
	Name    string
	Place   string // store, delivery, effect, outbox, liveness
	Meaning string
	// Attributions lists where a message of this anomaly can have died, if the audit tells that.
	Attributions []string
	rests        rests
}

// rests says what must be whole for one occurrence of an anomaly to be proven. Everything else that
// an arm needs is needed for "held" and "reproduced" only: a proven broken promise is not hidden
// because, say, the fault did not bite.
type rests uint8

const (
	// onAbsence: something is missing from the store, so the final read must be complete, of a store
	// that was quiet, with its own record undamaged.
	onAbsence rests = 1 << iota
	// onFirst: which occurrence came first counts, so no stored record may be missing from the ledger.
	onFirst
	// onInvokes: something was never asked for, so no producer's segment may be damaged or missing.
	onInvokes
	// onSnapshot: rows are missing, so every table that is to be read must have been read to its end.
	onSnapshot
	// onConsumers: what consumers did counts, so none of their segments may be damaged or missing.
	onConsumers
	// onGroups: the final positions of the groups count.
	onGroups
)

// Names of the store's anomalies, which the checks of this package find.
const (
	Lost           = "lost"
	Corrupted      = "corrupted"
	Conflict       = "conflict"
	Phantom        = "phantom"
	Resurrected    = "resurrected"
	Misrouted      = "misrouted"
	AbortedRead    = "aborted-read"
	TornTxn        = "torn-txn"
	EarlyRead      = "early-read"
	DuplicateStore = "duplicate-store"
	ReorderedStore = "reordered-store"
	Unavailable    = "unavailable"
)

// Names of the other places' anomalies.
const (
	Undelivered            = "undelivered"
	DeadLetterLost         = "dead-letter-lost"
	DeadLetterWrong        = "dead-letter-wrong"
	CommitGap              = "commit-gap"
	CommitAhead            = "commit-ahead"
	CommitRewind           = "commit-rewind"
	DoubleOwner            = "double-owner"
	RedeliveredAfterSettle = "redelivered-after-settle"
	DuplicateDelivery      = "duplicate-delivery"
	ReorderedDelivery      = "reordered-delivery"
	Early                  = "early"
	Late                   = "late"
	ExpiredDelivered       = "expired-delivered"
	MissingEffect          = "missing-effect"
	DuplicateEffect        = "duplicate-effect"
	StaleEffect            = "stale-effect"
	PhantomEffect          = "phantom-effect"
	Unpublished            = "unpublished"
	PublishedUncommitted   = "published-uncommitted"
	Stuck                  = "stuck"
	Stall                  = "stall"
	RTO                    = "rto"
)

// Attributions: where a lost message or a missing effect died.
const (
	NeverPublished      = "never-published"
	ClientBuffer        = "client-buffer"
	Broker              = "broker"
	Unroutable          = "unroutable"
	Expired             = "expired"
	Overflowed          = "overflowed"
	DeadLetterDropped   = "dead-letter-dropped"
	Skipped             = "skipped"
	SettledEarly        = "settled-early"
	DeduplicatedWrongly = "deduplicated-wrongly"
	Pending             = "pending"
)

// anomalies in order of severity, the most severe first; a story is told of the first one found.
var anomalies = []Anomaly{
	{
		Name: Lost, Place: "store", rests: onAbsence | onSnapshot, Meaning: "confirmed, or only claimed sent, and absent at the end",
		Attributions: []string{Broker, ClientBuffer, NeverPublished, Expired, Unroutable, Overflowed, DeadLetterDropped},
	},
	{Name: Corrupted, Place: "store", Meaning: "stored with another content than was sent, or unreadable"},
	{Name: Conflict, Place: "store", Meaning: "two values at one position, or two views of the store that differ"},
	{Name: Phantom, Place: "store", rests: onInvokes, Meaning: "stored though never sent"},
	{Name: Resurrected, Place: "store", Meaning: "stored though definitely refused"},
	{Name: Misrouted, Place: "store", Meaning: "stored in the wrong partition or queue, or under the wrong key or header"},
	{Name: AbortedRead, Place: "store", Meaning: "visible though its transaction was aborted"},
	{Name: TornTxn, Place: "store", rests: onAbsence | onSnapshot, Meaning: "visible though another part of its transaction is not"},
	{Name: EarlyRead, Place: "store", Meaning: "visible before its transaction was committed"},
	{Name: DuplicateStore, Place: "store", Meaning: "one message at two positions"},
	{Name: ReorderedStore, Place: "store", rests: onFirst, Meaning: "first occurrences of one producer's messages of one key are not in send order"},

	{Name: Undelivered, Place: "delivery", rests: onAbsence | onConsumers | onGroups | onSnapshot, Meaning: "in the store, not delivered to a group by the deadline"},
	{Name: DeadLetterLost, Place: "delivery", rests: onAbsence | onConsumers | onSnapshot, Meaning: "neither in its queue nor in the dead-letter queue"},
	{Name: DeadLetterWrong, Place: "delivery", rests: onConsumers, Meaning: "a good message in the dead-letter queue, or its record of failure is incomplete"},
	{Name: CommitGap, Place: "delivery", rests: onAbsence | onConsumers | onGroups | onSnapshot, Meaning: "the group's position passed a record that nobody processed"},
	{Name: CommitAhead, Place: "delivery", rests: onConsumers | onFirst, Meaning: "the group's position is beyond what was delivered"},
	{Name: CommitRewind, Place: "delivery", rests: onConsumers, Meaning: "the group's position went back"},
	{Name: DoubleOwner, Place: "delivery", rests: onConsumers, Meaning: "two owners of one partition at once"},
	{Name: RedeliveredAfterSettle, Place: "delivery", rests: onConsumers, Meaning: "delivered again after a confirmed settle"},
	{Name: DuplicateDelivery, Place: "delivery", rests: onConsumers, Meaning: "delivered again beyond what the settles allow"},
	{Name: ReorderedDelivery, Place: "delivery", rests: onConsumers, Meaning: "first deliveries of one key go back"},
	{Name: Early, Place: "delivery", Meaning: "delivered before it was due"},
	{Name: Late, Place: "delivery", Meaning: "delivered after it was due and the allowance was over"},
	{Name: ExpiredDelivered, Place: "delivery", Meaning: "delivered after its time to live"},

	{
		Name: MissingEffect, Place: "effect", rests: onAbsence | onConsumers | onSnapshot, Meaning: "no effect of a committed or confirmed business event",
		Attributions: []string{NeverPublished, ClientBuffer, Broker, Unroutable, Expired, Overflowed, DeadLetterDropped, Skipped, SettledEarly, DeduplicatedWrongly, Pending},
	},
	{Name: DuplicateEffect, Place: "effect", rests: onSnapshot, Meaning: "the effect of one business event happened twice"},
	{Name: StaleEffect, Place: "effect", rests: onConsumers | onSnapshot, Meaning: "an older state stands over a newer one"},
	{Name: PhantomEffect, Place: "effect", rests: onInvokes | onSnapshot, Meaning: "an effect of something that was never committed"},

	{Name: Unpublished, Place: "outbox", rests: onAbsence | onInvokes | onConsumers | onSnapshot, Meaning: "a committed row that was never published"},
	{Name: PublishedUncommitted, Place: "outbox", rests: onSnapshot, Meaning: "a row published though its transaction was rolled back"},

	{Name: Stuck, Place: "liveness", Meaning: "no progress for longer than any lock, delay or redelivery lasts"},
	{Name: Stall, Place: "liveness", Meaning: "callers blocked longer than the promise bounds"},
	{Name: Unavailable, Place: "liveness", Meaning: "longer without a confirm than the promise bounds"},
	{Name: RTO, Place: "liveness", Meaning: "longer from the fault to the first success than the promise bounds"},
}

// Anomalies returns the table of anomalies, the most severe first.
func Anomalies() []Anomaly { return slices.Clone(anomalies) }

// Lookup returns the row of an anomaly.
func Lookup(name string) (Anomaly, bool) {
	for _, a := range anomalies {
		if a.Name == name {
			return a, true
		}
	}
	return Anomaly{}, false
}

// severity orders findings: lower is worse.
func severity(name string) int {
	return slices.IndexFunc(anomalies, func(a Anomaly) bool { return a.Name == name })
}

// attributionMeanings explains each attribution in words that follow "it".
var attributionMeanings = map[string]string{
	NeverPublished:      "was never published: it was refused, or never handed to the client",
	ClientBuffer:        "has no confirm from the broker on record: it died in the client, on the wire, unread in the broker's socket, or before it was replicated",
	Broker:              "was accepted by the broker and is gone there",
	Unroutable:          "reached the broker, which had nowhere to put it",
	Expired:             "was accepted and deleted by age or size: its position lies below the start of the log",
	Overflowed:          "was dropped by a full queue",
	DeadLetterDropped:   "was given up on its way to the dead-letter queue",
	Skipped:             "was in the store and settled, and never processed",
	SettledEarly:        "was settled before it was processed",
	DeduplicatedWrongly: "was taken for a repetition of another one",
	Pending:             "was neither processed nor settled when the run ended",
}

// MeaningOf explains an attribution in words that follow "it"; it is empty for an unknown one.
func MeaningOf(attribution string) string { return attributionMeanings[attribution] }

// RestsOnAbsence says whether an anomaly is one only if the final read is complete.
func RestsOnAbsence(anomaly string) bool {
	row, _ := Lookup(anomaly)
	return row.rests&onAbsence != 0
}
