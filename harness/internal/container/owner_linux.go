package container

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// thisMachine reads the machine id (the host name where there is none), the process namespace and the boot id.
func thisMachine() (machine, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return machine{}, fmt.Errorf("read boot id: %w", err)
	}
	id, err := os.ReadFile("/etc/machine-id")
	host := strings.TrimSpace(string(id))
	if err != nil || host == "" {
		if host, err = os.Hostname(); err != nil {
			return machine{}, fmt.Errorf("read host name: %w", err)
		}
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return machine{}, fmt.Errorf("read process namespace: %w", err)
	}
	return machine{host: host + "/" + namespace, boot: strings.TrimSpace(string(boot))}, nil
}

// startOf returns the start time of a process in clock ticks since boot (field 22 of its stat file), and false when there
// is no such process.
func startOf(pid int) (string, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", false
	}
	// The second field is the command in parentheses and may hold blanks and parentheses: count from the last ')'.
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return "", false
	}
	const startField = 22 - 3 // the first field after the command is field 3
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) <= startField || fields[0] == "Z" || fields[0] == "X" {
		return "", false // a zombie runs no more
	}
	return fields[startField], true
}
