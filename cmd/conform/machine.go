package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/mem"
)

// machineFacts says on what the run ran, for the report. What cannot be read is left out.
func machineFacts(ctx context.Context) map[string]string {
	facts := map[string]string{"cores": fmt.Sprint(runtime.NumCPU()), "system": runtime.GOOS + "/" + runtime.GOARCH}
	if m, err := mem.VirtualMemoryWithContext(ctx); err == nil {
		facts["memory"] = fmt.Sprintf("%d MiB", m.Total>>20)
	}
	if k, err := host.KernelVersionWithContext(ctx); err == nil {
		facts["kernel"] = k
	}
	return facts
}
