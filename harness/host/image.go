package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"conform/fixtures"
	"conform/harness/internal/container"
)

// image brings one image by the rules of the options' source.
func (p *preparer) image(ctx context.Context, v fixtures.Version) (Image, error) {
	if own := p.options.Images[v.System]; own != "" {
		return p.ownImage(ctx, v, own)
	}
	source := p.options.Source
	if source == "" {
		source = Auto
	}
	if v.Official == "" && source == Pull { // only the tools: there is nothing to pull
		source = Auto
	}

	here := []string{v.Image(), v.Official}
	switch source {
	case Pull:
		here = []string{v.Official}
	case Build:
		here = []string{v.Image()}
	}
	for _, ref := range here {
		if ref == "" {
			continue
		}
		if image, ok, err := p.engine.Image(ctx, ref); err != nil {
			return Image{}, &Error{Op: "look for image of " + v.String(), Err: err}
		} else if ok {
			return found(image, Local), nil
		}
	}

	switch source {
	case Local:
		return Image{}, &Error{
			Op:  "find image of " + v.String(),
			Err: fmt.Errorf("%s is not here", strings.Trim(strings.Join(here, ", "), ", ")),
			Fix: prepareLine(v),
		}
	case Pull:
		image, err := p.pull(ctx, v.Official)
		if err != nil {
			return Image{}, &Error{Op: "pull image of " + v.String(), Err: err, Fix: "use --image-source build, or name your own: --image " + v.System + "=NAME:TAG"}
		}
		return image, nil
	case Auto:
		if v.Official != "" {
			image, err := p.pull(ctx, v.Official)
			if err == nil {
				return image, nil
			}
			if ctx.Err() != nil {
				return Image{}, fmt.Errorf("pull image of %s: %w", v, ctx.Err())
			}
			p.say("%s cannot be pulled (%v): building an image instead", v.Official, reason(err))
		}
	}
	return p.build(ctx, v)
}

// prepareLine is the command that brings the image of a version.
func prepareLine(v fixtures.Version) string {
	if v.System == fixtures.ToolsSystem {
		return "conform prepare"
	}
	return "conform prepare --version " + v.String()
}

// ownImage finds or pulls an image the user named.
func (p *preparer) ownImage(ctx context.Context, v fixtures.Version, ref string) (Image, error) {
	image, ok, err := p.engine.Image(ctx, ref)
	if err != nil {
		return Image{}, &Error{Op: "look for image " + ref, Err: err}
	}
	if ok {
		return found(image, Local), nil
	}
	pulled, err := p.pull(ctx, ref)
	if err != nil {
		return Image{}, &Error{Op: "get your image of " + v.System, Err: err, Fix: "build or load it under the name " + ref + ", or leave out --image " + v.System}
	}
	return pulled, nil
}

func found(i container.Image, source Source) Image {
	return Image{Ref: i.Ref, ID: i.ID, Digest: i.Digest, Source: source}
}

// errOffline stands for the pulls that are not tried after one found no registry.
var errOffline = errors.New("no registry answers")

// pullSilence is how long a pull may say nothing before no registry is assumed: a name that does not resolve fails at
// once, but dropped packets would otherwise cost minutes.
const pullSilence = 20 * time.Second

// pull fetches an image.
func (p *preparer) pull(ctx context.Context, ref string) (Image, error) {
	if p.offline {
		return Image{}, errOffline
	}
	p.say("pulling %s", ref)
	pullCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(pullSilence, func() { cancel(errOffline) })
	defer silence.Stop()

	err := p.engine.Pull(pullCtx, ref, writerFunc(func(line []byte) {
		silence.Reset(pullSilence * 30) // it talks: now only a stall of ten minutes ends it
		p.log.Debug("pull", "image", ref, "line", string(line))
	}))
	if cause := context.Cause(pullCtx); cause != nil {
		err = cause
	}
	if err != nil {
		p.offline = unreachable(err)
		return Image{}, err
	}
	image, ok, err := p.engine.Image(ctx, ref)
	if err != nil {
		return Image{}, err
	}
	if !ok {
		return Image{}, fmt.Errorf("pulled %s is not here", ref)
	}
	return found(image, Pull), nil
}

// unreachable tells "no registry answers" from "the registry says no".
func unreachable(err error) bool {
	if errors.Is(err, errOffline) {
		return true
	}
	for _, sign := range []string{"no such host", "dial tcp", "i/o timeout", "Temporary failure", "server misbehaving", "connection refused", "network is unreachable", "Client.Timeout", "TLS handshake", "x509"} {
		if strings.Contains(err.Error(), sign) {
			return true
		}
	}
	return false
}

