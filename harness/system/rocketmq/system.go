package rocketmq

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
	Name = "rocketmq"

	// startCeiling bounds the start of a cluster: 3 s for the name server and 6 s for the brokers on two idle cores, more
	// with a controller and on a busy machine.
	startCeiling = 120 * time.Second
	closeCeiling = 60 * time.Second
	// namesrvMiB and nodeMiB are what the processes take with the heaps below, rounded up.
	namesrvMiB = 130
	nodeMiB    = 270

	// jvm keeps the machines small and their start short. The controller looks into java.lang.
	jvm        = "-Xss256k -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Drmq.logback.configurationFile=" + logFile + " --add-opens=java.base/java.lang=ALL-UNNAMED"
	jvmNamesrv = jvm + " -Xms64m -Xmx64m"
	jvmBroker  = jvm + " -Xms256m -Xmx256m -XX:MaxDirectMemorySize=256m"

	confDir   = "/etc/conform/"
	startFile = confDir + "start.sh"
	confFile  = confDir + "node.conf"
	logFile   = confDir + "logback.xml"
	dataDir   = "/var/lib/conform"

	classNamesrv = "org.apache.rocketmq.namesrv.NamesrvStartup"
	classBroker  = "org.apache.rocketmq.broker.BrokerStartup"

	// clusterName and groupName are the names of the cluster and of its only group of brokers; both are topics too.
	clusterName = "conform"
	groupName   = "conform-a"

	portNamesrv    = 9876
	portController = 9878
	// portHA is the first of the brokers' replication ports.
	portHA = 10912
)

// started is the line by which a part says that it serves.
var started = regexp.MustCompile(`boot success`)

// System starts RocketMQ clusters. The zero value is ready to use.
type System struct{}

var _ system.System = System{}

// Name returns "rocketmq".
func (System) Name() string { return Name }

// Versions lists the versions that images can be had for, the default first.
func (System) Versions() []string {
	var names []string
	for _, v := range fixtures.Versions(Name) {
		names = append(names, v.Number)
	}
	return names
}

// MemoryMiB estimates the memory of n brokers and their name server; 0 = the usual two.
func (System) MemoryMiB(n int) int {
	if n == 0 {
		n = 2
	}
	return namesrvMiB + n*nodeMiB
}

// Start brings up the brokers of a layout (SettingLayout) and their name server, and waits until each broker serves and is
// registered, for at most two minutes. Settings are lines of broker.conf, or with "namesrv." before the name those of the
// name server and its controller. Errors wrap system.ErrUsage or system.ErrEnvironment.
func (System) Start(ctx context.Context, spec system.Spec) (system.Cluster, error) {
	c, err := start(ctx, spec)
	if err != nil {
		if !errors.Is(err, system.ErrUsage) {
			err = fmt.Errorf("%w: %w", system.ErrEnvironment, err)
		}
		return nil, fmt.Errorf("start rocketmq %s: %w", spec.Version, err)
	}
	return c, nil
}

func start(ctx context.Context, spec system.Spec) (_ *Cluster, err error) {
	began := time.Now()
	conf, err := newConfig(spec)
	if err != nil {
		return nil, err
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
	c := &Cluster{version: spec.Version, config: conf, log: spec.Log, engine: engine, made: map[string]int{}, dead: map[string]string{}, active: map[any]string{}}
	defer func() {
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
				err = fmt.Errorf("%w: %w", cause, err)
			}
			err = errors.Join(err, c.Close(context.WithoutCancel(ctx)), engine.Sweep(context.WithoutCancel(ctx), spec.Run, c.prefix))
		}
	}()
	brokers := 2
	if conf.layout == Single {
		brokers = 1
	}
	_, _ = fmt.Fprintf(spec.Progress, "rocketmq %s: starting a name server and %d brokers (%s)\n", spec.Version, brokers, conf.layout)
	if err := c.provision(ctx, owner, spec, brokers); err != nil {
		return nil, err
	}
	if err := c.boot(ctx); err != nil {
		return nil, err
	}
	c.startup = time.Since(began)
	_, _ = fmt.Fprintf(spec.Progress, "rocketmq %s: ready after %.1f s\n", spec.Version, c.startup.Seconds())
	return c, nil
}

