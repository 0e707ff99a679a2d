package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// run runs a command of the system and shows it. Its output goes to the log; an error holds the end of it.
func (p *preparer) run(ctx context.Context, argv ...string) error {
	p.say("$ %s", strings.Join(argv, " "))
	start := time.Now()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	cmd.WaitDelay = 10 * time.Second
	// TERM lets apt and debootstrap clean up after themselves; KILL follows after the wait delay.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.CombinedOutput()
	p.log.Debug("command", "argv", argv, "took", time.Since(start), "output", string(out))
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("run %s: %w", argv[0], ctx.Err())
		}
		return fmt.Errorf("run %s: %w\n%s", strings.Join(argv, " "), err, lastLines(string(out), 20))
	}
	return nil
}

// tailOf is the end of a text file, empty when there is none.
func tailOf(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return lastLines(string(b), 20)
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
