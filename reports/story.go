package reports

import (
	"fmt"
	"io"
	"text/tabwriter"

	"conform/harness/audit"
)

// WriteStory writes the story of one message for a terminal.
func WriteStory(w io.Writer, s audit.Story) error {
	told := story(s)
	if _, err := fmt.Fprintf(w, "message %s: %s\n", told.Message, clean(told.Title)); err != nil {
		return fmt.Errorf("write story: %w", err)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, l := range told.Lines {
		fmt.Fprintf(t, "  +%s\t%s\t%s\n", l.Since, l.Place, clean(l.Text))
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write story: %w", err)
	}
	return nil
}
