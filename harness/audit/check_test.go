package audit

import (
	"math"
	"reflect"
	"testing"

	"conform/harness/ledger"
)

// Each check on literal ledgers. want lists the findings; a "!" marks forbidden ones.
func TestChecks(t *testing.T) {
	expiredAllowed := func(h *ledger.Header) {
		h.Promise.Rules = map[string]ledger.Rule{"lost/expired": {Allowed: true}}
	}
	tests := []struct {
		name string
		x    history
		want string
		arm  ArmResult
	}{
		{"all is well", history{send: "ok ok ok", store: "0 1 2"}, "", Held},
		{"in doubt may be there", history{send: "ok info none", store: "0 1 2"}, "", Held},
		{"in doubt may be away", history{send: "ok info none", store: "0"}, "", Held},
		{"refused and away", history{send: "ok fail", store: "0"}, "", Held},
		{"holes in the log are no loss", history{send: "ok ok@2 ok@4", store: "0 - 1 - 2"}, "", Held},
		{"claimed and there", history{send: "sent sent-none ok", store: "0 1 2"}, "", Held},

		{"confirmed, middle", history{send: "ok ok ok", store: "0 - 2"}, "lost(confirmed)/broker=1!", Broke},
		{"confirmed, all", history{send: "ok ok", store: ""}, "lost(confirmed)/broker=2!", Broke},
		{"confirmed, and another stands there", history{send: "ok ok@1 info", store: "0 2"}, "lost(confirmed)/broker=1!", Broke},
		{"claimed in doubt", history{send: "ok sent ok@1", store: "0 2"}, "lost(claimed)/client-buffer=1!", Broke},
		{"claimed, never completed", history{send: "ok sent-none", store: "0"}, "lost(claimed)/client-buffer=1!", Broke},
		{"claimed and confirmed", history{send: "ok sent-ok", store: "0 -"}, "lost(confirmed)/broker=1!", Broke},
		{"claimed though refused", history{send: "ok sent-fail", store: "0"}, "lost(claimed)/never-published=1!", Broke},
		{"claimed, never handed over", history{send: "ok only-claimed", store: "0"}, "lost(claimed)/never-published=1!", Broke},
		{"both words", history{send: "ok ok sent", store: "0 -"}, "lost(confirmed)/broker=1! lost(claimed)/client-buffer=1!", Broke},
		{"expired", history{send: "ok ok ok", store: "2", low: 2}, "lost(confirmed)/expired=2!", Broke},
		{"expired is allowed", history{send: "ok ok ok", store: "2", low: 2, header: expiredAllowed}, "lost(confirmed)/expired=2", Held},
		{"expired is allowed, gone is not", history{send: "ok ok ok ok", store: "2 -", low: 2, header: expiredAllowed}, "lost(confirmed)/broker=1! lost(confirmed)/expired=2", Broke},
		{"lost or expired cannot be told", history{send: "ok ok@-1 ok@1", store: "2", low: 1, header: expiredAllowed}, "lost(confirmed)/expired=1", ArmInconclusive},

		{"dropped, as the broker says", history{send: "ok ok ok", store: "0 -", events: drops("unroutable", 0, 5)}, "lost(confirmed)/unroutable=2!", Broke},
		{"dropped, fewer than are gone", history{send: "ok ok ok", store: "0 -", events: drops("overflowed", 0, 1)}, "lost(confirmed)/broker=1! lost(confirmed)/overflowed=1!", Broke},
		{"dropped at another time", history{send: "ok ok ok", store: "0 -", events: drops("unroutable", math.MaxInt64, 5)}, "lost(confirmed)/broker=2!", Broke},
		{"dropped and there", history{send: "ok ok ok", store: "0 1 2", events: drops("expired", 0, 5)}, "", Held},
		{"dropped and never confirmed", history{send: "ok sent", store: "0", events: drops("expired", 0, 5)}, "lost(claimed)/client-buffer=1!", Broke},

		{"twice", history{send: "ok ok", store: "0 1 0"}, "duplicate-store=1!", Broke},
		{"three times", history{send: "ok ok", store: "0 0 0 1"}, "duplicate-store=2!", Broke},
		{"in doubt and twice", history{send: "ok info", store: "0 1 1"}, "duplicate-store=1!", Broke},
		{"a bound of two", history{send: "ok ok", store: "0 0 0 1", header: func(h *ledger.Header) {
			h.Promise.Rules = map[string]ledger.Rule{"duplicate-store": {Bound: 2}}
		}}, "duplicate-store=2", Held},
		{"a bound of one", history{send: "ok ok", store: "0 0 0 1", header: func(h *ledger.Header) {
			h.Promise.Rules = map[string]ledger.Rule{"duplicate-store": {Bound: 1}}
		}}, "duplicate-store=2!", Broke},
		{"not a place of the promise", history{send: "ok ok", store: "0 1 0", header: func(h *ledger.Header) {
			h.Promise.Places = []string{"liveness"}
		}}, "duplicate-store=1", Held},

		{"overtaken", history{send: "ok@1 ok@0", store: "1 0"}, "reordered-store=1!", Broke},
		{"one overtakes two", history{send: "ok@1 ok@2 ok@0", store: "2 0 1"}, "reordered-store=2!", Broke},
		{"a second copy is no reordering", history{send: "ok ok", store: "0 1 0"}, "duplicate-store=1!", Broke},
		{"overtaken by another key", history{send: "ok@1 ok@0", store: "1 0", header: func(h *ledger.Header) {
			h.Workload.Keys = 1 << 30
		}}, "", Held},

		{"never sent", history{send: "ok", store: "0 1"}, "phantom=1!", Broke},
		{"refused, and there", history{send: "ok fail", store: "0 1"}, "resurrected=1!", Broke},
		{"altered", history{send: "ok ok", store: "0 1x"}, "corrupted=1!", Broke},
		{"unreadable", history{send: "ok", store: "0 ?"}, "corrupted=1!", Broke},
		{"foreign", history{send: "ok", store: "0 !"}, "misrouted=1!", Broke},
		{"wrong key", history{send: "ok ok", store: "0 1k"}, "misrouted=1!", Broke},
		{"two views, two values", history{send: "ok ok", store: "0 1", committed: "0 1x"}, "corrupted=1! conflict=1!", Broke},
		{"missing in one view", history{send: "ok ok", store: "0 1", committed: "0 -"}, "conflict=1!", Broke},
		{"only the committed view was read", history{send: "ok ok", store: "0 1", events: dropView(ledger.ViewRaw)}, "", Held},
		{"only the raw view was read", history{send: "ok ok", store: "0 1", committed: "none"}, "", Held},

		{"committed", history{send: "ok ok", store: "0 1 -", txns: "0-1:ok"}, "", Held},
		{"aborted and hidden", history{send: "ok ok", store: "0 1 -", committed: "- - -", txns: "0-1:fail"}, "", Held},
		{"aborted, only the committed view was read", history{send: "ok ok ok", store: "0 1 2", committed: "- - 2", txns: "0-1:fail", events: dropView(ledger.ViewRaw)}, "", Held},
		{"aborted and visible", history{send: "ok ok", store: "0 1 -", txns: "0-1:fail"}, "aborted-read=2!", Broke},
		{"in doubt, whole", history{send: "ok ok", store: "0 1 -", txns: "0-1:info"}, "", Held},
		{"in doubt, hidden", history{send: "ok ok", store: "0 1 -", committed: "- - -", txns: "0-1:info"}, "", Held},
		{"in doubt, torn", history{send: "ok ok", store: "0 1 -", committed: "0 - -", txns: "0-1:info"}, "torn-txn=1!", Broke},
		{"committed, torn", history{send: "ok ok", store: "0 1 -", committed: "- 1 -", txns: "0-1:ok"}, "torn-txn=1!", Broke},
		{"committed, hidden", history{send: "ok ok", store: "0 1 -", committed: "- - -", txns: "0-1:ok"}, "conflict=2!", Broke},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			v := test.x.audit(t)
			if got := summary(v); got != test.want {
				t.Errorf("found %q, want %q\nreasons: %q", got, test.want, v.Reasons)
			}
			if v.Arm != test.arm {
				t.Errorf("arm %s, want %s: %q", v.Arm, test.arm, v.Reasons)
			}
			if (v.Arm == Broke) != (v.Story != nil) && len(v.Findings) == 0 {
				t.Errorf("a story without a finding")
			}
		})
	}
}

