package audit

import (
	"slices"
	"strings"
	"testing"
	"time"

	"conform/harness/ledger"
)

// striking is a history with a strike before send 3 and a heal before send 6, whose evidence is
// complete: 3 confirmed before, send 2 in flight at the strike, 1 confirmed and 1 refused and 1
// silent between, 2 confirmed after.
func striking() history {
	most := 1
	return history{
		send: "ok ok ok ok fail info ok ok", store: "0 1 2 3 6 7", strike: 3, heal: 6,
		header: func(h *ledger.Header) {
			h.Evidence = ledger.Evidence{
				Before: 2, InFlight: 1, After: 2, Bites: []string{"cut"}, Ends: []string{"producer-1"},
				During: ledger.During{Confirmed: 1, Refused: 1, Silent: 1, RefusedOrSilent: 2, MaxConfirmed: &most},
			}
		},
		events: func(js []journal) {
			// Send 2 was on its way at the strike (39 ms).
			each(js, func(e *ledger.Event) {
				if e.Kind == ledger.Complete && e.Seq == 2 {
					e.At = 40 * ms
				}
			})
		},
	}
}

func each(js []journal, f func(e *ledger.Event)) {
	for i := range js {
		for k := range js[i].Events {
			f(&js[i].Events[k])
		}
	}
}

func remove(js []journal, gone func(e *ledger.Event) bool) {
	for i := range js {
		js[i].Events = slices.DeleteFunc(js[i].Events, func(e ledger.Event) bool { return gone(&e) })
	}
}

// then adds a touch to a history.
func (x history) then(h func(*ledger.Header), events func(js []journal)) history {
	header, touch := x.header, x.events
	x.header = func(hd *ledger.Header) {
		if header != nil {
			header(hd)
		}
		if h != nil {
			h(hd)
		}
	}
	x.events = func(js []journal) {
		if touch != nil {
			touch(js)
		}
		if events != nil {
			events(js)
		}
	}
	return x
}

func of(kind ledger.Kind) func(*ledger.Event) bool {
	return func(e *ledger.Event) bool { return e.Kind == kind }
}

