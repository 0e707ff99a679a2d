package rocketmq

import (
	"errors"
	"strings"
	"testing"

	"conform/harness/system"
)

func TestSettingsAreChecked(t *testing.T) {
	for name, settings := range map[string]map[string]string{
		"layout":                  {SettingLayout: "triple"},
		"the adapter's own":       {"listenPort": "1"},
		"no name":                 {"a b": "1"},
		"two lines":               {"a": "1\nb=2"},
		"role under a controller": {"brokerRole": "ASYNC_MASTER"},
	} {
		if _, err := newConfig(system.Spec{Settings: settings}); !errors.Is(err, system.ErrUsage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := newConfig(system.Spec{Nodes: 3}); !errors.Is(err, system.ErrUsage) {
		t.Errorf("three nodes: %v", err)
	}
}

func TestSettingsAreMerged(t *testing.T) {
	c, err := newConfig(system.Spec{Settings: map[string]string{
		SettingLayout: Pair, "inSyncReplicas": "2", "haHousekeepingInterval": "7000", "namesrv.threads": "3",
	}})
	if err != nil {
		t.Fatal(err)
	}
	if c.timing["haHousekeepingInterval"] != "" || c.all()["haHousekeepingInterval"] != "7000" || c.all()[SettingLayout] != Pair {
		t.Errorf("got %v", c)
	}
	if c.timing["checkSyncStateSetPeriod"] != "" || c.brokers()["namesrv.threads"] != "" || c.brokers()["inSyncReplicas"] != "2" {
		t.Errorf("got %v", c)
	}
	if !strings.Contains(string(c.namesrv()), "threads=3\n") || strings.Contains(string(c.namesrv()), "Controller") {
		t.Errorf("name server:\n%s", c.namesrv())
	}
}

func TestNamesAreRocketMQs(t *testing.T) {
	const name = "run.scenario.r0.guarded.p1"
	if got := topicName(name); strings.Contains(got, ".") || plainName(got) != name {
		t.Errorf("got %q", got)
	}
}
