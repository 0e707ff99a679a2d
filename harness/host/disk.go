package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/shirou/gopsutil/v4/disk"
)

// ErrNoDisk says that a file system has too little room left.
var ErrNoDisk = errors.New("not enough room on disk")

// CheckDisk makes sure that mib MiB are free where dir is, or will be made. The error is an *Error that wraps ErrNoDisk.
func CheckDisk(ctx context.Context, dir string, mib int64) error {
	free, err := diskFree(ctx, dir)
	if err != nil {
		return &Error{Op: "check room in " + dir, Err: err}
	}
	if free < 0 {
		return &Error{Op: "check room in " + dir, Err: errors.New("its file system holds no files of ours"), Fix: "use another folder: --out DIR"}
	}
	if free < mib {
		return &Error{
			Op:  "check room in " + dir,
			Err: fmt.Errorf("%w: %d MiB free, %d MiB needed", ErrNoDisk, free, mib),
			Fix: "free some room there, or use another folder: --out DIR",
		}
	}
	return nil
}

// diskFree is the room on the file system of dir, or of its nearest folder that exists, in MiB; -1 = it is none for files.
func diskFree(ctx context.Context, dir string) (int64, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return 0, fmt.Errorf("find folder: %w", err)
	}
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	usage, err := disk.UsageWithContext(ctx, dir)
	if err != nil {
		return 0, fmt.Errorf("read room on disk: %w", err)
	}
	if usage.Total == 0 { // as /proc
		return -1, nil
	}
	return int64(usage.Free >> 20), nil
}
