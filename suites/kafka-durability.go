package suites

import (
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
)

func init() {
	register(harness.Suite{
		Name:   "kafka-durability",
		System: kafkaSystem,
		Title:  "a record whose ack I saw survives a power cut, a full disk and a lost one",
		Promise: ledger.Promise{
			Text:   "a record that was confirmed, or that the application said was sent, is in the log exactly once and in order, whatever becomes of power and disks",
			Start:  "the confirm (or the claim) that the producer's caller saw",
			End:    "the log, read to its end after recovery",
			Places: []string{"store"},
		},
		Scenarios: []harness.Scenario{powerCutAll(), powerCutOne(), diskFull(), lastReplicaStanding(), diskLost()},
	})
}

// onDisks are the node settings of clusters whose nodes can lose power: each has disks of its own, and the feature level of
// the eligible leader replicas (KIP-966) is named, since one scenario turns on it.
func onDisks(elr string) map[string]string {
	return map[string]string{"disk.mib": "512", "feature.eligible.leader.replicas.version": elr}
}

// beforePowerCut bounds the load before a power cut: the kernel writes dirty pages back after 30 s, which makes them
// durable without any fsync of the broker's. The fault's own evidence checks the sum of the steps.
const beforePowerCut = 20 * time.Second

// on puts arms on clusters with these node settings.
func on(node map[string]string, arms ...harness.Arm) []harness.Arm {
	for i := range arms {
		if arms[i].Node == nil {
			arms[i].Node = node
		}
	}
	return arms
}

// steady is how much is confirmed before the power goes where a flush setting is judged by its price: enough for the report
// to show rate and latency.
const steady = 3000

func powerCutAll() harness.Scenario {
	return harness.Scenario{
		Name: "power-cut-all", Window: "W3", Cost: 55 * time.Second,
		Summary: "all three brokers lose power at once: whatever was not fsynced is gone on each of them",
		Guarded: "flush.messages=1: the leader and every follower fsync a record before it counts as replicated",
		LookFor: "log.flush.interval.messages and flush.messages are unset by default (kafka-configs --describe): then only the kernel decides, within some 30 s, when a confirmed record reaches the disk; ask whether the brokers share a power supply",
		Sources: []string{
			"Kafka documentation, topic configuration: flush.messages (recommends replication over fsync)",
			"Kafka documentation, design: replication and flush management",
			"Linux kernel documentation, vm.dirty_expire_centisecs",
		},
		Targets: map[string]plan.Role{"all": plan.All},
		Arms: on(onDisks("1"),
			guardedArm(ledger.During{Silent: 1}, safe, map[string]string{"min.insync.replicas": "2", "flush.messages": "1"}),
			harness.Arm{
				Name: "default-flush", Role: harness.Control, Client: safe, Destination: minInSync2,
				Break:  &harness.Break{Knob: "flush.messages unset", Place: "store", Anomaly: "lost", Attribution: "broker"},
				During: ledger.During{Silent: 1},
			}),
		Steps: []plan.Step{
			{
				Name: "power-cut", Until: []plan.State{{Kind: plan.Confirmed, N: steady}}, Cap: beforePowerCut,
				Inject: &plan.Exposure{Fault: "power-cut", Target: "all"},
			},
			// What is sent while the nodes are frozen fills the clients' windows before the cut is over.
			{Name: "sent-meanwhile", Until: []plan.State{{Kind: plan.InFlight, N: 1}, {Kind: plan.Bit, Since: "power-cut"}}},
			{Name: "started", Heal: "power-cut"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "started"}}},
		},
		Evidence:    ledger.Evidence{Before: steady, InFlight: 1, After: struck, Bites: []string{"power-cut"}},
		Destructive: true,
	}
}

