package suites

import (
	"time"

	"conform/harness"
	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
)

func init() {
	register(harness.Suite{
		Name:    "kafka-acks",
		System:  kafkaSystem,
		With:    []system.System{postgresSystem.System},
		Title:   "a record whose ack I saw survives the loss of any one broker",
		Promise: acksPromise,
		Scenarios: []harness.Scenario{
			leaderIsolated(), leaderKilled(), minInSync(), uncleanElection(), twoDisksLost(),
			responseLost(), retryReorder(), unflushedExit(),
			swallowedError(), unboundedRetry(), timeoutIsNotFailure(), allKilled(), lagTooSmall(),
		},
	})
}

var acksPromise = ledger.Promise{
	Text:   "a record that was confirmed, or that the application said was sent, is in the log exactly once and in order, whatever happens to any one broker",
	Start:  "the confirm (or the claim) that the producer's caller saw",
	End:    "the log, read to its end after recovery",
	Places: []string{"store"},
}

// Client and topic settings of kafka-acks by the names that Kafka documents.
var (
	// safe is the guarded producer: acks=all and idempotent, which are the defaults of the Java
	// client since 3.0 (KIP-679) and of franz-go. The requests in flight are set in every arm, since
	// franz-go falls back to one where idempotence is off.
	safe = map[string]string{"acks": "all", "idempotence": "true", "in.flight": "5"}
	// minInSync2 keeps a confirm on two brokers at least.
	minInSync2 = map[string]string{"min.insync.replicas": "2"}
)

// noIdempotence is what acks=0 and acks=1 drag along: the idempotent producer requires acks=all (KIP-98).
var noIdempotence = []string{"idempotence=false (the idempotent producer requires acks=all)"}

// withoutIdempotence is what a retry does without it: a second copy, which may stand behind what overtook the first.
var withoutIdempotence = []string{"duplicate-store", "reordered-store"}

// struck is how many sends each arm must have in the state that the fault is about.
const struck = 200

// roomy is a load whose window a busy machine does not fill before the strike: what is sent to a node
// that does not answer has to find room.
var roomy = harness.Load{Window: 5000}

func guardedArm(during ledger.During, client, topic map[string]string) harness.Arm {
	return harness.Arm{Name: "guarded", Role: harness.Guarded, Client: client, Destination: topic, During: during}
}

func leaderIsolated() harness.Scenario {
	return harness.Scenario{
		Name: "leader-isolated", Window: "W3", Load: roomy, Cost: 40 * time.Second,
		Summary: "the partition's leader is cut from its peers and the controllers, clients still reach it, until another leads and 200 records were sent to the cut one",
		Guarded: "acks=all with min.insync.replicas=2: the cut leader cannot confirm alone",
		LookFor: "kafka.server:type=ReplicaManager,name=UnderMinIsrPartitionCount above 0 while producers with acks=1 report success; compare a count of sent records with the end offsets after the failover",
		Sources: []string{
			"Kafka documentation, producer configuration: acks",
			"KIP-101 (a former leader truncates to the new leader's epoch)",
		},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			guardedArm(ledger.During{Silent: struck}, safe, minInSync2),
			{
				Name: "acks-1", Role: harness.Control,
				Client:      map[string]string{"acks": "1", "idempotence": "false", "in.flight": "5"},
				Destination: minInSync2,
				Break: &harness.Break{
					Knob: "acks=1", Forces: noIdempotence, Place: "store", Anomaly: "lost", Attribution: "broker", Also: withoutIdempotence,
				},
				During: ledger.During{Confirmed: struck},
			},
		},
		Steps: []plan.Step{
			{
				Name: "isolated", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{Fault: "node-isolated", Target: "leader"},
			},
			{
				Name: "deposed", Until: []plan.State{
					{Kind: plan.LeaderNot, Target: "leader"},
					{Kind: plan.Sent, N: struck, Since: "isolated", Arms: []string{"guarded"}},
					{Kind: plan.ConfirmedBy, N: struck, Since: "isolated", Target: "leader", Arms: []string{"acks-1"}},
					{Kind: plan.Bit, Since: "isolated"},
				},
			},
			{Name: "healed", Heal: "isolated"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "healed"}}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"isolated"}},
		Destructive: true,
	}
}

