package container

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// ErrNotRunning is returned where a running container is needed and it is not.
var ErrNotRunning = errors.New("container is not running")

// Spec describes a container.
type Spec struct {
	Name       string             // unique within the run
	Image      string             // must be present: nothing is pulled here on purpose, see package host
	Pod        *Pod               // whose network namespace it joins; nil: no network at all
	Entrypoint []string           // nil: the image's
	Cmd        []string           // nil: the image's
	Env        map[string]string  // secrets go here, never into Cmd
	Files      []File             // put in before the first start
	Mounts     map[string]*Volume // path in the container -> volume
	MemoryMiB  int64              // limit; 0: none
	User       string             // "uid:gid" or name; empty: the image's
	// LoopDevices is for the helper of disk faults only: it may make file systems on loop devices, mount them, and see the
	// cgroups of the machine.
	LoopDevices bool
}

// File is content to be put into a container.
type File struct {
	Path    string // absolute
	Content []byte
	Mode    int64 // permission bits; 0 means 0644
}

// Container is a created container: its process may be running or not.
type Container struct {
	engine *Engine
	ID     string
	Name   string // engine-wide name

	mu      sync.Mutex
	lastRun time.Time // the log of the last run begins here, by the engine's clock
}

// NewContainer makes a container without starting it. On an error nothing of it is left.
func (e *Engine) NewContainer(ctx context.Context, owner Owner, spec Spec) (*Container, error) {
	mode := container.NetworkMode("none")
	if spec.Pod != nil {
		mode = container.NetworkMode("container:" + spec.Pod.container.ID)
	}
	c, err := e.create(ctx, testcontainers.ContainerRequest{
		Image:          spec.Image,
		Name:           owner.name(spec.Name),
		Entrypoint:     spec.Entrypoint,
		Cmd:            spec.Cmd,
		Env:            spec.Env,
		Labels:         owner.Labels(),
		ConfigModifier: func(c *container.Config) { c.User = spec.User },
		HostConfigModifier: func(h *container.HostConfig) {
			h.NetworkMode = mode
			h.Mounts = mounts(spec.Mounts)
			h.Resources.Memory = spec.MemoryMiB << 20
			h.Resources.MemorySwap = spec.MemoryMiB << 20 // no swap: a broker that swaps measures the disk
			// Whatever the engine's default is, logs must be readable, and a broker in a loop must not fill the disk.
			h.LogConfig = container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "64m", "max-file": "3"}}
			if spec.LoopDevices {
				allowLoopDevices(h)
				h.CgroupnsMode = container.CgroupnsModeHost
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("create container %s: %w", spec.Name, err)
	}
	if err := c.Put(ctx, spec.Files...); err != nil {
		return nil, errors.Join(err, c.cleanUp(ctx))
	}
	return c, nil
}

// create makes a container from a request, and removes what is there when only half of it worked.
func (e *Engine) create(ctx context.Context, request testcontainers.ContainerRequest) (*Container, error) {
	// Without this check the library would try to pull the image, three times and with pauses.
	if _, err := e.api.ImageInspect(ctx, request.Image); err != nil {
		if errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("image %s is not here: conform prepare: %w", request.Image, err)
		}
		return nil, fmt.Errorf("inspect image %s: %w", request.Image, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	whole, cancel := making(ctx)
	defer cancel()
	made, err := e.provider.CreateContainer(whole, request)
	if made == nil {
		return nil, err
	}
	c := &Container{engine: e, ID: made.GetContainerID(), Name: request.Name}
	if err != nil {
		return nil, errors.Join(err, c.cleanUp(ctx))
	}
	return c, nil
}

// making is the context of a request that makes something. The engine goes on with one whose client has given up, and then
// nobody would know what it has made; so such a request runs to its end, and what it made is there for the caller to remove.
func making(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
}

// cleanUp removes a container that did not become what it should, even when the caller has given up.
func (c *Container) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return c.Remove(ctx)
}

// mounts turns the map into the engine's form, in a fixed order.
func mounts(volumes map[string]*Volume) []mount.Mount {
	ms := make([]mount.Mount, 0, len(volumes))
	for _, target := range slices.Sorted(maps.Keys(volumes)) {
		ms = append(ms, mount.Mount{Type: mount.TypeVolume, Source: volumes[target].Name, Target: target})
	}
	return ms
}

// Put writes files into the container, running or not, over what is there. Missing folders are made.
func (c *Container) Put(ctx context.Context, files ...File) error {
	if len(files) == 0 {
		return nil
	}
	content, err := tarball(files)
	if err != nil {
		return fmt.Errorf("put files into %s: %w", c.Name, err)
	}
	if _, err := c.engine.api.CopyToContainer(ctx, c.ID, client.CopyToContainerOptions{DestinationPath: "/", Content: content}); err != nil {
		return fmt.Errorf("put files into %s: %w", c.Name, err)
	}
	return nil
}

// tarball packs files with absolute paths.
func tarball(files []File) (io.Reader, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		mode := f.Mode
		if mode == 0 {
			mode = 0o644
		}
		header := &tar.Header{Name: strings.TrimPrefix(path.Clean(f.Path), "/"), Mode: mode, Size: int64(len(f.Content)), ModTime: time.Unix(0, 0)}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.Path, err)
		}
		if _, err := w.Write(f.Content); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack files: %w", err)
	}
	return &b, nil
}

