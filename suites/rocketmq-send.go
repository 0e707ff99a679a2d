package suites

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/system/rocketmq"
)

func init() {
	register(harness.Suite{
		Name:    "rocketmq-send",
		System:  rocketSystem,
		With:    []system.System{postgresSystem.System},
		Title:   "a message of which the application said that it was sent is in its queue",
		Promise: rocketSendPromise,
		Scenarios: []harness.Scenario{
			rocketOneWay(), rocketSwallowedError(), rocketStatusIgnored(), rocketResponseLost(),
		},
	})
}

var rocketSendPromise = ledger.Promise{
	Text:   "a message that was answered by SEND_OK, or of which the application said that it was sent, is in its queue at least once",
	Start:  "the SEND_OK (or the claim) that the producer's caller saw",
	End:    "the queue, read to its end after recovery",
	Places: []string{"store"},
	Rules:  rocketRules,
}

// onNode sets the node settings of all arms.
func onNode(node map[string]string, arms ...harness.Arm) []harness.Arm {
	for i := range arms {
		arms[i].Node = node
	}
	return arms
}

func rocketOneWay() harness.Scenario {
	bites := []string{"frozen", "killed"}
	return harness.Scenario{
		Name: "one-way", Window: "W1", Load: roomy, Cost: 40 * time.Second,
		Summary: "the broker is frozen until 200 messages lie in its socket, then killed by SIGKILL and restarted",
		Guarded: "the answer is awaited, and \"sent\" is said at SEND_OK only",
		LookFor: "calls of sendOneway or SendOneWay for what may not be lost: they return once the bytes are in a socket",
		Sources: []string{"RocketMQ documentation, Message Sending: one-way transmission", "rocketmq-client-go, remotingClient.InvokeOneWay: no answer is waited for"},
		Targets: map[string]plan.Role{"broker": plan.All},
		Arms: onNode(
			rocketNode(rocketmq.Single),
			guardedArm(ledger.During{Silent: 1}, rerouted, nil),
			harness.Arm{
				Name: "one-way", Role: harness.Control, Client: with(rerouted, "mode", "one-way"),
				Producer: harness.Producer{Claim: harness.AtWritten},
				Break: &harness.Break{
					Knob: "mode=one-way", Forces: []string{"\"sent\" is said once the request is written, for nothing ever confirms it"},
					Place: "store", Anomaly: "lost", Attribution: "client-buffer",
				},
				// Nothing is in flight for longer than it takes to write it.
				Evidence: &ledger.Evidence{Before: struck, After: struck, Bites: bites},
				During:   ledger.During{MaxConfirmed: new(0)},
			},
		),
		Steps: []plan.Step{
			{
				Name: "frozen", Until: []plan.State{
					{Kind: plan.Confirmed, N: struck, Arms: []string{"guarded"}},
					{Kind: plan.Claimed, N: struck, Arms: []string{"one-way"}},
				},
				Inject: &plan.Exposure{Fault: "node-paused", Target: "broker"},
			},
			{
				Name: "killed", Until: []plan.State{
					{Kind: plan.Sent, N: struck, Since: "frozen", Arms: []string{"guarded"}},
					{Kind: plan.SentTo, N: struck, Since: "frozen", Target: "broker", Arms: []string{"one-way"}},
				},
				Inject: &plan.Exposure{Fault: "node-killed", Target: "broker"},
			},
			{Name: "restarted", Until: []plan.State{{Kind: plan.Bit, Since: "killed"}}, Heal: "killed"},
			{Name: "recovered", Until: []plan.State{
				{Kind: plan.Confirmed, N: struck, Since: "restarted", Arms: []string{"guarded"}},
				{Kind: plan.Claimed, N: struck, Since: "restarted", Arms: []string{"one-way"}},
			}},
		},
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: bites},
		Destructive: true,
	}
}

func rocketSwallowedError() harness.Scenario {
	const pair = "kafka-acks/swallowed-error" // the code is the same for any broker
	promise := rocketSendPromise
	promise.Text = "an event of which the application said that it was sent is in its queue"
	arms := onRocketMQ.pairArms(pair, "store", paramCommand, func(a *harness.Arm, function string) {
		a.Producer = onRocketMQ.orders(map[string]string{paramCommand: function, paramClaims: "true", paramTimeout: "1s"})
		a.Processes = []harness.Process{onRocketMQ.relay("resender", map[string]string{paramJob: "ResendDue", paramTimeout: "5s"})}
		a.Promise = promise
	})
	return resent(harness.Scenario{
		Name: "swallowed-error", Window: "W1", Cost: 25 * time.Second,
		Summary: "the broker refuses connections for longer than the client tries to deliver",
		Guarded: "the error callback writes the message to a retry table, and a job sends it again: after 1, 2 and 4 s, five times in all",
		LookFor: lookFor(pair),
		Sources: []string{"RocketMQ documentation, Message Sending: asynchronous transmission (the callback's onException)"},
		Arms:    onNode(rocketNode(rocketmq.Single), arms...),
		Steps:   refused(plan.State{Kind: plan.Claimed, N: 2 * seen, Since: "refused"}, plan.State{Kind: plan.Refused, N: seen, Since: "refused"}),
		Evidence: ledger.Evidence{
			Before: seen, After: seen, Bites: []string{"refused"},
		},
	})
}

