package suites

import (
	"strconv"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/worker"
	"conform/suites/chain"
)

func init() {
	register(harness.Suite{
		Name:   "rabbitmq-ordering",
		System: rabbitSystem,
		With:   []system.System{postgresSystem.System},
		Title:  "the messages of one key take effect in the order in which they were published",
		Promise: ledger.Promise{
			Text:   "the state of a key is that of its newest message, since its messages are delivered and take effect in the order in which they were published",
			Start:  "the confirm that the publisher saw",
			End:    "the states, read once the queue is empty",
			Places: []string{"delivery", "effect"},
		},
		Scenarios: []harness.Scenario{
			rabbitRequeue(), rabbitCompeting(), rabbitPriority(), rabbitDeadLetterAndReturn(), rabbitNetworkCut(),
		},
	})
}

// The messages of an ordering scenario: all of one key, and all in the queue before the first is consumed, so that the last
// one that takes effect is what stands at the end.
const (
	ordered = 120
	// turned is the one of them that is to be overtaken: all behind it are in the hands of a consumer that has ten.
	turned = ordered - 5
)

const (
	docOrder  = "RabbitMQ documentation, Queues: message ordering"
	docActive = "RabbitMQ documentation, Consumers: single active consumer"
)

// inOrder fills in what all ordering scenarios have.
func inOrder(s harness.Scenario) harness.Scenario {
	s.Load.Rate, s.Load.Keys = 200, 1
	s.Tables = []string{tableBalances, ledger.TableDeadLetter}
	s.Chain = ledger.Chain{Effects: []ledger.EffectTable{{Name: tableBalances, State: true}}}
	for i := range s.Arms {
		s.Arms[i].Producer.Incarnations = []harness.Incarnation{{Messages: ordered}}
	}
	return fromQueue(s)
}

// single is a queue with one consumer at a time, shared one with many.
var (
	single = with(quorumQueue, "x-single-active-consumer", "true")
	shared = with(quorumQueue, "x-single-active-consumer", "false")
)

// stater is a consumer that takes the order of what it gets for that of the business. It starts when all is in the queue.
func stater(name, prefetch string, params ...string) harness.Process {
	p := queueReader(name, with(map[string]string{paramHandler: "SetStateOnce"}, params...), map[string]string{"prefetch": prefetch})
	p.Manual = true
	return p
}

// published waits until all messages are in the queue, and starts a consumer.
func published(first string) plan.Step {
	return plan.Step{Name: "published", Until: []plan.State{{Kind: plan.Ended}}, Do: harness.DoStartProcess, Process: first}
}

func rabbitRequeue() harness.Scenario {
	readers := func(prefetch string) []harness.Process {
		failing := []string{paramLoop, "ConsumeReturning", paramFailEvent, strconv.Itoa(turned), paramFailAs, "temporary"}
		return []harness.Process{stater("consumer-1", prefetch, failing...), stater("consumer-2", prefetch, failing...)}
	}
	return inOrder(harness.Scenario{
		Name:    "requeue",
		Summary: "one delivery is given back by basic.nack with requeue, while those behind it are in the consumer's hands",
		Guarded: "a single active consumer and a prefetch of 1: nothing is in its hands that could overtake",
		LookFor: "consumers with requeue and a prefetch above 1 where the order matters; states older than the newest message of their key",
		Sources: []string{
			docOrder + ": requeued messages are placed to their original position, if possible", docActive,
			"RabbitMQ documentation, Negative Acknowledgements",
		},
		Arms: []harness.Arm{
			{Name: "guarded", Role: harness.Guarded, Destination: single, Processes: readers("1")},
			{
				Name: "prefetch-10", Role: harness.Control, Destination: single, Processes: readers("10"),
				Break: &harness.Break{Knob: "prefetch=10", Place: "effect", Anomaly: "stale-effect"},
			},
		},
		Steps: []plan.Step{
			published("consumer-1"),
			{Name: "stands-by", Do: harness.DoStartProcess, Process: "consumer-2"},
			{Name: "over", Until: []plan.State{{Kind: plan.Handled, N: ordered}}},
		},
		Evidence: ledger.Evidence{Bites: []string{strikeFailure}, HandledBefore: consumed, Redelivered: 1},
	})
}