// Start starts the container's process. Starting a running one is no error.
func (c *Container) Start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	state, err := c.State(ctx)
	if err != nil {
		return err
	}
	if state.Running {
		return nil
	}
	// The engine notes the start a moment after the process could write its first lines, and the end a moment before it
	// has read the last ones: neither time tells two runs apart. The last line that is there before the start does.
	end, err := c.logEnd(ctx)
	if err != nil {
		return err
	}
	c.lastRun = end
	if _, err := c.engine.api.ContainerStart(ctx, c.ID, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("start container %s: %w", c.Name, err)
	}
	return nil
}

// Signal sends a signal ("KILL", "STOP", "CONT", "TERM", ...) to the container's main process. After KILL it returns when
// the process is gone. KILL and CONT of a container that does not run are no errors, so that heals may run twice;
// anything else is ErrNotRunning.
func (c *Container) Signal(ctx context.Context, signal string) error {
	signal = strings.TrimPrefix(strings.ToUpper(signal), "SIG")
	_, err := c.engine.api.ContainerKill(ctx, c.ID, client.ContainerKillOptions{Signal: signal})
	if err != nil {
		state, stateErr := c.State(ctx)
		switch {
		case stateErr != nil || state.Running:
			return fmt.Errorf("send %s to container %s: %w", signal, c.Name, err)
		case signal == "KILL" || signal == "CONT":
			return nil
		default:
			return fmt.Errorf("send %s to container %s: %w", signal, c.Name, ErrNotRunning)
		}
	}
	if signal == "KILL" {
		return c.waitExit(ctx)
	}
	return nil
}

// waitExit returns when the container's process is gone.
func (c *Container) waitExit(ctx context.Context) error {
	wait := c.engine.api.ContainerWait(ctx, c.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-wait.Result:
		return nil
	case err := <-wait.Error:
		if errdefs.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("wait for end of container %s: %w", c.Name, err)
	}
}

// Pause freezes all processes of the container (cgroup freezer): it answers nothing, its connections stay. Pausing a
// paused one is no error. A process that waits for its disk cannot be frozen until that answers, which the runtime does not
// wait for long enough ("unable to freeze"): it is asked again for a while.
func (c *Container) Pause(ctx context.Context) error {
	deadline := time.Now().Add(freezePatience)
	for {
		_, err := c.engine.api.ContainerPause(ctx, c.ID, client.ContainerPauseOptions{})
		if err == nil {
			return nil
		}
		state, stateErr := c.State(ctx)
		switch {
		case stateErr == nil && state.Paused:
			return nil
		case stateErr != nil, !state.Running, !strings.Contains(err.Error(), "unable to freeze"), time.Now().After(deadline), ctx.Err() != nil:
			return fmt.Errorf("pause container %s: %w", c.Name, err)
		}
	}
}

// freezePatience is how long a container's processes may wait for their disk before they can be frozen.
const freezePatience = 10 * time.Second

// Unpause thaws the container. Unpausing one that is not paused, or not running, is no error.
func (c *Container) Unpause(ctx context.Context) error {
	_, err := c.engine.api.ContainerUnpause(ctx, c.ID, client.ContainerUnpauseOptions{})
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	if state, stateErr := c.State(ctx); stateErr == nil && !state.Paused {
		return nil
	}
	return fmt.Errorf("unpause container %s: %w", c.Name, err)
}