func leaderKilled() harness.Scenario {
	return harness.Scenario{
		Name: "leader-killed", Window: "W3", Load: roomy, Cost: 45 * time.Second,
		Summary: "the leader is frozen until 200 records lie in its socket, then killed by SIGKILL and restarted",
		Guarded: "acks=all: what the dead broker never answered was never called sent, and is sent again to the next leader",
		LookFor: "producers with acks=0 count no errors while a broker is away: compare records handed to the producer (record-send-total) with the growth of the end offsets",
		Sources: []string{"Kafka documentation, producer configuration: acks=0 waits for no acknowledgment from the server"},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			guardedArm(ledger.During{Silent: 1}, safe, minInSync2),
			{
				Name: "acks-0", Role: harness.Control,
				Client:      map[string]string{"acks": "0", "idempotence": "false", "in.flight": "5"},
				Destination: minInSync2,
				Producer:    harness.Producer{Claim: harness.AtWritten},
				Break: &harness.Break{
					Knob: "acks=0", Forces: append([]string{"\"sent\" is said once the request is written, for nothing ever confirms it"}, noIdempotence...),
					Place: "store", Anomaly: "lost", Attribution: "client-buffer", Also: withoutIdempotence,
				},
				// Nothing is in flight for longer than it takes to write it.
				Evidence: &ledger.Evidence{Before: struck, After: struck, Bites: []string{"frozen", "killed"}},
				// Nothing ever confirms; that 200 went into the frozen socket is a gate of the plan.
				During: ledger.During{MaxConfirmed: new(0)},
			},
		},
		Steps: []plan.Step{
			{
				Name: "frozen", Until: []plan.State{
					{Kind: plan.Confirmed, N: struck, Arms: []string{"guarded"}},
					{Kind: plan.Claimed, N: struck, Arms: []string{"acks-0"}},
				},
				Inject: &plan.Exposure{Fault: "node-paused", Target: "leader"},
			},
			{
				Name: "killed", Until: []plan.State{
					{Kind: plan.Sent, N: struck, Since: "frozen", Arms: []string{"guarded"}},
					{Kind: plan.SentTo, N: struck, Since: "frozen", Target: "leader", Arms: []string{"acks-0"}},
				},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "leader"},
			},
			{
				Name: "failed-over", Until: []plan.State{
					{Kind: plan.LeaderNot, Target: "leader"},
					{Kind: plan.Confirmed, N: struck, Since: "killed", Arms: []string{"guarded"}},
				},
			},
			{Name: "restarted", Heal: "killed"},
			{Name: "recovered", Until: []plan.State{
				{Kind: plan.FullyInSync},
				{Kind: plan.Confirmed, N: struck, Since: "restarted", Arms: []string{"guarded"}},
				{Kind: plan.Claimed, N: struck, Since: "restarted", Arms: []string{"acks-0"}},
			}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"frozen", "killed"}},
		Destructive: true,
	}
}

// cutReplication drops what the followers send to the leader's inter-broker listener: its ISR
// shrinks while leader, followers and controllers all stay in session. Cutting everything would
// depose the leader instead.
func cutReplication(before []plan.State) plan.Step {
	return plan.Step{
		Name: "cut", Until: before,
		Inject: &plan.Exposure{
			Fault: "node-isolated", Target: "leader",
			Params: map[string]string{"listeners": "replication", "direction": "in"},
		},
	}
}