// Each missing piece of evidence makes a guarded arm that would hold inconclusive, and a control
// that would reproduce too; a broken promise stays broken wherever the finding itself is proven.
func TestEvidence(t *testing.T) {
	drop := func(kind ledger.Kind) func(js []journal) {
		return func(js []journal) { remove(js, of(kind)) }
	}
	set := func(kind ledger.Kind, f func(e *ledger.Event)) func(js []journal) {
		return func(js []journal) {
			each(js, func(e *ledger.Event) {
				if e.Kind == kind {
					f(e)
				}
			})
		}
	}
	need := func(f func(ev *ledger.Evidence)) func(*ledger.Header) {
		return func(h *ledger.Header) { f(&h.Evidence) }
	}
	tests := []struct {
		name   string
		header func(*ledger.Header)
		events func(js []journal)
		reason string    // part of a reason
		lost   ArmResult // of a guarded arm with a loss on top
	}{
		{"before", need(func(ev *ledger.Evidence) { ev.Before = 3 }), nil, "before the strike", Broke},
		{"in flight", need(func(ev *ledger.Evidence) { ev.InFlight = 2 }), nil, "in flight", Broke},
		{"confirmed during", need(func(ev *ledger.Evidence) { ev.During.Confirmed = 2 }), nil, "confirmed", Broke},
		{"refused during", need(func(ev *ledger.Evidence) { ev.During.Refused = 2 }), nil, "refused", Broke},
		{"silent during", need(func(ev *ledger.Evidence) { ev.During.Silent = 2 }), nil, "silent", Broke},
		{"refused or silent during", need(func(ev *ledger.Evidence) { ev.During.RefusedOrSilent = 3 }), nil, "refused or silent", Broke},
		{"at most during", need(func(ev *ledger.Evidence) { ev.During.MaxConfirmed = new(int) }), nil, "<= 0 confirmed", Broke},
		{"after", need(func(ev *ledger.Evidence) { ev.After = 3 }), nil, "after the heal", Broke},
		{"bite", nil, drop(ledger.Bite), "bite of cut", Broke},
		{"bite without proof", nil, set(ledger.Bite, func(e *ledger.Event) { e.Outcome, e.Detail = ledger.InDoubt, "no packet" }), "no packet", Broke},
		{"another bite", need(func(ev *ledger.Evidence) { ev.Bites = []string{"cut", "kill"} }), nil, "bite of kill", Broke},
		{"strike", nil, drop(ledger.Inject), "bite of cut", Broke},
		{"heal", nil, drop(ledger.Heal), "no heal", Broke},
		{"failed heal", nil, set(ledger.Heal, func(e *ledger.Event) { e.Outcome = ledger.Failed }), "could not be healed", Broke},
		{"end", nil, drop(ledger.WorkerEnd), "end of producer-1", Broke},
		{"unplanned end", nil, set(ledger.WorkerEnd, func(e *ledger.Event) { e.Outcome, e.Detail = ledger.InDoubt, "died of itself" }), "died of itself", Broke},
		{"worker without a segment", nil, set(ledger.WorkerEnd, func(e *ledger.Event) { e.Text = "producer-2" }), "producer-2", Broke},
		{"step", nil, set(ledger.Step, func(e *ledger.Event) { e.Outcome = ledger.InDoubt }), "not reached", Broke},
		{"no step of a plan", func(h *ledger.Header) { h.Plan = []string{"1"} }, drop(ledger.Step), "0 of its 1 steps", Broke},
		{"a short plan", func(h *ledger.Header) { h.Plan = []string{"1", "2", "3"} }, nil, "1 of its 3 steps", Broke},
		{"an end nobody asked for", need(func(ev *ledger.Evidence) { ev.Ends = nil }), drop(ledger.WorkerEnd), "is not recorded", Broke},
		{"segment end", nil, drop(ledger.SegmentEnd), "not closed", Broke},
		{"check", func(h *ledger.Header) { h.Checks = map[string]int{"of-tomorrow": 1} }, nil, "of-tomorrow", Broke},
		{"a promise of nothing", func(h *ledger.Header) { h.Promise = ledger.Promise{} }, nil, "nothing to judge", ArmInconclusive},
		{"a place without a check", func(h *ledger.Header) { h.Promise.Places = append(h.Promise.Places, "cache") }, nil, "no check looks there", Broke},
		{"no effects to see", func(h *ledger.Header) { h.Promise.Places = append(h.Promise.Places, "effect") }, nil, "names no table", Broke},
		{"no orders to see", func(h *ledger.Header) { h.Promise.Places = append(h.Promise.Places, "outbox") }, nil, "starts the chain", Broke},
		{"no deliveries to see", func(h *ledger.Header) { h.Promise.Places = append(h.Promise.Places, "delivery") }, nil, "nothing was delivered", Broke},
		{"role", func(h *ledger.Header) { h.Role = "" }, nil, "role", ArmInconclusive},
		{"two outcomes", nil, func(js []journal) {
			js[producer].Events = append(js[producer].Events, ledger.Event{Kind: ledger.Complete, Stream: 1, Seq: 0, Outcome: ledger.Failed, At: 1})
		}, "refused too", Broke},
		{"confirm of nothing", nil, func(js []journal) {
			js[producer].Events = append(js[producer].Events, ledger.Event{Kind: ledger.Complete, Stream: 1, Seq: 99, Outcome: ledger.OK, At: 1})
		}, "no invoke covers it", Broke},

		{"quiet", nil, drop(ledger.Quiet), "quiescence", ArmInconclusive},
		{"moving", nil, set(ledger.Quiet, func(e *ledger.Event) { e.Outcome, e.Detail = ledger.InDoubt, "the end moved" }), "the end moved", ArmInconclusive},
		{"end at quiescence", nil, drop(ledger.EndPosition), "at quiescence is not recorded", ArmInconclusive},
		{"a short read", nil, set(ledger.EndPosition, func(e *ledger.Event) { e.Pos.Offset += 2 }), "its end at quiescence was", ArmInconclusive},
		{"final read", nil, drop(ledger.StoreEnd), "not read to its end", ArmInconclusive},
		{"moving end", nil, set(ledger.StoreEnd, func(e *ledger.Event) { e.N++ }), "moved from", ArmInconclusive},
		{"count", nil, set(ledger.StoreEnd, func(e *ledger.Event) { e.Count++ }), "the broker counts", ArmInconclusive},
		{"records beyond the end", nil, set(ledger.StoreEnd, func(e *ledger.Event) { e.N -= 4; e.Pos.Offset -= 4 }), "outside of", ArmInconclusive},
		{"records below the start", nil, set(ledger.StoreEnd, func(e *ledger.Event) { e.Low = 1 }), "outside of", ArmInconclusive},
		{"views of other lengths", nil, set(ledger.StoreEnd, func(e *ledger.Event) {
			if e.View == ledger.ViewCommitted {
				e.N, e.Pos.Offset = e.N+1, e.Pos.Offset+1
			}
		}), "the raw view at", ArmInconclusive},
		{"two ends", nil, func(js []journal) {
			js[reader].Events = append(js[reader].Events, ledger.Event{Kind: ledger.StoreEnd, Pos: ledger.Position{Offset: 9}, N: 9, Count: -1})
		}, "read twice", ArmInconclusive},
		{"a damaged store", nil, func(js []journal) {
			js[reader].Damage = func(b []byte) []byte { b[len(b)-3] ^= 1; return b }
		}, "damaged", ArmInconclusive},
		{"a damaged producer", nil, func(js []journal) {
			js[producer].Damage = func(b []byte) []byte { b[len(b)-3] ^= 1; return b }
		}, "damaged", Broke},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			v := striking().then(test.header, test.events).audit(t)
			if v.Arm != ArmInconclusive {
				t.Errorf("guarded: %s", v.Arm)
			}
			if !strings.Contains(strings.Join(v.Reasons, "\n"), test.reason) {
				t.Errorf("reasons %q do not say %q", v.Reasons, test.reason)
			}

			control := func(h *ledger.Header) {
				h.Role, h.Expect = roleControl, &ledger.Expect{Anomaly: Lost, Attribution: Broker}
			}
			x := striking()
			x.store = "0 1 2 - 6 7"
			if test.name != "role" {
				if v := x.then(control, nil).then(test.header, test.events).audit(t); v.Arm != ArmInconclusive {
					t.Errorf("control: %s", v.Arm)
				}
			}
			if v := x.then(test.header, test.events).audit(t); v.Arm != test.lost {
				t.Errorf("guarded, with a loss: %s, want %s: %q %q", v.Arm, test.lost, summary(v), v.Reasons)
			}
		})
	}
}

