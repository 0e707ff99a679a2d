package rocketmq

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"conform/harness/system"
	"conform/harness/system/disks"
)

// SettingLayout is the setting of a cluster that says which brokers it has. It is no setting of RocketMQ.
const SettingLayout = "layout"

// The layouts.
const (
	// Single is one broker.
	Single = "single"
	// Pair is a master and its replica, with fixed roles: nobody takes over when the master is lost.
	Pair = "pair"
	// Controller is two brokers under a controller in the name server, which makes one of them the master. The default.
	Controller = "controller"
)

// jvmPrefix begins system properties of the brokers' machines.
const jvmPrefix = "jvm."

// namesrvPrefix begins settings of the name server and the controller in it.
const namesrvPrefix = "namesrv."

// base are the broker settings that differ from RocketMQ's defaults whatever the timing.
var base = map[string]string{
	"autoCreateTopicEnable": "false", // a misspelled topic must not look like an empty one
	"slaveReadEnable":       "true",  // else a replica that has everything hands out nothing
	// A pull at the end of a queue is held for so long only; a message that comes ends it at once in any case. The Go client
	// does not give up a pull that is held, and could not be closed for 20 s.
	"longPollingEnable":     "false", // true
	"shortPollingTimeMills": "200",   // 1000
	// Small files, so that a cluster starts within seconds and fits a small disk. Nothing judged depends on them.
	"mappedFileSizeCommitLog":    "16777216", // 1 GiB
	"mappedFileSizeConsumeQueue": "600000",   // 6 MB
	"mappedFileSizeTimerLog":     "1048576",  // 100 MiB
	"maxHashSlotNum":             "10000",
	"maxIndexNum":                "50000",
	// How long a send may wait for its turn before the broker refuses it. A machine with few cores is not the fault.
	"waitTimeMillsInSendQueue":    "5000", // 200
	"osPageCacheBusyTimeOutMills": "5000", // 1000
	// The share of a disk that others have filled says nothing about this broker.
	"diskMaxUsedSpaceRatio": "95", // 75
}

// short are the timing settings that are lowered to keep runs short. RocketMQ's defaults are beside them.
var short = map[string]string{
	"namesrv.scanNotActiveBrokerInterval":           "1000", // 5000: a broker that is silent is dropped
	"namesrv.scanInactiveMasterInterval":            "1000", // 5000: the controller looks for a master
	"controllerHeartBeatTimeoutMills":               "4000", // 10000: a broker is out at the controller
	"brokerNotActiveTimeoutMillis":                  "4000", // 10000: and at the name server
	"syncBrokerMetadataPeriod":                      "1000", // 5000: a broker asks the controller who is master
	"checkSyncStateSetPeriod":                       "1000", // 5000: the master looks who keeps up
	"haMaxTimeSlaveNotCatchup":                      "3000", // 15000: a replica leaves the set of those in sync
	"haHousekeepingInterval":                        "5000", // 20000: a replica's silent connection is given up
	"haSendHeartbeatInterval":                       "1000", // 5000
	"jvm.rocketmq.broker.rebalance.lockMaxLiveTime": "5000", // 60000: the lock of a queue outlives an orderly consumer that died
}

// onlyController are those of short that mean nothing without a controller.
var onlyController = []string{
	"namesrv.scanInactiveMasterInterval", "controllerHeartBeatTimeoutMills", "syncBrokerMetadataPeriod", "checkSyncStateSetPeriod",
	"haMaxTimeSlaveNotCatchup",
}

// The values of Spec.Timing.
const (
	timingShort      = "short"
	timingProduction = "production"
)

// topology are settings that the adapter owns: the cluster would not be the one it believes in.
var topology = []string{
	"brokerId", "brokerName", "brokerClusterName", "brokerIP1", "brokerIP2", "listenPort", "haListenPort", "haMasterAddress", "namesrvAddr",
	"enableControllerMode", "controllerAddr", "storePathRootDir", "storePathCommitLog", "rocketmqHome",
	"namesrv.listenPort", "namesrv.rocketmqHome", "namesrv.enableControllerInNamesrv", "namesrv.controllerDLegerGroup",
	"namesrv.controllerDLegerPeers", "namesrv.controllerDLegerSelfId", "namesrv.controllerStorePath",
}

// config is what is the same on every node of a cluster.
type config struct {
	layout   string
	settings map[string]string // all that differs from RocketMQ's defaults, topology excluded
	timing   map[string]string // the part of it that was lowered
	diskMiB  int               // 0 = ordinary volumes
}

