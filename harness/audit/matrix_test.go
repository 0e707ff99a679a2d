package audit

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

// TestKillMatrix sets each planted corruption against each check. A mutation that its check does not
// catch, a mutation that nobody catches, and a check, an anomaly or a proof that catches nothing
// all fail.
func TestKillMatrix(t *testing.T) {
	kills := map[string]map[string]int{} // what caught -> mutation -> how often
	applied := map[string]int{}
	for seed := range uint64(80) {
		r := rand.New(rand.NewPCG(seed, 1))
		// Corruptions of a chain need one; all others are as well planted into stores alone.
		h, js := legal(r, shape{txns: seed%3 == 0})
		mutations := mutate.Mutations()
		if seed%2 == 1 {
			h, js = legalChain(r)
			mutations = mutate.ChainMutations()
		}
		if seed%8 == 7 {
			h, js = legalQueue(r)
			mutations = mutate.QueueMutations()
		}
		for _, m := range mutations {
			hm, jm := h, clone(js)
			if !m.Apply(r, &hm, jm) {
				continue
			}
			applied[m.Name]++
			v, err := Audit(hm, opener(t, jm))
			if err != nil {
				t.Fatalf("seed %d, %s: %v", seed, m.Name, err)
			}
			by := killedBy(v)
			for k := range by {
				if kills[k] == nil {
					kills[k] = map[string]int{}
				}
				kills[k][m.Name]++
			}
			if v.Arm == Held {
				t.Errorf("seed %d: %s passes", seed, m.Name)
			}
			want, ok := killers[m.Name]
			if !ok {
				t.Fatalf("mutation %s has no row in the matrix", m.Name)
			}
			cut := m.Name == "drop-frame" && by["proof segments"] // it was the last frame
			flipped := want == "proof segments" && by["proof ledger"]
			if !by[want] && !cut && !flipped {
				t.Errorf("seed %d: %s is not caught by %s but by %v", seed, m.Name, want, by)
			}
			if !strings.HasPrefix(want, "proof") && v.Arm != Broke {
				t.Errorf("seed %d: %s ends %s: %q", seed, m.Name, v.Arm, v.Reasons)
			}
		}
	}
	for _, m := range mutate.Mutations() {
		if applied[m.Name] == 0 {
			t.Errorf("mutation %s was never applied", m.Name)
		}
	}
	for name := range killers {
		if _, ok := mutate.Lookup(name); !ok {
			t.Errorf("the matrix has a row for the unknown mutation %s", name)
		}
	}
	for _, c := range checks {
		for _, anomaly := range c.reports {
			if len(kills[anomaly]) == 0 {
				t.Errorf("check %s never finds %s", c.name, anomaly)
			}
		}
	}
	check := func(h ledger.Header, js []journal) {
		v, err := Audit(h, opener(t, js))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range v.Proofs {
			if len(kills["proof "+p.Name]) == 0 && !strings.HasPrefix(p.Name, "bite of crash-") && !strings.HasPrefix(p.Name, "end of ") {
				t.Errorf("proof %q never fails", p.Name)
			}
		}
	}
	check(legal(rand.New(rand.NewPCG(1, 1)), shape{}))
	check(legalChain(rand.New(rand.NewPCG(1, 1))))
}

// No legal history is ever flagged.
func TestLegalHistoriesHold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 2))
		s := anyShape(r)
		h, js := legal(r, s)
		r.Shuffle(len(js), func(i, j int) { js[i], js[j] = js[j], js[i] }) // the order of segments says nothing
		v, err := Audit(h, opener(t, js))
		if err != nil {
			rt.Fatal(err)
		}
		if v.Arm != Held || strings.Contains(summary(v), "!") {
			rt.Fatalf("%+v: %s %q %q", s, v.Arm, summary(v), v.Reasons)
		}
	})
}

// No legal chain is ever flagged.
func TestLegalChainsHold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 6))
		h, js := legalChain(r)
		r.Shuffle(len(js), func(i, j int) { js[i], js[j] = js[j], js[i] })
		v, err := Audit(h, opener(t, js))
		if err != nil {
			rt.Fatal(err)
		}
		if v.Arm != Held || len(v.Findings) > 0 {
			f := ""
			if len(v.Findings) > 0 {
				f = strings.Join(v.Findings[0].Witnesses, "; ")
			}
			rt.Fatalf("%s %q %q\n%s", v.Arm, summary(v), v.Reasons, f)
		}
	})
}

// A planted corruption never passes, in any history.
func TestMutationsAreCaught(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 3))
		s := anyShape(r)
		h, js := legal(r, s)
		m := rapid.SampledFrom(mutate.Mutations()).Draw(rt, "mutation")
		if slices.ContainsFunc(mutate.ChainMutations(), func(c mutate.Mutation) bool { return c.Name == m.Name }) {
			h, js = legalChain(r)
		}
		if slices.ContainsFunc(mutate.QueueMutations(), func(c mutate.Mutation) bool { return c.Name == m.Name }) {
			h, js = legalQueue(r)
		}
		if !m.Apply(r, &h, js) {
			rt.Skip("no place for it")
		}
		v, err := Audit(h, opener(t, js))
		if err != nil {
			rt.Fatal(err)
		}
		if v.Arm == Held {
			rt.Fatalf("%+v: %s passes", s, m.Name)
		}
	})
}

// Two audits of one ledger give one verdict.
func TestAuditIsPure(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 4))
		h, js := legal(r, anyShape(r))
		if seed%2 == 1 {
			h, js = legalChain(r)
		}
		for range 3 {
			m := mutate.Mutations()[r.IntN(len(mutate.Mutations()))]
			m.Apply(r, &h, js)
		}
		open := opener(t, js)
		var last []byte
		for range 3 {
			v, err := Audit(h, open)
			if err != nil {
				t.Fatal(err)
			}
			b := mustJSON(t, v)
			if last != nil && !bytes.Equal(b, last) {
				t.Fatalf("seed %d:\n%s\n%s", seed, b, last)
			}
			last = b
		}
	}
}

// FuzzAudit judges two segments of any content.
func FuzzAudit(f *testing.F) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 5))
		_, js := legal(r, anyShape(r))
		if seed%2 == 1 {
			_, js = legalChain(r)
		}
		a, err := js[0].Encode()
		if err != nil {
			f.Fatal(err)
		}
		b, err := js[len(js)-1].Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(a, b)
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		h := chainHeader()
		h.Chain.Effects = append(h.Chain.Effects, ledger.EffectTable{Name: "balances", State: true})
		h.Delay, h.Promise.MaxStall = ledger.Delay{Due: 1, Allowance: 1, TTL: 1}, 1
		h.Destinations[0].Compacted = true
		h.Evidence.Before = 1
		open := func() ([]Source, error) {
			return []Source{{Name: "a", R: bytes.NewReader(a)}, {Name: "b", R: bytes.NewReader(b)}}, nil
		}
		v, err := Audit(h, open)
		if err == nil && v.Arm == Held && len(v.Damage) > 0 {
			t.Error("a damaged ledger holds")
		}
	})
}