func TestEvidenceComplete(t *testing.T) {
	v := striking().audit(t)
	if v.Arm != Held || len(v.Reasons) > 0 {
		t.Errorf("%s %q", v.Arm, v.Reasons)
	}
	want := Totals{Invoked: 8, Confirmed: 6, Refused: 1, InDoubt: 1, Stored: 6}
	if v.Totals != want {
		t.Errorf("totals %+v, want %+v", v.Totals, want)
	}
}

func TestControls(t *testing.T) {
	tests := []struct {
		name        string
		store       string
		anomaly     string
		attribution string
		want        ArmResult
	}{
		{"as named", "0 1 2 - 6 7", Lost, Broker, Reproduced},
		{"any attribution", "0 1 2 - 6 7", Lost, "", Reproduced},
		{"another attribution", "0 1 2 - 6 7", Lost, ClientBuffer, Missed},
		{"another anomaly", "0 1 2 - 6 7", DuplicateStore, "", Missed},
		{"nothing", "0 1 2 3 6 7", Lost, Broker, Missed},
		{"others beside it", "0 1 2 - 6 7 7", Lost, Broker, ArmInconclusive},
		{"others that are known", "0 1 2 - 6 7 6 7", Lost, "", Reproduced},
		{"corruption", "0x 1 2 - 6 7", Lost, Broker, ArmInconclusive},
		{"a phantom", "0 1 2 - 6 7 99", Lost, Broker, ArmInconclusive},
		{"corruption, which is expected", "0 1 2 3 6x 7", Corrupted, "", Reproduced},
		// 0 was confirmed before the strike, and 1 behind it is there.
		{"lost long before", "- 1 2 3 6 7", Lost, Broker, ArmInconclusive},
		{"lost long before, and under the fault", "- 1 2 - 6 7", Lost, Broker, Reproduced},
		// 1 was the last that was confirmed before the strike: so does a page cache go.
		{"lost to the strike", "0 - 2 3 6 7", Lost, Broker, Reproduced},
		{"twice long before", "0 0 1 2 3 6 7", DuplicateStore, "", ArmInconclusive},
		{"twice under the fault", "0 1 2 3 3 6 7", DuplicateStore, "", Reproduced},
		{"in flight at the strike", "0 1 2 2 3 6 7", DuplicateStore, "", Reproduced},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			x := striking()
			x.store = test.store
			v := x.then(func(h *ledger.Header) {
				h.Role, h.Expect = roleControl, &ledger.Expect{Anomaly: test.anomaly, Attribution: test.attribution}
				if test.attribution == "" {
					h.Expect.Also = []string{DuplicateStore, ReorderedStore, Corrupted}
				}
			}, nil).audit(t)
			if (v.Arm == ArmInconclusive) != (len(v.Reasons) > 0 && v.Arm != Missed) {
				t.Errorf("%s for %q", v.Arm, v.Reasons)
			}
			if v.Arm != test.want {
				t.Errorf("%s, want %s: %q %q", v.Arm, test.want, summary(v), v.Reasons)
			}
		})
	}
	if v := striking().then(func(h *ledger.Header) { h.Role = roleControl }, nil).audit(t); v.Arm != ArmInconclusive {
		t.Errorf("a control that expects nothing: %s", v.Arm)
	}
}