// newConfig merges defaults and the settings of spec. Errors are ErrUsage.
func newConfig(spec system.Spec) (config, error) {
	c := config{layout: Controller, settings: maps.Clone(base), timing: map[string]string{}}
	if l, ok := spec.Settings[SettingLayout]; ok {
		c.layout = l
	}
	want := 2
	switch c.layout {
	case Single:
		want = 1
	case Pair, Controller:
	default:
		return config{}, fmt.Errorf("%s=%q: want %s, %s or %s: %w", SettingLayout, c.layout, Single, Pair, Controller, system.ErrUsage)
	}
	if spec.Nodes != 0 && spec.Nodes != want {
		return config{}, fmt.Errorf("%d nodes: the layout %s has %d: %w", spec.Nodes, c.layout, want, system.ErrUsage)
	}
	switch spec.Timing {
	case "", timingShort:
		maps.Copy(c.timing, short)
		if c.layout != Controller {
			maps.DeleteFunc(c.timing, func(name, _ string) bool { return slices.Contains(onlyController, name) })
		}
		maps.Copy(c.settings, c.timing)
	case timingProduction:
	default:
		return config{}, fmt.Errorf("timing %q: want %s or %s: %w", spec.Timing, timingShort, timingProduction, system.ErrUsage)
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Settings)) {
		value := spec.Settings[name]
		switch {
		case name == SettingLayout:
		case name == disks.Setting:
			var err error
			if c.diskMiB, err = disks.ParseMiB(value); err != nil {
				return config{}, err
			}
		case slices.Contains(topology, name):
			return config{}, fmt.Errorf("setting %s belongs to the adapter: %w", name, system.ErrUsage)
		case name == "" || strings.ContainsAny(name+value, "\r\n") || strings.ContainsAny(name, "=: \t#!\\"):
			return config{}, fmt.Errorf("setting %q is no name of a broker setting: %w", name, system.ErrUsage)
		case strings.HasPrefix(name, jvmPrefix) && strings.ContainsAny(name+value, " \t'\"$*?[]"):
			return config{}, fmt.Errorf("setting %q=%q is no system property: %w", name, value, system.ErrUsage)
		case name == settingRole && c.layout != Pair:
			return config{}, fmt.Errorf("setting %s: only the layout %s has fixed roles: %w", name, Pair, system.ErrUsage)
		default:
			c.settings[name] = value
			delete(c.timing, name) // it is the scenario's own now, not lowered to save time
		}
	}
	return c, nil
}

// settingRole is the role of a pair's master; its replica is SLAVE.
const settingRole = "brokerRole"

// all returns the settings as Spec.Settings has them.
func (c config) all() map[string]string {
	m := maps.Clone(c.settings)
	m[SettingLayout] = c.layout
	if c.diskMiB > 0 {
		m[disks.Setting] = fmt.Sprint(c.diskMiB)
	}
	return m
}

// brokers lists the settings of brokers.
func (c config) brokers() map[string]string {
	m := maps.Clone(c.settings)
	maps.DeleteFunc(m, func(name, _ string) bool {
		return strings.HasPrefix(name, namesrvPrefix) || strings.HasPrefix(name, jvmPrefix)
	})
	return m
}

// jvm writes the system properties of the brokers' machines, as options.
func (c config) jvm() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c.settings)) {
		if property, ok := strings.CutPrefix(name, jvmPrefix); ok {
			fmt.Fprintf(&b, " -D%s=%s", property, c.settings[name])
		}
	}
	return b.String()
}

// namesrv writes the configuration file of the name server.
func (c config) namesrv() []byte {
	m := map[string]string{"listenPort": fmt.Sprint(portNamesrv)}
	for name, value := range c.settings {
		if name, ok := strings.CutPrefix(name, namesrvPrefix); ok {
			m[name] = value
		}
	}
	if c.layout == Controller {
		maps.Copy(m, map[string]string{
			"enableControllerInNamesrv": "true",
			"controllerDLegerGroup":     "conform",
			"controllerDLegerPeers":     fmt.Sprintf("n0-127.0.0.1:%d", portController),
			"controllerDLegerSelfId":    "n0",
			"controllerStorePath":       "/tmp/controller",
			"notifyBrokerRoleChanged":   "true",
		})
	}
	return properties(m)
}

// broker writes the configuration file of a broker.
func (c config) broker(n *Node) []byte {
	m := c.brokers()
	maps.Copy(m, map[string]string{
		"brokerClusterName": clusterName,
		"brokerName":        groupName,
		"brokerIP1":         "127.0.0.1",
		"brokerIP2":         "127.0.0.1",
		"listenPort":        fmt.Sprint(n.port()),
		"haListenPort":      fmt.Sprint(n.haPort),
		"namesrvAddr":       fmt.Sprintf("127.0.0.1:%d", portNamesrv),
		"storePathRootDir":  dataDir,
	})
	switch {
	case c.layout == Controller:
		m["enableControllerMode"], m["controllerAddr"] = "true", fmt.Sprintf("127.0.0.1:%d", portController)
		m["brokerId"], m[settingRole] = "-1", "SLAVE"
	case n.isMaster():
		m["brokerId"] = "0"
	default:
		m["brokerId"], m[settingRole] = "1", "SLAVE"
	}
	return properties(m)
}

// properties writes a properties file.
func properties(m map[string]string) []byte {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(m)) {
		// A backslash would begin an escape sequence in a properties file.
		fmt.Fprintf(&b, "%s=%s\n", name, strings.ReplaceAll(m[name], `\`, `\\`))
	}
	return []byte(b.String())
}
