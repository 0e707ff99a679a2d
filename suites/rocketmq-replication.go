package suites

import (
	"time"

	"conform/harness"
	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system/rocketmq"
)

func init() {
	register(harness.Suite{
		Name:   "rocketmq-replication",
		System: rocketSystem,
		Title:  "a message that was answered by SEND_OK survives the loss of its master",
		Promise: ledger.Promise{
			Text:   "a message that was answered by SEND_OK, or that the application said was sent, is in its queue at least once, whatever happens to the master",
			Start:  "the SEND_OK that the producer's caller saw",
			End:    "the queue, read to its end at the master that there is after recovery",
			Places: []string{"store"},
			Rules:  rocketRules,
		},
		Scenarios: []harness.Scenario{rocketMasterLost(), rocketSyncSetShrunk(), rocketWaitingWhenShrunk(), rocketUncleanElection(), rocketMasterKilled(), rocketStoredTwice()},
	})
}

// confirmedAlone is how many sends a master that is alone must have confirmed by itself: the client has up to a thousand under
// way, and struck of them are to have been made since.
const confirmedAlone = 1000 + struck

// cutReplica drops what a replica and its master send each other over the master's replication port, while both are reached by
// clients, name server and controller. A replica that is frozen instead would write what its kernel has taken meanwhile once
// it goes on, which is more than the messages in question.
func cutReplica() plan.Step {
	return plan.Step{
		Name: "cut", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
		Inject: &plan.Exposure{
			Fault: "node-isolated", Target: "master",
			Params: map[string]string{"listeners": rocketmq.ListenerReplication, "direction": "in"},
		},
	}
}

// lostAndPromoted are the steps in which a master whose replication is cut is killed with its disk, and an operator makes the replica
// the master.
func lostAndPromoted(until ...plan.State) []plan.Step {
	return []plan.Step{
		{Name: "killed", Until: until, Inject: &plan.Exposure{Fault: "node-killed", Target: "master"}},
		{Name: "disk-taken", Inject: &plan.Exposure{Fault: "disk-lost", Target: "master"}},
		// It is restarted for that, so nothing reads any more what the dead one's kernel still sends.
		{Name: "promoted", Do: doPromote, Target: "master", Cap: 90 * time.Second},
		{Name: "restarted", Heal: "killed"},
		{Name: "reconnected", Heal: "cut"},
		{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "restarted"}}},
	}
}

func rocketMasterLost() harness.Scenario {
	node := func(role, inSync string) map[string]string {
		return rocketNode(rocketmq.Pair, "brokerRole", role, "inSyncReplicas", inSync)
	}
	guarded := guardedArm(ledger.During{At: "alone", RefusedOrSilent: struck, MaxConfirmed: new(0)}, rerouted, nil)
	guarded.Node = node("SYNC_MASTER", "2")
	control := func(name, knob string, node map[string]string) harness.Arm {
		return harness.Arm{
			Name: name, Role: harness.Control, Client: rerouted, Node: node,
			Break:  &harness.Break{Knob: knob, Place: "store", Anomaly: "lost", Attribution: "broker"},
			During: ledger.During{Confirmed: struck},
		}
	}
	controls := []string{"async-master", "in-sync-1"}
	return harness.Scenario{
		Name: "master-lost", Window: "W3", Load: roomy, Cost: 200 * time.Second,
		Summary: "the replication from the master to its replica is cut, 200 messages are sent, the master is killed and its disk destroyed, and an operator makes the replica the master",
		Guarded: "brokerRole=SYNC_MASTER with inSyncReplicas=2: without the replica a send is answered by FLUSH_SLAVE_TIMEOUT or refused, never by SEND_OK",
		LookFor: "SYNC_MASTER in a broker.conf without inSyncReplicas: since 5.0 the default of 1 waits for nobody; compare with mqadmin getBrokerConfig",
		Sources: []string{
			"RocketMQ 5.5.0 source, MessageStoreConfig.inSyncReplicas (default 1) and CommitLog.handleHA (nobody is waited for up to 1)",
			"RocketMQ documentation, Deployment: SYNC_MASTER and ASYNC_MASTER",
			"RIP-34 (quorum write and adaptive degradation)",
		},
		Targets: map[string]plan.Role{"master": plan.Leader},
		Arms: []harness.Arm{
			guarded,
			control("async-master", "brokerRole=ASYNC_MASTER", node("ASYNC_MASTER", "2")),
			control("in-sync-1", "inSyncReplicas=1", node("SYNC_MASTER", "1")),
		},
		Steps: append([]plan.Step{
			cutReplica(),
			{Name: "alone", Until: []plan.State{
				{Kind: plan.Bit, Since: "cut"}, {Kind: plan.Custom, Name: confirmsHaveEnded, Arms: []string{"guarded"}},
			}},
		}, lostAndPromoted(
			plan.State{Kind: plan.Sent, N: struck, Since: "alone", Arms: []string{"guarded"}},
			plan.State{Kind: plan.ConfirmedBy, N: confirmedAlone, Since: "alone", Target: "master", Arms: controls},
		)...),
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"cut", "killed", "disk-taken"}},
		Gates:       map[string]harness.Gate{confirmsHaveEnded: confirmsEnded()},
		Destructive: true, Actions: promoting,
	}
}