// What a control loses is missing at every place behind: that is no other anomaly.
func TestControlSeenAtTwoPlaces(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{Unpublished, MissingEffect, true},
		{MissingEffect, Lost, true},
		{PhantomEffect, PublishedUncommitted, true},
		{Lost, DuplicateStore, false},
		{MissingEffect, DuplicateEffect, false},
		{ReorderedStore, DuplicateEffect, false},
		{Lost, Lost, false},
	} {
		if got := elsewhere(test.a, test.b); got != test.want || elsewhere(test.b, test.a) != got {
			t.Errorf("%s and %s: %t", test.a, test.b, got)
		}
	}
	for expect, want := range map[string]ArmResult{Unpublished: Reproduced, MissingEffect: Reproduced, DuplicateEffect: Missed} {
		x := chain{orders: two, publish: "1", consume: "a+ a<0 a=0 a>1", effects: "1", end: 1}
		x.header = func(h *ledger.Header) { h.Role, h.Expect = roleControl, &ledger.Expect{Anomaly: expect} }
		h, js := x.build(t)
		v, err := Audit(h, opener(t, js))
		if err != nil {
			t.Fatal(err)
		}
		if v.Arm != want {
			t.Errorf("%s: %s %q %q", expect, v.Arm, summary(v), v.Reasons)
		}
	}
}

// acks=0: nothing is ever confirmed, so claims count before and after.
func TestClaimsCountWhereNothingConfirms(t *testing.T) {
	x := history{
		send: "sent sent sent sent sent", store: "0 1 4", strike: 2, heal: 4,
		header: func(h *ledger.Header) {
			h.Role, h.Expect = roleControl, &ledger.Expect{Anomaly: Lost, Attribution: ClientBuffer}
			h.Evidence = ledger.Evidence{Before: 2, After: 1, Bites: []string{"cut"}, During: ledger.During{MaxConfirmed: new(int)}}
		},
	}
	if v := x.audit(t); v.Arm != Reproduced || summary(v) != "lost(claimed)/client-buffer=2!" {
		t.Errorf("%s %q %q", v.Arm, summary(v), v.Reasons)
	}
}

// atTheEnd makes producer-1 end by its own kill, its segment open.
func atTheEnd(js []journal) {
	each(js, func(e *ledger.Event) {
		if e.Kind == ledger.WorkerEnd {
			e.Detail = "killed at crash point after-send"
		}
	})
	js[producer].Events = js[producer].Events[:len(js[producer].Events)-1]
}

