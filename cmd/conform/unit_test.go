package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"conform/fixtures"
	"conform/harness"
	"conform/harness/system"
	"conform/reports"
)

func TestCodeOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, exitOK},
		{errors.New("anything of ours"), exitEnvironment},
		{fmt.Errorf("start: %w", system.ErrEnvironment), exitEnvironment},
		{&verdictError{exitBroken}, exitBroken},
		{&verdictError{exitInconclusive}, exitInconclusive},
		{usagef("what?"), exitUsage},
		{fmt.Errorf("open: %w", system.ErrUsage), exitUsage},
		{&fixtures.UnknownError{}, exitUsage},
		{harness.ErrInterrupted, exitInterrupted},
		{errors.Join(system.ErrUsage, harness.ErrInterrupted), exitInterrupted},
		{fmt.Errorf("pull: %w", context.Canceled), exitInterrupted},
		{context.DeadlineExceeded, exitEnvironment},
	} {
		if got := codeOf(c.err); got != c.want {
			t.Errorf("codeOf(%v) = %d, want %d", c.err, got, c.want)
		}
	}
}

func TestVerdictOfRun(t *testing.T) {
	doc := func(status, ours string, pass int) reports.Document {
		return reports.Document{
			Status: status, Counts: reports.Counts{Pass: pass},
			Suites: []reports.Suite{{Scenarios: []reports.Scenario{{Error: ours}}}},
		}
	}
	for _, c := range []struct {
		doc  reports.Document
		want int
	}{
		{doc("pass", "", 1), exitOK},
		{doc("observed", "", 0), exitInconclusive}, // nothing counted: nothing was proven
		{doc("fail", "", 1), exitBroken},
		{doc("inconclusive", "", 1), exitInconclusive},
		{doc("fail", "no disk", 1), exitEnvironment},
		{doc("not-applicable", "", 0), exitInconclusive},
		{reports.Document{}, exitInconclusive},
		{reports.Document{Status: "observed", Counts: reports.Counts{Observed: 1}}, exitOK},
	} {
		if got := codeOf(verdictOfRun(c.doc)); got != c.want {
			t.Errorf("%s, %+v: exit code %d, want %d", c.doc.Status, c.doc.Counts, got, c.want)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"all", "kafka-acks", true},
		{"kafka-*", "kafka-acks", true},
		{"kafka", "kafka-acks", false},
		{"outbox", "outbox@kafka", true},
		{"outbox@*", "outbox@kafka", true},
		{"out", "outbox@kafka", false},
		{"[", "kafka-acks", false},
	} {
		if got := matches(c.pattern, c.name); got != c.want {
			t.Errorf("matches(%q, %q) = %v", c.pattern, c.name, got)
		}
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{"kafka:4.1.1": "kafka:4.1.1", "": "''", "kafka-*": "'kafka-*'", "it's": `'it'\''s'`} {
		if got := quote(in); got != want {
			t.Errorf("quote(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestProgress(t *testing.T) {
	live := harness.Live{Suite: "s", Scenario: "c", Phase: "load", Counts: harness.Counts{Sent: 5, Confirmed: 3, InDoubt: 2}}
	for _, c := range []struct {
		name    string
		columns int
		quiet   bool
		want    string
	}{
		{"terminal", 80, false, "one\ns/c · load 0s · 0/s · 3 confirmed · 2 in doubt" + eraseLine + "two\n"},
		{"narrow", 10, false, "one\ns/c · loa" + eraseLine + "two\n"},
		{"file", 0, false, "one\ntwo\n"},
		{"quiet", 80, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			p := newProgress(&b, c.columns, c.quiet)
			fmt.Fprint(p, "o")
			fmt.Fprint(p, "ne\n")
			p.show(live)
			fmt.Fprint(p, "two\n")
			p.end()
			if b.String() != c.want {
				t.Errorf("got %q, want %q", b.String(), c.want)
			}
		})
	}
}
