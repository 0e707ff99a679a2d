package rocketmq

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	// testcontainers-go reads it once. Its reaper has no image where no registry can be reached; runs carry labels instead.
	if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