// A producer that kills itself leaves its segment open, and may leave half a frame behind.
func TestPlannedKill(t *testing.T) {
	killed := func(js []journal) {
		atTheEnd(js)
		js[producer].Damage = func(b []byte) []byte { return append(b, 40, 0, 0, 0, 1) }
	}
	v := history{send: "ok none none", store: "0 2"}.then(nil, killed).audit(t)
	if v.Arm != Held || len(v.Damage) != 1 || v.Totals.Recovered != 1 {
		t.Errorf("%s %q, damage %q, totals %+v", v.Arm, v.Reasons, v.Damage, v.Totals)
	}
}

// Of a killed worker's segment nothing but its length shows that the end is missing: the confirm of a message
// that is lost may have stood there.
func TestKilledSegmentIsCut(t *testing.T) {
	x := history{send: "ok ok ok", store: "0 1"}
	whole := x.then(nil, atTheEnd)
	if v := whole.audit(t); v.Arm != Broke {
		t.Errorf("whole: %s %q", v.Arm, summary(v))
	}
	cut := whole.then(nil, func(js []journal) {
		length := measured(t, js)[engine].Events
		js[engine].Events = length
		remove(js, func(e *ledger.Event) bool { return e.Kind == ledger.Complete && e.Seq == 2 })
	})
	if v := cut.audit(t); v.Arm != ArmInconclusive || len(v.Damage) != 1 || !strings.Contains(v.Damage[0], "when its worker ended") {
		t.Errorf("cut: %s %q, damage %q", v.Arm, v.Reasons, v.Damage)
	}
	unknown := whole.then(nil, func(js []journal) {
		each(js, func(e *ledger.Event) {
			if e.Kind == ledger.WorkerEnd {
				e.Count = -1
			}
		})
	})
	unknown.store = "0 1 2"
	if v := unknown.audit(t); v.Arm != ArmInconclusive {
		t.Errorf("of unknown length: %s", v.Arm)
	}
	if v := unknown.then(func(h *ledger.Header) { delete(h.Checks, EvidenceRules) }, nil).audit(t); v.Arm != Held {
		t.Errorf("of unknown length, recorded before lengths were: %s %q", v.Arm, v.Reasons)
	}
}

// What was asked of the time after a step is not fulfilled by what happened before it or after the next strike. A
// lone leader that confirms is no lone leader that refuses, however much is silent once it is dead.
func TestDuringNamesItsStretch(t *testing.T) {
	// The strike "cut" at 39 ms, "alone" at 55, "killed" at 75, the heal of both at 109. Send i is made at 11+10i ms.
	alone := func(js []journal) {
		add := []ledger.Event{
			{Kind: ledger.Step, Text: "alone", Outcome: ledger.OK, At: 55 * ms},
			{Kind: ledger.Inject, Text: "killed", At: 75 * ms},
			{Kind: ledger.Bite, Text: "killed", Outcome: ledger.OK, At: 75 * ms},
			{Kind: ledger.Heal, Text: "killed", Outcome: ledger.OK, At: 109 * ms},
		}
		js[engine].Events = append(add, js[engine].Events...)
	}
	asked := func(at string) func(h *ledger.Header) {
		return func(h *ledger.Header) {
			h.Evidence = ledger.Evidence{Bites: []string{"cut", "killed"}, During: ledger.During{At: at, MaxConfirmed: new(int), RefusedOrSilent: 3}}
		}
	}
	tests := []struct {
		name, send, store, at string
		want                  ArmResult
	}{
		//                  0  1  2  |3    4    |5    |6    7    8    |9
		{"guarded, silent", "ok ok ok none none none none none info ok", "0 1 2 9", "alone", Held},
		{"guarded, refused", "ok ok ok none fail fail none none info ok", "0 1 2 9", "alone", Held},
		{"control, which confirms alone", "ok ok ok none none ok none none none ok", "0 1 2 5 9", "alone", ArmInconclusive},
		{"control, of the time after the kill", "ok ok ok ok ok ok none none none ok", "0 1 2 3 4 5 9", "alone", ArmInconclusive},
		{"silent for too few", "ok ok ok none fail none none none none ok", "0 1 2 9", "", Held},
		{"confirmed before it was alone", "ok ok ok ok none none none none none ok", "0 1 2 3 9", "alone", Held},
		{"confirmed before it was alone, asked from the strike", "ok ok ok ok none none none none none ok", "0 1 2 3 9", "", ArmInconclusive},
		{"a step that was not reached", "ok ok ok none none none none none none ok", "0 1 2 9", "nowhere", ArmInconclusive},
		{"from the second strike", "ok ok ok ok ok ok none none none none", "0 1 2 3 4 5", "killed", Held},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			x := history{send: test.send, store: test.store, strike: 3, heal: 10}.then(asked(test.at), alone)
			if v := x.audit(t); v.Arm != test.want {
				t.Errorf("%s %q", v.Arm, v.Reasons)
			}
		})
	}
}

