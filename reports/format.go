package reports

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Format writes a Document in one way.
type Format struct {
	Name  string // "html"
	File  string // its name in a run folder, "report.html"
	Write func(w io.Writer, d Document) error
}

var formats []Format

// register adds a format; each does so once, from its file's init.
func register(f Format) {
	if slices.ContainsFunc(formats, func(g Format) bool { return g.Name == f.Name || g.File == f.File }) {
		panic("format " + f.Name + " is registered twice")
	}
	formats = append(formats, f)
	slices.SortFunc(formats, func(a, b Format) int { return strings.Compare(a.Name, b.Name) })
}

// Formats lists all formats by name.
func Formats() []Format { return slices.Clone(formats) }

// Find returns the format with that name. The error lists the names there are.
func Find(name string) (Format, error) {
	names := make([]string, 0, len(formats))
	for _, f := range formats {
		if f.Name == name {
			return f, nil
		}
		names = append(names, f.Name)
	}
	return Format{}, fmt.Errorf("no report format %q: there are %s", name, strings.Join(names, ", "))
}
