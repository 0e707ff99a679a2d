package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
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
	Name = "kafka"

	defaultNodes = 3
	// startCeiling bounds the start of a cluster: 9 s on two idle cores, more on a busy machine.
	startCeiling = 120 * time.Second
	closeCeiling = 60 * time.Second
	// nodeMiB is what a node takes with the heap below, rounded up.
	nodeMiB = 400
	jvm     = "-Xms320m -Xmx320m"

	configFile = "/etc/conform/server.properties"
	startFile  = "/etc/conform/start.sh"
	log4jFile  = "/etc/conform/log4j2.properties"
)

// started is the line by which a node says that it serves.
var started = regexp.MustCompile(`Kafka Server started`)

// System starts Kafka clusters. The zero value is ready to use.
type System struct{}

var _ system.System = System{}

// Name returns "kafka".
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

// Start brings up spec.Nodes combined nodes at once and waits until each of them serves and is known to the others, for
// at most two minutes. Settings beginning with "feature." are feature levels to format with. Errors wrap
// system.ErrUsage or system.ErrEnvironment.
func (s System) Start(ctx context.Context, spec system.Spec) (system.Cluster, error) {
	c, err := start(ctx, spec)
	if err != nil {
		if !errors.Is(err, system.ErrUsage) {
			err = fmt.Errorf("%w: %w", system.ErrEnvironment, err)
		}
		return nil, fmt.Errorf("start kafka %s: %w", spec.Version, err)
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
	c := &Cluster{version: spec.Version, config: conf, log: spec.Log, engine: engine}
	defer func() {
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
				err = fmt.Errorf("%w: %w", cause, err)
			}
			err = errors.Join(err, c.Close(context.WithoutCancel(ctx)), engine.Sweep(context.WithoutCancel(ctx), spec.Run, c.prefix))
		}
	}()
	_, _ = fmt.Fprintf(spec.Progress, "kafka %s: starting %d nodes\n", spec.Version, spec.Nodes)
	if err := c.provision(ctx, owner, spec); err != nil {
		return nil, err
	}
	if err := c.boot(ctx); err != nil {
		return nil, err
	}
	c.startup = time.Since(began)
	_, _ = fmt.Fprintf(spec.Progress, "kafka %s: ready after %.1f s\n", spec.Version, c.startup.Seconds())
	return c, nil
}

// provision makes everything that the nodes need, and the nodes, without starting them.
func (c *Cluster) provision(ctx context.Context, owner container.Owner, spec system.Spec) error {
	prefix := "k" + strings.ToLower(rand.Text()[:6]) + "-" // a run may have several clusters
	c.prefix = prefix
	network, err := c.engine.NewNetwork(ctx, owner, prefix+"net")
	if err != nil {
		return err
	}
	c.network = network
	var voters []string
	for i := range spec.Nodes {
		n := &Node{id: int32(i + 1), name: fmt.Sprintf("kafka-%d", i+1), cluster: c}
		c.nodes = append(c.nodes, n)
		voters = append(voters, fmt.Sprintf("%d@%s:%d", n.id, n.name, portController))
	}
	if err := c.openDisks(ctx, owner, prefix); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, n := range c.nodes {
		g.Go(func() error { return n.provision(gctx, owner, prefix, network) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	g, gctx = errgroup.WithContext(ctx)
	for _, n := range c.nodes { // only now are all addresses known
		g.Go(func() error { return n.create(gctx, owner, prefix, spec.Image, voters) })
	}
	return g.Wait()
}

// provision makes the node's volumes, pod and link.
func (n *Node) provision(ctx context.Context, owner container.Owner, prefix string, network *container.Network) (err error) {
	engine := n.cluster.engine
	if rack, d := n.cluster.rack, n.disks(); rack.DiskBacked() == nil {
		n.data, n.meta = rack.Volume(d.Data), rack.Volume(d.Others[0])
	} else {
		if n.data, err = engine.NewVolume(ctx, owner, prefix+n.name+"-data"); err != nil {
			return err
		}
		if n.meta, err = engine.NewVolume(ctx, owner, prefix+n.name+"-meta"); err != nil {
			return err
		}
	}
	n.pod, err = engine.NewPod(ctx, owner, container.PodSpec{
		Name: prefix + n.name + "-pod", Network: network, Hostname: n.name, Ports: []int{portClient, portDirect},
	})
	if err != nil {
		return err
	}
	upstream := n.pod.Address(portClient)
	n.link, err = netproxy.Open(netproxy.Config{
		Name: n.name, Framer: framer{}, Upstream: func() string { return upstream }, Log: n.cluster.log,
	})
	if err != nil {
		return err
	}
	n.admin, err = newAdmin(n.direct())
	return err
}

// create makes the broker's container.
func (n *Node) create(ctx context.Context, owner container.Owner, prefix, image string, voters []string) (err error) {
	c := n.cluster
	n.broker, err = c.engine.NewContainer(ctx, owner, container.Spec{
		Name: prefix + n.name, Image: image, Pod: n.pod,
		Entrypoint: []string{"sh", startFile}, Cmd: []string{configFile},
		User: "0:0", // the volumes are root's; the official image runs as another user
		Env: map[string]string{
			"CONFORM_CLUSTER_ID": c.config.clusterID,
			"CONFORM_FORMAT":     c.config.format(),
			"CONFORM_JVM":        jvm,
		},
		Files: []container.File{
			{Path: startFile, Content: fixtures.KafkaStart(), Mode: 0o755},
			{Path: log4jFile, Content: fixtures.KafkaLog4j()},
			{Path: configFile, Content: c.config.properties(n, voters)},
		},
		Mounts: map[string]*container.Volume{dataDir: n.data, metaDir: n.meta},
	})
	return err
}

// boot starts all nodes at once and waits until they serve.
func (c *Cluster) boot(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, n := range c.nodes {
		g.Go(func() error { return n.up(gctx) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return c.checkSettings(ctx)
}

// up starts the node's process and waits until it serves clients and the controllers count it in.
func (n *Node) up(ctx context.Context) error {
	if err := n.broker.Start(ctx); err != nil {
		return err
	}
	if _, err := n.broker.WaitLog(ctx, started); err != nil {
		return err
	}
	if err := n.cluster.await(ctx, "unfenced "+n.name, func(ctx context.Context) error { return n.cluster.unfenced(ctx, n) }); err != nil {
		return fmt.Errorf("%w; log ends:\n%s", err, n.broker.Tail(context.WithoutCancel(ctx), 20))
	}
	return nil
}
