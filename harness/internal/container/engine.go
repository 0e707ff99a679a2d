package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"

	"conform/fixtures"
)

// Engine is a connection to the container engine. It is safe for concurrent use and needs no closing.
type Engine struct {
	api      client.APIClient
	provider *testcontainers.DockerProvider
	// Tools is the image of pods and of the helpers that work on volumes: fixtures.Tools().Image() unless changed
	// before the first use.
	Tools string
}

// The reasons why there is no engine to work with. [Connect] wraps one of them.
var (
	ErrNoEngine  = errors.New("no container engine answers")
	ErrNoRights  = errors.New("no rights to use the container engine")
	ErrOldEngine = errors.New("container engine is too old")
	// ErrNamedSilent is kept apart from ErrNoEngine: whoever names an engine wants that one, so no other may be started.
	ErrNamedSilent = errors.New("the container engine that DOCKER_HOST names does not answer")
)

// ConnectError says why [Connect] failed and what mends it.
type ConnectError struct {
	Reason error  // ErrNoEngine, ErrNamedSilent, ErrNoRights or ErrOldEngine
	Cause  error  // what the engine's client said
	Fix    string // one line: a command, or what to do
}

// Error names reason, cause and fix.
func (e *ConnectError) Error() string {
	return fmt.Sprintf("connect to container engine: %v (%v): %s", e.Reason, e.Cause, e.Fix)
}

// Unwrap makes errors.Is find the reason and the cause.
func (e *ConnectError) Unwrap() []error { return []error{e.Reason, e.Cause} }

// quietLibrary stops testcontainers-go from writing to stderr: what happened is in the errors.
var quietLibrary = sync.OnceFunc(func() { tclog.SetDefault(tclog.NewNoopLogger()) })

// probeTimeout bounds one attempt to reach an engine, so that a dead remote address is said soon.
const probeTimeout = 10 * time.Second

// Connect finds the engine (the environment's DOCKER_HOST, else the usual sockets) and checks that it can be used. The
// error is a *ConnectError.
func Connect(ctx context.Context) (*Engine, error) {
	quietLibrary()
	// testcontainers-go remembers for good that it found no engine, so it is asked only once one is known to answer:
	// prepare connects again after it has started one.
	if err := probe(ctx); err != nil {
		return nil, err
	}
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return nil, connectError(err, "")
	}
	if !provider.Config().Config.RyukDisabled {
		return nil, &ConnectError{
			Reason: ErrNoEngine,
			Cause:  errors.New("testcontainers-go's own reaper is on; it would need an image from a registry"),
			Fix:    "set TESTCONTAINERS_RYUK_DISABLED=true before the process starts using containers",
		}
	}
	return &Engine{api: provider.Client(), provider: provider, Tools: fixtures.Tools().Image()}, nil
}

// probe asks the engine that the environment names for a ping, or else the one at each usual address, and returns nil at
// the first answer. The error is a *ConnectError about the first that was asked.
func probe(ctx context.Context) error {
	named, err := ping(ctx, client.FromEnv)
	if err == nil {
		return nil
	}
	if named == client.DefaultDockerHost {
		named = ""
		for _, host := range userSockets() {
			if _, err := ping(ctx, client.FromEnv, client.WithHost(host)); err == nil {
				return nil
			}
		}
	}
	return connectError(err, named)
}

// ping asks one engine for an answer and returns its address too.
func ping(ctx context.Context, opts ...client.Opt) (host string, err error) {
	c, err := client.New(opts...)
	if err != nil {
		return "", err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, err = c.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	return c.DaemonHost(), err
}

// userSockets lists the sockets of Docker Desktop and rootless engines that exist.
func userSockets() []string {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil
	}
	var hosts []string
	for _, name := range []string{".docker/run/docker.sock", ".docker/desktop/docker.sock"} {
		path := filepath.Join(home, filepath.FromSlash(name))
		if _, err := os.Stat(path); err == nil {
			hosts = append(hosts, "unix://"+path)
		}
	}
	return hosts
}

// connectError sorts an error of the engine's client into the reasons a user can do something about. named is
// the address that the environment gives, empty if none.
func connectError(err error, named string) error {
	text := err.Error()
	switch {
	case errdefs.IsPermissionDenied(err) || strings.Contains(text, "permission denied"):
		return &ConnectError{Reason: ErrNoRights, Cause: err, Fix: "run as root, or: sudo usermod -aG docker $USER, then log in again"}
	case strings.Contains(text, "API version") || strings.Contains(text, "minimum supported"):
		return &ConnectError{Reason: ErrOldEngine, Cause: err, Fix: "install Docker 20.10 or newer: conform prepare --install-docker"}
	case named != "":
		return &ConnectError{
			Reason: ErrNamedSilent, Cause: err,
			Fix: "start the engine at " + named + ", or unset DOCKER_HOST to use this machine's own",
		}
	default:
		return &ConnectError{Reason: ErrNoEngine, Cause: err, Fix: "start it (systemctl start docker), or as root on a Debian-like machine: conform prepare --install-docker"}
	}
}

// Info is what the engine says about itself.
type Info struct {
	Version       string // "20.10.24"
	API           string // the version spoken with it, "1.41"
	OS            string // "Debian GNU/Linux 12 (bookworm)"
	Kernel        string
	Arch          string // "x86_64"
	CPUs          int
	MemoryMiB     int64
	CgroupVersion string
	Rootless      bool
	Root          string // where images and volumes are kept, on the engine's machine
}

// Info asks the engine about itself.
func (e *Engine) Info(ctx context.Context) (Info, error) {
	r, err := e.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return Info{}, fmt.Errorf("ask engine about itself: %w", err)
	}
	// Only a request that negotiates tells the version that is spoken: the library answers Info from its memory.
	if _, err := e.api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return Info{}, fmt.Errorf("ask engine for its API version: %w", err)
	}
	i := r.Info
	info := Info{
		Version:       i.ServerVersion,
		API:           e.api.ClientVersion(),
		OS:            i.OperatingSystem,
		Kernel:        i.KernelVersion,
		Arch:          i.Architecture,
		CPUs:          i.NCPU,
		MemoryMiB:     i.MemTotal >> 20,
		CgroupVersion: i.CgroupVersion,
		Root:          i.DockerRootDir,
	}
	for _, option := range i.SecurityOptions {
		info.Rootless = info.Rootless || strings.Contains(option, "rootless")
	}
	return info, nil
}