// controlled are node settings of two brokers under a controller, whose master waits for all that are in sync.
func controlled(least, unclean string) map[string]string {
	return rocketNode(rocketmq.Controller, "inSyncReplicas", "2", "allAckInSyncStateSet", "true",
		"minInSyncReplicas", least, "namesrv.enableElectUncleanMaster", unclean)
}

// shrunk is what sync-set-shrunk and waiting-when-shrunk have in common: the set in sync shrinks to the master, which is destroyed.
// The guarded arm waits for two brokers, whichever are in sync.
func shrunk(s harness.Scenario, control harness.Arm, killed plan.State) harness.Scenario {
	guarded := guardedArm(ledger.During{At: "alone", RefusedOrSilent: struck, MaxConfirmed: new(0)}, rerouted, nil)
	guarded.Node = with(controlled("2", "true"), "allAckInSyncStateSet", "false")
	control.Role, control.Client, control.During = harness.Control, rerouted, ledger.During{Confirmed: struck}
	control.Break.Place, control.Break.Anomaly, control.Break.Attribution = "store", audit.Lost, audit.Broker
	killed.Arms = []string{control.Name}
	s.Window, s.Load, s.Cost, s.Destructive = "W3", roomy, 90*time.Second, true
	s.Targets = map[string]plan.Role{"master": plan.Leader}
	s.Arms = []harness.Arm{guarded, control}
	s.Steps = []plan.Step{
		cutReplica(),
		{Name: "bitten", Until: []plan.State{{Kind: plan.Bit, Since: "cut"}}},
		{Name: "alone", Until: []plan.State{{Kind: plan.InSync, Target: "master"}}},
		{
			Name:   "killed",
			Until:  []plan.State{{Kind: plan.Sent, N: struck, Since: "alone", Arms: []string{"guarded"}}, killed},
			Inject: &plan.Exposure{Fault: "node-killed", Target: "master"},
		},
		{Name: "disk-taken", Inject: &plan.Exposure{Fault: "disk-lost", Target: "master"}},
		// Only then the other one reads nothing any more of what the dead one's kernel still sends.
		{Name: "led", Until: []plan.State{{Kind: plan.LeaderNot, Target: "master"}}},
		{Name: "reconnected", Heal: "cut"},
		{Name: "restarted", Heal: "killed"},
		{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "restarted"}}},
	}
	s.Evidence = ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"cut", "killed", "disk-taken"}}
	return s
}

