package audit

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"conform/harness/ledger"
)

// tell prints a story as "+1.5ms place: text" lines.
func (x history) tell(t testing.TB, id ledger.MessageID) (string, string) {
	t.Helper()
	h, js := x.build(t)
	s, err := Tell(h, opener(t, js), id)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, l := range s.Lines {
		fmt.Fprintf(&b, "+%s %s: %s\n", l.Since, l.Place, l.Text)
	}
	return s.Title, b.String()
}

func TestStoryOfALoss(t *testing.T) {
	x := history{send: "ok ok ok sent-ok ok@3", store: "0 1 2 4", strike: 3, heal: 4}
	v := x.audit(t)
	if v.StoryOf == nil || *v.StoryOf != (ledger.MessageID{Stream: 1, Seq: 3}) || v.Story.ID != *v.StoryOf {
		t.Fatalf("the story is of %v", v.StoryOf)
	}
	title, got := x.tell(t, *v.StoryOf)
	const wantTitle = "message 1/3: lost(confirmed)/broker"
	const want = `+0s fault: strike "cut": link-cut on kafka-1; it bit: 7 packets dropped
+1ms sent: producer-1 was about to hand it to its client: message 3 of stream 1, key-00000000 for t partition 0
+2ms sent: handed to the client of producer-1
+3ms claimed: producer-1 told its caller: sent
+7ms confirmed: confirmed by the broker, as partition 0 offset 3 (5ms after it was sent), 7ms after the strike "cut"
+10ms fault: heal of "cut"
+21ms stored: found nowhere: partition 0 was read from 0 to its end 4 (raw and committed view)
+21ms stored: partition 0 offset 3 now holds message 1/4 (raw and committed view)
+21ms verdict: lost(confirmed)/broker: it was accepted by the broker and is gone there
`
	if title != wantTitle || got != want {
		t.Errorf("%s\n%s\nwant %s\n%s", title, got, wantTitle, want)
	}
}

func TestStories(t *testing.T) {
	tests := []struct {
		name string
		x    history
		seq  uint64
		want []string // parts of title and text
	}{
		{"recovered", history{send: "ok info", store: "0 1"}, 1, []string{"message 1/1: recovered", "neither confirmed nor refused: timeout"}},
		{
			"dropped",
			history{send: "ok ok", store: "0", events: drops(Unroutable, 0, 1)},
			1,
			[]string{"message 1/1: lost(confirmed)/unroutable", "it reached the broker, which had nowhere to put it", "the broker says of that time: no binding"},
		},
		{"beyond what the broker dropped", history{send: "ok ok ok", store: "0", events: drops(Unroutable, 0, 1)}, 2, []string{"message 1/2: lost(confirmed)/broker"}},
		{"in doubt", history{send: "ok info", store: "0"}, 1, []string{"in doubt"}},
		{"refused", history{send: "ok fail", store: "0"}, 1, []string{"refused: refused", "as it should be"}},
		{"client buffer", history{send: "ok sent-none", store: "0"}, 1, []string{"lost(claimed)/client-buffer", "told its caller: sent"}},
		{"twice", history{send: "ok ok", store: "0 1 0"}, 0, []string{"duplicate-store", "2 positions"}},
		{"corrupted", history{send: "ok ok", store: "0 1x"}, 1, []string{"another content"}},
		{"phantom", history{send: "ok", store: "0 1"}, 1, []string{"phantom"}},
		{"resurrected", history{send: "ok fail", store: "0 1"}, 1, []string{"resurrected"}},
		{"fine", history{send: "ok", store: "0"}, 0, []string{"confirmed and stored"}},
		{"vacant", history{send: "ok ok", store: "0 -"}, 1, []string{"nothing stands at partition 0 offset 1 now"}},
		{"aborted", history{send: "ok ok", store: "0 1 -", committed: "- - -", txns: "0-1:fail"}, 1, []string{"ended: aborted"}},
		{"unknown", history{send: "ok", store: "0"}, 77, []string{"nothing in this ledger is about it"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			title, text := test.x.tell(t, ledger.MessageID{Stream: 1, Seq: test.seq})
			for _, part := range test.want {
				if !strings.Contains(title+"\n"+text, part) {
					t.Errorf("%q is not in\n%s\n%s", part, title, text)
				}
			}
		})
	}
}

func TestFindingTellsWhenAndWhere(t *testing.T) {
	v := history{send: "ok ok ok ok ok", store: "0 1 2 - 4", strike: 3, heal: 4}.audit(t)
	f := v.Findings[0]
	if f.From != 41*ms || f.To != 46*ms || f.Window != `+0.041 s .. +0.046 s, between the strike "cut" and the heal of "cut"` {
		t.Errorf("%d..%d %q", f.From, f.To, f.Window)
	}
	want := []string{
		"1/3 is not in the store: partition 0 was read from 0 to its end 5, 4 records",
		"producer-1: 1/3 was confirmed at +0.046 s, as partition 0 offset 3",
	}
	if strings.Join(f.Witnesses, "\n") != strings.Join(want, "\n") {
		t.Errorf("witnesses %q", f.Witnesses)
	}
}

func TestSamplesAreBounded(t *testing.T) {
	v := history{send: strings.Repeat("ok ", 50), store: "0 0"}.audit(t)
	for _, f := range v.Findings {
		if len(f.Sample) > SampleSize || len(f.Witnesses) > SampleSize {
			t.Errorf("%s has %d samples and %d witnesses", f.Name(), len(f.Sample), len(f.Witnesses))
		}
	}
	if v.Findings[0].Count != 49 || len(v.Findings[0].Sample) != SampleSize {
		t.Errorf("%+v", v.Findings[0])
	}
}

func TestCompare(t *testing.T) {
	h := baseHeader()
	if d := Compare(h, h.Promise, Checks()); len(d) > 0 {
		t.Errorf("the same differs: %q", d)
	}
	p := h.Promise
	p.Rules = map[string]ledger.Rule{"lost": {Allowed: true}}
	p.End = "elsewhere"
	p.Places = nil
	p.MaxUnavailable = 1
	checks := Checks()
	checks["lost"]++
	delete(checks, Phantom)
	checks["new"] = 1
	if d := Compare(h, p, checks); len(d) != 7 {
		t.Errorf("%d differences: %q", len(d), d)
	}
}

// The verdict holds the stories of all samples, whatever the order of the segments.
func TestStoriesOfAllSamples(t *testing.T) {
	h, js := history{send: "ok ok ok sent-ok sent ok@5 ok", store: "0 1 2 2 - 6 5"}.build(t)
	for range len(js) {
		js = append(js[1:], js[0])
		open := opener(t, js)
		v, err := Audit(h, open)
		if err != nil {
			t.Fatal(err)
		}
		if got := summary(v); got != "lost(confirmed)/broker=1! lost(claimed)/client-buffer=1! duplicate-store=1! reordered-store=1!" {
			t.Fatal(got)
		}
		if len(v.Stories) != 4 || v.Stories[0].ID.Seq != 3 || v.Stories[1].ID.Seq != 4 || v.Stories[2].ID.Seq != 2 || v.Stories[3].ID.Seq != 5 {
			t.Errorf("stories %+v", v.Stories)
		}
		for _, s := range v.Stories {
			one, err := Tell(h, open, s.ID)
			if err != nil || !reflect.DeepEqual(one, s) {
				t.Errorf("told alone: %+v, told among others: %+v", one, s)
			}
		}
	}
}
