package rabbitmq

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// testcontainers-go reads it once. Its reaper has no image where no registry can be reached; runs carry labels instead.
	if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m,
		// The engine's client keeps idle connections; it has no close.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
	)
}
