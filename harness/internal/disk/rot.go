package disk

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"conform/harness/internal/container"
)

// Decay says what happens to one file of a volume.
type Decay struct {
	Pattern string // shell pattern under the volume's root; the last file that matches and is not empty is taken
	Offset  int64  // whose lowest bit is flipped, modulo the file's size
	Cut     int64  // > 0: instead, so many bytes are cut off the file's end
}

// Rot damages one file of a volume whose node is down, and returns what it did. It needs no loop device.
func Rot(ctx context.Context, v *container.Volume, d Decay) (string, error) {
	out, err := v.Run(ctx, "perl", "-e", string(helperScript), "rot", "/volume", d.Pattern, strconv.FormatInt(d.Offset, 10), strconv.FormatInt(d.Cut, 10))
	if err != nil {
		return "", fmt.Errorf("rot file: %w", err)
	}
	f := strings.Split(strings.TrimSpace(out), "\t")
	switch {
	case f[0] == "cut" && len(f) == 4:
		return fmt.Sprintf("%s cut from %s to %s bytes", f[1], f[2], f[3]), nil
	case f[0] == "flip" && len(f) == 6:
		return fmt.Sprintf("byte %s of %s (%s bytes) changed from %s to %s", f[3], f[1], f[2], f[4], f[5]), nil
	default:
		return "", fmt.Errorf("rot file: helper said %q", out)
	}
}
