package container_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"conform/harness/host"
	"conform/harness/internal/container"
	"conform/harness/internal/netns"
)

func TestMain(m *testing.M) {
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	os.Exit(m.Run())
}

// engine returns the engine and an owner whose objects are removed after the test.
func engine(t *testing.T) (*container.Engine, container.Owner) {
	t.Helper()
	if _, err := host.Prepare(t.Context(), host.Options{}); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("needs a container engine: %v", err)
		}
		t.Skipf("needs a container engine: %v", err)
	}
	e, err := container.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	owner, err := container.NewOwner(strings.ToLower(t.Name()) + "-" + time.Now().Format("150405.000"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := contextForCleanup(t)
		if err := e.RemoveRun(ctx, owner.Run); err != nil {
			t.Error(err)
		}
	})
	return e, owner
}

// echo answers each connection to port 7000 with a line, and says so in its log.
const echo = `use IO::Socket::INET; $| = 1;
my $s = IO::Socket::INET->new(Listen => 5, LocalPort => 7000, ReuseAddr => 1) or die "listen: $!";
$SIG{TERM} = sub { print "bye\n"; exit 3 };
print "listening\n";
while (my $c = $s->accept) { print $c "pong\n"; close $c }`

var listening = regexp.MustCompile(`^listening$`)

