//go:build !linux

package container

import (
	"fmt"
	"os"
	"strconv"

	gopsutilhost "github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/process"
)

// thisMachine names the machine by its host name and the boot by its time in seconds.
func thisMachine() (machine, error) {
	host, err := os.Hostname()
	if err != nil {
		return machine{}, fmt.Errorf("read host name: %w", err)
	}
	boot, err := gopsutilhost.BootTime()
	if err != nil {
		return machine{}, fmt.Errorf("read boot time: %w", err)
	}
	return machine{host: host, boot: strconv.FormatUint(boot, 10)}, nil
}

// startOf returns the start time of a process in milliseconds since 1970, and false when there is no such process.
func startOf(pid int) (string, bool) {
	p, err := process.NewProcess(int32(pid))
	if err != nil {
		return "", false
	}
	created, err := p.CreateTime()
	if err != nil {
		return "", false
	}
	return strconv.FormatInt(created, 10), true
}
