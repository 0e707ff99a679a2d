package host

import (
	"testing"

	"conform/harness/internal/container"
)

func TestRemovable(t *testing.T) {
	tests := []struct {
		life         container.Life
		keep         bool
		sweep, clean bool
	}{
		{container.Alive, false, false, false},
		{container.Alive, true, false, false},
		{container.Unknown, false, false, false},
		{container.Unknown, true, false, false},
		{container.Dead, false, true, true},
		{container.Dead, true, false, true},
	}
	for _, tt := range tests {
		if got := removable(tt.life, tt.keep, false); got != tt.sweep {
			t.Errorf("sweep of %v, kept %t: got %t", tt.life, tt.keep, got)
		}
		if got := removable(tt.life, tt.keep, true); got != tt.clean {
			t.Errorf("clean of %v, kept %t: got %t", tt.life, tt.keep, got)
		}
	}
}
