package reports

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema of report.json.
func Schema() []byte { return slices.Clone(schema) }

func init() { register(Format{Name: "json", File: "report.json", Write: writeJSON}) }

// writeJSON leaves encoding/json's HTML escaping on: keys and payloads are hostile, and the
// file may end up inside a page.
func writeJSON(w io.Writer, d Document) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(d); err != nil {
		return fmt.Errorf("write json report: %w", err)
	}
	return nil
}

// Read reads a Document that the json format wrote. Documents of another schema version are
// refused by name.
func Read(r io.Reader) (Document, error) {
	var d Document
	if err := json.NewDecoder(r).Decode(&d); err != nil {
		return Document{}, fmt.Errorf("read json report: %w", err)
	}
	if d.Schema != SchemaVersion {
		return Document{}, fmt.Errorf("read json report: schema %d, this binary reads %d", d.Schema, SchemaVersion)
	}
	return d, nil
}