// reason shortens an error to its last part, which names the cause.
func reason(err error) string {
	text := strings.TrimSpace(err.Error())
	if i := strings.LastIndex(text, ": "); i >= 0 {
		return text[i+2:]
	}
	return text
}

// build builds the image of a version from its context.
func (p *preparer) build(ctx context.Context, v fixtures.Version) (Image, error) {
	// Two runs must not build the same image at once: it would take twice as long and twice the memory.
	unlock, err := lockFile(ctx, "build.lock", func() { p.say("another conform is building images: waiting for it") })
	if err != nil {
		return Image{}, &Error{Op: "build image of " + v.String(), Err: err}
	}
	defer unlock()
	if image, ok, err := p.engine.Image(ctx, v.Image()); err == nil && ok {
		return found(image, Build), nil
	}

	if err := p.roomToBuild(ctx); err != nil {
		return Image{}, err
	}
	if err := p.base(ctx, v); err != nil {
		return Image{}, err
	}
	files, err := v.Context()
	if err != nil {
		return Image{}, &Error{Op: "build image of " + v.String(), Err: err}
	}
	certificates, err := hostCertificates()
	if err != nil {
		return Image{}, &Error{Op: "build image of " + v.String(), Err: err}
	}
	for name, content := range certificates {
		files[path.Join("ca", name)] = content
	}
	p.say("building image %s", v.Image())
	start := time.Now()
	err = p.engine.Build(ctx, container.BuildSpec{
		Tag:     v.Image(),
		Context: files,
		Args:    map[string]string{"BASE": v.Base(), "VERSION": v.Number},
	}, writerFunc(func(line []byte) {
		if strings.HasPrefix(string(line), "Step ") {
			p.say("  %s", line)
		}
		p.log.Debug("build", "image", v.Image(), "line", string(line))
	}))
	if err != nil {
		if ctx.Err() != nil {
			return Image{}, fmt.Errorf("build image of %s: %w", v, ctx.Err())
		}
		return Image{}, &Error{Op: "build image of " + v.String(), Err: err, Fix: "see the output above; or use an image of your own: --image " + v.System + "=NAME:TAG"}
	}
	p.say("built image %s in %s", v.Image(), time.Since(start).Round(time.Second))
	image, ok, err := p.engine.Image(ctx, v.Image())
	if err != nil || !ok {
		return Image{}, &Error{Op: "find built image of " + v.String(), Err: errors.Join(err, fmt.Errorf("%s is not here", v.Image()))}
	}
	return found(image, Build), nil
}

// roomToBuild makes sure that the engine's disk can take a built image with its builder, where that disk can be seen.
func (p *preparer) roomToBuild(ctx context.Context) error {
	const needMiB = 3072
	info, err := p.engine.Info(ctx)
	if err != nil {
		return &Error{Op: "build image", Err: err}
	}
	if _, err := os.Stat(info.Root); err != nil {
		return nil // the engine is on another machine
	}
	if err := CheckDisk(ctx, info.Root, needMiB); err != nil {
		return &Error{Op: "build image", Err: err, Fix: "docker system prune"}
	}
	return nil
}

// certificateDir is where a Debian-like machine keeps the authorities its owner added.
const certificateDir = "/usr/local/share/ca-certificates"

// hostCertificates reads the machine's own certificate authorities, by file name: behind a proxy that opens TLS, downloads
// inside a build need them. There is always a file, because a Dockerfile cannot copy an empty folder.
func hostCertificates() (map[string][]byte, error) {
	files := map[string][]byte{"README": []byte("Certificate authorities of the machine this image was built on.\n")}
	names, err := filepath.Glob(filepath.Join(certificateDir, "*.crt"))
	if err != nil {
		return nil, fmt.Errorf("list certificates: %w", err)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read certificate: %w", err)
		}
		files[filepath.Base(name)] = content
	}
	return files, nil
}

// writerFunc is a writer that hands on whole lines, without their line ends.
type writerFunc func(line []byte)

// Write hands on the lines in b; callers write whole lines.
func (f writerFunc) Write(b []byte) (int, error) {
	for s := bufio.NewScanner(strings.NewReader(string(b))); s.Scan(); {
		f(s.Bytes())
	}
	return len(b), nil
}

var _ io.Writer = writerFunc(nil)
