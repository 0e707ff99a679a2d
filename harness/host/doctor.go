package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"conform/fixtures"
	"conform/harness/internal/container"
)

// Finding is one thing the doctor looked at.
type Finding struct {
	Name     string // "engine", "memory", ...
	OK       bool
	Optional bool   // when not OK: only some faults or comforts are missing
	Detail   string // what was found
	Fix      string // what mends it: a command, or one sentence; empty when OK
}

// DoctorOptions says what to look at.
type DoctorOptions struct {
	Versions []fixtures.Version // whose images are looked for
	Dir      string             // where runs are to be written
}

// What a run needs. The memory is the ceiling of a three-node cluster with its clients.
const (
	needCores       = 2
	needMemoryMiB   = 2560
	needEngineMiB   = 4096 // images and volumes
	needRunMiB      = 512  // ledger and logs of a run
	examinationTime = 30 * time.Second
)

// Doctor looks at everything a run needs and says how to mend what is missing. It changes nothing but for short-lived
// containers of its own, and never fails: what cannot be looked at is a finding.
func Doctor(ctx context.Context, o DoctorOptions) []Finding {
	e, err := container.Connect(ctx)
	if err != nil {
		c := new(container.ConnectError)
		if !errors.As(err, &c) {
			c = &container.ConnectError{Reason: err}
		}
		findings := []Finding{{Name: "engine", Detail: fmt.Sprintf("%v: %v", c.Reason, c.Cause), Fix: c.Fix}}
		findings = append(findings, machine(ctx, o, container.Info{})...)
		return append(findings, Finding{Name: "images, kernel, strays", Detail: "not looked at: no engine", Fix: c.Fix})
	}
	info, err := e.Info(ctx)
	if err != nil {
		return []Finding{{Name: "engine", Detail: err.Error(), Fix: "restart the container engine"}}
	}
	kind := ""
	if info.Rootless {
		kind = ", rootless: no disk faults"
	}
	findings := []Finding{
		{Name: "engine", OK: true, Detail: fmt.Sprintf("Docker %s on %s, kernel %s, cgroup v%s%s", info.Version, info.OS, info.Kernel, info.CgroupVersion, kind)},
		{Name: "API version", OK: true, Detail: info.API},
	}
	findings = append(findings, machine(ctx, o, info)...)
	findings = append(findings, images(ctx, e, o.Versions)...)
	findings = append(findings, kernel(ctx, e)...)
	return append(findings, strayFinding(ctx, e))
}

// machine looks at cores, memory and disk.
func machine(ctx context.Context, o DoctorOptions, info container.Info) []Finding {
	cores := runtime.NumCPU()
	if info.CPUs > 0 {
		cores = min(cores, info.CPUs)
	}
	findings := []Finding{judge(Finding{Name: "cores", Optional: true, Detail: fmt.Sprint(cores), Fix: fmt.Sprintf("use a machine with %d cores or more: with less, timings get unsteady", needCores)}, cores >= needCores)}

	if m, err := memoryNow(ctx); err != nil {
		findings = append(findings, Finding{Name: "memory", Detail: err.Error()})
	} else {
		findings = append(findings, judge(Finding{
			Name:   "memory",
			Detail: fmt.Sprintf("%d MiB available of %d MiB, %d MiB needed", m.available, m.total, needMemoryMiB),
			Fix:    "free some memory, or give the engine's virtual machine more",
		}, m.available >= needMemoryMiB))
	}

	places := []struct {
		name, dir string
		need      int64
		fix       string
	}{
		{"disk for runs", o.Dir, needRunMiB, "free some room there, or write elsewhere: --out DIR"},
		{"disk of the engine", info.Root, needEngineMiB, "docker system prune"},
	}
	for _, p := range places {
		if _, err := os.Stat(p.dir); p.dir == "" || (p.dir == info.Root && err != nil) {
			continue // not asked, or the engine is on another machine
		}
		free, err := diskFree(ctx, p.dir)
		if err != nil {
			findings = append(findings, Finding{Name: p.name, Detail: err.Error()})
			continue
		}
		findings = append(findings, judge(Finding{Name: p.name, Detail: fmt.Sprintf("%d MiB free in %s, %d MiB needed", free, p.dir, p.need), Fix: p.fix}, free >= p.need))
	}
	return findings
}

// judge sets OK, and drops the fix of what needs none.
func judge(f Finding, ok bool) Finding {
	if f.OK = ok; ok {
		f.Fix, f.Optional = "", false
	}
	return f
}

