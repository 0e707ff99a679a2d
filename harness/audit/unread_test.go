package audit

import (
	"slices"
	"strings"
	"testing"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// Of what nobody has looked at nothing is missing: a run that ended before its final read blames nobody, and holds nothing.
func TestWhatIsNotReadIsNotMissing(t *testing.T) {
	without := func(unread ...ledger.Kind) func(js []mutate.Journal) {
		return func(js []mutate.Journal) {
			for i := range js {
				js[i].Events = slices.DeleteFunc(js[i].Events, func(e ledger.Event) bool { return slices.Contains(unread, e.Kind) })
			}
		}
	}
	store := []ledger.Kind{ledger.Stored, ledger.StoreEnd}
	tables := []ledger.Kind{ledger.Effect, ledger.OutboxRow, ledger.InboxRow, ledger.SnapshotEnd}
	for name, c := range map[string]struct {
		unread []ledger.Kind
		never  []string
	}{
		"the store":  {store, []string{"lost"}},
		"the tables": {tables, []string{"missing-effect", "lost"}},
		"anything":   {append(store, tables...), []string{"lost", "missing-effect"}},
	} {
		v := chain{
			orders: "ok ok", publish: "0 1", consume: "a+ a<0 a=0 a<1 a=1 a>2", effects: "0 1", end: 2, events: without(c.unread...),
		}.audit(t)
		if v.Arm != ArmInconclusive {
			t.Errorf("%s: %s", name, v.Arm)
		}
		for _, f := range v.Findings {
			if slices.ContainsFunc(c.never, func(anomaly string) bool { return strings.HasPrefix(f.Name(), anomaly) }) {
				t.Errorf("%s was not read, and %s is found", name, f.Name())
			}
		}
	}
}