func minInSync() harness.Scenario {
	return harness.Scenario{
		Name: "min-insync", Window: "W3", Load: roomy, Cost: 50 * time.Second,
		Summary: "replication to both followers is cut until the leader is the only in-sync replica, 200 records are sent to it, then it is killed and its disk taken; where no follower may lead, an unclean election is made before it is back",
		Guarded: "min.insync.replicas=2: a leader that is alone refuses to confirm, so whatever is confirmed is on a follower too",
		LookFor: "kafka.cluster:type=Partition,name=UnderMinIsr, and the topic's min.insync.replicas (kafka-configs --describe): 1 is the broker's default",
		Sources: []string{
			"Kafka documentation, topic configuration: min.insync.replicas",
			"KIP-966 (eligible leader replicas)",
		},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			// What the lone leader confirms is what the control shows: it must confirm nothing, though 200 sends wait.
			guardedArm(ledger.During{At: "alone", RefusedOrSilent: struck, MaxConfirmed: new(0)}, safe, minInSync2),
			{
				Name: "min-insync-1", Role: harness.Control, Client: safe,
				Destination: map[string]string{"min.insync.replicas": "1"},
				Break:       &harness.Break{Knob: "min.insync.replicas=1", Place: "store", Anomaly: "lost", Attribution: "broker"},
				During:      ledger.During{Confirmed: struck},
			},
		},
		Steps: []plan.Step{
			cutReplication([]plan.State{{Kind: plan.Confirmed, N: struck}}),
			{Name: "alone", Until: []plan.State{{Kind: plan.InSync, Target: "leader"}, {Kind: plan.Bit, Since: "cut"}}},
			{
				Name: "killed", Until: []plan.State{
					{Kind: plan.Sent, N: struck, Since: "cut", Arms: []string{"guarded"}},
					{Kind: plan.ConfirmedBy, N: struck, Since: "alone", Target: "leader", Arms: []string{"min-insync-1"}},
				},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "leader"},
			},
			{Name: "disk-taken", Inject: &plan.Exposure{Fault: "disk-lost", Target: "leader"}},
			{Name: "reconnected", Heal: "cut"},
			{Name: "leaderless", Until: []plan.State{
				{Kind: plan.LeaderNone, Arms: []string{"min-insync-1"}},
				{Kind: plan.LeaderNot, Target: "leader", Arms: []string{"guarded"}},
			}},
			{Name: "elected", Do: "elect-unclean", Arms: []string{"min-insync-1"}},
			{Name: "led", Until: []plan.State{
				{Kind: plan.LeaderNot, Target: "leader"},
				{Kind: plan.Confirmed, N: struck, Since: "elected"},
			}},
			{Name: "restarted", Heal: "killed"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "restarted"}}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"cut", "killed", "disk-taken"}},
		Destructive: true,
	}
}

func uncleanElection() harness.Scenario {
	topic := func(unclean string) map[string]string {
		return map[string]string{"min.insync.replicas": "1", "unclean.leader.election.enable": unclean}
	}
	return harness.Scenario{
		Name: "unclean-election", Window: "W3", Load: roomy, Cost: 55 * time.Second,
		Summary: "replication to both followers is cut until the leader is the only in-sync replica, 200 records are confirmed by it, then it is stopped with its disk kept and comes back at the end; both arms have min.insync.replicas=1",
		Guarded: "unclean.leader.election.enable=false: the partition waits for the only replica that has everything",
		LookFor: "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec above 0, and topics with unclean.leader.election.enable=true",
		Sources: []string{"Kafka documentation, topic configuration: unclean.leader.election.enable"},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			guardedArm(ledger.During{Confirmed: struck}, safe, topic("false")),
			{
				Name: "unclean", Role: harness.Control, Client: safe, Destination: topic("true"),
				Break:  &harness.Break{Knob: "unclean.leader.election.enable=true", Place: "store", Anomaly: "lost", Attribution: "broker"},
				During: ledger.During{Confirmed: struck},
			},
		},
		Steps: []plan.Step{
			cutReplication([]plan.State{{Kind: plan.Confirmed, N: struck}}),
			{Name: "alone", Until: []plan.State{{Kind: plan.InSync, Target: "leader"}, {Kind: plan.Bit, Since: "cut"}}},
			{
				Name:   "stopped",
				Until:  []plan.State{{Kind: plan.ConfirmedBy, N: struck, Since: "alone", Target: "leader"}},
				Inject: &plan.Exposure{Fault: "node-stopped", Target: "leader"},
			},
			{Name: "reconnected", Heal: "cut"},
			{Name: "decided", Until: []plan.State{
				{Kind: plan.LeaderNone, Arms: []string{"guarded"}},
				{Kind: plan.LeaderNot, Target: "leader", Arms: []string{"unclean"}},
				{Kind: plan.Confirmed, N: struck, Since: "stopped", Arms: []string{"unclean"}},
			}},
			{Name: "started", Heal: "stopped"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "started"}}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"cut", "stopped"}},
		Destructive: true,
	}
}