func TestRegions(t *testing.T) {
	v := history{send: "ok ok ok ok ok", store: "- 1 - 3 -"}.audit(t)
	want := map[Region]int{Prefix: 1, Middle: 1, Suffix: 1}
	if len(v.Findings) != 1 || !reflect.DeepEqual(v.Findings[0].Regions, want) {
		t.Errorf("got %+v, want regions %v", v.Findings, want)
	}
}

// Wrong partitions need two of them.
func TestMisroutedPartition(t *testing.T) {
	two := func(h *ledger.Header) { h.Destinations[0].Partitions = 2 }
	if v := (history{send: "ok ok", store: "0 1", header: two}).audit(t); v.Arm != Held {
		t.Errorf("%s %q %q", v.Arm, summary(v), v.Reasons)
	}
	if v := (history{send: "ok ok", store: "0 1p", header: two}).audit(t); v.Arm != Broke || summary(v) != "misrouted=1!" {
		t.Errorf("%s %q", v.Arm, summary(v))
	}
}

func TestLostTable(t *testing.T) {
	broker := findingKey{Lost, "confirmed", Broker}
	buffer := findingKey{Lost, "claimed", ClientBuffer}
	never := findingKey{Lost, "claimed", NeverPublished}
	tests := []struct {
		name    string
		f       flags
		invoked bool
		want    findingKey
	}{
		{"the zero value is no finding", 0, true, findingKey{}},
		{"confirmed", completed | confirmed, true, broker},
		{"confirmed and claimed", completed | confirmed | claimed, true, broker},
		{"confirmed below the start", completed | confirmed | placed | belowStart, true, findingKey{Lost, "confirmed", Expired}},
		{"confirmed, never invoked", completed | confirmed, false, findingKey{}},
		{"confirmed and refused", completed | confirmed | refused, true, findingKey{}},
		{"in doubt and claimed", completed | claimed, true, buffer},
		{"open and claimed", claimed, true, buffer},
		{"claimed, never invoked", claimed, false, never},
		{"refused and claimed", completed | refused | claimed, true, never},
		{"in doubt", completed, true, findingKey{}},
		{"refused", completed | refused, true, findingKey{}},
		{"stored raw", completed | confirmed | storedRaw, true, findingKey{}},
		{"stored committed", completed | confirmed | storedCommitted, true, findingKey{}},
		{"in the dead letter queue", completed | confirmed | storedDead, true, findingKey{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, lost := lostAs(test.f, test.invoked)
			if got != test.want || lost != (test.want != findingKey{}) {
				t.Errorf("got %v %v, want %v", got, lost, test.want)
			}
		})
	}
}

func TestEarlyRead(t *testing.T) {
	for _, test := range []struct {
		name string
		at   int64
		how  string
		want string
	}{
		{"before the commit was asked for", 26 * ms, "0-1:ok", "early-read=1!"},
		{"after it", 28 * ms, "0-1:ok", ""},
		{"of an aborted one", 28 * ms, "0-1:fail", "aborted-read=1!"},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := history{send: "ok ok", store: "0 1 -", txns: test.how}
			if test.how == "0-1:fail" {
				x.committed = "- - -"
			}
			x.events = func(js []journal) {
				js[reader].Events = append([]ledger.Event{{Kind: ledger.Received, View: ledger.ViewCommitted, Stream: 1, Seq: 0, Consumer: 1, At: test.at}}, js[reader].Events...)
			}
			if v := x.audit(t); summary(v) != test.want {
				t.Errorf("found %q, want %q", summary(v), test.want)
			}
		})
	}
}