func TestInFlightAt(t *testing.T) {
	// Send 2 is in flight at the strike, none at the second one.
	second := func(js []journal) {
		js[engine].Events = append([]ledger.Event{
			{Kind: ledger.Inject, Text: "second", At: 68 * ms},
			{Kind: ledger.Heal, Text: "second", Outcome: ledger.OK, At: 69 * ms},
		}, js[engine].Events...)
	}
	for at, want := range map[string]ArmResult{"": Held, "cut": Held, "second": ArmInconclusive, "nowhere": ArmInconclusive} {
		x := striking().then(func(h *ledger.Header) {
			h.Evidence.During, h.Evidence.InFlightAt = ledger.During{}, at
		}, second)
		if v := x.audit(t); v.Arm != want {
			t.Errorf("in flight at %q: %s %q", at, v.Arm, v.Reasons)
		}
	}
}

func TestEndsBuffered(t *testing.T) {
	for held, want := range map[int64]ArmResult{0: ArmInconclusive, 1: Held} {
		x := history{send: "ok none", store: "0"}.then(func(h *ledger.Header) { h.Evidence.EndsBuffered = 1 }, func(js []journal) {
			each(js, func(e *ledger.Event) {
				if e.Kind == ledger.WorkerEnd {
					e.N = held
				}
			})
		})
		if v := x.audit(t); v.Arm != want {
			t.Errorf("%d buffered: %s %q", held, v.Arm, v.Reasons)
		}
	}
}

// Nothing that was asked for is no evidence.
func TestNothingAsked(t *testing.T) {
	none := history{send: "ok", store: "0"}.then(func(h *ledger.Header) { h.Evidence = ledger.Evidence{} }, nil)
	if v := none.audit(t); v.Arm != ArmInconclusive {
		t.Errorf("guarded: %s", v.Arm)
	}
	lost := none
	lost.store = "-"
	control := func(h *ledger.Header) { h.Role, h.Expect = roleControl, &ledger.Expect{Anomaly: Lost} }
	if v := lost.then(control, nil).audit(t); v.Arm != ArmInconclusive {
		t.Errorf("control: %s", v.Arm)
	}
	if v := lost.audit(t); v.Arm != Broke {
		t.Errorf("guarded, with a loss: %s", v.Arm)
	}
	if v := none.then(func(h *ledger.Header) { h.Role = roleObservation }, nil).audit(t); v.Arm != Held {
		t.Errorf("an observation, which may be of no fault: %s %q", v.Arm, v.Reasons)
	}
	if v := (history{}).audit(t); v.Arm != ArmInconclusive {
		t.Errorf("nothing sent: %s", v.Arm)
	}
}

// What is lost is also what was buffered when the process ended: it was called sent before, and nothing ever
// completed it.
func TestControlOfAPlannedEnd(t *testing.T) {
	x := history{send: "sent-ok sent-none", store: "0"}.then(func(h *ledger.Header) {
		h.Role, h.Expect = roleControl, &ledger.Expect{Anomaly: Lost, Attribution: ClientBuffer}
	}, nil)
	if v := x.audit(t); v.Arm != Reproduced {
		t.Errorf("%s %q %q", v.Arm, summary(v), v.Reasons)
	}
}

func TestRulesOfEvidenceDiffer(t *testing.T) {
	h := baseHeader()
	h.Checks[EvidenceRules] = 1
	if got := Compare(h, h.Promise, Checks()); len(got) != 1 || !strings.Contains(got[0], "other rules") {
		t.Errorf("version 1: %q", got)
	}
	delete(h.Checks, EvidenceRules)
	if got := Compare(h, h.Promise, Checks()); len(got) != 1 || !strings.Contains(got[0], "other rules") {
		t.Errorf("none: %q", got)
	}
}