func twoDisksLost() harness.Scenario {
	return harness.Scenario{
		Name: "two-disks-lost", Window: "W3", Load: roomy, Cost: 60 * time.Second,
		Summary: "one follower's replication is cut until it leaves the in-sync replicas, 200 records are sent, then the two others are killed and their data disks destroyed",
		Guarded: "min.insync.replicas=3: refused while one replica is out, so whatever is confirmed is on all three",
		LookFor: "the promise of min.insync.replicas=2 ends at any one broker: check that two brokers do not share a disk, a rack or a maintenance window",
		Sources: []string{
			"Kafka documentation, topic configuration: min.insync.replicas",
			"KIP-966 (an unclean shutdown removes a broker from ISR and ELR)",
		},
		Targets: map[string]plan.Role{"leader": plan.Leader, "cut-off": plan.Follower, "others": plan.LeaderAndOther},
		Arms: []harness.Arm{
			// While one replica is out nothing may be confirmed, though 200 sends wait.
			guardedArm(ledger.During{At: "out", RefusedOrSilent: struck, MaxConfirmed: new(0)}, safe, map[string]string{"min.insync.replicas": "3"}),
			{
				Name: "min-insync-2", Role: harness.Control, Client: safe, Destination: minInSync2,
				Break:  &harness.Break{Knob: "min.insync.replicas=2", Place: "store", Anomaly: "lost", Attribution: "broker"},
				During: ledger.During{Confirmed: struck},
			},
		},
		Steps: []plan.Step{
			{
				Name: "cut", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{
					Fault: "node-isolated", Target: "cut-off",
					Params: map[string]string{"listeners": "replication", "direction": "out"},
				},
			},
			{Name: "out", Until: []plan.State{{Kind: plan.InSync, Target: "others"}, {Kind: plan.Bit, Since: "cut"}}},
			{
				Name: "killed", Until: []plan.State{
					{Kind: plan.Sent, N: struck, Since: "cut", Arms: []string{"guarded"}},
					{Kind: plan.ConfirmedBy, N: struck, Since: "out", Target: "leader", Arms: []string{"min-insync-2"}},
				},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "others"},
			},
			{Name: "disks-taken", Inject: &plan.Exposure{Fault: "disk-lost", Target: "others"}},
			{Name: "reconnected", Heal: "cut"},
			{Name: "restarted", Heal: "killed"},
			{Name: "elected", Do: "elect-unclean", Arms: []string{"min-insync-2"}},
			{Name: "led", Until: []plan.State{{Kind: plan.LeaderAny}}},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "restarted"}}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"cut", "killed", "disks-taken"}},
		Destructive: true,
	}
}

func responseLost() harness.Scenario {
	return harness.Scenario{
		Name: "response-lost", Window: "W2", Cost: 20 * time.Second,
		Summary: "the n-th produce request passes, its response is swallowed and the connection reset",
		Guarded: "idempotent producer: the broker knows the batch by producer id and sequence and stores the second sending once",
		LookFor: "record-retry-total of the producer above 0 with enable.idempotence=false: each retry may be a second copy",
		Sources: []string{"KIP-98 (idempotent producer)"},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			guardedArm(ledger.During{}, safe, minInSync2),
			{
				Name: "not-idempotent", Role: harness.Control,
				Client:      map[string]string{"acks": "all", "idempotence": "false", "in.flight": "5"},
				Destination: minInSync2,
				Break:       &harness.Break{Knob: "idempotence=false", Place: "store", Anomaly: "duplicate-store", Also: []string{"reordered-store"}},
			},
		},
		Steps: []plan.Step{
			{
				Name: "dropped", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{
					Fault: "response-dropped", Target: "leader",
					Params: map[string]string{"kind": "produce", "nth": "draw:5..25"},
				},
			},
			{Name: "bitten", Until: []plan.State{{Kind: plan.Bit, Since: "dropped"}}},
			{Name: "healed", Heal: "dropped"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.Confirmed, N: struck, Since: "healed"}}},
		},
		Evidence: ledger.Evidence{Before: struck, After: struck, Bites: []string{"dropped"}},
	}
}

