// Package reports turns the result of a run into what people and machines read: a terminal
// summary, JSON, JUnit, Markdown and one HTML page that needs no network.
//
// It knows Document, a versioned picture of a harness.Result, and one writer a format. A
// format is one file that registers itself. It takes no time from a clock and opens no file:
// equal results give equal bytes. It must not import a suite, a fault or an adapter.
//
//	doc := reports.New(result, reports.Options{})
//	f, _ := reports.Find("html")
//	err := f.Write(out, doc)
package reports
