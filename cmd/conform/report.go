package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"conform/reports"
)

func (a *app) reportCommand() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "report DIR",
		Short: "render the reports of a run again",
		Long: `report renders a run folder's report.json again. Without --format all files are written anew; with it, that
format is printed. It judges nothing: see conform audit.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			if format != "" {
				if err := oneOf("format", format, formatNames()...); err != nil {
					return err
				}
			}
			if err := isFolder(args[0]); err != nil {
				return err
			}
			doc, err := readReport(filepath.Join(args[0], "report.json"))
			if err != nil {
				return err
			}
			if format != "" {
				return a.print(doc, format)
			}
			if err := writeReports(doc, args[0]); err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "reports: %s\n", filepath.Join(args[0], "report.html"))
			return nil
		},
	}
	c.Flags().StringVar(&format, "format", "", "print one format instead: "+strings.Join(formatNames(), ", "))
	return c
}

func readReport(path string) (reports.Document, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return reports.Document{}, usagef("%s is missing: `conform audit` judges the ledgers without it", path)
	}
	if err != nil {
		return reports.Document{}, fmt.Errorf("open report: %w", err)
	}
	defer f.Close()
	doc, err := reports.Read(f)
	if err != nil {
		return reports.Document{}, usagef("%s: %w", path, err)
	}
	return doc, nil
}
