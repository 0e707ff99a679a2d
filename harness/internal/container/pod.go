package container

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// PodSpec describes a pod.
type PodSpec struct {
	Name        string             // unique within the run
	Network     *Network           // required
	Hostname    string             // also its name for the other pods of the network; default Name
	Ports       []int              // container ports published on 127.0.0.1, each on a free port the engine chooses
	ExtraHosts  []string           // "name:address" lines for /etc/hosts
	Mounts      map[string]*Volume // where volumes are mounted in the pod, for what works on them beside the broker
	LoopDevices bool               // disk faults only: may make file systems on loop devices and mount them
}

// Pod is a sleeping container that owns a network namespace (with the rights to change its packet filter), an address, a
// host name and published ports. It lives as long as the cluster; brokers come and go inside it.
type Pod struct {
	container *Container
	Hostname  string
	ip        netip.Addr
	ports     map[int]int
	near      bool // its own address can be reached from here
}

// NewPod makes and starts a pod. On an error nothing of it is left.
func (e *Engine) NewPod(ctx context.Context, owner Owner, spec PodSpec) (_ *Pod, err error) {
	if spec.Network == nil {
		return nil, errors.New("create pod: no network given")
	}
	hostname := spec.Hostname
	if hostname == "" {
		hostname = spec.Name
	}
	bindings := network.PortMap{}
	exposed := make([]string, 0, len(spec.Ports))
	for _, port := range spec.Ports {
		p, ok := network.PortFrom(uint16(port), network.TCP)
		if !ok || port < 1 || port > 65535 {
			return nil, fmt.Errorf("create pod %s: port %d is none", spec.Name, port)
		}
		bindings[p] = []network.PortBinding{{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: "0"}}
		exposed = append(exposed, p.String())
	}
	request := testcontainers.ContainerRequest{
		Image:          e.Tools,
		Name:           owner.name(spec.Name),
		Entrypoint:     []string{"sleep", "infinity"},
		Labels:         owner.Labels(),
		ExposedPorts:   exposed,
		Networks:       []string{spec.Network.Name},
		NetworkAliases: map[string][]string{spec.Network.Name: {hostname}},
		ConfigModifier: func(c *container.Config) { c.Hostname = hostname },
		HostConfigModifier: func(h *container.HostConfig) {
			h.NetworkMode = container.NetworkMode(spec.Network.Name)
			h.CapAdd = []string{"NET_ADMIN"}
			h.ExtraHosts = spec.ExtraHosts
			h.PortBindings = bindings
			h.Mounts = mounts(spec.Mounts)
			if spec.LoopDevices {
				allowLoopDevices(h)
			}
		},
	}
	c, err := e.create(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("create pod %s: %w", spec.Name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.cleanUp(ctx))
		}
	}()
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	pod := &Pod{container: c, Hostname: hostname, ports: map[int]int{}}
	if err := pod.readAddresses(ctx, spec); err != nil {
		return nil, err
	}
	return pod, nil
}

// readAddresses waits until the engine reports the pod's address and published ports: it may do so a moment after the start.
func (p *Pod) readAddresses(ctx context.Context, spec PodSpec) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := p.container.engine.api.ContainerInspect(ctx, p.container.ID, client.ContainerInspectOptions{})
		if err != nil {
			return fmt.Errorf("inspect pod %s: %w", p.container.Name, err)
		}
		settings := r.Container.NetworkSettings
		if endpoint := settings.Networks[spec.Network.Name]; endpoint != nil {
			p.ip = endpoint.IPAddress
		}
		for port, bindings := range settings.Ports {
			for _, b := range bindings {
				if n, err := strconv.Atoi(b.HostPort); err == nil && n > 0 {
					p.ports[int(port.Num())] = n
				}
			}
		}
		if p.ip.IsValid() && len(p.ports) == len(spec.Ports) {
			p.near = refuses(ctx, p.ip)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for addresses of pod %s: %w (address %v, ports %v of %v)", p.container.Name, ctx.Err(), p.ip, p.ports, spec.Ports)
		case <-tick.C:
		}
	}
}

// HostPort is the loopback address at which the container port is reached from this machine, "127.0.0.1:49153". It stays
// the same as long as the pod lives. It is empty for a port that the spec did not list.
func (p *Pod) HostPort(containerPort int) string {
	port, ok := p.ports[containerPort]
	if !ok {
		return ""
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// Address is where this machine reaches the container port with the least in between: at the pod's own address if that can be
// reached, as where the engine runs on this very machine, or else at HostPort. The engine's proxy behind that copies every byte,
// and accepts connections that it has nobody for.
func (p *Pod) Address(containerPort int) string {
	if _, ok := p.ports[containerPort]; !ok || !p.near {
		return p.HostPort(containerPort)
	}
	return netip.AddrPortFrom(p.ip, uint16(containerPort)).String()
}

// refuses says whether the address answers at all: nobody listens there yet, so it refuses connections.
func refuses(ctx context.Context, ip netip.Addr) bool {
	const patience, unused = 500 * time.Millisecond, 1
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", netip.AddrPortFrom(ip, unused).String())
	if err == nil {
		_ = conn.Close()
	}
	return err == nil || errors.Is(err, syscall.ECONNREFUSED)
}

// IP is the pod's address in its network.
func (p *Pod) IP() netip.Addr { return p.ip }

// Name is the engine-wide name of the pod's container.
func (p *Pod) Name() string { return p.container.Name }

// Exec runs a command in the pod and returns its standard output. See [Container.Exec].
func (p *Pod) Exec(ctx context.Context, argv ...string) (string, error) {
	return p.container.Exec(ctx, argv...)
}

// Remove kills and removes the pod. Containers inside it lose their network. Removing it twice is no error.
func (p *Pod) Remove(ctx context.Context) error { return p.container.Remove(ctx) }