// images looks for the images of the versions and of the tools.
func images(ctx context.Context, e *container.Engine, versions []fixtures.Version) []Finding {
	var findings []Finding
	for _, v := range append([]fixtures.Version{fixtures.Tools()}, versions...) {
		f := Finding{Name: "image " + v.String(), Detail: "neither built nor pulled yet", Fix: prepareLine(v)}
		for _, ref := range []string{v.Image(), v.Official} {
			if ref == "" {
				continue
			}
			image, ok, err := e.Image(ctx, ref)
			if err != nil {
				f.Detail = err.Error()
				break
			}
			if ok {
				f.Detail = fmt.Sprintf("%s, %d MiB", image.Ref, image.MiB)
				f = judge(f, true)
				break
			}
		}
		findings = append(findings, f)
	}
	return findings
}

// kernel tries what faults need, in containers of its own.
func kernel(ctx context.Context, e *container.Engine) []Finding {
	filter := Finding{Name: "packet filter", Fix: "use a kernel with iptables (nftables or legacy): without, brokers cannot be cut from each other"}
	loop := Finding{Name: "loop devices", Optional: true, Fix: "run as root on a kernel with loop devices and ext4: without, there are no disk faults"}
	if _, ok, err := e.Image(ctx, e.Tools); err != nil || !ok {
		filter.Detail, filter.Fix = "not tried: the tools image is missing", "conform prepare"
		loop.Detail, loop.Fix = filter.Detail, filter.Fix
		return []Finding{filter, loop}
	}
	owner, err := container.NewOwner(fmt.Sprintf("doctor-%d", os.Getpid()))
	if err != nil {
		filter.Detail, loop.Detail = err.Error(), err.Error()
		return []Finding{filter, loop}
	}
	ctx, cancel := context.WithTimeout(ctx, examinationTime)
	defer cancel()
	try := func(f Finding, spec container.ToolsSpec) Finding {
		out, err := e.RunTools(ctx, owner, spec)
		if err != nil {
			f.Detail = strings.TrimSpace(err.Error())
			if exit := new(container.ExitError); errors.As(err, &exit) {
				f.Detail = strings.TrimSpace(exit.Stderr)
			}
			return f
		}
		f.Detail = strings.TrimSpace(out)
		return judge(f, true)
	}
	return []Finding{
		try(filter, container.ToolsSpec{NetAdmin: true, Argv: []string{"sh", "-ec", `
			for t in iptables iptables-legacy; do
				if $t -w -A OUTPUT -d 192.0.2.1 -p tcp --dport 9 -m comment --comment conform -j DROP 2>/tmp/err && $t-save -c | grep -q conform; then
					$t --version; exit 0
				fi
			done
			cat /tmp/err >&2; exit 1`}}),
		try(loop, container.ToolsSpec{LoopDevices: true, Argv: []string{"sh", "-ec", `
			truncate -s 16M /tmp/disk; mkfs.ext4 -q /tmp/disk; mkdir /tmp/mnt
			mount -o loop /tmp/disk /tmp/mnt; umount /tmp/mnt
			echo ext4 on a loop device can be mounted`}}),
	}
}

// strayFinding reports what dead runs left.
func strayFinding(ctx context.Context, e *container.Engine) Finding {
	objects, err := strays(ctx, e)
	if err != nil {
		return Finding{Name: "strays", Detail: err.Error(), Fix: "restart the container engine"}
	}
	f := Finding{Name: "strays", OK: true, Detail: "none"}
	var dead, kept, unknown []string
	for _, o := range objects {
		text := fmt.Sprintf("%s %s", o.Kind, o.Name)
		switch {
		case o.life == container.Unknown:
			unknown = append(unknown, text)
		case o.Owner.Keep:
			kept = append(kept, text)
		default:
			dead = append(dead, text)
		}
	}
	var parts []string
	if len(dead) > 0 {
		f.OK, f.Optional, f.Fix = false, true, "conform doctor --clean"
		parts = append(parts, "left by runs that are dead: "+strings.Join(dead, ", "))
	}
	if len(kept) > 0 {
		parts = append(parts, "kept on purpose (--keep), conform doctor --clean removes them: "+strings.Join(kept, ", "))
	}
	if len(unknown) > 0 {
		parts = append(parts, "owned by another machine or container, so only you can tell: "+strings.Join(unknown, ", "))
	}
	if len(parts) > 0 {
		f.Detail = strings.Join(parts, "; ")
	}
	return f
}