func retryReorder() harness.Scenario {
	return harness.Scenario{
		Name: "retry-reorder", Window: "W2", Cost: 20 * time.Second,
		Summary: "the n-th produce request is not passed on but answered with NOT_LEADER_OR_FOLLOWER, once the ones in flight behind it have passed",
		Guarded: "idempotent producer, 5 in flight: the broker refuses a batch that came before its predecessor",
		LookFor: "enable.idempotence=false with max.in.flight.requests.per.connection above 1: any retry can overtake",
		Sources: []string{
			"Kafka documentation, producer configuration: max.in.flight.requests.per.connection",
			"KIP-98 (sequence numbers)",
		},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			guardedArm(ledger.During{}, safe, minInSync2),
			{
				Name: "not-idempotent", Role: harness.Control,
				Client:      map[string]string{"acks": "all", "idempotence": "false", "in.flight": "5"},
				Destination: minInSync2,
				Break:       &harness.Break{Knob: "idempotence=false", Place: "store", Anomaly: "reordered-store", Also: []string{"duplicate-store"}},
			},
		},
		Steps: []plan.Step{
			{
				Name: "refused", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{
					Fault: "request-refused", Target: "leader",
					Params: map[string]string{"kind": "produce", "nth": "draw:5..25", "behind": "2", "code": "NOT_LEADER_OR_FOLLOWER"},
				},
			},
			{Name: "bitten", Until: []plan.State{{Kind: plan.Bit, Since: "refused"}}},
			{Name: "healed", Heal: "refused"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.Confirmed, N: struck, Since: "healed"}}},
		},
		Evidence: ledger.Evidence{Before: struck, After: struck, Bites: []string{"refused"}},
	}
}

func unflushedExit() harness.Scenario {
	// 1.5 linger times of records at 2,000/s: the first second's batch is gone, the rest is buffered.
	const messages = 3000
	client := map[string]string{"acks": "all", "idempotence": "true", "in.flight": "5", "linger.ms": "1000"}
	incarnations := func(end harness.Ending) []harness.Incarnation {
		return []harness.Incarnation{{Messages: messages, End: end}, {Messages: messages, End: harness.EndKill}, {Messages: messages, End: harness.EndFlush}}
	}
	return harness.Scenario{
		Name: "unflushed-exit", Window: "W1", Cost: 20 * time.Second,
		Summary: "with a linger of 1 s the producer process ends while records are buffered, once by a plain exit and once by SIGKILL",
		Guarded: "\"sent\" is said only at the confirm, and the exit flushes",
		LookFor: "a send whose returned future or callback is never looked at, and a shutdown path without flush() or close()",
		Sources: []string{"Kafka documentation, producer configuration: linger.ms", "KafkaProducer.send: asynchronous, returns once the record is stored in the buffer"},
		Load:    harness.Load{Window: 2 * messages},
		Arms: []harness.Arm{
			{
				Name: "guarded", Role: harness.Guarded, Client: client, Destination: minInSync2,
				Producer: harness.Producer{Claim: harness.AtConfirm, Incarnations: incarnations(harness.EndFlush)},
				Evidence: &ledger.Evidence{Ends: []string{"producer-2"}, EndsBuffered: 1}, // the first one flushes
			},
			{
				Name: "said-at-enqueue", Role: harness.Control, Client: client, Destination: minInSync2,
				Producer: harness.Producer{Claim: harness.AtEnqueue, Incarnations: incarnations(harness.EndExit)},
				Break: &harness.Break{
					Knob: "\"sent\" is said when the record is enqueued", Forces: []string{"the exit does not flush"},
					Place: "store", Anomaly: "lost", Attribution: "client-buffer",
				},
			},
		},
		Steps:    []plan.Step{{Name: "ended", Until: []plan.State{{Kind: plan.Ended}}}},
		Evidence: ledger.Evidence{Ends: []string{"producer-1", "producer-2"}, EndsBuffered: 1},
	}
}

func allKilled() harness.Scenario {
	return harness.Scenario{
		Name: "all-killed", Window: "W3", Cost: 40 * time.Second,
		Summary: "all three brokers are killed by SIGKILL at once, the page cache survives, and are restarted together",
		Guarded: "acks=all: what was confirmed is in the page cache of two brokers at least, which a SIGKILL leaves alone",
		LookFor: "the availability gap below is what clients see when a whole cluster restarts uncleanly",
		Sources: []string{"Kafka documentation, design: replication and flush management"},
		Targets: map[string]plan.Role{"all": plan.All},
		Arms: []harness.Arm{{
			Name: "acks-all", Role: harness.Observation, Client: safe, Destination: minInSync2,
			Reason: "its control is a power cut (kafka-durability/power-cut-all): no setting of Kafka loses what a SIGKILL leaves in the page cache",
			// More than the "any one broker" of the suite dies here: only what was confirmed is asked for.
			Promise: ledger.Promise{
				Text:   "a record that was confirmed is in the log after all brokers were killed and restarted",
				Start:  "the confirm that the producer's caller saw",
				End:    "the log, read to its end after recovery",
				Places: []string{"store"},
				Rules:  map[string]ledger.Rule{audit.DuplicateStore: {Allowed: true}, audit.ReorderedStore: {Allowed: true}},
			},
			During: ledger.During{Silent: 1},
		}},
		Steps: []plan.Step{
			{
				Name: "killed", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "all"},
			},
			{Name: "sent-meanwhile", Until: []plan.State{{Kind: plan.Sent, N: struck, Since: "killed"}}},
			{Name: "restarted", Heal: "killed"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "restarted"}}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"killed"}},
		Destructive: true,
	}
}