func powerCutOne() harness.Scenario {
	return harness.Scenario{
		Name: "power-cut-one", Window: "W3", Cost: 50 * time.Second,
		Summary: "replication to both followers is cut for less than replica.lag.time.max.ms, 200 records are sent, then the leader loses power, comes back and recovers by replication",
		Guarded: "acks=all: what the followers do not have is not confirmed, and they need no fsync to survive the leader's power cut",
		LookFor: "producers with acks=1: what the leader alone has confirmed is bounded only by the followers' lag (kafka.server:type=FetcherLagMetrics)",
		Sources: []string{
			"Kafka documentation, producer configuration: acks",
			"KIP-966 (an unclean shutdown removes a broker from ISR and ELR)",
		},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: on(onDisks("1"),
			guardedArm(ledger.During{Silent: struck}, safe, minInSync2),
			harness.Arm{
				Name: "acks-1", Role: harness.Control,
				Client:      map[string]string{"acks": "1", "idempotence": "false", "in.flight": "5"},
				Destination: minInSync2,
				Break: &harness.Break{
					Knob: "acks=1", Forces: noIdempotence, Place: "store", Anomaly: "lost", Attribution: "broker", Also: withoutIdempotence,
				},
				During: ledger.During{Confirmed: struck},
			}),
		Steps: []plan.Step{
			withCap(cutReplication([]plan.State{{Kind: plan.Confirmed, N: struck}}), beforePowerCut),
			{
				Name: "power-cut", Until: []plan.State{
					{Kind: plan.Sent, N: struck, Since: "cut", Arms: []string{"guarded"}},
					{Kind: plan.ConfirmedBy, N: struck, Since: "cut", Target: "leader", Arms: []string{"acks-1"}},
					{Kind: plan.Bit, Since: "cut"},
				},
				// Past the followers' time limit the leader would go on alone, which is another scenario.
				Cap:    10 * time.Second,
				Inject: &plan.Exposure{Fault: "power-cut", Target: "leader"},
			},
			{Name: "reconnected", Heal: "cut"},
			{Name: "failed-over", Until: []plan.State{{Kind: plan.LeaderNot, Target: "leader"}, {Kind: plan.Confirmed, N: struck, Since: "reconnected"}}},
			{Name: "started", Heal: "power-cut"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "started"}}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"cut", "power-cut"}},
		Destructive: true,
	}
}

func lastReplicaStanding() harness.Scenario {
	arm := func(name, elr string) harness.Arm {
		return harness.Arm{Name: name, Client: safe, Destination: minInSync2, Node: onDisks(elr), During: ledger.During{RefusedOrSilent: struck}}
	}
	guarded, control := arm("guarded", "1"), arm("elr-0", "0")
	guarded.Role = harness.Guarded
	control.Role = harness.Control
	control.Break = &harness.Break{Knob: "eligible.leader.replicas.version=0", Place: "store", Anomaly: "lost", Attribution: "broker"}
	return harness.Scenario{
		Name: "last-replica-standing", Window: "W3", Cost: 120 * time.Second,
		Summary: "replication to both followers is cut until the leader is the only in-sync replica, below min.insync.replicas; then it loses power, its log is cut short, and it comes back",
		Guarded: "eligible.leader.replicas.version=1: the followers that hold every confirmed record stay eligible, so one of them leads and not the replica that was last in sync",
		LookFor: "kafka-features describe: eligible.leader.replicas.version is 0 on clusters that were made before 4.1 and only upgraded; kafka-features upgrade --feature eligible.leader.replicas.version=1",
		Sources: []string{"KIP-966 (eligible leader replicas): the last replica standing"},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms:    []harness.Arm{guarded, control},
		Steps: []plan.Step{
			withCap(cutReplication([]plan.State{{Kind: plan.Confirmed, N: struck}}), 8*time.Second),
			{
				Name: "alone", Until: []plan.State{{Kind: plan.InSync, Target: "leader"}, {Kind: plan.Bit, Since: "cut"}},
				Cap: 10 * time.Second,
			},
			{
				Name: "power-cut", Until: []plan.State{{Kind: plan.Sent, N: struck, Since: "cut"}}, Cap: 5 * time.Second,
				Inject: &plan.Exposure{Fault: "power-cut", Target: "leader"},
			},
			{Name: "reconnected", Heal: "cut"},
			{Name: "decided", Until: []plan.State{
				{Kind: plan.LeaderNot, Target: "leader", Arms: []string{"guarded"}},
				{Kind: plan.LeaderNone, Arms: []string{"elr-0"}},
			}},
			{Name: "started", Heal: "power-cut"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "started"}}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"cut", "power-cut"}},
		Destructive: true,
	}
}

