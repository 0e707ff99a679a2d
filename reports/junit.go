package reports

import (
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

func init() { register(Format{Name: "junit", File: "junit.xml", Write: writeJUnit}) }

type junitRun struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Name     string       `xml:"name,attr"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Errors   int          `xml:"errors,attr"`
	Skipped  int          `xml:"skipped,attr"`
	Time     string       `xml:"time,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name       string          `xml:"name,attr"`
	Tests      int             `xml:"tests,attr"`
	Failures   int             `xml:"failures,attr"`
	Errors     int             `xml:"errors,attr"`
	Skipped    int             `xml:"skipped,attr"`
	Time       string          `xml:"time,attr"`
	Timestamp  string          `xml:"timestamp,attr"`
	Properties []junitProperty `xml:"properties>property"`
	Cases      []junitCase     `xml:"testcase"`
}

type junitProperty struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

type junitCase struct {
	Name       string          `xml:"name,attr"`
	Classname  string          `xml:"classname,attr"`
	Time       string          `xml:"time,attr"`
	Properties []junitProperty `xml:"properties>property"`
	Failure    *junitProblem   `xml:"failure"`
	Error      *junitProblem   `xml:"error"`
	Skipped    *junitProblem   `xml:"skipped"`
}

type junitProblem struct {
	Type    string `xml:"type,attr,omitempty"`
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// writeJUnit writes one test case a scenario. A broken promise is a failure; what is not known
// is an error, never a success; our own failure is an error of its own type.
func writeJUnit(w io.Writer, d Document) error {
	run := junitRun{Name: "conform", Time: seconds(d.Run.Elapsed)}
	for _, s := range d.Suites {
		js := junitSuite{
			Name: s.Name, Time: seconds(s.Elapsed), Timestamp: d.Run.Started.Format(time.RFC3339),
			Properties: []junitProperty{
				{"system", s.System + ":" + s.Version},
				{"seed", d.Run.Seed},
				{"run", d.Run.ID},
			},
		}
		for _, sc := range s.Scenarios {
			c := junitCase{Name: sc.Name, Classname: s.Name, Time: seconds(sc.Elapsed)}
			for _, a := range sc.Arms {
				c.Properties = append(c.Properties,
					junitProperty{a.Role + " " + a.Name, a.Share()},
					junitProperty{a.Role + " " + a.Name + " interval", fmt.Sprintf("%.3f..%.3f", a.Low, a.High)})
			}
			js.Tests++
			problem := &junitProblem{Message: sc.Sentence, Text: strings.Join(sc.Reasons, "\n")}
			switch {
			case sc.Status == "fail":
				problem.Type = "promise-broken"
				c.Failure = problem
				js.Failures++
			case sc.Error != "":
				problem.Type, problem.Message = "environment", sc.Error
				c.Error = problem
				js.Errors++
			case sc.Status == "inconclusive":
				problem.Type = "inconclusive"
				c.Error = problem
				js.Errors++
			case sc.Status == "not-applicable":
				problem.Message = strings.Join(sc.Reasons, "; ")
				problem.Text = ""
				c.Skipped = problem
				js.Skipped++
			}
			js.Cases = append(js.Cases, c)
		}
		run.Tests += js.Tests
		run.Failures += js.Failures
		run.Errors += js.Errors
		run.Skipped += js.Skipped
		run.Suites = append(run.Suites, js)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return fmt.Errorf("write junit report: %w", err)
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(run); err != nil {
		return fmt.Errorf("write junit report: %w", err)
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func seconds(m Millis) string { return strconv.FormatFloat(time.Duration(m).Seconds(), 'f', 3, 64) }
