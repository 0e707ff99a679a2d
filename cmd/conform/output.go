package main

import (
	"fmt"
	"os"
	"path/filepath"

	"conform/reports"
)

func formatNames() []string {
	var names []string
	for _, f := range reports.Formats() {
		names = append(names, f.Name)
	}
	return names
}

// print writes one format to stdout.
func (a *app) print(d reports.Document, format string) error {
	f, err := reports.Find(format)
	if err != nil {
		return &usageError{err}
	}
	return f.Write(a.stdout, d)
}

// writeReports writes every format into a run folder. Each file replaces an older one whole, so
// that a full disk leaves no half report.
func writeReports(d reports.Document, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make run folder: %w", err)
	}
	for _, f := range reports.Formats() {
		if err := writeReport(f, d, filepath.Join(dir, f.File)); err != nil {
			return err
		}
	}
	return nil
}

func writeReport(f reports.Format, d reports.Document, path string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+f.File+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(tmp.Name()) // gone already if all went well
	if err := f.Write(tmp, d); err != nil {
		tmp.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := tmp.Chmod(0o644); err != nil {
		tmp.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := tmp.Close(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