func newPod(t *testing.T, e *container.Engine, owner container.Owner, network *container.Network, name string) *container.Pod {
	t.Helper()
	pod, err := e.NewPod(t.Context(), owner, container.PodSpec{Name: name + "-pod", Network: network, Hostname: name, Ports: []int{7000}})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func newNetwork(t *testing.T, e *container.Engine, owner container.Owner) *container.Network {
	t.Helper()
	network, err := e.NewNetwork(t.Context(), owner, "net")
	if err != nil {
		t.Fatal(err)
	}
	return network
}

func startEcho(t *testing.T, e *container.Engine, owner container.Owner, pod *container.Pod, name string, mounts map[string]*container.Volume) *container.Container {
	t.Helper()
	c, err := e.NewContainer(t.Context(), owner, container.Spec{
		Name: name, Image: e.Tools, Pod: pod, Cmd: []string{"perl", "/etc/conform/echo.pl"}, Mounts: mounts,
		Files: []container.File{{Path: "/etc/conform/echo.pl", Content: []byte(echo)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	start(t, c)
	return c
}

func start(t *testing.T, c *container.Container) {
	t.Helper()
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitLog(t.Context(), listening); err != nil {
		t.Fatal(err)
	}
}

// pong asks the echo server and returns its answer; empty when there is none.
func pong(addr string) string {
	c, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * time.Second))
	line, _ := bufio.NewReader(c).ReadString('\n')
	return line
}

func TestAddressesSurviveKillAndRestart(t *testing.T) {
	e, owner := engine(t)
	pod := newPod(t, e, owner, newNetwork(t, e, owner), "n1")
	node := startEcho(t, e, owner, pod, "n1", nil)
	addr, ip := pod.HostPort(7000), pod.IP()
	if host, _, _ := net.SplitHostPort(addr); host != "127.0.0.1" {
		t.Fatalf("published at %q, want loopback only", addr)
	}
	if got := pong(addr); got != "pong\n" {
		t.Fatalf("before the kill: got %q", got)
	}
	before, err := node.State(t.Context())
	if err != nil || !before.Running || before.PID == 0 {
		t.Fatalf("state of a running node: %+v, %v", before, err)
	}

	for range 2 { // killing a dead one is no error
		if err := node.Signal(t.Context(), "KILL"); err != nil {
			t.Fatal(err)
		}
	}
	dead, err := node.State(t.Context())
	if err != nil || dead.Running || dead.ExitCode != 137 {
		t.Fatalf("state after the kill: %+v, %v", dead, err)
	}
	if got := pong(addr); got != "" {
		t.Fatalf("a killed node answers %q", got)
	}
	if err := node.Signal(t.Context(), "STOP"); !errors.Is(err, container.ErrNotRunning) {
		t.Errorf("STOP of a dead one: got %v, want ErrNotRunning", err)
	}

	start(t, node)
	if got := pong(addr); got != "pong\n" {
		t.Errorf("after the restart: got %q", got)
	}
	after, err := node.State(t.Context())
	if err != nil || after.PID == before.PID || !after.StartedAt.After(before.StartedAt) {
		t.Errorf("state after the restart: %+v, %v, before: %+v", after, err, before)
	}
	if pod.IP() != ip || pod.HostPort(7000) != addr {
		t.Errorf("addresses moved: %v %v, before %v %v", pod.IP(), pod.HostPort(7000), ip, addr)
	}
	if name, err := node.Exec(t.Context(), "hostname"); err != nil || strings.TrimSpace(name) != "n1" {
		t.Errorf("host name: %q, %v", name, err)
	}
}

func TestPauseStopAndSignals(t *testing.T) {
	e, owner := engine(t)
	pod := newPod(t, e, owner, newNetwork(t, e, owner), "n1")
	node := startEcho(t, e, owner, pod, "n1", nil)
	ctx := t.Context()
	addr := pod.HostPort(7000)

	for range 2 {
		if err := node.Pause(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := node.State(ctx); err != nil || !s.Paused || !s.Running {
		t.Errorf("paused: %+v, %v", s, err)
	}
	if got := pong(addr); got != "" {
		t.Errorf("a paused node answers %q", got)
	}
	for range 2 {
		if err := node.Unpause(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if got := pong(addr); got != "pong\n" {
		t.Errorf("after unpause: got %q", got)
	}

	if err := node.Signal(ctx, "STOP"); err != nil {
		t.Fatal(err)
	}
	if got := pong(addr); got != "" {
		t.Errorf("a stopped process answers %q", got)
	}
	if err := node.Signal(ctx, "CONT"); err != nil {
		t.Fatal(err)
	}
	if got := pong(addr); got != "pong\n" {
		t.Errorf("after CONT: got %q", got)
	}

	if err := node.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if err := node.Signal(ctx, "KILL"); err != nil {
		t.Fatalf("kill of a paused node: %v", err)
	}
	start(t, node)

	if mib, err := node.MemoryMiB(ctx); err != nil || mib < 1 || mib > 200 {
		t.Errorf("memory: %d MiB, %v", mib, err)
	}
	for range 2 {
		if err := node.Stop(ctx, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := node.State(ctx); err != nil || s.Running || s.ExitCode != 3 {
		t.Errorf("after a graceful stop: %+v, %v, want exit code 3", s, err)
	}
	var log strings.Builder
	if err := node.Logs(ctx, &log, container.LogRange{Tail: 1}); err != nil || log.String() != "bye\n" {
		t.Errorf("log ends with %q, %v", log.String(), err)
	}
	// The line is in the log of an earlier start: it must not count.
	if err := node.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := node.Signal(ctx, "KILL"); err != nil {
		t.Fatal(err)
	}
	if line, err := node.WaitLog(ctx, regexp.MustCompile("bye")); !errors.Is(err, container.ErrNotRunning) {
		t.Errorf("found %q, %v in the log of a former start", line, err)
	}
}

func TestExecTellsOutputAndExitCode(t *testing.T) {
	e, owner := engine(t)
	pod := newPod(t, e, owner, newNetwork(t, e, owner), "n1")
	out, err := pod.Exec(t.Context(), "sh", "-c", "echo out; echo err >&2; exit 7")
	var exit *container.ExitError
	if !errors.As(err, &exit) || exit.Code != 7 || exit.Stderr != "err\n" || out != "out\n" {
		t.Errorf("got %q, %#v", out, err)
	}
}

func TestVolumeEmpty(t *testing.T) {
	e, owner := engine(t)
	ctx := t.Context()
	v, err := e.NewVolume(ctx, owner, "data")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Run(ctx, "sh", "-c", "mkdir -p /volume/a/.b && touch /volume/a/.b/c /volume/.hidden"); err != nil {
		t.Fatal(err)
	}
	if removed, err := v.Empty(ctx); err != nil || removed != 4 {
		t.Errorf("emptied: %d, %v, want 4", removed, err)
	}
	if removed, err := v.Empty(ctx); err != nil || removed != 0 {
		t.Errorf("emptied again: %d, %v, want 0", removed, err)
	}
	if out, err := v.Run(ctx, "ls", "-A", "/volume"); err != nil || out != "" {
		t.Errorf("left: %q, %v", out, err)
	}
	if _, err := v.Run(ctx, "sh", "-c", "exit 9"); err == nil {
		t.Error("a failing command is no error")
	}
}

func TestCutDropsAndHeals(t *testing.T) {
	e, owner := engine(t)
	ctx := t.Context()
	network := newNetwork(t, e, owner)
	one, two := newPod(t, e, owner, network, "n1"), newPod(t, e, owner, network, "n2")
	startEcho(t, e, owner, two, "n2", nil)
	// ask connects from n1 to n2 by its name and prints the answer.
	ask := func() string {
		out, err := one.Exec(ctx, "timeout", "2", "perl", "-MIO::Socket::INET", "-e",
			`my $s = IO::Socket::INET->new(PeerAddr => "n2", PeerPort => 7000, Timeout => 1) or exit 0; print <$s>`)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got := ask(); got != "pong\n" {
		t.Fatalf("before the cut: %q", got)
	}

	start := time.Now()
	cut, err := netns.Apply(ctx, one, "inj-1", netns.Rule{Peer: two.IP(), Port: 7000, Side: netns.DestinationPort, Direction: netns.Out})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("cut took %v", time.Since(start))
	// A second injection with a name that starts like the first one, on another port: it must outlive the first one's heal.
	other, err := netns.Apply(ctx, one, "inj-10", netns.Rule{Peer: two.IP(), Port: 7001})
	if err != nil {
		t.Fatal(err)
	}
	if got := ask(); got != "" {
		t.Errorf("through the cut: %q", got)
	}
	if got := pong(two.HostPort(7000)); got != "pong\n" {
		t.Errorf("a client from outside: %q", got)
	}
	during, err := cut.Counters(ctx)
	if err != nil || during.Packets == 0 || during.Bytes == 0 {
		t.Errorf("evidence: %+v, %v", during, err)
	}
	for range 2 {
		if err := cut.Heal(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if got := ask(); got != "pong\n" {
		t.Errorf("after the heal: %q", got)
	}
	if after, err := cut.Counters(ctx); err != nil || after.Packets < during.Packets {
		t.Errorf("counters after the heal: %+v, %v, during: %+v", after, err, during)
	}
	if rules, err := one.Exec(ctx, "iptables", "-S"); err != nil || strings.Count(rules, "conform-inj-10") != 4 || strings.Contains(rules, "conform-inj-1 ") {
		t.Errorf("rules left: %s, %v", rules, err)
	}
	if err := other.Heal(ctx); err != nil {
		t.Fatal(err)
	}
	if rules, err := one.Exec(ctx, "iptables", "-S"); err != nil || strings.Contains(rules, "conform") {
		t.Errorf("rules left: %s, %v", rules, err)
	}
}

func TestRemoveRunRemovesEverythingOfOneRun(t *testing.T) {
	e, owner := engine(t)
	_, other := engine(t)
	ctx := t.Context()
	other.Run += "-other"
	t.Cleanup(func() { _ = e.RemoveRun(contextForCleanup(t), other.Run) })

	for _, o := range []container.Owner{owner, other} {
		v, err := e.NewVolume(ctx, o, "data")
		if err != nil {
			t.Fatal(err)
		}
		pod := newPod(t, e, o, newNetwork(t, e, o), "n1")
		node := startEcho(t, e, o, pod, "n1", map[string]*container.Volume{"/data": v})
		if err := node.Pause(ctx); err != nil { // a frozen node must be removable too
			t.Fatal(err)
		}
	}
	count := func(run string) map[container.Kind]int {
		objects, err := e.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		kinds := map[container.Kind]int{}
		for _, o := range objects {
			if o.Owner.Run == run {
				kinds[o.Kind]++
			}
		}
		return kinds
	}
	if got := count(owner.Run); got[container.KindContainer] != 2 || got[container.KindNetwork] != 1 || got[container.KindVolume] != 1 {
		t.Fatalf("before: %v", got)
	}
	for range 2 {
		if err := e.RemoveRun(ctx, owner.Run); err != nil {
			t.Fatal(err)
		}
	}
	if got := count(owner.Run); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	if got := count(other.Run); got[container.KindContainer] != 2 || got[container.KindNetwork] != 1 || got[container.KindVolume] != 1 {
		t.Errorf("the other run: %v", got)
	}
}

// TestLogOfTheLastRunIsWhole runs a process that writes at once and ends: no line may be missing, none of a former run be there.
func TestLogOfTheLastRunIsWhole(t *testing.T) {
	e, owner := engine(t)
	ctx := t.Context()
	node, err := e.NewContainer(ctx, owner, container.Spec{Name: "n1", Image: e.Tools, Entrypoint: []string{"sh", "-c", "echo first; exit 0"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		if err := node.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := node.WaitLog(ctx, regexp.MustCompile("^first$")); err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
		if _, err := node.WaitLog(ctx, regexp.MustCompile("^second$")); !errors.Is(err, container.ErrNotRunning) {
			t.Fatalf("run %d: %v", i, err)
		}
		var log strings.Builder
		if err := node.Logs(ctx, &log, container.LogRange{LastRun: true}); err != nil || log.String() != "first\n" {
			t.Fatalf("run %d: log %q, %v", i, log.String(), err)
		}
	}
}

func TestConnectSaysWhatIsWrong(t *testing.T) {
	engine(t) // without an engine this would pass for the wrong reason
	t.Setenv("HOME", t.TempDir())
	t.Setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
	_, err := container.Connect(t.Context())
	var c *container.ConnectError
	if !errors.As(err, &c) || !errors.Is(err, container.ErrNamedSilent) || errors.Is(err, container.ErrNoEngine) || !strings.Contains(c.Fix, "/nonexistent/docker.sock") {
		t.Errorf("an engine that is named and silent: got %#v", err)
	}
	// An engine that comes up later is found: prepare starts one.
	t.Setenv("DOCKER_HOST", "")
	if _, err := container.Connect(t.Context()); err != nil {
		t.Errorf("with an engine again: %v", err)
	}
}

func TestMissingImageIsSaidAtOnce(t *testing.T) {
	e, owner := engine(t)
	start := time.Now()
	_, err := e.NewContainer(t.Context(), owner, container.Spec{Name: "n1", Image: "localhost/conform-none:1"})
	if err == nil || !strings.Contains(err.Error(), "conform prepare") || time.Since(start) > 5*time.Second {
		t.Errorf("got %v after %v", err, time.Since(start))
	}
}

func TestWaitLogEndsWithItsContext(t *testing.T) {
	e, owner := engine(t)
	pod := newPod(t, e, owner, newNetwork(t, e, owner), "n1")
	node := startEcho(t, e, owner, pod, "n1", nil)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := node.WaitLog(ctx, regexp.MustCompile("never")); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "listening") {
		t.Errorf("got %v, want a deadline and the end of the log", err)
	}
}
