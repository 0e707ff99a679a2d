package container

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// ToolsSpec describes one command run in a tools container of its own, without a network.
type ToolsSpec struct {
	Argv        []string
	Mounts      map[string]*Volume
	NetAdmin    bool // may change its own packet filter
	LoopDevices bool // may mount loop devices, see [PodSpec]
}

// RunTools runs a command in a fresh tools container, removes that, and returns the standard output. A command that ends
// with another code than 0 is an *ExitError. When ctx ends, the command is killed.
func (e *Engine) RunTools(ctx context.Context, owner Owner, spec ToolsSpec) (string, error) {
	c, err := e.create(ctx, testcontainers.ContainerRequest{
		Image:      e.Tools,
		Name:       owner.name(fmt.Sprintf("tools-%d", time.Now().UnixNano())),
		Entrypoint: spec.Argv,
		Labels:     owner.Labels(),
		HostConfigModifier: func(h *container.HostConfig) {
			h.NetworkMode = "none"
			h.Mounts = mounts(spec.Mounts)
			if spec.NetAdmin {
				h.CapAdd = append(h.CapAdd, "NET_ADMIN")
			}
			if spec.LoopDevices {
				allowLoopDevices(h)
			}
		},
	})
	if err != nil {
		return "", fmt.Errorf("run tools: %w", err)
	}
	out, err := c.runOnce(ctx)
	if exit := new(ExitError); errors.As(err, &exit) {
		exit.Argv = spec.Argv
	}
	if err := errors.Join(err, c.cleanUp(ctx)); err != nil {
		return out, fmt.Errorf("run tools: %w", err)
	}
	return out, nil
}

// allowLoopDevices lets a container make and mount loop devices. That is less than a privileged container has, and works
// where the engine itself lacks the rights to make one.
func allowLoopDevices(h *container.HostConfig) {
	const loopMajor = "b 7:* rmw"
	h.CapAdd = append(h.CapAdd, "SYS_ADMIN")
	h.SecurityOpt = append(h.SecurityOpt, "seccomp=unconfined", "apparmor=unconfined")
	h.DeviceCgroupRules = append(h.DeviceCgroupRules, loopMajor)
	h.Devices = append(h.Devices, container.DeviceMapping{PathOnHost: "/dev/loop-control", PathInContainer: "/dev/loop-control", CgroupPermissions: "rwm"})
	// A container's own /dev does not show devices made after its start.
	h.Mounts = append(h.Mounts, mount.Mount{Type: mount.TypeBind, Source: "/dev", Target: "/dev"})
}

// runOnce starts the container, waits for its end and returns its standard output.
func (c *Container) runOnce(ctx context.Context) (string, error) {
	if err := c.Start(ctx); err != nil {
		return "", err
	}
	if err := c.waitExit(ctx); err != nil {
		return "", err
	}
	r, err := c.engine.api.ContainerLogs(ctx, c.ID, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true})
	if err != nil {
		return "", err
	}
	defer r.Close()
	var stdout, stderr strings.Builder
	if _, err := stdcopy.StdCopy(&stdout, &stderr, r); err != nil {
		return "", err
	}
	state, err := c.State(ctx)
	if err != nil {
		return "", err
	}
	if state.ExitCode != 0 {
		return stdout.String(), &ExitError{Code: state.ExitCode, Stderr: stderr.String()}
	}
	return stdout.String(), nil
}