// Stop asks the process to end (the image's stop signal, TERM by default) and kills it after the grace period, which
// counts in whole seconds. Stopping a stopped one is no error. The exit code tells which it was: 137 after a kill.
func (c *Container) Stop(ctx context.Context, grace time.Duration) error {
	seconds := int((grace + time.Second - 1) / time.Second)
	if _, err := c.engine.api.ContainerStop(ctx, c.ID, client.ContainerStopOptions{Timeout: &seconds}); err != nil {
		return fmt.Errorf("stop container %s: %w", c.Name, err)
	}
	return nil
}

// Remove kills and removes the container. Its volumes stay. Removing it twice is no error.
func (c *Container) Remove(ctx context.Context) error { return c.engine.removeContainer(ctx, c.ID) }

func (e *Engine) removeContainer(ctx context.Context, id string) error {
	err := retryBusy(ctx, func() error {
		_, err := e.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true})
		return err
	})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	return nil
}

// State is a container's state.
type State struct {
	Running   bool // true for a paused one too
	Paused    bool
	PID       int // on the engine's machine; 0 when not running
	ExitCode  int // of the last run
	OOMKilled bool
	StartedAt time.Time // of the last start; zero when never started
	EndedAt   time.Time // of the last end; zero when never ended
}

// Incarnation tells this run of the container from any other, and from none.
func (s State) Incarnation() string {
	switch {
	case s.Running:
		return fmt.Sprintf("pid %d, started at %s", s.PID, s.StartedAt.UTC().Format("15:04:05.000000"))
	case s.OOMKilled:
		return fmt.Sprintf("not running: out of memory, exit code %d", s.ExitCode)
	default:
		return fmt.Sprintf("not running: exit code %d", s.ExitCode)
	}
}

// State asks the engine for the container's state.
func (c *Container) State(ctx context.Context) (State, error) {
	r, err := c.engine.api.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
	if err != nil {
		return State{}, fmt.Errorf("inspect container %s: %w", c.Name, err)
	}
	s := r.Container.State
	return State{
		Running:   s.Running,
		Paused:    s.Paused,
		PID:       s.Pid,
		ExitCode:  s.ExitCode,
		OOMKilled: s.OOMKilled,
		StartedAt: engineTime(s.StartedAt),
		EndedAt:   engineTime(s.FinishedAt),
	}, nil
}

// engineTime reads a time of the engine, whose "never" is the year 1.
func engineTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
}

// LogRange says which part of a log is wanted. The zero value is all of it.
type LogRange struct {
	LastRun bool      // only what was written since the last start
	Since   time.Time // lines from this time of the engine's clock on
	Tail    int       // only so many last lines
}

// Logs writes the container's log, standard output and standard error together, to w.
func (c *Container) Logs(ctx context.Context, w io.Writer, part LogRange) error {
	since := part.Since
	if from := c.runBegin(); part.LastRun && from.After(since) {
		since = from
	}
	options := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Since: logTime(since)}
	if part.Tail > 0 {
		options.Tail = strconv.Itoa(part.Tail)
	}
	r, err := c.engine.api.ContainerLogs(ctx, c.ID, options)
	if err != nil {
		return fmt.Errorf("read log of %s: %w", c.Name, err)
	}
	defer r.Close()
	if _, err := stdcopy.StdCopy(w, w, r); err != nil {
		return fmt.Errorf("read log of %s: %w", c.Name, err)
	}
	return nil
}

// runBegin is when the log of the last run begins.
func (c *Container) runBegin() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastRun
}

// logEnd is the time just after the last line of the log, zero when there is none.
func (c *Container) logEnd(ctx context.Context) (time.Time, error) {
	r, err := c.engine.api.ContainerLogs(ctx, c.ID, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Timestamps: true, Tail: "1"})
	if err != nil {
		return time.Time{}, fmt.Errorf("read end of log of %s: %w", c.Name, err)
	}
	defer r.Close()
	var line strings.Builder
	if _, err := stdcopy.StdCopy(&line, &line, r); err != nil {
		return time.Time{}, fmt.Errorf("read end of log of %s: %w", c.Name, err)
	}
	stamp, _, _ := strings.Cut(line.String(), " ")
	end := engineTime(stamp)
	if end.IsZero() {
		return end, nil
	}
	return end.Add(time.Nanosecond), nil
}

// logTime is the form in which the engine takes a time without losing nanoseconds.
func logTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond())
}

// Tail returns the last n lines of the log, for error messages: it is empty, never an error, when there is none.
func (c *Container) Tail(ctx context.Context, n int) string {
	var b strings.Builder
	if err := c.Logs(ctx, &b, LogRange{Tail: n}); err != nil {
		return ""
	}
	return strings.TrimSpace(b.String())
}

