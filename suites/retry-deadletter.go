package suites

import (
	"context"
	"strconv"
	"time"

	"conform/harness"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/suites/chain"
)

// retryDeadletter is the suite of retries and dead letters on a broker.
func retryDeadletter(b broker) harness.Suite {
	return harness.Suite{
		Name:   b.suite("retry-deadletter"),
		System: b.system,
		With:   []system.System{postgresSystem.System},
		Title:  "what fails is tried again if that helps, and else kept with all that a person needs",
		Promise: ledger.Promise{
			Text:   "each event whose send was confirmed has its effect exactly once, or is a dead letter that tells all about its failure and no secret; no event holds up those behind it for longer than a few seconds",
			Start:  "the confirm that the producer saw",
			End:    "the effects and the dead letters, read in one snapshot once the consumers' group has no lag",
			Places: []string{"effect", "delivery"}, MaxStall: 4 * time.Second,
		},
		Scenarios: []harness.Scenario{b.poison(), b.temporary(), b.unknownOutcome(), b.replayedLetters(), b.recordOfFailure()},
	}
}

var retrySources = []string{
	"Marc Brooker, Exponential Backoff And Jitter (AWS architecture blog)",
	"Gregor Hohpe, Bobby Woolf, Enterprise Integration Patterns: dead letter channel, invalid message channel",
}

// retrying are the arms of a pair of retriers; params say how the work fails.
func (b broker) retrying(pair, place string, params map[string]string) []harness.Arm {
	return b.pairArms(pair, place, paramRetry, func(a *harness.Arm, function string) {
		a.Processes = []harness.Process{b.reader("consumer-1", with(params, paramRetry, function, paramFailEvent, strconv.Itoa(failing)))}
		if params[paramFailAs] == "permanent" {
			a.Letters.Events = []uint64{failingEvent}
		}
	})
}

// failingEvent is the event on which the work fails.
var failingEvent = ledger.EventID(firstStream, failing)

// failedOnce waits until the work on the event has failed, and for what comes after.
func failedOnce() []plan.Step {
	return []plan.Step{
		{Name: "failed", Until: []plan.State{{Kind: plan.Handled, N: failing}}},
		handledMore("failed"),
	}
}

func (b broker) poison() harness.Scenario {
	return delivered(harness.Scenario{
		Name: "poison", Cost: 30 * time.Second,
		Summary: "an event comes whose work can never succeed",
		Guarded: "the error is classified: what is permanent is a dead letter at once, and the next event's turn comes",
		LookFor: lookFor("retry-deadletter/poison"),
		Sources: retrySources,
		Arms:    b.retrying("retry-deadletter/poison", "liveness", map[string]string{paramFailAs: "permanent", paramFailTimes: "-1"}),
		Steps: []plan.Step{
			{Name: "failed", Until: []plan.State{{Kind: plan.Handled, N: failing}}},
			// Here time itself is what the promise is about.
			{Name: "waited", Until: []plan.State{{Kind: plan.Elapsed, Hold: 6 * time.Second, Since: "failed"}, {Kind: plan.Handled, N: seen, Since: "failed", Arms: []string{"guarded"}}}},
		},
		Evidence: ledger.Evidence{Bites: []string{strikeFailure}, HandledBefore: seen},
	})
}

func (b broker) temporary() harness.Scenario {
	return delivered(harness.Scenario{
		Name:    "temporary",
		Summary: "the work on an event fails twice, and then succeeds",
		Guarded: "what is temporary is tried again, three times in all, with a backoff and jitter",
		LookFor: lookFor("retry-deadletter/temporary"),
		Sources: retrySources,
		Arms:    b.retrying("retry-deadletter/temporary", "effect", map[string]string{paramFailAs: "temporary", paramFailTimes: "2"}),
		Steps:   failedOnce(),
		Evidence: ledger.Evidence{
			Bites: []string{strikeFailure}, HandledBefore: seen, HandledAfter: seen,
		},
	})
}