func rocketSyncSetShrunk() harness.Scenario {
	return shrunk(harness.Scenario{
		Name:    "sync-set-shrunk",
		Summary: "under a controller the replication is cut until the master is the only one in sync, 200 messages are sent, and the master is killed and its disk destroyed; the other broker is elected though it is not in sync",
		Guarded: "minInSyncReplicas=2: a master that is alone refuses what it is sent (in-sync replicas not enough)",
		LookFor: "mqadmin getSyncStateSet with one broker in it while sends succeed; minInSyncReplicas is 1 by default, so that with allAckInSyncStateSet=true a set of one confirms by itself",
		Sources: []string{
			"RIP-44 (controller mode; allAckInSyncStateSet, minInSyncReplicas)",
			"RocketMQ 5.5.0 source, MessageStoreConfig.minInSyncReplicas (default 1) and haMaxTimeSlaveNotCatchup (15 s)",
		},
	}, harness.Arm{
		Name: "min-in-sync-1", Node: controlled("1", "true"),
		Break: &harness.Break{Knob: "minInSyncReplicas=1", Forces: []string{"allAckInSyncStateSet=true"}},
	}, plan.State{Kind: plan.ConfirmedBy, N: confirmedAlone, Since: "alone", Target: "master"})
}

// A send is refused by minInSyncReplicas when it comes. One that has been waiting for the replica since before is taken for
// acknowledged by all in sync once the master is all that is in sync.
func rocketWaitingWhenShrunk() harness.Scenario {
	return shrunk(harness.Scenario{
		Name:    "waiting-when-shrunk",
		Summary: "as in sync-set-shrunk, with minInSyncReplicas=2 in both arms: the master is killed when it has confirmed what was waiting for the replica as the set shrank",
		Guarded: "allAckInSyncStateSet=false with inSyncReplicas=2: what waits goes on waiting for two brokers, whatever the set, and ends as FLUSH_SLAVE_TIMEOUT",
		LookFor: "allAckInSyncStateSet=true in a broker.conf: each time a replica falls out of the set, what waits at that moment is answered by SEND_OK though one broker has it",
		Sources: []string{"RocketMQ source, GroupTransferService.doWaitTransfer (a set of one is enough) and CommitLog.asyncPutMessage (minInSyncReplicas is looked at once, before the message is written)"},
	}, harness.Arm{
		Name: "all-ack", Node: controlled("2", "true"), Break: &harness.Break{Knob: "allAckInSyncStateSet=true"},
	}, plan.State{Kind: plan.Confirmed, N: struck, Since: "bitten"})
}

func rocketUncleanElection() harness.Scenario {
	guarded := guardedArm(ledger.During{Confirmed: struck}, rerouted, nil)
	guarded.Node = controlled("1", "false")
	return harness.Scenario{
		Name: "unclean-election", Window: "W3", Load: roomy, Cost: 90 * time.Second,
		Summary: "under a controller the replication is cut until the master is the only one in sync, 200 messages are confirmed by it, then it is stopped with its disk kept and comes back at the end; both arms have minInSyncReplicas=1",
		Guarded: "enableElectUncleanMaster=false, the default: the group waits for the only broker that has everything",
		LookFor: "enableElectUncleanMaster=true in the controller's configuration",
		Sources: []string{"RIP-44 (controller mode; enableElectUncleanMaster)", "RocketMQ 5.5.0 source, ControllerConfig.enableElectUncleanMaster"},
		Targets: map[string]plan.Role{"master": plan.Leader},
		Arms: []harness.Arm{
			guarded,
			{
				Name: "unclean", Role: harness.Control, Client: rerouted, Node: controlled("1", "true"),
				Break:  &harness.Break{Knob: "namesrv.enableElectUncleanMaster=true", Place: "store", Anomaly: "lost", Attribution: "broker"},
				During: ledger.During{Confirmed: struck},
			},
		},
		Steps: []plan.Step{
			cutReplica(),
			{Name: "alone", Until: []plan.State{{Kind: plan.InSync, Target: "master"}, {Kind: plan.Bit, Since: "cut"}}},
			{
				Name:   "stopped",
				Until:  []plan.State{{Kind: plan.ConfirmedBy, N: confirmedAlone, Since: "alone", Target: "master"}},
				Inject: &plan.Exposure{Fault: "node-stopped", Target: "master"},
			},
			{Name: "decided", Until: []plan.State{
				{Kind: plan.LeaderNone, Arms: []string{"guarded"}},
				{Kind: plan.LeaderNot, Target: "master", Arms: []string{"unclean"}},
				{Kind: plan.Confirmed, N: struck, Since: "stopped", Arms: []string{"unclean"}},
			}},
			{Name: "reconnected", Heal: "cut"},
			{Name: "started", Heal: "stopped"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "started"}}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"cut", "stopped"}},
		Destructive: true,
	}
}