// WaitLog waits for a line that matches, written since the container's last start, and returns it. When the process ends
// first, the error wraps ErrNotRunning and holds the exit code and the end of the log.
func (c *Container) WaitLog(ctx context.Context, pattern *regexp.Regexp) (string, error) {
	// Ends the copying goroutine at the first match.
	followCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := c.engine.api.ContainerLogs(followCtx, c.ID, client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Follow: true, Since: logTime(c.runBegin()),
	})
	if err != nil {
		return "", fmt.Errorf("follow log of %s: %w", c.Name, err)
	}
	lines, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := stdcopy.StdCopy(w, w, r)
		w.CloseWithError(err)
	}()
	defer func() {
		cancel()
		r.Close()
		lines.Close()
		<-done
	}()

	scanner := bufio.NewScanner(lines)
	scanner.Buffer(make([]byte, 64<<10), 16<<20)
	for scanner.Scan() {
		if pattern.Match(scanner.Bytes()) {
			return scanner.Text(), nil
		}
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("wait for %q in log of %s: %w; log ends:\n%s", pattern, c.Name, ctx.Err(), c.Tail(context.WithoutCancel(ctx), 20))
	}
	if err := scanner.Err(); err != nil {
		return "", fmt.Errorf("follow log of %s: %w", c.Name, err)
	}
	state, err := c.State(ctx)
	if err != nil {
		return "", err
	}
	return "", fmt.Errorf("wait for %q in log of %s: %w: exit code %d, killed for memory: %t; log ends:\n%s",
		pattern, c.Name, ErrNotRunning, state.ExitCode, state.OOMKilled, c.Tail(ctx, 20))
}

// ExitError says that a command inside a container failed.
type ExitError struct {
	Argv   []string
	Code   int
	Stderr string
}

// Error names the command, the code and what it wrote to standard error.
func (e *ExitError) Error() string {
	return fmt.Sprintf("%s: exit code %d: %s", strings.Join(e.Argv, " "), e.Code, strings.TrimSpace(e.Stderr))
}

// Exec runs a command in the running container and returns its standard output. A command that ends with another code than
// 0 is an *ExitError. A cancelled context leaves the command to itself: the engine cannot end it.
func (c *Container) Exec(ctx context.Context, argv ...string) (string, error) {
	out, err := c.exec(ctx, argv)
	if err != nil {
		return out, fmt.Errorf("run in container %s: %w", c.Name, err)
	}
	return out, nil
}

func (c *Container) exec(ctx context.Context, argv []string) (string, error) {
	api := c.engine.api
	made, err := api.ExecCreate(ctx, c.ID, client.ExecCreateOptions{Cmd: argv, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return "", err
	}
	attached, err := api.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return "", err
	}
	// The hijacked connection knows no context: closing it ends the read.
	stop := context.AfterFunc(ctx, attached.Close)
	defer func() {
		if stop() {
			attached.Close()
		}
	}()
	var stdout, stderr bytes.Buffer
	if _, err := stdcopy.StdCopy(&stdout, &stderr, attached.Reader); err != nil {
		return stdout.String(), errors.Join(ctx.Err(), err)
	}
	r, err := api.ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
	if err != nil {
		return stdout.String(), err
	}
	if r.ExitCode != 0 {
		return stdout.String(), &ExitError{Argv: argv, Code: r.ExitCode, Stderr: stderr.String()}
	}
	return stdout.String(), nil
}

// MemoryMiB is the memory the container uses now, without the page cache that can be dropped.
func (c *Container) MemoryMiB(ctx context.Context) (int64, error) {
	r, err := c.engine.api.ContainerStats(ctx, c.ID, client.ContainerStatsOptions{})
	if err != nil {
		return 0, fmt.Errorf("read memory of %s: %w", c.Name, err)
	}
	defer r.Body.Close()
	var stats container.StatsResponse
	if err := json.NewDecoder(r.Body).Decode(&stats); err != nil {
		return 0, fmt.Errorf("read memory of %s: %w", c.Name, err)
	}
	used := stats.MemoryStats.Usage
	for _, key := range []string{"total_inactive_file", "inactive_file"} { // cgroup v1, v2
		if cache, ok := stats.MemoryStats.Stats[key]; ok && cache < used {
			used -= cache
			break
		}
	}
	return int64(used >> 20), nil
}
