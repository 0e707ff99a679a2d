package suites

import (
	"context"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/suites/chain"
)

func init() { register(externalEffect(onKafka)) }

// externalEffect is the suite of effects outside of the database: payments at a service of its own.
func externalEffect(b broker) harness.Suite {
	return harness.Suite{
		Name:   "external-effect",
		System: b.system,
		With:   []system.System{postgresSystem.System},
		Title:  "each order is paid once, and what the shop believes about a payment is true",
		Promise: ledger.Promise{
			Text:   "each committed order is paid exactly once at a service that acts and then times out, and no order is taken for unpaid that is paid",
			Start:  "the commit of the order's transaction",
			End:    "the payment service's book, once there is nothing left to pay",
			Places: []string{"effect"},
		},
		Scenarios: []harness.Scenario{b.actThenTimeout(), b.insideTransaction(), b.unresolvable()},
	}
}

var paymentSources = []string{
	"IETF draft, The Idempotency-Key HTTP Header Field",
	"Stripe API reference: idempotent requests",
}

// paying fills in what all scenarios with payments have: orders that begin in the database and come by the broker, an
// executor, and the service.
func (b broker) paying(s harness.Scenario) harness.Scenario {
	s = chained(s)
	s.Tables = []string{tableOrders, ledger.TableOutbox, tablePayments}
	s.Chain.Effects = []ledger.EffectTable{{Name: tablePayments}}
	s.Snapshot = snapshotTables(tableOrders, ledger.TableOutbox) // the service records its book itself
	s.Load.Rate = 50                                             // each payment is a call
	for i := range s.Arms {
		s.Arms[i].Producer = b.orders(nil)
		s.Arms[i].Processes = append(s.Arms[i].Processes, b.relay("relay-1", nil))
	}
	return s
}

// paymentService is the service's process; it is held at the answer to a payment until its client has given up.
func paymentService(params map[string]string, held int) harness.Process {
	p := harness.Process{Name: processPayment, Role: rolePayment, Listen: true, Params: params}
	if held > 0 {
		p.HoldAt, p.HoldNth = chain.AfterPaymentMade, held
	}
	return p
}

func executor(params map[string]string) harness.Process {
	return harness.Process{Name: "executor", Role: roleExecutor, Params: params}
}

// silence waits until the service is silent about a payment, and until it has been asked for more.
func silence() []plan.Step {
	return []plan.Step{
		{Name: "silent", Until: []plan.State{{Kind: plan.ProcessAt, Process: processPayment, Point: chain.AfterPaymentMade}}},
		{
			Name: "over", Do: harness.DoReleaseProcess, Process: processPayment,
			Until: []plan.State{{Kind: plan.Published, N: seen, Since: "silent", Process: processPayment}},
		},
		handledMore("over"),
	}
}

func (b broker) actThenTimeout() harness.Scenario {
	arms := func(pair string) []harness.Arm {
		return b.pairArms(pair, "effect", paramCharge, func(a *harness.Arm, function string) {
			a.Processes = []harness.Process{
				b.reader("consumer-1", map[string]string{paramHandler: "PlacePaidOrder"}),
				executor(map[string]string{paramCharge: function}), paymentService(nil, seen),
			}
		})
	}
	return b.paying(harness.Scenario{
		Name: "act-then-timeout", Window: "W5",
		Summary: "the payment service makes a payment and does not answer until its client has given up",
		Guarded: "an idempotency key that is a function of the order's event, and a look-up where the outcome is unknown",
		LookFor: lookFor("external-effect/act-then-timeout/without-key") + "; " + lookFor("external-effect/act-then-timeout/timeout-is-failure"),
		Sources: paymentSources,
		Arms: append(arms("external-effect/act-then-timeout/without-key"),
			arms("external-effect/act-then-timeout/timeout-is-failure")[1]),
		Steps:    silence(),
		Evidence: ledger.Evidence{Bites: []string{"hold-" + processPayment}, HandledAfter: seen},
	})
}

func (b broker) insideTransaction() harness.Scenario {
	return b.paying(harness.Scenario{
		Name: "inside-transaction", Window: "W5",
		Summary: "a consumer is killed when it has asked for a payment, or for the wish to pay, and not committed: the event comes again",
		Guarded: "the wish to pay is committed with the order, and an executor pays under the order's key",
		LookFor: lookFor("external-effect/inside-transaction"),
		Sources: paymentSources,
		Arms: b.pairArms("external-effect/inside-transaction", "effect", paramHandler, func(a *harness.Arm, function string) {
			p := b.reader("consumer-1", map[string]string{paramHandler: function})
			p.CrashAt, p.CrashNth, p.Restart = chain.AfterPaymentCall, 2*seen, true
			a.Processes = []harness.Process{p, executor(nil), paymentService(nil, 0)}
		}),
		Steps:    crashedOnce(),
		Evidence: ledger.Evidence{Bites: []string{"crash-consumer-1"}, HandledBefore: seen, HandledAfter: seen, Redelivered: 1},
	})
}

func (b broker) unresolvable() harness.Scenario {
	return b.paying(harness.Scenario{
		Name: "unresolvable", Window: "W5", Cost: 20 * time.Second,
		Summary: "a service that knows no idempotency keys and cannot be asked makes a payment and does not answer",
		Guarded: "the payment is reported as in doubt, a case for a person: neither done nor failed, and not tried again",
		LookFor: "payments that wait for a person: SELECT * FROM payment_intents WHERE status = 'in doubt', and their age",
		Sources: paymentSources,
		Arms: []harness.Arm{{
			Name: "keyless", Role: harness.Observation, Destination: b.destination, Code: &harness.Code{Guarded: "ExecuteIntents"},
			Reason: "no code can know the outcome; what it shows is that exactly the one payment is in doubt, and none is made twice",
			Processes: []harness.Process{
				b.reader("consumer-1", map[string]string{paramHandler: "PlacePaidOrder"}), executor(nil),
				paymentService(map[string]string{paramKeyless: "true"}, seen),
			},
		}},
		Gates: map[string]harness.Gate{
			"one payment is in doubt": func(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
				return rowsIn(ctx, e, s.Arms, 1, "SELECT count(*) FROM payment_intents WHERE status = 'in doubt'")
			},
		},
		Steps: append(silence(), plan.Step{
			Name: "reported", Until: []plan.State{{Kind: plan.Custom, Name: "one payment is in doubt"}},
		}),
		Evidence: ledger.Evidence{Bites: []string{"hold-" + processPayment}, HandledAfter: seen},
	})
}