func (b broker) unknownOutcome() harness.Scenario {
	return delivered(harness.Scenario{
		Name: "unknown-outcome", Window: "W5",
		Summary: "the work on an event is done, and its outcome is not known",
		Guarded: "it is looked up before anything is tried again",
		LookFor: lookFor("retry-deadletter/unknown-outcome"),
		Sources: retrySources,
		Arms:    b.retrying("retry-deadletter/unknown-outcome", "effect", map[string]string{paramFailAs: "after-business-commit"}),
		Steps:   failedOnce(),
		Evidence: ledger.Evidence{
			Bites: []string{strikeFailure}, HandledBefore: seen, HandledAfter: seen,
		},
	})
}

func (b broker) replayedLetters() harness.Scenario {
	return delivered(harness.Scenario{
		Name:    "replay",
		Summary: "a dead letter, whose cause is mended, is replayed twice, once the alarm of its age was raised",
		Guarded: "it is replayed under its own event id: the second one is a duplicate; with the replay the alarm is over",
		LookFor: lookFor("retry-deadletter/replay"),
		Sources: retrySources,
		Arms: b.pairArms("retry-deadletter/replay", "effect", paramLetters, func(a *harness.Arm, function string) {
			a.Processes = []harness.Process{
				b.reader("consumer-1", map[string]string{paramRetry: "Retry", paramFailEvent: strconv.Itoa(failing), paramFailAs: "permanent"}),
				b.replayer("replayer", map[string]string{paramLetters: function}),
			}
			a.Letters.Passing = []uint64{failingEvent}
		}),
		Steps: []plan.Step{
			{Name: "failed", Until: []plan.State{{Kind: plan.Handled, N: failing + seen}}},
			{
				Name: "again", Do: harness.DoStartProcess, Process: "replayer",
				Until: []plan.State{{Kind: plan.Custom, Name: alarmRaised}},
			},
			{Name: "sent", Until: []plan.State{{Kind: plan.ProcessEnded, Process: "replayer"}, {Kind: plan.Custom, Name: alarmOver}}},
			handledMore("sent"),
		},
		Gates:    map[string]harness.Gate{alarmRaised: alarm("letters > 0 AND age >= 1"), alarmOver: alarm("letters = 0")},
		Evidence: ledger.Evidence{Bites: []string{strikeFailure, strikeReplay}, HandledBefore: seen, HandledAfter: seen},
	})
}

// The gates of the alarm of dead letters: an old one is there that nobody has taken care of, and none is.
const (
	alarmRaised = "the dead letters' alarm is raised"
	alarmOver   = "the dead letters' alarm is over"
)

// alarm is a gate that looks at chain.OldestLetter.
func alarm(condition string) harness.Gate {
	return func(ctx context.Context, e harness.Env, s plan.State) (bool, string, error) {
		return rowsIn(ctx, e, s.Arms, 1, "SELECT count(*) FROM ("+chain.OldestLetter+") AS alarm (letters, age) WHERE "+condition)
	}
}

func (b broker) recordOfFailure() harness.Scenario {
	arms := func(pair string) []harness.Arm {
		return b.pairArms(pair, "delivery", paramLetter, func(a *harness.Arm, function string) {
			a.Processes = []harness.Process{b.reader("consumer-1", map[string]string{
				paramRetry: "Retry", paramLetter: function, paramFailEvent: strconv.Itoa(failing), paramFailAs: "secret", paramFailTimes: "-1",
			})}
			a.Letters.Events = []uint64{failingEvent}
		})
	}
	return delivered(harness.Scenario{
		Name:    "record-of-failure",
		Summary: "the work on an event fails for good, with an error that quotes a password",
		Guarded: "the dead letter keeps event id, destination, class, times, attempts and error, and the error is redacted",
		LookFor: lookFor("retry-deadletter/record-of-failure/secret") + "; " + lookFor("retry-deadletter/record-of-failure/fields"),
		Sources: append([]string{"OWASP, Logging Cheat Sheet: data to exclude"}, retrySources...),
		Arms:    append(arms("retry-deadletter/record-of-failure/secret"), arms("retry-deadletter/record-of-failure/fields")[1]),
		Steps:   failedOnce(),
		Evidence: ledger.Evidence{
			Bites: []string{strikeFailure}, HandledBefore: seen, HandledAfter: seen,
		},
	})
}
