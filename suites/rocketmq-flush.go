package suites

import (
	"maps"
	"time"

	"conform/harness"
	"conform/harness/audit"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system/disks"
	"conform/harness/system/rocketmq"
)

func init() {
	register(harness.Suite{
		Name:      "rocketmq-flush",
		System:    rocketSystem,
		Title:     "a message that was answered by SEND_OK survives the end of its broker's process, or of its power",
		Promise:   rocketFlushPromise,
		Scenarios: []harness.Scenario{rocketPowerCut(), rocketProcessKill()},
	})
}

var rocketFlushPromise = ledger.Promise{
	Text:   "a message that was answered by SEND_OK is in its queue at least once after the broker has lost its process, or its power, and was restarted",
	Start:  "the SEND_OK that the producer's caller saw",
	End:    "the queue, read to its end after recovery",
	Places: []string{"store"},
	Rules:  rocketRules,
}

func rocketPowerCut() harness.Scenario {
	node := func(flush string, more ...string) map[string]string {
		return with(rocketNode(rocketmq.Single, "flushDiskType", flush, disks.Setting, "512"), more...)
	}
	// Few sends at once, so that an answer comes sooner than the flush that nobody waits for: a message with WAIT=false begins it.
	prompt := with(rerouted, "max.in.flight", "4")
	guarded := guardedArm(ledger.During{Silent: 1}, prompt, nil)
	guarded.Node = node("SYNC_FLUSH")
	waitless := rocketFlushPromise
	waitless.Text = "how much of what was answered by SEND_OK is gone after the broker has lost its power: it is told, not judged"
	waitless.Rules = maps.Clone(rocketRules)
	waitless.Rules[audit.Lost] = ledger.Rule{Allowed: true}
	return harness.Scenario{
		Name: "power-cut", Window: "W3", Cost: 75 * time.Second,
		Summary: "the broker loses power: whatever was not fsynced is gone",
		Guarded: "flushDiskType=SYNC_FLUSH: a send is answered by SEND_OK once the message is fsynced, else by FLUSH_DISK_TIMEOUT",
		LookFor: "flushDiskType in broker.conf: ASYNC_FLUSH is the default; messages with the property WAIT=false (setWaitStoreMsgOK), which neither flush nor replica is waited for",
		Sources: []string{
			"RocketMQ documentation, Broker configuration: flushDiskType",
			"RocketMQ 5.5.0 source, CommitLog.DefaultFlushManager.handleDiskFlush and MessageExt.isWaitStoreMsgOK",
			"Linux kernel documentation, vm.dirty_expire_centisecs",
		},
		Targets: map[string]plan.Role{"broker": plan.All},
		Arms: []harness.Arm{
			guarded,
			{
				Name: "async-flush", Role: harness.Control, Client: prompt, Node: node("ASYNC_FLUSH"),
				Break:  &harness.Break{Knob: "flushDiskType=ASYNC_FLUSH", Place: "store", Anomaly: "lost", Attribution: "broker"},
				During: ledger.During{Silent: 1},
			},
			{
				Name: "no-wait", Role: harness.Observation, Client: with(prompt, "wait", "false"),
				// The interval is the default. It gives the arm a broker of its own: there is one log for all topics, and a flush that
				// another arm waits for would save this one's messages too.
				Node:    node("SYNC_FLUSH", "flushIntervalCommitLog", "500"),
				Reason:  "a message with WAIT=false begins the flush that it does not wait for: lost is what was answered in the milliseconds since the last one, which is nothing in many cuts",
				Promise: waitless,
				During:  ledger.During{Silent: 1},
			},
		},
		Steps: []plan.Step{
			{
				Name: "power-cut", Until: []plan.State{{Kind: plan.Confirmed, N: 5 * struck}}, Cap: beforePowerCut,
				Inject: &plan.Exposure{Fault: "power-cut", Target: "broker"},
			},
			// What is sent while the broker is frozen fills the clients' windows before the cut is over.
			{Name: "sent-meanwhile", Until: []plan.State{{Kind: plan.InFlight, N: 1}, {Kind: plan.Bit, Since: "power-cut"}}},
			{Name: "started", Heal: "power-cut"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.Confirmed, N: struck, Since: "started"}}},
		},
		Evidence:    ledger.Evidence{Before: 5 * struck, After: struck, Bites: []string{"power-cut"}},
		Destructive: true,
	}
}

func rocketProcessKill() harness.Scenario {
	// Few sends at once, so that an answer comes soon after the broker has the message: with many under way it is on the file
	// by then. Of what is copied to the file at once there is more than those few, on both sides, though only one copies.
	prompt := with(rerouted, "max.in.flight", "8")
	// A file that a broker finds when it starts is written without the pool: it must have begun another one, so files are small.
	node := func(pool string) map[string]string {
		return rocketNode(rocketmq.Single, "transientStorePoolEnable", pool, "commitCommitLogLeastPages", "64", "mappedFileSizeCommitLog", "1048576")
	}
	const aFile = 4000 // messages that are more than one of these
	guarded := guardedArm(ledger.During{}, prompt, nil)
	guarded.Node = node("false")
	return harness.Scenario{
		Name: "process-kill", Window: "W3", Cost: 50 * time.Second,
		Summary: "the broker is killed by SIGKILL under load, the page cache survives, and is restarted",
		Guarded: "flushDiskType=ASYNC_FLUSH, the default: SEND_OK means that the message is in the page cache, which outlives the process, though not the machine",
		LookFor: "transientStorePoolEnable=true in broker.conf: what is not yet copied from direct memory to the file dies with the process",
		Sources: []string{
			"RocketMQ documentation, Broker configuration: flushDiskType, transientStorePoolEnable",
			"RocketMQ 5.5.0 source, CommitLog.CommitRealTimeService (commitIntervalCommitLog 200 ms, commitCommitLogLeastPages 4)",
		},
		Targets: map[string]plan.Role{"broker": plan.All},
		Arms: []harness.Arm{
			guarded,
			{
				Name: "transient-pool", Role: harness.Control, Client: prompt,
				Node:  node("true"),
				Break: &harness.Break{Knob: "transientStorePoolEnable=true", Place: "store", Anomaly: "lost", Attribution: "broker"},
			},
		},
		Steps: []plan.Step{
			{
				Name: "killed", Until: []plan.State{{Kind: plan.Confirmed, N: aFile}},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "broker"},
			},
			{Name: "restarted", Until: []plan.State{{Kind: plan.Bit, Since: "killed"}}, Heal: "killed"},
			{Name: "recovered", Until: []plan.State{{Kind: plan.Confirmed, N: struck, Since: "restarted"}}},
		},
		Evidence:    ledger.Evidence{Before: struck, After: struck, Bites: []string{"killed"}},
		Destructive: true,
	}
}