func rabbitCompeting() harness.Scenario {
	frozen := stater("consumer-1", "1")
	frozen.HoldAt = chain.AfterFetch
	readers := []harness.Process{frozen, stater("consumer-2", "1")}
	return inOrder(harness.Scenario{
		Name:    "competing-consumers",
		Summary: "the first of two consumers freezes with the first message in its hands",
		Guarded: "a single active consumer: the other waits",
		LookFor: "several consumers on a queue whose messages have an order (rabbitmqctl list_queues name consumers single_active_consumer_tag)",
		Sources: []string{docOrder, docActive},
		Arms: []harness.Arm{
			{Name: "guarded", Role: harness.Guarded, Destination: single, Processes: readers},
			{
				Name: "two-consumers", Role: harness.Control, Destination: shared, Processes: readers,
				Break: &harness.Break{Knob: "x-single-active-consumer=false", Place: "effect", Anomaly: "stale-effect"},
			},
		},
		Steps: []plan.Step{
			published("consumer-1"),
			{
				Name: "frozen", Do: harness.DoStartProcess, Process: "consumer-2",
				Until: []plan.State{{Kind: plan.ProcessAt, Process: "consumer-1", Point: chain.AfterFetch}},
			},
			{
				Name: "thawed", Do: harness.DoReleaseProcess, Process: "consumer-1",
				Until: []plan.State{{Kind: plan.Handled, N: ordered - 1, Arms: []string{"two-consumers"}}},
			},
			{Name: "over", Until: []plan.State{{Kind: plan.Handled, N: ordered}}},
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-consumer-1"}, HandledAfter: 1},
	})
}

func rabbitPriority() harness.Scenario {
	waiting := stater("consumer-1", "1")
	waiting.HoldAt = chain.AfterFetch
	waiting.Manual = false
	priorities := func(later string) map[string]string {
		return with(awaited, "priority", "1", "priority.after", strconv.Itoa(turned), "priority.later", later)
	}
	return inOrder(harness.Scenario{
		Name:    "priority",
		Summary: "while a consumer is busy with the first message, others queue up, the last of them with a higher priority",
		Guarded: "one priority for all messages of a key",
		LookFor: "publishers that set a priority on messages of keys that have others in the queue",
		Sources: []string{
			"RabbitMQ documentation, Quorum Queues: priorities (two levels at a ratio of 2:1 from 4.0 on)",
			"RabbitMQ 4.3 release notes: quorum queues deliver by strict priority",
		},
		Arms: []harness.Arm{
			{Name: "guarded", Role: harness.Guarded, Client: priorities("1"), Destination: quorumQueue, Processes: []harness.Process{waiting}},
			{
				Name: "two-priorities", Role: harness.Control, Client: priorities("9"), Destination: quorumQueue, Processes: []harness.Process{waiting},
				Break: &harness.Break{Knob: "priority.later=9", Place: "delivery", Anomaly: "reordered-delivery", Also: []string{"stale-effect"}},
			},
		},
		Steps: []plan.Step{
			{Name: "queued", Until: []plan.State{
				{Kind: plan.ProcessAt, Process: "consumer-1", Point: chain.AfterFetch}, {Kind: plan.Ended},
			}, Do: harness.DoReleaseProcess, Process: "consumer-1"},
			{Name: "over", Until: []plan.State{{Kind: plan.Handled, N: ordered}}},
		},
		Evidence: ledger.Evidence{Bites: []string{"hold-consumer-1"}, HandledAfter: consumed},
	})
}

func rabbitDeadLetterAndReturn() harness.Scenario {
	const pair = "rabbitmq-ordering/dead-letter-and-return"
	arms := queuePair(pair, paramLoop, func(params map[string]string) []harness.Process {
		return []harness.Process{stater("consumer-1", "10", paramLoop, params[paramLoop], paramReturn, "reject",
			paramFailEvent, strconv.Itoa(turned), paramFailAs, "temporary")}
	})
	for i := range arms {
		arms[i].Destination = with(single, "retry", "1000")
	}
	return inOrder(harness.Scenario{
		Name:    "dead-letter-and-return",
		Summary: "the work on a message fails: it waits in a retry queue for a second, and returns at the tail",
		Guarded: "its key is parked: the later messages of the key follow it to the retry queue, and return behind it",
		LookFor: lookFor(pair),
		Sources: []string{docOrder, "RabbitMQ documentation, Dead Letter Exchanges", "RabbitMQ documentation, Time-To-Live and Expiration"},
		Arms:    arms,
		Steps: []plan.Step{
			published("consumer-1"),
			{Name: "over", Until: []plan.State{{Kind: plan.Handled, N: ordered}}},
		},
		Redelivery: time.Second,
		Evidence:   ledger.Evidence{Bites: []string{strikeFailure}, HandledBefore: consumed},
	})
}

func rabbitNetworkCut() harness.Scenario {
	const prefetch = 10
	// It has ten in its hands and works on the first of them. Meanwhile the connection is lost and made anew.
	first := stater("consumer-1", strconv.Itoa(prefetch), paramPoll, "ahead", paramWork, "10ms")
	first.HoldAt, first.HoldIf = chain.AfterFetch, worker.Match{EventID: ledger.EventID(firstStream, 2*prefetch)}
	readers := []harness.Process{first, stater("consumer-2", strconv.Itoa(prefetch), paramPoll, "ahead", paramWork, "10ms")}
	return inOrder(harness.Scenario{
		Name:    "network-cut",
		Summary: "the connections are reset while a consumer has ten deliveries in its hands and works on the first: they are delivered again, in order, marked redelivered",
		Guarded: "a single active consumer, and an inbox for what was done though it could not be acked",
		LookFor: "several consumers on a queue whose messages have an order; after a network failure, states older than the newest message of their key",
		Sources: []string{docOrder, docActive, docAcks + ": automatic requeueing when a channel or connection is closed"},
		Targets: map[string]plan.Role{"leader": plan.Leader},
		Arms: []harness.Arm{
			{Name: "guarded", Role: harness.Guarded, Destination: single, Processes: readers},
			{
				Name: "two-consumers", Role: harness.Control, Destination: shared, Processes: readers,
				Break: &harness.Break{Knob: "x-single-active-consumer=false", Place: "effect", Anomaly: "stale-effect", Also: []string{"reordered-delivery"}},
			},
		},
		Steps: []plan.Step{
			published("consumer-1"),
			{
				Name: "joined", Do: harness.DoStartProcess, Process: "consumer-2",
				Until: []plan.State{{Kind: plan.ProcessAt, Process: "consumer-1", Point: chain.AfterFetch}},
			},
			{
				Name: "reset", Until: []plan.State{{Kind: plan.Received, N: 3 * prefetch}},
				Inject: &plan.Exposure{Fault: "link-cut", Target: "leader", Params: map[string]string{"mode": "reset"}},
			},
			{Name: "reconnected", Until: []plan.State{{Kind: plan.Bit, Since: "reset"}}, Heal: "reset"},
			{
				Name: "goes-on", Do: harness.DoReleaseProcess, Process: "consumer-1",
				Until: []plan.State{
					{Kind: plan.Received, N: prefetch, Since: "reconnected"},
					{Kind: plan.Handled, N: ordered - 3*prefetch, Process: "consumer-2", Arms: []string{"two-consumers"}},
				},
			},
			{Name: "over", Until: []plan.State{{Kind: plan.Handled, N: ordered}}},
		},
		Evidence: ledger.Evidence{Bites: []string{"reset", "hold-consumer-1"}, HandledBefore: 1, HandledAfter: 1, Redelivered: prefetch},
	})
}