func lagTooSmall() harness.Scenario {
	arm := func(name, lag, reason string) harness.Arm {
		return harness.Arm{
			Name: name, Role: harness.Observation, Client: safe, Destination: minInSync2, Reason: reason,
			Node:   map[string]string{"replica.lag.time.max.ms": lag},
			During: ledger.During{RefusedOrSilent: struck},
		}
	}
	return harness.Scenario{
		Name: "lag-too-small", Cost: 60 * time.Second,
		Summary: "replication to both followers is cut for 4 s and healed",
		Guarded: "replica.lag.time.max.ms=30000, the default: writes wait for the followers and go on; at 1000 the in-sync replicas shrink and writes are refused; neither loses anything",
		LookFor: "kafka.server:type=ReplicaManager,name=IsrShrinksPerSec above 0 without a broker being away",
		Sources: []string{"Kafka documentation, broker configuration: replica.lag.time.max.ms", "KIP-537 (default raised to 30 s)"},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			arm("lag-30000", "30000", "shows what the default costs: writes wait, the in-sync replicas stay whole"),
			arm("lag-1000", "1000", "shows what a small value costs: availability, never data"),
		},
		Steps: []plan.Step{
			cutReplication([]plan.State{{Kind: plan.Confirmed, N: struck}}),
			{Name: "alone", Until: []plan.State{{Kind: plan.InSync, Target: "leader"}}, Arms: []string{"lag-1000"}},
			// Here time itself is the fault: shorter than one limit, longer than the other. At its end the
			// arm with the longer limit must still be whole.
			{Name: "over", Until: []plan.State{
				{Kind: plan.Elapsed, Hold: 4 * time.Second, Since: "cut"},
				{Kind: plan.Bit, Since: "cut"},
				{Kind: plan.FullyInSync, Arms: []string{"lag-30000"}},
			}},
			{Name: "healed", Heal: "cut"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "healed"}}},
		},
		Evidence: ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"cut"}},
	}
}

// sent are the arms of a pair of commands that send: what a request handler calls when there is no outbox. A job sends again
// what they keep.
func sentBy(pair, place string, promise ledger.Promise, params map[string]string, more ...harness.Process) []harness.Arm {
	return onKafka.pairArms(pair, place, paramCommand, func(a *harness.Arm, function string) {
		a.Producer = onKafka.orders(with(params, paramCommand, function, paramClaims, "true"))
		a.Processes = append([]harness.Process{onKafka.relay("resender", map[string]string{paramJob: "ResendDue", paramTimeout: "5s"})}, more...)
		a.Promise = promise
	})
}

// resentPromise is the promise where a record may be sent again by a job: the order of a key is not kept then.
func resentPromise(stall time.Duration) ledger.Promise {
	p := acksPromise
	p.Text = "an event of which the application said that it was sent is in the log, and no caller waits for long"
	p.Rules = map[string]ledger.Rule{"reordered-store": {Allowed: true}}
	p.MaxStall = stall
	return p
}

// resent fills in what scenarios have whose commands keep in the database what they could not send.
func resent(s harness.Scenario) harness.Scenario {
	s.Tables = []string{ledger.TableDeadLetter}
	s.Snapshot = snapshotTables(ledger.TableDeadLetter)
	s.Chain.Effects = []ledger.EffectTable{}
	s = delivered(s)
	s.Targets = map[string]plan.Role{"brokers": plan.All}
	return s
}