func rocketResponseLost() harness.Scenario {
	arms := onRocketMQ.pairArms("kafka-consume/crash-after-business-commit", "effect", paramHandler, func(a *harness.Arm, function string) {
		a.Producer = harness.Producer{Role: roleRetrying, Params: map[string]string{paramClient: "retries=3 timeout.ms=1000"}}
		a.Processes = []harness.Process{onRocketMQ.reader("consumer-1", map[string]string{paramHandler: function})}
		a.Promise = inboxPromise
	})
	return delivered(harness.Scenario{
		Name: "response-lost", Window: "W2", Cost: 25 * time.Second,
		Summary: "the n-th send passes, its response is swallowed and the connection reset: the client sends again, and there is no idempotent producer",
		Guarded: "the consumer's inbox knows the event by its id",
		LookFor: "two messages with one business key in a topic (mqadmin queryMsgByKey), and consumers without a unique key on it",
		Sources: []string{
			"RocketMQ documentation, Basic Best Practices: message deduplication (consumers must be idempotent)",
			"RocketMQ documentation, Producer: retryTimesWhenSendFailed (2 by default)",
		},
		Targets: map[string]plan.Role{"broker": plan.All},
		Arms:    onNode(rocketNode(rocketmq.Single), arms...),
		Steps: []plan.Step{
			{
				Name: "dropped", Until: []plan.State{{Kind: plan.Confirmed, N: seen}, {Kind: plan.Handled, N: seen}},
				Inject: &plan.Exposure{
					Fault: "response-dropped", Target: "broker",
					Params: map[string]string{"kind": rocketmq.KindSend, "nth": "draw:5..25", "of": "p1"},
				},
			},
			{Name: "bitten", Until: []plan.State{{Kind: plan.Bit, Since: "dropped"}}},
			{Name: "healed", Heal: "dropped"},
			handledMore("healed"),
		},
		Evidence: ledger.Evidence{Before: seen, After: seen, Bites: []string{"dropped"}, HandledBefore: seen, HandledAfter: seen},
	})
}

func rocketStatusIgnored() harness.Scenario {
	// Few under way, so that soon after the cut all answers are about messages that the replica cannot have.
	const few = 50
	again := with(rerouted, "retries", "60", "backoff.ms", "500", "max.in.flight", strconv.Itoa(few))
	silent := ledger.During{At: "alone", RefusedOrSilent: few / 2, MaxConfirmed: new(0)}
	cut := cutReplica()
	cut.Inject.Params = map[string]string{"listeners": rocketmq.ListenerReplication, "direction": "both"}
	return harness.Scenario{
		Name: "status-ignored", Window: "W3", Load: roomy, Cost: 60 * time.Second,
		Summary: "the replication to the replica is cut, so that sends are answered by FLUSH_SLAVE_TIMEOUT, 150 messages are answered so, and the master is killed and its disk destroyed",
		Guarded: "only SEND_OK is a confirm: what is answered otherwise is sent again, under the same identity, until it is",
		LookFor: "code that looks at the error of a send alone: FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE come without one",
		Sources: []string{
			"RocketMQ documentation, Basic Best Practices: SendStatus",
			"rocketmq-client-go, primitive.SendStatus: an answer with such a status is no error",
		},
		Targets: map[string]plan.Role{"master": plan.Leader},
		Arms: onNode(
			// The broker gives up waiting for its replica before the client gives up waiting for the broker; both take 3 s by default.
			rocketNode(rocketmq.Pair, "brokerRole", "SYNC_MASTER", "inSyncReplicas", "2", "slaveTimeout", "500"),
			guardedArm(silent, again, nil),
			harness.Arm{
				Name: "status-ignored", Role: harness.Control, Client: with(again, "status", "ignored"),
				Producer: harness.Producer{Claim: harness.AtWritten},
				Break: &harness.Break{
					Knob: "status=ignored", Forces: []string{"\"sent\" is said whenever the client reports no error"},
					Place: "store", Anomaly: "lost",
				},
				During: silent,
			},
		),
		Steps: append([]plan.Step{
			cut,
			{Name: "alone", Until: []plan.State{{Kind: plan.Bit, Since: "cut"}, {Kind: plan.Custom, Name: confirmsHaveEnded}}},
		}, lostAndPromoted(
			plan.State{Kind: plan.InFlight, N: few, Arms: []string{"guarded"}},
			plan.State{Kind: plan.Claimed, N: 3 * few, Since: "alone", Arms: []string{"status-ignored"}},
		)...),
		Evidence:    ledger.Evidence{Before: struck, InFlight: 1, After: struck, Bites: []string{"cut", "killed", "disk-taken"}},
		Gates:       map[string]harness.Gate{confirmsHaveEnded: confirmsEnded()},
		Destructive: true, Actions: promoting,
	}
}

// confirmsHaveEnded names the gate confirmsEnded.
const confirmsHaveEnded = "confirms have ended"

// confirmsEnded is a gate that opens once none of the state's arms has had a confirm for a second: what was replicated before
// a cut is answered some time after it.
func confirmsEnded() harness.Gate {
	type last struct {
		n  int
		at time.Time
	}
	seen := map[string]last{}
	return func(_ context.Context, e harness.Env, s plan.State) (bool, string, error) {
		ended := true
		var told []string
		for arm := range e.Destinations {
			if len(s.Arms) > 0 && !slices.Contains(s.Arms, arm) {
				continue
			}
			n := e.Counts(arm).Confirmed
			if l, known := seen[arm]; !known || l.n != n {
				seen[arm] = last{n, time.Now()}
			}
			ended = ended && time.Since(seen[arm].at) >= time.Second
			told = append(told, fmt.Sprintf("%s %d", arm, n))
		}
		slices.Sort(told)
		return ended, strings.Join(told, ", "), nil
	}
}
