package kafka

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"conform/harness/system"
	"conform/harness/system/disks"
)

// The container ports of a node's listeners, see the package documentation.
const (
	portInternal   = 9092
	portController = 9093
	portClient     = 9094
	portDirect     = 9095
)

// Names of the broker-to-broker listeners in a system.Isolation.
const (
	ListenerReplication = "replication"
	ListenerController  = "controller"
)

// Where a node's two volumes are mounted. The metadata log has a volume of its own, so that a data disk can be lost
// without the node's voice in the quorum.
const (
	dataDir = "/var/lib/conform/data"
	metaDir = "/var/lib/conform/meta"
)

// featurePrefix marks a Spec setting as a feature level for the formatting of the cluster, e.g.
// "feature.eligible.leader.replicas.version": "0".
const featurePrefix = "feature."

// base are the broker settings that differ from Kafka's defaults whatever the timing.
var base = map[string]string{
	"auto.create.topics.enable":  "false", // a misspelled topic must not look like an empty one
	"default.replication.factor": "3",
	// Leadership moves only by a fault or a scenario's step, never by the balancer's five-minute timer.
	"auto.leader.rebalance.enable":                     "false",
	"offsets.topic.replication.factor":                 "3",
	"transaction.state.log.replication.factor":         "3",
	"transaction.state.log.min.isr":                    "2",
	"share.coordinator.state.topic.replication.factor": "3",
	"share.coordinator.state.topic.min.isr":            "2",
	// Fewer partitions of the internal topics, so that three nodes fit a small machine. Nothing judged depends on them.
	"offsets.topic.num.partitions":                 "3",
	"transaction.state.log.num.partitions":         "3",
	"share.coordinator.state.topic.num.partitions": "3",
	"log.cleaner.dedupe.buffer.size":               "16777216", // 128 MiB of heap by default, for compaction nobody does here
}

// short are the timing settings that are lowered to keep runs short. Kafka's defaults are beside them.
var short = map[string]string{
	"broker.session.timeout.ms":              "4000", // 9000: a cut-off broker is fenced
	"broker.heartbeat.interval.ms":           "500",  // 2000
	"replica.lag.time.max.ms":                "3000", // 30000: a follower leaves the in-sync replicas
	"replica.socket.timeout.ms":              "5000", // 30000: replication goes on after a heal
	"controller.socket.timeout.ms":           "5000", // 30000: so do requests to the controller
	"socket.connection.setup.timeout.ms":     "2000", // 10000
	"socket.connection.setup.timeout.max.ms": "2000", // 30000
	"group.initial.rebalance.delay.ms":       "0",    // 3000
	// A member that is silent is out after its session. Classic members choose theirs, down to a floor; KIP-848 members have
	// the broker's.
	"group.min.session.timeout.ms":             "1000", // 6000
	"group.consumer.min.session.timeout.ms":    "1000", // 45000
	"group.consumer.session.timeout.ms":        "6000", // 45000
	"group.consumer.min.heartbeat.interval.ms": "100",  // 5000
	"group.consumer.heartbeat.interval.ms":     "500",  // 5000
}

// The values of Spec.Timing.
const (
	timingShort      = "short"
	timingProduction = "production"
)

// config is what is the same on every node of a cluster.
type config struct {
	clusterID string
	settings  map[string]string // all that differs from Kafka's defaults, topology excluded
	timing    map[string]string // the part of it that was lowered
	features  map[string]string
	diskMiB   int // 0 = ordinary volumes
}

// topology are settings that the adapter owns: the cluster would not be the one it believes in.
var topology = []string{
	"node.id", "broker.id", "process.roles", "listeners", "advertised.listeners", "listener.security.protocol.map",
	"inter.broker.listener.name", "controller.listener.names", "controller.quorum.voters",
	"controller.quorum.bootstrap.servers", "log.dir", "log.dirs", "metadata.log.dir",
}

// newConfig merges defaults and the settings of spec. Errors are ErrUsage.
func newConfig(spec system.Spec) (config, error) {
	c := config{settings: maps.Clone(base), timing: map[string]string{}, features: map[string]string{}}
	switch spec.Timing {
	case "", timingShort:
		maps.Copy(c.timing, short)
		maps.Copy(c.settings, short)
	case timingProduction:
	default:
		return config{}, fmt.Errorf("timing %q: want %s or %s: %w", spec.Timing, timingShort, timingProduction, system.ErrUsage)
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Settings)) {
		value := spec.Settings[name]
		switch feature, ok := strings.CutPrefix(name, featurePrefix); {
		case ok:
			c.features[feature] = value
		case name == disks.Setting:
			var err error
			if c.diskMiB, err = disks.ParseMiB(value); err != nil {
				return config{}, err
			}
		case slices.Contains(topology, name):
			return config{}, fmt.Errorf("setting %s belongs to the adapter: %w", name, system.ErrUsage)
		case name == "" || strings.ContainsAny(name+value, "\r\n") || strings.ContainsAny(name, "=: \t#!\\"):
			return config{}, fmt.Errorf("setting %q is no name of a broker setting: %w", name, system.ErrUsage)
		default:
			c.settings[name] = value
			delete(c.timing, name) // it is the scenario's own now, not lowered to save time
		}
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id)      // never fails, see its documentation
	id[0] = id[0]&0x7f | 0x40 // StorageTool refuses ids that begin with '-'
	c.clusterID = base64.RawURLEncoding.EncodeToString(id)
	return c, nil
}

// all returns settings and features as one map, as Spec.Settings has them.
func (c config) all() map[string]string {
	m := maps.Clone(c.settings)
	for name, level := range c.features {
		m[featurePrefix+name] = level
	}
	if c.diskMiB > 0 {
		m[disks.Setting] = fmt.Sprint(c.diskMiB)
	}
	return m
}

// format returns the further arguments of StorageTool.
func (c config) format() string {
	var args []string
	for _, name := range slices.Sorted(maps.Keys(c.features)) {
		args = append(args, "--feature", name+"="+c.features[name])
	}
	return strings.Join(args, " ")
}

// properties writes the configuration file of one node.
func (c config) properties(n *Node, voters []string) []byte {
	m := maps.Clone(c.settings)
	maps.Copy(m, map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        fmt.Sprint(n.id),
		"controller.quorum.voters":       strings.Join(voters, ","),
		"controller.listener.names":      "CONTROLLER",
		"inter.broker.listener.name":     "INTERNAL",
		"listener.security.protocol.map": "INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENT:PLAINTEXT,DIRECT:PLAINTEXT",
		"listeners": fmt.Sprintf("INTERNAL://:%d,CONTROLLER://:%d,CLIENT://:%d,DIRECT://:%d",
			portInternal, portController, portClient, portDirect),
		"advertised.listeners": fmt.Sprintf("INTERNAL://%s:%d,CLIENT://%s,DIRECT://%s",
			n.name, portInternal, n.link.Addr(), n.direct()),
		"log.dirs":         dataDir,
		"metadata.log.dir": metaDir,
	})
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(m)) {
		// A backslash would begin an escape sequence in a properties file.
		fmt.Fprintf(&b, "%s=%s\n", name, strings.ReplaceAll(m[name], `\`, `\\`))
	}
	return []byte(b.String())
}