func diskLost() harness.Scenario {
	return harness.Scenario{
		Name: "disk-lost", Window: "W3", Cost: 45 * time.Second,
		Summary: "the leader is killed and its log directories are replaced by empty ones, formatted again under the same node id",
		Guarded: "replication factor 3, acks=all: the followers have what was confirmed, and the empty node copies it from them",
		LookFor: "kafka-topics --describe for topics with ReplicationFactor 1: auto-created topics have it where default.replication.factor is 1, the default",
		Sources: []string{"Kafka documentation, broker configuration: default.replication.factor"},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			guardedArm(ledger.During{Silent: 1}, safe, minInSync2),
			{
				Name: "one-replica", Role: harness.Control, Client: safe,
				Destination: map[string]string{"replication.factor": "1"},
				Break: &harness.Break{
					Knob: "replication.factor=1", Forces: []string{"min.insync.replicas=1"},
					Place: "store", Anomaly: "lost", Attribution: "broker",
				},
				During: ledger.During{Silent: 1},
			},
		},
		Steps: []plan.Step{
			{
				Name: "killed", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "leader"},
			},
			{Name: "disk-taken", Inject: &plan.Exposure{Fault: "disk-lost", Target: "leader"}},
			{Name: "failed-over", Until: []plan.State{
				{Kind: plan.LeaderNot, Target: "leader", Arms: []string{"guarded"}},
				{Kind: plan.Confirmed, N: struck, Since: "killed", Arms: []string{"guarded"}},
				{Kind: plan.LeaderNone, Arms: []string{"one-replica"}},
			}},
			{Name: "started", Heal: "killed"},
			{Name: "elected", Do: "elect-unclean", Arms: []string{"one-replica"}},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "started"}}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"killed", "disk-taken"}},
		Destructive: true,
	}
}

func diskFull() harness.Scenario {
	return harness.Scenario{
		Name: "disk-full", Window: "W3", Cost: 50 * time.Second,
		Summary: "the disk of the leader's only log directory fills up under load: the broker halts, the disk is freed, the broker started again",
		Guarded: "acks=all: a record that could not be written is not confirmed and is sent again to the next leader",
		LookFor: "kafka.log:type=LogManager,name=OfflineLogDirectoryCount above 0, KafkaStorageException in the broker's log, and producers with acks=0 that count no errors meanwhile",
		Sources: []string{
			"Kafka documentation, producer configuration: acks=0",
			"KIP-112 (a broker whose last log directory fails shuts down)",
		},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: on(onDisks("1"),
			guardedArm(ledger.During{Silent: 1}, safe, minInSync2),
			harness.Arm{
				Name: "acks-0", Role: harness.Control,
				Client:      map[string]string{"acks": "0", "idempotence": "false", "in.flight": "5"},
				Destination: minInSync2,
				Producer:    harness.Producer{Claim: harness.AtWritten},
				Break: &harness.Break{
					Knob: "acks=0", Forces: noIdempotence, Place: "store", Anomaly: "lost", Attribution: "client-buffer", Also: withoutIdempotence,
				},
				During: ledger.During{MaxConfirmed: new(0)},
			}),
		Steps: []plan.Step{
			{
				Name: "full", Until: []plan.State{
					{Kind: plan.Confirmed, N: struck, Arms: []string{"guarded"}},
					{Kind: plan.Claimed, N: struck, Arms: []string{"acks-0"}},
				},
				Inject: &plan.Exposure{Fault: "disk-full", Target: "leader"},
			},
			{Name: "halted", Until: []plan.State{
				{Kind: plan.Bit, Since: "full"},
				{Kind: plan.LeaderNot, Target: "leader"},
				{Kind: plan.Confirmed, N: struck, Since: "full", Arms: []string{"guarded"}},
				{Kind: plan.Claimed, N: struck, Since: "full", Arms: []string{"acks-0"}},
			}},
			{Name: "freed", Heal: "full"},
			{Name: "recovered", Until: []plan.State{
				{Kind: plan.FullyInSync},
				{Kind: plan.Confirmed, N: struck, Since: "freed", Arms: []string{"guarded"}},
				{Kind: plan.Claimed, N: struck, Since: "freed", Arms: []string{"acks-0"}},
			}},
		},
		// Nothing has to be under way when the disk gets full: it is what comes then that cannot be written.
		Evidence:    ledger.Evidence{Before: struck, After: struck, Bites: []string{"full"}},
		Destructive: true,
	}
}

// withCap bounds how long a step may wait for its state.
func withCap(s plan.Step, limit time.Duration) plan.Step {
	s.Cap = limit
	return s
}
