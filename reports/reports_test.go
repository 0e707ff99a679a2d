package reports

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"conform/harness"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
)

var update = flag.Bool("update", false, "write the golden files anew")

func render(t *testing.T, name string, d Document) []byte {
	t.Helper()
	f, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := f.Write(&b, d); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got), -update writes it anew:\n%s", path, diff)
	}
}

func TestGolden(t *testing.T) {
	for name, r := range map[string]harness.Result{"mixed": mixed(), "pass": passing()} {
		d := New(r, Options{})
		for _, f := range Formats() {
			t.Run(name+"/"+f.Name, func(t *testing.T) {
				golden(t, name+"-"+f.File, render(t, f.Name, d))
			})
		}
	}
}

func TestReadGivesBackWhatWasWritten(t *testing.T) {
	d := New(mixed(), Options{})
	got, err := Read(bytes.NewReader(render(t, "json", d)))
	if err != nil {
		t.Fatal(err)
	}
	// Empty maps and lists are left out of the file, so the bytes are compared, not the values.
	if diff := cmp.Diff(string(render(t, "json", d)), string(render(t, "json", got))); diff != "" {
		t.Error(diff)
	}
	for _, f := range Formats() {
		if !bytes.Equal(render(t, f.Name, d), render(t, f.Name, got)) {
			t.Errorf("%s of the read document differs from that of the first", f.Name)
		}
	}
}

func TestReadRefusesOtherSchemas(t *testing.T) {
	for _, in := range []string{`{"schema": 2}`, `{}`, `{"schema": 1`, ``, `[]`} {
		if _, err := Read(strings.NewReader(in)); err == nil {
			t.Errorf("Read(%q) took it", in)
		}
	}
}

// TestSchema keeps schema.json equal to what Document says, and report.json valid by it.
func TestSchema(t *testing.T) {
	s, err := jsonschema.For[Document](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[Millis](): {Type: "number", Description: "milliseconds"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.Schema, s.Title = "https://json-schema.org/draft/2020-12/schema", "conform report, version 1"
	s.Properties["status"].Enum = []any{"pass", "fail", "inconclusive", "not-applicable", "observed"}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("schema.json", append(b, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		schema = append(b, '\n')
	}
	if diff := cmp.Diff(string(Schema()), string(b)+"\n"); diff != "" {
		t.Fatalf("schema.json is not of this Document, -update writes it anew:\n%s", diff)
	}
	var shipped jsonschema.Schema
	if err := json.Unmarshal(Schema(), &shipped); err != nil {
		t.Fatal(err)
	}
	valid, err := shipped.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := json.Unmarshal(render(t, "json", New(mixed(), Options{})), &doc); err != nil {
		t.Fatal(err)
	}
	if err := valid.Validate(doc); err != nil {
		t.Errorf("report.json is not valid by its own schema: %v", err)
	}
	doc.(map[string]any)["status"] = 3
	if valid.Validate(doc) == nil {
		t.Error("the schema takes a number for a status")
	}
}

func TestJUnit(t *testing.T) {
	run := func(o Options) junitRun {
		t.Helper()
		var out junitRun
		dec := xml.NewDecoder(bytes.NewReader(render(t, "junit", New(mixed(), o))))
		if err := dec.Decode(&out); err != nil {
			t.Fatal(err)
		}
		if _, err := dec.Token(); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		return out
	}
	kinds := func(r junitRun) map[string]string {
		out := map[string]string{}
		for _, c := range r.Suites[0].Cases {
			switch {
			case c.Failure != nil:
				out[c.Name] = "failure " + c.Failure.Type
			case c.Error != nil:
				out[c.Name] = "error " + c.Error.Type
			case c.Skipped != nil:
				out[c.Name] = "skipped"
			default:
				out[c.Name] = "ok"
			}
		}
		return out
	}
	want := map[string]string{
		"kafka-acks/leader-isolated": "ok",
		"kafka-acks/response-lost":   "failure promise-broken",
		"kafka-acks/two-disks-lost":  "error inconclusive",
		"kafka-acks/leader-killed":   "error environment",
		"kafka-acks/min-insync":      "skipped",
		"kafka-acks/lag-too-small":   "ok",
	}
	for _, o := range []Options{{}, {CI: true, AllowSkip: []string{"kafka-*/min-insync"}}} {
		if diff := cmp.Diff(want, kinds(run(o))); diff != "" {
			t.Errorf("with %+v: %s", o, diff)
		}
	}
	want["kafka-acks/min-insync"] = "error inconclusive"
	if diff := cmp.Diff(want, kinds(run(Options{CI: true}))); diff != "" {
		t.Errorf("a skip that no workflow lists: %s", diff)
	}
	r := run(Options{})
	if r.Tests != 6 || r.Failures != 1 || r.Errors != 2 || r.Skipped != 1 {
		t.Errorf("counts are %d tests, %d failures, %d errors, %d skipped", r.Tests, r.Failures, r.Errors, r.Skipped)
	}
}

// TestTextIsInert says that what a broker wrote moves no cursor and makes no line.
func TestTextIsInert(t *testing.T) {
	for _, name := range []string{"text", "markdown"} {
		out := string(render(t, name, New(mixed(), Options{Notes: []string{hostile + "\r\nPASS: all is well"}})))
		if strings.ContainsAny(out, "\x1b\r") {
			t.Errorf("%s lets control characters pass", name)
		}
		if strings.Contains(out, "\nPASS") {
			t.Errorf("%s lets a note write a line of its own", name)
		}
		if name == "markdown" && strings.Contains(out, "<script>") {
			t.Errorf("%s lets markup pass", name)
		}
	}
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-1: "never", 0: "0", 85 * time.Microsecond: "85 µs", 2100 * time.Microsecond: "2.1 ms", 412 * time.Millisecond: "412 ms",
		3100 * time.Millisecond: "3.1 s", 12*time.Minute + 3*time.Second: "12 min 3 s",
	} {
		if got := words(d); got != want {
			t.Errorf("words(%d) = %q, want %q", d, got, want)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestZeroResultIsNoGoodNews(t *testing.T) {
	d := New(harness.Result{}, Options{})
	if d.Status != "inconclusive" || d.Headline != "Nothing was judged." {
		t.Errorf("an empty result reads %q: %q", d.Status, d.Headline)
	}
	for _, f := range Formats() {
		if out := render(t, f.Name, d); len(out) == 0 {
			t.Errorf("%s writes nothing for it", f.Name)
		}
	}
}
