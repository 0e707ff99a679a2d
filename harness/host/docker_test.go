package host_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"conform/fixtures"
	"conform/harness/host"
	"conform/harness/internal/container"
)

func TestMain(m *testing.M) {
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	os.Exit(m.Run())
}

// prepared returns an engine, the images of the versions and an owner whose objects are removed after the test.
func prepared(t *testing.T, versions ...fixtures.Version) (*container.Engine, host.Images, container.Owner) {
	t.Helper()
	images, err := host.Prepare(t.Context(), host.Options{Systems: versions, Progress: t.Output()})
	if err != nil {
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
		if err := e.RemoveRun(cleanup(t), owner.Run); err != nil {
			t.Error(err)
		}
	})
	return e, images, owner
}

// cleanup is a context for what runs after the test, when its own has ended.
func cleanup(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

const kafkaProperties = `process.roles=broker,controller
node.id=1
controller.quorum.voters=1@n1:9093
listeners=CLIENT://:9092,CONTROLLER://:9093
advertised.listeners=CLIENT://n1:9092
listener.security.protocol.map=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENT
controller.listener.names=CONTROLLER
log.dirs=/data/logs
metadata.log.dir = /meta/log
offsets.topic.replication.factor=1
`

func TestKafkaStartScript(t *testing.T) {
	version, err := fixtures.ParseVersion("kafka")
	if err != nil {
		t.Fatal(err)
	}
	e, images, owner := prepared(t, version)
	ctx := t.Context()
	network, err := e.NewNetwork(ctx, owner, "net")
	if err != nil {
		t.Fatal(err)
	}
	pod, err := e.NewPod(ctx, owner, container.PodSpec{Name: "n1-pod", Network: network, Hostname: "n1", Ports: []int{9092}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := e.NewVolume(ctx, owner, "n1-data")
	if err != nil {
		t.Fatal(err)
	}
	meta, err := e.NewVolume(ctx, owner, "n1-meta")
	if err != nil {
		t.Fatal(err)
	}
	node, err := e.NewContainer(ctx, owner, container.Spec{
		Name: "n1", Image: images[version.String()].Ref, Pod: pod, User: "0:0",
		Entrypoint: []string{"sh", "/conform/start.sh"},
		Cmd:        []string{"/conform/server.properties"},
		Env: map[string]string{
			"CONFORM_CLUSTER_ID": "MkU3OEVBNTcwNTJENDM2Qg",
			"CONFORM_FORMAT":     "--feature eligible.leader.replicas.version=0",
		},
		Files: []container.File{
			{Path: "/conform/start.sh", Content: fixtures.KafkaStart()},
			{Path: "/conform/log4j2.properties", Content: fixtures.KafkaLog4j()},
			{Path: "/conform/server.properties", Content: []byte(kafkaProperties)},
		},
		Mounts: map[string]*container.Volume{"/data": data, "/meta": meta},
	})
	if err != nil {
		t.Fatal(err)
	}

	up := regexp.MustCompile(`Kafka Server started`)
	start := func() (formatted string, took time.Duration) {
		t.Helper()
		from := time.Now()
		if err := node.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := node.WaitLog(ctx, up); err != nil {
			t.Fatal(err)
		}
		took = time.Since(from)
		var log strings.Builder
		if err := node.Logs(ctx, &log, container.LogRange{LastRun: true}); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(log.String()) {
			if rest, ok := strings.CutPrefix(line, "conform: formatting "); ok {
				formatted = strings.TrimSpace(rest)
			}
			if strings.Contains(line, "[warning]") { // the JVM's way of saying that it could not use the class archive
				t.Errorf("JVM: %s", line)
			}
		}
		return formatted, took
	}
	identity := func(v *container.Volume, file string) string {
		t.Helper()
		out, err := v.Run(ctx, "cat", "/volume/"+file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out) {
			if id, ok := strings.CutPrefix(line, "directory.id="); ok {
				return id
			}
		}
		t.Fatalf("no directory id in %s", out)
		return ""
	}

	if formatted, took := start(); formatted != "/data/logs /meta/log" {
		t.Errorf("first start formatted %q", formatted)
	} else {
		t.Logf("first start: %v", took)
	}
	// The archive is off in the test only if the JVM says so: -Xshare:auto never fails.
	if maps, err := node.Exec(ctx, "sh", "-c", "grep -c conform.jsa /proc/1/maps"); err != nil && images[version.String()].Digest == "" {
		t.Errorf("the class archive is not mapped: %s %v", maps, err)
	}
	first, metaID := identity(data, "logs/meta.properties"), identity(meta, "log/meta.properties")
	if err := node.Stop(ctx, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	if s, err := node.State(ctx); err != nil || s.ExitCode != 143 {
		t.Errorf("controlled shutdown: %+v, %v, want the JVM's 143", s, err)
	}

	if formatted, took := start(); formatted != "" {
		t.Errorf("restart formatted %q", formatted)
	} else {
		t.Logf("restart: %v", took)
	}
	if got := identity(data, "logs/meta.properties"); got != first {
		t.Errorf("directory id changed in a restart: %s to %s", first, got)
	}
	if mib, err := node.MemoryMiB(ctx); err != nil || mib > 600 {
		t.Errorf("memory: %d MiB, %v", mib, err)
	} else {
		t.Logf("memory: %d MiB", mib)
	}

	if err := node.Signal(ctx, "KILL"); err != nil {
		t.Fatal(err)
	}
	if removed, err := data.Empty(ctx); err != nil || removed == 0 {
		t.Fatalf("empty data disk: %d, %v", removed, err)
	}
	if formatted, _ := start(); formatted != "/data/logs" {
		t.Errorf("start with an empty data disk formatted %q", formatted)
	}
	if got := identity(data, "logs/meta.properties"); got == first {
		t.Error("the emptied disk has its old directory id")
	}
	if got := identity(meta, "log/meta.properties"); got != metaID {
		t.Error("the metadata disk was formatted again")
	}
}
