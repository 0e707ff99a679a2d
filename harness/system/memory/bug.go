package memory

// The bugs that can be planted in a destination. Each breaks exactly one promise.
const (
	// LoseConfirmed: when a node is killed, each partition forgets its last 50 records.
	LoseConfirmed = "lose-confirmed"
	// ConfirmBeforeStore: records are confirmed at once and stored 100 ms later; a kill in between
	// takes them along.
	ConfirmBeforeStore = "confirm-before-store"
	// DuplicateOnReconnect: what a client sends again after a reconnect is stored again.
	DuplicateOnReconnect = "duplicate-on-reconnect"
	// ReorderKey: now and then a record is stored behind the next one of its key.
	ReorderKey = "reorder-a-key"
	// LeakAborted: now and then a record is refused for good, and stored.
	LeakAborted = "leak-aborted"
	// CorruptPayload: now and then one byte of a payload changes.
	CorruptPayload = "corrupt-payload"
	// Misroute: now and then a record is stored in the partition after its own.
	Misroute = "misroute"
)

// Bugs lists the bugs that can be planted.
func Bugs() []string {
	return []string{LoseConfirmed, ConfirmBeforeStore, DuplicateOnReconnect, ReorderKey, LeakAborted, CorruptPayload, Misroute}
}

const (
	lostTail   = 50                // records that LoseConfirmed forgets per partition
	everyNth   = 50                // records per occurrence, of bugs that happen now and then
	storeDelay = 100 * 1000 * 1000 // ns, of ConfirmBeforeStore
)
