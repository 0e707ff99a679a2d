package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path"
	"strconv"
	"strings"
	"time"

	"conform/fixtures"
	"conform/harness/internal/container"
	"conform/harness/internal/disk"
	"conform/harness/internal/netproxy"
	"conform/harness/system"
	"conform/harness/system/disks"
)

const (
	// Name is the name of this system.
	Name = "postgres"

	nodeName = "postgres-1"
	port     = 5432

	// startCeiling bounds a start: 3 s on two idle cores, more on a busy machine or with much to recover.
	startCeiling = 120 * time.Second
	closeCeiling = 60 * time.Second
	// memoryMiB is what the server takes with its default settings and some twenty connections, rounded up.
	memoryMiB = 200

	configDir = "/etc/conform"
	startFile = configDir + "/start.sh"
)

// System starts PostgreSQL servers. The zero value is ready to use.
type System struct{}

var _ system.System = System{}

// Name returns "postgres".
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

// Start brings up one server and waits until it takes connections, for at most two minutes. spec.Nodes must be 0 or 1.
// The cluster is a *Cluster; disks.Setting gives it a disk of its own. Errors wrap system.ErrUsage or system.ErrEnvironment.
func (System) Start(ctx context.Context, spec system.Spec) (system.Cluster, error) {
	c, err := start(ctx, spec)
	if err != nil {
		if !errors.Is(err, system.ErrUsage) {
			err = fmt.Errorf("%w: %w", system.ErrEnvironment, err)
		}
		return nil, fmt.Errorf("start postgres %s: %w", spec.Version, err)
	}
	return c, nil
}

func start(ctx context.Context, spec system.Spec) (_ *Cluster, err error) {
	began := time.Now()
	mib := 0
	if v, ok := spec.Settings[disks.Setting]; ok {
		if mib, err = disks.ParseMiB(v); err != nil {
			return nil, err
		}
		spec.Settings = maps.Clone(spec.Settings)
		delete(spec.Settings, disks.Setting)
	}
	settings, err := settingsOf(spec)
	if err != nil {
		return nil, err
	}
	if spec.Nodes != 0 && spec.Nodes != 1 {
		return nil, fmt.Errorf("%d nodes: there is one: %w", spec.Nodes, system.ErrUsage)
	}
	if spec.Log == nil {
		spec.Log = slog.New(slog.DiscardHandler)
	}
	if spec.Progress == nil {
		spec.Progress = io.Discard
	}
	engine, err := container.Connect(ctx)
	if err != nil {
		return nil, err
	}
	owner, err := container.NewOwner(spec.Run)
	if err != nil {
		return nil, err
	}
	owner.Keep = spec.Keep
	ctx, cancel := context.WithTimeoutCause(ctx, startCeiling, fmt.Errorf("not ready after %s", startCeiling))
	defer cancel()
	c := &Cluster{version: spec.Version, settings: settings, password: rand.Text(), schemas: map[string]bool{}}
	c.node = &Node{cluster: c}
	defer func() {
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
				err = fmt.Errorf("%w: %w", cause, err)
			}
			err = errors.Join(err, c.Close(context.WithoutCancel(ctx)))
		}
	}()
	_, _ = fmt.Fprintf(spec.Progress, "postgres %s: starting\n", spec.Version)
	if err := c.provision(ctx, engine, owner, spec, mib); err != nil {
		return nil, err
	}
	if err := c.node.up(ctx); err != nil {
		return nil, err
	}
	c.startup = time.Since(began)
	_, _ = fmt.Fprintf(spec.Progress, "postgres %s: ready after %.1f s\n", spec.Version, c.startup.Seconds())
	return c, nil
}

// provision makes everything that the server needs, and its container, without starting it.
func (c *Cluster) provision(ctx context.Context, engine *container.Engine, owner container.Owner, spec system.Spec, mib int) (err error) {
	prefix := "p" + strings.ToLower(rand.Text()[:6]) + "-" // a run may have several servers
	if c.network, err = engine.NewNetwork(ctx, owner, prefix+"net"); err != nil {
		return err
	}
	n := c.node
	if mib > 0 {
		if c.rack, err = disks.Open(ctx, engine, owner, prefix+"disks", disk.Spec{Name: dataDisk, MiB: mib}); err != nil {
			return err
		}
		n.data = c.rack.Volume(dataDisk)
	}
	c.Faults = disks.FaultsOf(c.rack, c.diskNode)
	if n.data == nil {
		if n.data, err = engine.NewVolume(ctx, owner, prefix+nodeName+"-data"); err != nil {
			return err
		}
	}
	n.pod, err = engine.NewPod(ctx, owner, container.PodSpec{
		Name: prefix + nodeName + "-pod", Network: c.network, Hostname: nodeName, Ports: []int{port},
	})
	if err != nil {
		return err
	}
	n.link, err = netproxy.Open(netproxy.Config{Name: nodeName, Framer: framer{}, Upstream: func() string { return n.pod.Address(port) }, Log: spec.Log})
	if err != nil {
		return err
	}
	mount := diskOf(spec.Version)
	n.server, err = engine.NewContainer(ctx, owner, container.Spec{
		Name: prefix + nodeName, Image: spec.Image, Pod: n.pod,
		Entrypoint: []string{"sh", startFile}, Cmd: []string{},
		User: "postgres", // the server refuses to run as root
		Env: map[string]string{
			"PGDATA":       path.Join(mount, "conform"),
			"CONFORM_USER": roleEngine,
		},
		Files: []container.File{
			{Path: startFile, Content: fixtures.PostgresStart(), Mode: 0o755},
			{Path: configDir + "/postgresql.conf", Content: conf(c.settings)},
			{Path: configDir + "/pg_hba.conf", Content: []byte(hba)},
			{Path: configDir + "/password", Content: []byte(c.password + "\n")},
		},
		Mounts: map[string]*container.Volume{mount: n.data},
	})
	return err
}

// diskOf is where an image of this version declares its data volume. The official images moved it in 18; mounting ours at
// the very place keeps the engine from making an anonymous one, and gives it the right owner.
func diskOf(version string) string {
	digits := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(version)
	}
	if major, err := strconv.Atoi(version[:digits]); err == nil && major < 18 {
		return "/var/lib/postgresql/data"
	}
	return "/var/lib/postgresql"
}
