package host

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestDropStalePIDFile(t *testing.T) {
	tests := []struct {
		name, content string
	}{
		{"another program has the number", strconv.Itoa(os.Getpid())},
		{"nobody has the number", "999999999"},
		{"no number", "x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "docker.pid")
			if err := os.WriteFile(name, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := dropStalePIDFile(name); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("still there: %v", err)
			}
		})
	}
	if err := dropStalePIDFile(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Errorf("no file: %v", err)
	}
}
