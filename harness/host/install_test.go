package host

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"conform/harness/internal/container"
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

func TestAwaitEngineSaysThatItEndedAtOnce(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
	daemon := exec.Command("sh", "-c", "exit 7")
	if err := daemon.Start(); err != nil {
		t.Fatalf("needs a shell: %v", err)
	}
	p := &preparer{progress: io.Discard, log: slog.New(slog.DiscardHandler)}
	err := p.awaitEngine(t.Context(), daemon.Process.Pid, "look there")
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), "code 7") || !strings.Contains(e.Fix, "look there") {
		t.Errorf("got %v", err)
	}
}

func TestNeverInstallsBesideAnEngineThatIsNamed(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("PATH", t.TempDir()) // no apt-get, no systemctl: nothing could be done by accident
	t.Setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
	p := &preparer{progress: io.Discard, log: slog.New(slog.DiscardHandler)}
	err := p.installEngine(t.Context())
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, container.ErrNamedSilent) || !strings.Contains(e.Fix, "DOCKER_HOST") {
		t.Errorf("got %v", err)
	}
}
