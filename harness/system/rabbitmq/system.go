package rabbitmq

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"conform/fixtures"
	"conform/harness/internal/container"
	"conform/harness/internal/netproxy"
	"conform/harness/system"
)

const (
	// Name is the name of this system.
	Name = "rabbitmq"

	defaultNodes = 3
	// startCeiling bounds the start of a cluster. Nearly all of it is the Erlang machines loading and compiling code: 13 s
	// for three nodes on two cores, with management; waiting for each other takes less than a second of that.
	startCeiling = 120 * time.Second
	closeCeiling = 60 * time.Second
	nodeMiB      = 160

	confDir   = "/etc/conform/"
	startFile = confDir + "start.sh"
	ctlFile   = confDir + "ctl.sh"
	dataDir   = "/var/lib/conform"

	userName = "conform"
	// machine keeps the Erlang machine small: two schedulers, and none that spins while it waits.
	machine = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
)

// System starts RabbitMQ clusters. The zero value is ready to use.
type System struct{}

var _ system.System = System{}

// Name returns "rabbitmq".
func (System) Name() string { return Name }

// Versions lists the versions that images can be had for, the default first.
func (System) Versions() []string {
	var names []string
	for _, v := range fixtures.Versions(Name) {
		names = append(names, v.Number)
	}
	return names
}

// MemoryMiB estimates the memory of n nodes; 0 = the usual three.
func (System) MemoryMiB(n int) int {
	if n == 0 {
		n = defaultNodes
	}
	return n * nodeMiB
}

// Start brings up spec.Nodes nodes at once and waits until they serve and know each other, for at most two minutes.
// Settings are lines of rabbitmq.conf, or of rabbit's application environment with "advanced." before the name. Errors wrap
// system.ErrUsage or system.ErrEnvironment.
func (System) Start(ctx context.Context, spec system.Spec) (system.Cluster, error) {
	c, err := start(ctx, spec)
	if err != nil {
		if !errors.Is(err, system.ErrUsage) {
			err = fmt.Errorf("%w: %w", system.ErrEnvironment, err)
		}
		return nil, fmt.Errorf("start rabbitmq %s: %w", spec.Version, err)
	}
	return c, nil
}

func start(ctx context.Context, spec system.Spec) (_ *Cluster, err error) {
	began := time.Now()
	conf, err := newConfig(spec)
	if err != nil {
		return nil, err
	}
	if spec.Nodes == 0 {
		spec.Nodes = defaultNodes
	}
	if spec.Nodes < 0 {
		return nil, fmt.Errorf("%d nodes: %w", spec.Nodes, system.ErrUsage)
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
	c := &Cluster{
		version: spec.Version, config: conf, log: spec.Log, engine: engine, password: rand.Text(),
		made: map[string]destination{}, held: map[string]io.Closer{},
		dropsAt: map[string]map[*Node]drops{}, absences: map[string][]absence{}, limits: map[string]map[string]string{}, deadEnds: map[string]string{}, down: map[*Node]bool{}, kept: map[string]counted{}, active: map[any]string{}, emptySince: map[string]time.Time{}, homes: map[string]*Node{},
	}
	c.http = newHTTP()
	defer func() {
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
				err = fmt.Errorf("%w: %w", cause, err)
			}
			err = errors.Join(err, c.Close(context.WithoutCancel(ctx)), engine.Sweep(context.WithoutCancel(ctx), spec.Run, c.prefix))
		}
	}()
	_, _ = fmt.Fprintf(spec.Progress, "rabbitmq %s: starting %d nodes\n", spec.Version, spec.Nodes)
	if err := c.provision(ctx, owner, spec); err != nil {
		return nil, err
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, n := range c.nodes {
		g.Go(func() error { return n.up(gctx, len(c.nodes)) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	c.startup = time.Since(began)
	_, _ = fmt.Fprintf(spec.Progress, "rabbitmq %s: ready after %.1f s\n", spec.Version, c.startup.Seconds())
	return c, nil
}

// provision makes everything that the nodes need, and the nodes, without starting them.
func (c *Cluster) provision(ctx context.Context, owner container.Owner, spec system.Spec) error {
	prefix := "r" + strings.ToLower(rand.Text()[:6]) + "-" // a run may have several clusters
	c.prefix = prefix
	network, err := c.engine.NewNetwork(ctx, owner, prefix+"net")
	if err != nil {
		return err
	}
	c.network = network
	for i := range spec.Nodes {
		c.nodes = append(c.nodes, &Node{name: fmt.Sprintf("rabbit-%d", i+1), cluster: c})
	}
	if err := c.openDisks(ctx, owner, prefix); err != nil {
		return err
	}
	cookie := rand.Text()
	g, gctx := errgroup.WithContext(ctx)
	for _, n := range c.nodes {
		g.Go(func() error { return n.provision(gctx, owner, prefix, spec.Image, cookie) })
	}
	return g.Wait()
}

// provision makes the node's volume, pod, link and container.
func (n *Node) provision(ctx context.Context, owner container.Owner, prefix, image, cookie string) (err error) {
	c := n.cluster
	if c.rack.DiskBacked() == nil {
		n.data = c.rack.Volume(n.disks().Data)
	} else if n.data, err = c.engine.NewVolume(ctx, owner, prefix+n.name+"-data"); err != nil {
		return err
	}
	n.pod, err = c.engine.NewPod(ctx, owner, container.PodSpec{
		Name: prefix + n.name + "-pod", Network: c.network, Hostname: n.name, Ports: []int{portAMQP, portManagement, portMetrics},
	})
	if err != nil {
		return err
	}
	upstream := n.pod.Address(portAMQP)
	n.link, err = netproxy.Open(netproxy.Config{
		Name: n.name, Framer: framer{}, Upstream: func() string { return upstream }, Log: c.log,
	})
	if err != nil {
		return err
	}
	n.broker, err = c.engine.NewContainer(ctx, owner, container.Spec{
		Name: prefix + n.name, Image: image, Pod: n.pod,
		Entrypoint: []string{"sh", startFile},
		User:       "0:0", // the volume is root's; images have different users for the server
		Env:        map[string]string{"CONFORM_NODE": n.erlang(), "CONFORM_DATA": dataDir, "CONFORM_VM": machine},
		Files: []container.File{
			{Path: startFile, Content: fixtures.RabbitStart(), Mode: 0o755},
			{Path: ctlFile, Content: fixtures.RabbitCtl(), Mode: 0o755},
			{Path: confDir + "rabbitmq.conf", Content: c.config.conf(userName, c.password, c.nodes), Mode: 0o600},
			{Path: confDir + "advanced.config", Content: c.config.advanced()},
			{Path: confDir + "enabled_plugins", Content: []byte("[rabbitmq_management, rabbitmq_prometheus].\n")},
			{Path: confDir + "cookie", Content: []byte(cookie), Mode: 0o600},
		},
		Mounts: map[string]*container.Volume{dataDir: n.data},
	})
	return err
}