// A heal after the load was ended is cleaning up, and not the heal after which sends must succeed.
func TestCleanupHealIsNotTheLastHeal(t *testing.T) {
	x := striking().then(nil, func(js []journal) {
		add := []ledger.Event{
			{Kind: ledger.Inject, Text: "second", At: 68 * ms},
			{Kind: ledger.Heal, Text: "second", Outcome: ledger.OK, At: 900 * ms},
			{Kind: ledger.Heal, Text: "cut", Outcome: ledger.OK, At: 901 * ms},
		}
		js[engine].Events = append(add, js[engine].Events...)
	})
	if v := x.audit(t); v.Arm != Held {
		t.Errorf("%s %q", v.Arm, v.Reasons)
	}
}

func TestEmptyLedger(t *testing.T) {
	v, err := Audit(ledger.Header{}, func() ([]Source, error) { return nil, nil })
	if err != nil || v.Arm != ArmInconclusive {
		t.Errorf("%s %v", v.Arm, err)
	}
	for _, role := range []string{roleGuarded, roleControl, roleObservation} {
		h := baseHeader()
		h.Role = role
		if v, err := Audit(h, func() ([]Source, error) { return nil, nil }); err != nil || v.Arm != ArmInconclusive {
			t.Errorf("%s: %s %v", role, v.Arm, err)
		}
	}
}

func TestLiveness(t *testing.T) {
	// Confirms at 16, 26, 36, 40(send 2 late), 56, 116, 126 ms: send i is sent at 11+10i and confirmed 5 ms
	// later; 4 and 5 are not confirmed at all.
	v := striking().audit(t)
	l := v.Liveness
	if l.Before.Count != 2 || l.During.Count != 2 || l.After.Count != 2 {
		t.Errorf("before %d, during %d, after %d", l.Before.Count, l.During.Count, l.After.Count)
	}
	// Send 2 was in flight at the strike, and is no measure of the time before it.
	if l.Before.Max > 5010*time.Microsecond || l.During.Max < 9*time.Millisecond {
		t.Errorf("before at most %s, during at most %s", l.Before.Max, l.During.Max)
	}
	if l.During.P50 < 5*time.Millisecond || l.During.P50 > 5010*time.Microsecond {
		t.Errorf("p50 %s", l.During.P50)
	}
	// Strike at 39 ms; sends 3 (41 ms) confirmed at 46 ms, 6 (71 ms) at 76 ms.
	if l.FirstSuccess != 7*time.Millisecond {
		t.Errorf("first success after %s", l.FirstSuccess)
	}
	if l.LongestGap != 30*time.Millisecond || l.GapFrom != 46*ms {
		t.Errorf("longest gap %s from %d", l.LongestGap, l.GapFrom)
	}
	bound := func(d time.Duration) func(*ledger.Header) {
		return func(h *ledger.Header) { h.Promise.MaxUnavailable = d }
	}
	if v := striking().then(bound(29*time.Millisecond), nil).audit(t); v.Arm != Broke || summary(v) != "unavailable=1!" {
		t.Errorf("%s %q", v.Arm, summary(v))
	}
	if v := striking().then(bound(30*time.Millisecond), nil).audit(t); v.Arm != Held {
		t.Errorf("%s %q", v.Arm, summary(v))
	}
}

func TestLivenessOfSilence(t *testing.T) {
	v := history{send: "ok ok info info", store: "0 1", strike: 2, heal: 3}.audit(t)
	if v.Liveness.FirstSuccess != -1 {
		t.Errorf("first success after %s, there was none", v.Liveness.FirstSuccess)
	}
	// The last confirm is at 26 ms, the last send at 41 ms.
	if v.Liveness.LongestGap != 15*time.Millisecond {
		t.Errorf("longest gap %s", v.Liveness.LongestGap)
	}
}