// provision makes everything that the parts need, and the parts, without starting them.
func (c *Cluster) provision(ctx context.Context, owner container.Owner, spec system.Spec, brokers int) error {
	prefix := "q" + strings.ToLower(rand.Text()[:6]) + "-" // a run may have several clusters
	c.prefix = prefix
	network, err := c.engine.NewNetwork(ctx, owner, prefix+"net")
	if err != nil {
		return err
	}
	c.network = network
	if err := c.openLinks(brokers); err != nil {
		return err
	}
	if err := c.openDisks(ctx, owner, prefix); err != nil {
		return err
	}
	ports := []int{portNamesrv}
	if c.config.layout == Controller {
		ports = append(ports, portController)
	}
	for _, n := range c.nodes {
		ports = append(ports, n.port())
	}
	c.pod, err = c.engine.NewPod(ctx, owner, container.PodSpec{Name: prefix + "rocketmq-pod", Network: network, Hostname: "rocketmq", Ports: ports})
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		c.namesrv, err = c.engine.NewContainer(gctx, owner, part(prefix+"rocketmq-namesrv", spec.Image, c.pod, classNamesrv, jvmNamesrv, c.config.namesrv()))
		return err
	})
	for _, n := range c.nodes {
		g.Go(func() error { return n.provision(gctx, owner, prefix, spec.Image) })
	}
	return g.Wait()
}

// openLinks opens a link for each broker. A broker listens inside on the port that its link has outside, and on the second
// port below it.
func (c *Cluster) openLinks(brokers int) error {
	taken := map[int]bool{portNamesrv: true, portController: true}
	for i := range brokers {
		taken[portHA+i] = true
	}
	for i := range brokers {
		n := &Node{name: fmt.Sprintf("rocketmq-%d", i+1), cluster: c, haPort: portHA + i}
		n.master.Store(i == 0 && c.config.layout != Controller)
		for n.link == nil {
			link, err := netproxy.Open(netproxy.Config{
				Name: n.name, Framer: framer{}, Upstream: func() string { return c.pod.Address(n.port()) }, Log: c.log,
			})
			if err != nil {
				return err
			}
			if p := link.Port(); taken[p] || taken[p-2] || taken[p+2] {
				if err := link.Close(); err != nil {
					return err
				}
				continue
			}
			n.link = link
		}
		taken[n.port()], taken[n.port()-2] = true, true
		c.nodes = append(c.nodes, n)
	}
	return nil
}

// part describes the container of a name server or a broker.
func part(name, image string, pod *container.Pod, class, machine string, conf []byte) container.Spec {
	return container.Spec{
		Name: name, Image: image, Pod: pod,
		Entrypoint: []string{"sh", startFile}, Cmd: []string{class, confFile},
		User: "0:0", // the volumes are root's; the official image runs as another user
		Env:  map[string]string{"CONFORM_JVM": machine},
		Files: []container.File{
			{Path: startFile, Content: fixtures.RocketStart(), Mode: 0o755},
			{Path: confFile, Content: conf},
			{Path: logFile, Content: fixtures.RocketLogback()},
		},
	}
}

// provision makes the broker's volume and container.
func (n *Node) provision(ctx context.Context, owner container.Owner, prefix, image string) (err error) {
	c := n.cluster
	if c.rack.DiskBacked() == nil {
		n.data = c.rack.Volume(n.disks().Data)
	} else if n.data, err = c.engine.NewVolume(ctx, owner, prefix+n.name+"-data"); err != nil {
		return err
	}
	spec := part(prefix+n.name, image, c.pod, classBroker, jvmBroker+c.config.jvm(), c.config.broker(n))
	spec.Mounts = map[string]*container.Volume{dataDir: n.data}
	n.broker, err = c.engine.NewContainer(ctx, owner, spec)
	return err
}

// boot starts the name server, then the brokers, and waits until they serve. Those under a controller start at once. A pair's
// replica starts when its master is registered: it asks for the master's address when it registers itself, and looks for a
// change every 5 s only.
func (c *Cluster) boot(ctx context.Context) error {
	if err := c.namesrv.Start(ctx); err != nil {
		return err
	}
	if _, err := c.namesrv.WaitLog(ctx, started); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	if c.config.layout == Pair {
		g.SetLimit(1)
	}
	for _, n := range c.nodes {
		g.Go(func() error { return n.up(gctx) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := c.checkSettings(ctx); err != nil {
		return err
	}
	return c.await(ctx, "the cluster is as good as new", c.baseline)
}
