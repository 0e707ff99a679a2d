package audit

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"conform/harness/ledger"
)

// findingKey says which finding an occurrence belongs to.
type findingKey struct{ anomaly, qualifier, attribution string }

// findings gathers occurrences.
type findings struct {
	byKey map[findingKey]*Finding
	// subjects are whom the findings of a control are about, each occurrence; nil = they are not kept.
	subjects map[findingKey][]ledger.MessageID
}

// add counts one occurrence and keeps the first ones as samples. witness is asked only when its
// line is kept; it may be nil.
func (f *findings) add(k findingKey, id ledger.MessageID, region Region, witness func() string) {
	x := f.byKey[k]
	if x == nil {
		a, _ := Lookup(k.anomaly)
		x = &Finding{Anomaly: k.anomaly, Place: a.Place, Qualifier: k.qualifier, Attribution: k.attribution}
		f.byKey[k] = x
	}
	x.Count++
	if f.subjects != nil && id.Stream != 0 {
		f.subjects[k] = append(f.subjects[k], id)
	}
	if region != "" {
		if x.Regions == nil {
			x.Regions = map[Region]int{}
		}
		x.Regions[region]++
	}
	if len(x.Sample) < SampleSize && id.Stream != 0 && !slices.Contains(x.Sample, id) {
		x.Sample = append(x.Sample, id)
	}
	if witness != nil {
		x.witness(witness())
	}
}

// alsoOf notes another subject of a finding's last occurrence.
func (f *findings) alsoOf(k findingKey, id ledger.MessageID) {
	if f.subjects != nil && id.Stream != 0 {
		f.subjects[k] = append(f.subjects[k], id)
	}
}

// during stretches the time of a finding to an occurrence.
func (f *findings) during(k findingKey, from, to int64) {
	x := f.byKey[k]
	if x.From == 0 || from < x.From {
		x.From = from
	}
	x.To = max(x.To, to)
}

func (f *Finding) witness(line string) {
	if len(f.Witnesses) < SampleSize {
		f.Witnesses = append(f.Witnesses, line)
	}
}

// sorted returns the findings, forbidden ones first, then by severity.
func (f *findings) sorted() []Finding {
	out := make([]Finding, 0, len(f.byKey))
	for _, x := range f.byKey {
		out = append(out, *x)
	}
	slices.SortFunc(out, func(a, b Finding) int {
		if a.Forbidden != b.Forbidden {
			if a.Forbidden {
				return -1
			}
			return 1
		}
		return cmp.Or(
			cmp.Compare(severity(a.Anomaly), severity(b.Anomaly)),
			cmp.Compare(b.Qualifier, a.Qualifier), // confirmed before claimed
			cmp.Compare(a.Attribution, b.Attribution),
		)
	})
	return out
}

// ruleFor returns what the promise makes of a finding, and whether it is judged at all. The most
// specific name wins: "lost(claimed)/expired", "lost/expired", "lost(claimed)", "lost".
func ruleFor(p ledger.Promise, f Finding) (ledger.Rule, bool) {
	names := []string{f.Name()}
	if f.Attribution != "" {
		names = append(names, f.Anomaly+"/"+f.Attribution)
	}
	if f.Qualifier != "" {
		names = append(names, f.Anomaly+"("+f.Qualifier+")")
	}
	for _, n := range append(names, f.Anomaly) {
		if r, ok := p.Rules[n]; ok {
			return r, true
		}
	}
	// A bound on a time is a promise by itself; its finding exists only beyond the bound.
	return ledger.Rule{}, slices.Contains(p.Places, f.Place) || f.Anomaly == Unavailable || f.Anomaly == Stall || f.Anomaly == RTO
}

// forbid marks the findings that the promise forbids. A bound holds for all findings that fall
// under the same rule name together; since a rule is looked up per finding, that is their sum.
// always says which are judged though the promise neither names them nor their place.
func (f *findings) forbid(p ledger.Promise, always func(*Finding) bool) {
	for _, x := range f.byKey {
		rule, judged := ruleFor(p, *x)
		if !judged && !always(x) || rule.Allowed {
			continue
		}
		if rule.Bound > 0 {
			sum := 0
			for _, y := range f.byKey {
				if other, ok := ruleFor(p, *y); ok && y.Anomaly == x.Anomaly && other == rule {
					sum += y.Count
				}
			}
			if sum <= rule.Bound {
				continue
			}
		}
		x.Forbidden = true
	}
}

// since prints a time relative to the start of the load.
func (v *survey) since(at int64) string {
	d := time.Duration(at - v.loadAt)
	return fmt.Sprintf("%+.3f s", d.Seconds())
}

// window says in words when something happened and between which strikes and heals.
func (v *survey) window(from, to int64) string {
	if from == 0 && to == 0 {
		return ""
	}
	s := fmt.Sprintf("%s .. %s", v.since(from), v.since(to))
	before, after := "the start", "the end of the load"
	beforeAt, afterAt := int64(-1<<63), int64(1<<63-1)
	mark := func(name string, at int64) {
		if at <= from && at > beforeAt {
			before, beforeAt = name, at
		}
		if at >= to && at < afterAt {
			after, afterAt = name, at
		}
	}
	for _, i := range v.injections {
		mark(fmt.Sprintf("the strike %q", i.id), i.at)
		if i.healed {
			mark(fmt.Sprintf("the heal of %q", i.id), i.healedAt)
		}
	}
	return s + ", between " + before + " and " + after
}