func TestSeries(t *testing.T) {
	// Confirms every 100 ms, none in the third slice, a refusal and a timeout in the fourth.
	x := history{send: "ok ok ok ok ok fail info ok", store: "0 1 2 3 4 7"}.then(nil, func(js []journal) {
		times := []int64{100, 200, 300, 400, 450, 760, 770, 780}
		each(js, func(e *ledger.Event) {
			if e.Kind == ledger.Complete {
				e.At = times[e.Seq] * ms
				e.Sent = e.At - int64(e.Seq+1)*10*ms
			}
		})
	})
	v := x.audit(t)
	want := []Bucket{
		{At: 0, Confirmed: 2, Max: 20 * time.Millisecond},
		{At: BucketWidth, Confirmed: 3, Max: 50 * time.Millisecond},
		{At: 2 * BucketWidth},
		{At: 3 * BucketWidth, Confirmed: 1, Refused: 1, InDoubt: 1, Max: 80 * time.Millisecond},
	}
	medians := []time.Duration{10 * time.Millisecond, 40 * time.Millisecond, 0, 80 * time.Millisecond}
	got := slices.Clone(v.Liveness.Series)
	for i := range got {
		if i < len(medians) && (got[i].P50 < medians[i]*88/100 || got[i].P50 > medians[i]*112/100) {
			t.Errorf("slice %d: median %s, want %s", i, got[i].P50, medians[i])
		}
		got[i].P50 = 0
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestMedianWithinAnEighth(t *testing.T) {
	for us := int64(1); us < 4e9; us = us*21/20 + 1 {
		s := slice{confirmed: 1, max: 1 << 62}
		s.latencies[latencyClass(us*1000)]++
		if got := float64(s.median().Microseconds()); us > 8 && (got < float64(us)*0.874 || got > float64(us)*1.126) {
			t.Errorf("%d us reads as %v", us, got)
		}
	}
}

// A send that met silence and was confirmed by the next leader, before the last heal, met silence
// all the same: the plan's next strike or heal ends the listening, not its last heal.
func TestSilenceBeforeAFailoverCounts(t *testing.T) {
	x := history{
		send: "ok ok ok ok ok ok", store: "0 1 2 3 4 5", strike: 1, heal: 5,
		header: func(h *ledger.Header) { h.Evidence.During.RefusedOrSilent = 2 },
		events: func(js []journal) {
			for i := range js[producer].Events {
				e := &js[producer].Events[i]
				if e.Kind == ledger.Complete && (e.Seq == 1 || e.Seq == 2) {
					e.At = 55 * ms // after the kill, before the heal
				}
			}
			at := slices.IndexFunc(js[engine].Events, func(e ledger.Event) bool { return e.Kind == ledger.Heal })
			js[engine].Events = slices.Insert(js[engine].Events, at,
				ledger.Event{Kind: ledger.Inject, Text: "killed", Detail: "node-killed on kafka-1", At: 39 * ms},
				ledger.Event{Kind: ledger.Bite, Text: "killed", Outcome: ledger.OK, Detail: "exit 137", N: 1, At: 40 * ms},
				ledger.Event{Kind: ledger.Heal, Text: "killed", Outcome: ledger.OK, At: 58 * ms})
		},
	}
	v := x.audit(t)
	for _, p := range v.Proofs {
		if p.Name == "between strike and heal" && (!p.OK || !strings.Contains(p.Got, "2")) {
			t.Errorf("two sends met silence before the kill: %+v", p)
		}
	}
	if v.Arm != Held {
		t.Errorf("%v: %v", v.Arm, v.Reasons)
	}
}

// TestCausesComeFirst: a worker that was killed from outside explains what else is missing, and is named first.
func TestCausesComeFirst(t *testing.T) {
	x := striking().then(nil, func(js []journal) {
		each(js, func(e *ledger.Event) {
			if e.Kind == ledger.WorkerEnd {
				e.Outcome, e.Detail = ledger.Failed, "died of itself: signal: killed"
			}
		})
		remove(js, func(e *ledger.Event) bool { return e.Kind == ledger.Bite || e.Kind == ledger.StoreEnd })
	})
	h, js := x.build(t)
	v, err := Audit(h, opener(t, js))
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Reasons) < 3 || !strings.HasPrefix(v.Reasons[0], "workers:") {
		t.Errorf("reasons %q", v.Reasons)
	}
}
