//go:build !linux

package container

import (
	"fmt"
	"os"
	"strconv"

	"github.com/shirou/gopsutil/v4/process"
)

// thisMachine names the machine by its host name. The boot stays empty: a boot time moves when the clock is set, and the
// start time of the process, which is kept to the millisecond since 1970, tells boots apart as well.
func thisMachine() (machine, error) {
	host, err := os.Hostname()
	if err != nil {
		return machine{}, fmt.Errorf("read host name: %w", err)
	}
	return machine{host: host}, nil
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
