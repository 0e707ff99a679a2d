package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"conform/harness/internal/container"
)

// engineStart bounds how long a started engine may take to answer.
const engineStart = 60 * time.Second

// installEngine makes an engine answer: installs it where missing, starts it where it is down.
func (p *preparer) installEngine(ctx context.Context) error {
	_, err := container.Connect(ctx)
	if err == nil {
		return nil
	}
	if !errors.Is(err, container.ErrNoEngine) {
		return connectError(err) // no rights or too old: installing another one would not mend it
	}
	// dockerd, not docker: a client without a daemon is common.
	dockerd := findCommand("dockerd")
	if dockerd == "" {
		if err := p.aptInstall(ctx, "docker.io", "iptables", "ca-certificates", "debootstrap", "debian-archive-keyring"); err != nil {
			return err
		}
		if dockerd = findCommand("dockerd"); dockerd == "" {
			return &Error{Op: "install engine", Err: errors.New("dockerd is not there after installing docker.io"), Fix: "install Docker 20.10 or newer by hand"}
		}
	}
	return p.startEngine(ctx, dockerd)
}

// startEngine starts dockerd, by systemd where that runs, and waits until it answers.
func (p *preparer) startEngine(ctx context.Context, dockerd string) error {
	if _, err := container.Connect(ctx); err == nil {
		return nil // the package's own start script was faster
	}
	if os.Geteuid() != 0 {
		return &Error{Op: "start engine", Err: errors.New("starting dockerd needs root"), Fix: "sudo systemctl start docker, or: sudo " + dockerd}
	}
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		if err := p.run(ctx, "systemctl", "start", "docker"); err != nil {
			return &Error{Op: "start engine", Err: err, Fix: "journalctl -u docker"}
		}
		return p.awaitEngine(ctx, 0, "journalctl -u docker")
	}

	const logName = "/var/log/dockerd.log"
	p.say("starting %s in the background, log in %s", dockerd, logName)
	if err := dropStalePIDFile("/var/run/docker.pid"); err != nil {
		return &Error{Op: "start engine", Err: err}
	}
	log, err := os.OpenFile(logName, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return &Error{Op: "start engine", Err: err}
	}
	defer log.Close()
	// Not bound to ctx and in a session of its own: it must outlive this process and not get its Ctrl-C.
	cmd := exec.Command(dockerd)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return &Error{Op: "start engine", Err: err}
	}
	return p.awaitEngine(ctx, cmd.Process.Pid, "see "+logName)
}

// awaitEngine waits until the engine answers. pid is its process when this one started it, else 0.
func (p *preparer) awaitEngine(ctx context.Context, pid int, fix string) error {
	ctx, cancel := context.WithTimeout(ctx, engineStart)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := container.Connect(ctx)
		if err == nil {
			p.say("engine answers")
			return nil
		}
		if pid != 0 {
			var status syscall.WaitStatus
			if gone, waitErr := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); waitErr == nil && gone == pid {
				return &Error{
					Op:  "start engine",
					Err: fmt.Errorf("dockerd ended at once with code %d:\n%s", status.ExitStatus(), tailOf("/var/log/dockerd.log")),
					Fix: "this machine may lack the rights or kernel features containers need (a container itself?); " + fix,
				}
			}
		}
		select {
		case <-ctx.Done():
			return &Error{Op: "start engine", Err: fmt.Errorf("it does not answer: %w", err), Fix: fix}
		case <-tick.C:
		}
	}
}

// dropStalePIDFile removes a pid file that a killed dockerd left and whose number another program has now: dockerd would
// refuse to start because of it.
func dropStalePIDFile(name string) error {
	b, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read pid file: %w", err)
	}
	pid := strings.TrimSpace(string(b))
	if _, err := strconv.Atoi(pid); err == nil {
		if comm, err := os.ReadFile(filepath.Join("/proc", pid, "comm")); err == nil && strings.TrimSpace(string(comm)) == "dockerd" {
			return nil
		}
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove stale pid file: %w", err)
	}
	return nil
}

// installDev installs what conform's own tests need and is not there.
func (p *preparer) installDev(ctx context.Context) error {
	var packages []string
	for _, need := range []struct {
		pkg      string
		commands []string // any of them will do
	}{
		{"chromium", []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}},
		{"gcc", []string{"gcc"}},
		{"libc6-dev", nil},
		{"git", []string{"git"}},
		{"ca-certificates", []string{"update-ca-certificates"}},
	} {
		there := false
		for _, c := range need.commands {
			there = there || findCommand(c) != ""
		}
		if need.pkg == "libc6-dev" {
			_, err := os.Stat("/usr/include/stdlib.h")
			there = err == nil
		}
		if !there {
			packages = append(packages, need.pkg)
		}
	}
	if len(packages) == 0 {
		return nil
	}
	return p.aptInstall(ctx, packages...)
}

// aptInstall installs packages on a Debian-like machine.
func (p *preparer) aptInstall(ctx context.Context, packages ...string) error {
	op := "install " + strings.Join(packages, " ")
	if findCommand("apt-get") == "" {
		return &Error{Op: op, Err: errors.New("no apt-get: this is no Debian-like machine"), Fix: "install Docker 20.10 or newer with this system's own means, start it, and run again without --install-docker"}
	}
	if os.Geteuid() != 0 {
		return &Error{Op: op, Err: errors.New("installing packages needs root"), Fix: "run as root: sudo conform prepare --install-docker"}
	}
	if !p.updated {
		if err := p.run(ctx, "apt-get", "update"); err != nil {
			return &Error{Op: op, Err: err, Fix: "check this machine's package sources and network"}
		}
		p.updated = true
	}
	if err := p.run(ctx, append([]string{"apt-get", "install", "-y", "--no-install-recommends"}, packages...)...); err != nil {
		return &Error{Op: op, Err: err, Fix: "apt-get install " + strings.Join(packages, " ")}
	}
	return nil
}

// findCommand is the path of a program, also in the folders for administration that a user's PATH may lack; empty if none.
func findCommand(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/usr/local/sbin", "/sbin"} {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}
