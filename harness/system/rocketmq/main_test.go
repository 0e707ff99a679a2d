package rocketmq

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// leakWait is how long the library's clients may take to end: some of its goroutines sleep for 10 s before they look.
const leakWait = 20 * time.Second

func TestMain(m *testing.M) {
	// testcontainers-go reads it once. Its reaper has no image where no registry can be reached; runs carry labels instead.
	if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
		panic(err)
	}
	before := goleak.IgnoreCurrent() // the library's tables have caretakers of their own
	code := m.Run()
	if code == 0 {
		code = leaks(before)
	}
	os.Exit(code)
}

// leaks accounts for the goroutines of the clients.
func leaks(before goleak.Option) int {
	var err error
	for began := time.Now(); time.Since(began) < leakWait; time.Sleep(100 * time.Millisecond) {
		err = goleak.Find(before,
			// The engine's client keeps idle connections; it has no close.
			goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
			goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
			// A client of the library that was shut down leaves its connection to the name server open for 120 s.
			goleak.IgnoreAnyFunction("github.com/apache/rocketmq-client-go/v2/internal/remote.(*remotingClient).receiveResponse"),
			// Three of a consumer's statistics sleep until the next minute, hour and month before they look whether it was shut down.
			goleak.IgnoreAnyFunction("github.com/apache/rocketmq-client-go/v2/consumer.(*statsItemSet).init.func4"),
			goleak.IgnoreAnyFunction("github.com/apache/rocketmq-client-go/v2/consumer.(*statsItemSet).init.func5"),
			goleak.IgnoreAnyFunction("github.com/apache/rocketmq-client-go/v2/consumer.(*statsItemSet).init.func6"),
		)
		if err == nil {
			return 0
		}
	}
	_, _ = fmt.Fprintln(os.Stderr, err)
	return 1
}
