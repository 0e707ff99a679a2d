package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"conform/fixtures"
)

// debootstrapScript is debootstrap's recipe for current suites: older releases of debootstrap have none by the name of a
// suite that came after them.
const debootstrapScript = "/usr/share/debootstrap/scripts/sid"

// base brings the bare Debian system images are built on: the official image where a registry answers, else one made with
// debootstrap from the package mirror this machine uses itself.
func (p *preparer) base(ctx context.Context, v fixtures.Version) error {
	if _, ok, err := p.engine.Image(ctx, v.Base()); err != nil || ok {
		return err
	}
	official := "debian:" + v.Suite + "-slim"
	_, err := p.pull(ctx, official)
	if err == nil {
		if err := p.engine.Tag(ctx, official, v.Base()); err != nil {
			return &Error{Op: "prepare base image", Err: err}
		}
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("pull base image: %w", ctx.Err())
	}
	p.say("%s cannot be pulled (%s): making a base system with debootstrap", official, reason(err))
	if err := p.needDebootstrap(ctx); err != nil {
		return err
	}
	if err := p.debootstrap(ctx, v); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("make base system: %w", ctx.Err())
		}
		return &Error{Op: "make base system of Debian " + v.Suite, Err: err, Fix: "check that apt-get update works on this machine, or use images of your own: --image"}
	}
	return nil
}

// needDebootstrap makes sure that debootstrap can run.
func (p *preparer) needDebootstrap(ctx context.Context) error {
	const op = "make base system"
	if os.Geteuid() != 0 {
		return &Error{Op: op, Err: errors.New("no registry answers, and debootstrap needs root"), Fix: "once: sudo conform prepare"}
	}
	if _, err := os.Stat(debootstrapScript); err == nil {
		return nil
	}
	if !p.options.InstallEngine {
		return &Error{Op: op, Err: errors.New("no registry answers, and debootstrap is not installed"), Fix: "apt-get install debootstrap, or: conform prepare --install-docker"}
	}
	return p.aptInstall(ctx, "debootstrap", "debian-archive-keyring")
}

// debootstrap makes the base system in a folder and imports it as an image. The caller holds the build lock, so the folder
// can have a fixed name, and one that a killed run left is replaced.
func (p *preparer) debootstrap(ctx context.Context, v fixtures.Version) (err error) {
	dir, err := cachePath("rootfs")
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("clear %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	// In mount and process namespaces of its own, so that no mount and no child of debootstrap's outlives it, however it ends.
	argv := []string{
		"unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
		"debootstrap", "--variant=minbase", v.Suite, dir,
	}
	if mirror := p.mirror(ctx); mirror != "" {
		argv = append(argv, mirror, debootstrapScript)
	} else {
		argv = append(argv, "", debootstrapScript) // debootstrap's own default mirror
	}
	start := time.Now()
	if err := p.run(ctx, argv...); err != nil {
		return fmt.Errorf("%w\n%s", err, tailOf(filepath.Join(dir, "debootstrap", "debootstrap.log")))
	}
	p.say("made base system in %s: importing it", time.Since(start).Round(time.Second))
	if err := os.RemoveAll(filepath.Join(dir, "var", "cache", "apt", "archives")); err != nil {
		return fmt.Errorf("drop downloaded packages: %w", err)
	}
	return p.importDir(ctx, dir, v.Base())
}

// importDir makes an image of a folder.
func (p *preparer) importDir(ctx context.Context, dir, ref string) error {
	r, w := io.Pipe()
	tar := exec.CommandContext(ctx, "tar", "--numeric-owner", "--one-file-system", "-C", dir, "-c", ".")
	tar.Stdout = w
	done := make(chan error, 1)
	go func() {
		err := tar.Run()
		w.CloseWithError(err)
		done <- err
	}()
	err := p.engine.Import(ctx, ref, r)
	r.CloseWithError(errors.New("import ended")) // lets tar end when the engine has stopped reading
	if tarErr := <-done; err == nil && tarErr != nil {
		err = fmt.Errorf("pack %s: %w", dir, tarErr)
	}
	return err
}

// mirror is the address from which this machine's apt gets Debian packages; empty when it has none, as on Ubuntu.
func (p *preparer) mirror(ctx context.Context) string {
	// apt itself knows best how to read its configuration, in all the forms that has.
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", aptFormat).Output()
	if err != nil {
		p.log.Debug("ask apt for its mirrors", "error", err)
		return ""
	}
	return debianMirror(string(out))
}

// aptFormat makes apt list its sources as lines of repository, release, component, origin and label.
const aptFormat = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)|$(LABEL)"

// debianMirror picks the mirror of the main Debian archive from apt's list of sources (see aptFormat). A source counts when
// its archive says that it is Debian's, or, before its first update, when its address ends like one.
func debianMirror(targets string) string {
	for line := range strings.Lines(targets) {
		fields := strings.Split(strings.TrimSpace(line), "|")
		if len(fields) != 5 {
			continue
		}
		uri, release, component, origin, label := strings.TrimRight(fields[0], "/"), fields[1], fields[2], fields[3], fields[4]
		if component != "main" || strings.Contains(release, "-") { // security, updates, backports
			continue
		}
		if !strings.HasPrefix(uri, "http://") && !strings.HasPrefix(uri, "https://") {
			continue // debootstrap knows no other way
		}
		if origin == "Debian" && label == "Debian" || origin == "" && strings.HasSuffix(uri, "/debian") {
			return uri
		}
	}
	return ""
}
