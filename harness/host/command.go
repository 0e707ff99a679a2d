package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// run runs a command of the system and shows it. Its output goes to the log; an error holds the end of it.
func (p *preparer) run(ctx context.Context, argv ...string) error {
	p.say("$ %s", strings.Join(argv, " "))
	start := time.Now()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	// A group of its own: Ctrl-C at the terminal must reach only this process, which then ends the whole group.
	// TERM lets apt finish what it must not leave half done; KILL follows after the wait delay.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
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