func rocketMasterKilled() harness.Scenario {
	return harness.Scenario{
		Name: "master-killed", Window: "W3", Cost: 40 * time.Second,
		Summary: "under a controller the master is killed by SIGKILL under load, the replica is promoted, and the killed one comes back as its replica",
		Guarded: "allAckInSyncStateSet=true: what was answered by SEND_OK is on the replica too, which is in sync and is elected",
		LookFor: "the availability gap below is what clients see whose route is asked for anew; the client's own interval is 30 s",
		Sources: []string{"RIP-44 (controller mode)"},
		Targets: map[string]plan.Role{"master": plan.Leader},
		Arms: []harness.Arm{{
			Name: "all-ack", Role: harness.Observation, Client: rerouted, Node: controlled("1", "false"),
			Reason:  "its controls are the other scenarios of this suite: here the replica is in sync, and no setting makes it lag by itself",
			Promise: storedOnce,
			During:  ledger.During{RefusedOrSilent: 1},
		}},
		Steps: []plan.Step{
			{
				Name: "killed", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "master"},
			},
			{Name: "failed-over", Until: []plan.State{
				{Kind: plan.LeaderNot, Target: "master"}, {Kind: plan.Bit, Since: "killed"}, {Kind: plan.Confirmed, N: struck, Since: "killed"},
			}},
			{Name: "restarted", Heal: "killed"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "restarted"}}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"killed"}},
		Destructive: true,
	}
}

// storedOnce is the promise of sends that are made once, whatever happens to the master.
var storedOnce = ledger.Promise{
	Text:   "a message that was answered by SEND_OK is in its queue after the master was killed, and no send stands there twice: each was made once",
	Start:  "the SEND_OK that the producer's caller saw",
	End:    "the queue, read to its end at the promoted broker",
	Places: []string{"store"},
	Rules:  map[string]ledger.Rule{audit.ReorderedStore: {Allowed: true}},
}

func rocketStoredTwice() harness.Scenario {
	return harness.Scenario{
		Name: "stored-twice", Window: "W3", Cost: 50 * time.Second,
		Summary: "in a pair with inSyncReplicas=2 the master is killed by SIGKILL under load, an operator makes the replica the master, and the killed one comes back as its replica",
		Guarded: "each send is made once: what is read from the promoted replica holds no message twice",
		LookFor: "two messages with one business key after a failover (mqadmin queryMsgByKey), of producers that do not send again",
		Sources: []string{"RocketMQ 5.5.0 source, DefaultHAClient (a replica appends what it is sent, from its own end on)"},
		Targets: map[string]plan.Role{"master": plan.Leader},
		Arms: []harness.Arm{{
			Name: "in-sync-2", Role: harness.Observation, Client: rerouted, Node: rocketNode(rocketmq.Pair, "brokerRole", "SYNC_MASTER", "inSyncReplicas", "2"),
			Reason:  "no setting is known to make a replica store a message twice: it shows whether one does",
			Promise: storedOnce,
			During:  ledger.During{RefusedOrSilent: 1},
		}},
		Steps: []plan.Step{
			{
				Name: "killed", Until: []plan.State{{Kind: plan.Confirmed, N: struck}},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "master"},
			},
			// Alone it refuses what it is sent, for want of a replica.
			{Name: "promoted", Until: []plan.State{{Kind: plan.Bit, Since: "killed"}}, Do: doPromote, Target: "master", Cap: 90 * time.Second},
			{Name: "restarted", Heal: "killed"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.FullyInSync}, {Kind: plan.Confirmed, N: struck, Since: "restarted"}}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"killed"}},
		Destructive: true, Actions: promoting,
	}
}
