package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/build"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"
)

// Image describes an image that is here.
type Image struct {
	Ref    string // the name asked for
	ID     string // "sha256:...", of the image itself: the same bytes have the same id
	Digest string // as a registry knows it, "apache/kafka@sha256:..."; empty for images built here
	MiB    int64
}

// Image looks an image up. The second result is false when it is not here.
func (e *Engine) Image(ctx context.Context, ref string) (Image, bool, error) {
	r, err := e.api.ImageInspect(ctx, ref)
	if errdefs.IsNotFound(err) {
		return Image{}, false, nil
	}
	if err != nil {
		return Image{}, false, fmt.Errorf("inspect image %s: %w", ref, err)
	}
	image := Image{Ref: ref, ID: r.ID, MiB: r.Size >> 20}
	if len(r.RepoDigests) > 0 {
		image.Digest = r.RepoDigests[0]
	}
	return image, true, nil
}

// Pull fetches an image from its registry. Lines about its progress go to w.
func (e *Engine) Pull(ctx context.Context, ref string, w io.Writer) error {
	r, err := e.api.ImagePull(ctx, ref, client.ImagePullOptions{})
	if err != nil {
		return fmt.Errorf("pull image %s: %w", ref, err)
	}
	defer r.Close()
	if _, err := follow(r, w); err != nil {
		return fmt.Errorf("pull image %s: %w", ref, err)
	}
	return nil
}

// Import makes an image from the tar archive of a root file system.
func (e *Engine) Import(ctx context.Context, ref string, rootfs io.Reader) error {
	r, err := e.api.ImageImport(ctx, client.ImageImportSource{Source: rootfs, SourceName: "-"}, ref, client.ImageImportOptions{})
	if err != nil {
		return fmt.Errorf("import image %s: %w", ref, err)
	}
	defer r.Close()
	if _, err := follow(r, io.Discard); err != nil {
		return fmt.Errorf("import image %s: %w", ref, err)
	}
	return nil
}

// Tag gives an image another name.
func (e *Engine) Tag(ctx context.Context, ref, name string) error {
	if _, err := e.api.ImageTag(ctx, client.ImageTagOptions{Source: ref, Target: name}); err != nil {
		return fmt.Errorf("name image %s %s: %w", ref, name, err)
	}
	return nil
}

// BuildSpec describes an image to be built.
type BuildSpec struct {
	Tag     string
	Context map[string][]byte // Dockerfile and what it copies, by path
	Args    map[string]string // build arguments
	Labels  map[string]string
}

// Build builds an image with the engine's classic builder, which every engine has and which needs no session. The build
// uses this machine's network, since an engine without name resolution for its bridge is common. The builder's output goes
// to w; an error holds its end.
func (e *Engine) Build(ctx context.Context, spec BuildSpec, w io.Writer) error {
	files := make([]File, 0, len(spec.Context))
	for _, name := range slices.Sorted(maps.Keys(spec.Context)) {
		files = append(files, File{Path: name, Content: spec.Context[name]})
	}
	content, err := tarball(files)
	if err != nil {
		return fmt.Errorf("build image %s: %w", spec.Tag, err)
	}
	args := make(map[string]*string, len(spec.Args))
	for name, value := range spec.Args {
		args[name] = &value
	}
	r, err := e.api.ImageBuild(ctx, content, client.ImageBuildOptions{
		Tags:        []string{spec.Tag},
		BuildArgs:   args,
		Labels:      spec.Labels,
		NetworkMode: "host",
		Version:     build.BuilderV1,
		Remove:      true,
		ForceRemove: true,
	})
	if err != nil {
		return fmt.Errorf("build image %s: %w", spec.Tag, err)
	}
	defer r.Body.Close()
	if tail, err := follow(r.Body, w); err != nil {
		return fmt.Errorf("build image %s: %w; its output ends:\n%s", spec.Tag, err, tail)
	}
	return nil
}

// follow reads the engine's message stream to its end, writes what it says to w, and returns its last lines and its error.
func follow(r io.Reader, w io.Writer) (tail string, err error) {
	const keep = 40
	var last []string
	d := json.NewDecoder(r)
	for {
		var m jsonstream.Message
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return strings.Join(last, "\n"), nil
		} else if err != nil {
			return strings.Join(last, "\n"), fmt.Errorf("read progress: %w", err)
		}
		if m.Error != nil {
			return strings.Join(last, "\n"), m.Error
		}
		text := m.Stream
		if m.Status != "" && m.Progress == nil { // a progress bar's steps are too many
			text = strings.TrimSpace(m.ID + " " + m.Status)
		}
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, "\r\n")
			if strings.TrimSpace(line) == "" {
				continue
			}
			if last = append(last, line); len(last) > keep {
				last = last[1:]
			}
			if _, err := fmt.Fprintln(w, line); err != nil {
				return "", fmt.Errorf("write progress: %w", err)
			}
		}
	}
}
