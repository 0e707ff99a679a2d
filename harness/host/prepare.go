package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"conform/fixtures"
	"conform/harness/internal/container"
)

// Source says where images may come from.
type Source string

// The image sources. The zero value means Auto.
const (
	Auto  Source = "auto"  // what is here, else the project's official image, else a build
	Local Source = "local" // only what is here
	Pull  Source = "pull"  // the official image
	Build Source = "build" // an image built here
)

// Sources lists the names of all image sources.
func Sources() []Source { return []Source{Auto, Local, Pull, Build} }

// ParseSource reads a source by its name; the empty string is Auto. The error is a *fixtures.UnknownError.
func ParseSource(s string) (Source, error) {
	if s == "" {
		return Auto, nil
	}
	if source := Source(s); slices.Contains(Sources(), source) {
		return source, nil
	}
	return "", &fixtures.UnknownError{Kind: "image source", Got: s, Nearest: []string{string(Auto), string(Local), string(Pull), string(Build)}}
}

// Options says what to prepare. The zero value prepares the tools image and nothing else, and installs nothing.
type Options struct {
	InstallEngine bool               // install and start an engine, and what building images needs, where missing (root, Debian-like)
	Dev           bool               // also what conform's own tests need: chromium, a C compiler, git
	Systems       []fixtures.Version // whose images are wanted
	Source        Source             // where images may come from
	Images        map[string]string  // the user's own images by system, e.g. "kafka": "registry/mykafka:1"
	Progress      io.Writer          // one line per step; nil: none
	Log           *slog.Logger       // details; nil: none
}

// Image is an image that is ready to run.
type Image struct {
	Ref    string // what to start containers with
	ID     string // "sha256:...", identifies the bytes
	Digest string // as a registry knows it; empty when built here
	Source Source // Local (was here), Pull or Build
}

// Images holds prepared images by version, e.g. "kafka:4.2.0", and by fixtures.Tools().String() the tools image.
type Images map[string]Image

// Error is a failure of the environment, not of what is tested, with the line that fixes it.
type Error struct {
	Op  string // what was done
	Err error  // what happened
	Fix string // what to do: a command, or one sentence
}

// Error says what was done, what happened and what fixes it.
func (e *Error) Error() string {
	if e.Fix == "" {
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%s: %v\n  fix: %s", e.Op, e.Err, e.Fix)
}

// Unwrap returns what happened.
func (e *Error) Unwrap() error { return e.Err }

// Prepare brings the engine, when asked to, and the images of the given versions and of the tools. What is there already
// is used as it is, so calling it before each run costs a few milliseconds. The error is an *Error, unless ctx has ended.
func Prepare(ctx context.Context, o Options) (Images, error) {
	p := &preparer{options: o, progress: o.Progress, log: o.Log}
	if p.progress == nil {
		p.progress = io.Discard
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if o.InstallEngine {
		if err := p.installEngine(ctx); err != nil {
			return nil, err
		}
	}
	if o.Dev {
		if err := p.installDev(ctx); err != nil {
			return nil, err
		}
	}
	engine, err := container.Connect(ctx)
	if err != nil {
		return nil, connectError(err)
	}
	p.engine = engine

	images := Images{}
	for _, v := range append([]fixtures.Version{fixtures.Tools()}, o.Systems...) {
		if _, done := images[v.String()]; done {
			continue
		}
		image, err := p.image(ctx, v)
		if err != nil {
			return nil, err
		}
		images[v.String()] = image
	}
	return images, nil
}

// connectError turns the container package's error into the public one.
func connectError(err error) error {
	var c *container.ConnectError
	if errors.As(err, &c) {
		return &Error{Op: "connect to container engine", Err: fmt.Errorf("%w: %w", c.Reason, c.Cause), Fix: c.Fix}
	}
	return &Error{Op: "connect to container engine", Err: err}
}

// preparer is one call of Prepare.
type preparer struct {
	options  Options
	progress io.Writer
	log      *slog.Logger
	engine   *container.Engine
	offline  bool // a pull failed because no registry answered: further pulls would only cost time
	updated  bool // apt's package lists are fresh
}

// say prints a line about what is being done.
func (p *preparer) say(format string, args ...any) {
	fmt.Fprintf(p.progress, "prepare: "+format+"\n", args...)
}
