package valkey

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"conform/fixtures"
	"conform/harness/internal/container"
	"conform/harness/system"
)

const (
	// Name is the name of this system.
	Name = "valkey"

	nodeName  = "valkey-1"
	port      = 6379
	dataDir   = "/data" // where the official image declares its volume
	confFile  = "/etc/conform/valkey.conf"
	memoryMiB = 32

	startCeiling = 60 * time.Second
	closeCeiling = 60 * time.Second
	pollEvery    = 50 * time.Millisecond
	tailLines    = 20
)

// System starts Valkey servers. The zero value is ready to use.
type System struct{}

var (
	_ system.System    = System{}
	_ system.Cluster   = (*Cluster)(nil)
	_ system.Connector = (*Cluster)(nil)
)

// Name returns "valkey".
func (System) Name() string { return Name }

// Versions lists the versions that images can be had for, the default first.
func (System) Versions() []string {
	var names []string
	for _, v := range fixtures.Versions(Name) {
		names = append(names, v.Number)
	}
	return names
}

// MemoryMiB estimates the memory of n servers; 0 = the usual one.
func (System) MemoryMiB(n int) int { return max(1, n) * memoryMiB }

// Start brings up one server and waits until it answers, for at most a minute. spec.Nodes must be 0 or 1; settings are the
// server's own directives. The cluster is a *Cluster. Errors wrap system.ErrUsage or system.ErrEnvironment.
func (System) Start(ctx context.Context, spec system.Spec) (system.Cluster, error) {
	c, err := start(ctx, spec)
	if err != nil {
		if !errors.Is(err, system.ErrUsage) {
			err = fmt.Errorf("%w: %w", system.ErrEnvironment, err)
		}
		return nil, fmt.Errorf("start valkey %s: %w", spec.Version, err)
	}
	return c, nil
}

func start(ctx context.Context, spec system.Spec) (_ *Cluster, err error) {
	if spec.Nodes != 0 && spec.Nodes != 1 {
		return nil, fmt.Errorf("%d nodes: there is one: %w", spec.Nodes, system.ErrUsage)
	}
	c := &Cluster{version: spec.Version, settings: spec.Settings, password: rand.Text()}
	text, err := conf(spec.Settings, c.password)
	if err != nil {
		return nil, err
	}
	if spec.Progress == nil {
		spec.Progress = io.Discard
	}
	began := time.Now()
	engine, err := container.Connect(ctx)
	if err != nil {
		return nil, err
	}
	owner, err := container.NewOwner(spec.Run)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startCeiling, fmt.Errorf("not ready after %s", startCeiling))
	defer cancel()
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close(context.WithoutCancel(ctx)))
		}
	}()
	prefix := "v" + strings.ToLower(rand.Text()[:6]) + "-"
	if c.network, err = engine.NewNetwork(ctx, owner, prefix+"net"); err != nil {
		return nil, err
	}
	if c.data, err = engine.NewVolume(ctx, owner, prefix+nodeName+"-data"); err != nil {
		return nil, err
	}
	if c.pod, err = engine.NewPod(ctx, owner, container.PodSpec{
		Name: prefix + nodeName + "-pod", Network: c.network, Hostname: nodeName, Ports: []int{port},
	}); err != nil {
		return nil, err
	}
	if c.server, err = engine.NewContainer(ctx, owner, container.Spec{
		Name: prefix + nodeName, Image: spec.Image, Pod: c.pod,
		Entrypoint: []string{"valkey-server", confFile}, Cmd: []string{},
		Files:  []container.File{{Path: confFile, Content: text}},
		Mounts: map[string]*container.Volume{dataDir: c.data},
	}); err != nil {
		return nil, err
	}
	if err := c.server.Start(ctx); err != nil {
		return nil, err
	}
	if err := c.await(ctx); err != nil {
		return nil, fmt.Errorf("%w; log ends:\n%s", err, c.server.Tail(context.WithoutCancel(ctx), tailLines))
	}
	c.startup = time.Since(began)
	_, _ = fmt.Fprintf(spec.Progress, "valkey %s: ready after %.1f s\n", spec.Version, c.startup.Seconds())
	return c, nil
}

// owned are directives that the adapter needs as it writes them.
var owned = map[string]string{
	"bind": "*", "port": fmt.Sprint(port), "dir": dataDir, "daemonize": "no", "protected-mode": "yes",
	"save": `""`, "appendonly": "no", // nothing of it is to survive
}

var directive = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// conf writes the server's configuration. Errors are ErrUsage.
func conf(settings map[string]string, password string) ([]byte, error) {
	all := []string{"requirepass " + password}
	for name, value := range owned {
		all = append(all, name+" "+value)
	}
	for name, value := range settings {
		if _, ours := owned[name]; ours || name == "requirepass" || name == "include" {
			return nil, fmt.Errorf("setting %s belongs to the adapter: %w", name, system.ErrUsage)
		}
		if !directive.MatchString(name) || strings.ContainsAny(value, "\r\n\x00") {
			return nil, fmt.Errorf("setting %q is no directive, or its value no line: %w", name, system.ErrUsage)
		}
		all = append(all, name+" "+value)
	}
	slices.Sort(all)
	return []byte(strings.Join(all, "\n") + "\n"), nil
}

// DSN returns a URL for redis.ParseURL. It holds the password: hand it on by a pipe or in memory, never in argv, a log or a
// ledger. There is no link, so direct changes nothing.
func (c *Cluster) DSN(client string, _ bool) string {
	return (&url.URL{
		Scheme: "redis", Host: c.pod.HostPort(port), Path: "/0", User: url.UserPassword("", c.password),
		RawQuery: url.Values{"client_name": {client}}.Encode(),
	}).String()
}

// ping asks the server whether it is there.
func (c *Cluster) ping(ctx context.Context) error {
	options, err := redis.ParseURL(c.DSN("conform-engine", true))
	if err != nil {
		return errors.New("connection string cannot be read")
	}
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()
	return client.Ping(ctx).Err()
}

// await polls until the server answers.
func (c *Cluster) await(ctx context.Context) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		s, err := c.server.State(ctx)
		if err == nil && !s.Running {
			return fmt.Errorf("%s is down (exit code %d)", nodeName, s.ExitCode)
		}
		if err == nil {
			err = c.ping(ctx)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}