// refused makes the brokers refuse connections, and lets them come back.
func refused(until ...plan.State) []plan.Step {
	return []plan.Step{
		{
			Name: "refused", Until: []plan.State{{Kind: plan.Confirmed, N: seen}},
			Inject: &plan.Exposure{Fault: "link-cut", Target: "brokers", Params: map[string]string{"mode": "reset"}},
		},
		{Name: "back", Heal: "refused", Until: append(until, plan.State{Kind: plan.Bit, Since: "refused"})},
		{Name: "recovered", Until: []plan.State{{Kind: plan.Confirmed, N: seen, Since: "back"}}},
	}
}

func swallowedError() harness.Scenario {
	// The client takes few records while the brokers are away, and refuses the others.
	const client = "max.buffered=8 delivery.timeout.ms=2000"
	return resent(harness.Scenario{
		Name: "swallowed-error", Window: "W1", Cost: 25 * time.Second,
		Summary: "the brokers refuse connections for longer than the client tries to deliver",
		Guarded: "the error callback writes the record to a retry table, and a job sends it again: after 1, 2 and 4 s, five times in all",
		LookFor: lookFor("kafka-acks/swallowed-error"),
		Sources: []string{"Kafka documentation, producer configuration: delivery.timeout.ms, max.block.ms", "KIP-91 (an upper bound of the time until a send is reported)"},
		Arms:    sentBy("kafka-acks/swallowed-error", "store", resentPromise(0), map[string]string{paramTimeout: "1s", paramClient: client}),
		Steps:   refused(plan.State{Kind: plan.Claimed, N: 2 * seen, Since: "refused"}, plan.State{Kind: plan.Refused, N: seen, Since: "refused"}),
		Evidence: ledger.Evidence{
			Before: seen, After: seen, Bites: []string{"refused"},
		},
	})
}

func unboundedRetry() harness.Scenario {
	const limit, away = 5 * time.Second, 30 * time.Second
	return resent(harness.Scenario{
		Name: "unbounded-retry", Window: "W1", Cost: 50 * time.Second,
		Summary: "the brokers refuse connections for " + away.String() + " under business load",
		Guarded: "a caller waits for a second, a bounded number of them at once; then the record goes to the retry table and the caller on",
		LookFor: lookFor("kafka-acks/unbounded-retry"),
		Sources: []string{"Kafka documentation, producer configuration: max.block.ms, retries, delivery.timeout.ms", "Michael Nygard, Release It!: timeouts, bulkheads"},
		Arms: sentBy("kafka-acks/unbounded-retry", "liveness", resentPromise(limit),
			map[string]string{paramDeadline: "1s", paramCallers: "16"}),
		// Here time itself is the fault.
		Steps:    refused(plan.State{Kind: plan.Elapsed, Hold: away, Since: "refused"}),
		Evidence: ledger.Evidence{Before: seen, After: seen, Bites: []string{"refused"}},
	})
}

func timeoutIsNotFailure() harness.Scenario {
	promise := ledger.Promise{
		Text:   "each event of which the application said that it was sent has its effect exactly once",
		Start:  acksPromise.Start,
		End:    "the effects, read in one snapshot once the consumers' group has no lag",
		Places: []string{"effect"},
	}
	return delivered(harness.Scenario{
		Name: "timeout-is-not-failure", Window: "W2", Cost: 25 * time.Second,
		Summary: "the leader is frozen until every caller has given up its wait for the confirm and sent again, and then goes on",
		Guarded: "it is sent again under the same event id, and the consumer's inbox knows it",
		LookFor: lookFor("kafka-acks/timeout-is-not-failure"),
		Sources: []string{"Kafka documentation, producer configuration: request.timeout.ms, retries", "KIP-98 (idempotence knows the client's own retries, not the application's)"},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: sentBy("kafka-acks/timeout-is-not-failure", "effect", promise,
			map[string]string{paramTimeout: "700ms"}, onKafka.reader("consumer-1", nil)),
		Steps: []plan.Step{
			{
				Name: "frozen", Until: []plan.State{{Kind: plan.Confirmed, N: seen}, {Kind: plan.Handled, N: seen}},
				Inject: &plan.Exposure{Fault: "node-paused", Target: "leader"},
			},
			{Name: "thawed", Heal: "frozen", Until: []plan.State{{Kind: plan.Sent, N: 3 * int(chainLoad.Keys) / 2, Since: "frozen"}}},
			handledMore("thawed"),
		},
		Evidence:    ledger.Evidence{Before: seen, Bites: []string{"frozen"}, HandledBefore: seen, HandledAfter: seen},
		Destructive: true,
	})
}
