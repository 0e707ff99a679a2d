package rocketmq

import (
	"os"
	"testing"

	"conform/harness/system/disks"
	"conform/harness/system/systemtest"
)

// TestPowerCut measures what a SEND_OK of one broker is worth: under SYNC_FLUSH it has the message on its disk, else in its page
// cache. There is one log for all topics, so that each setting has a broker of its own.
func TestPowerCut(t *testing.T) {
	if raced {
		t.Skip("the race detector finds races within the client library")
	}
	engine, image := docker(t)
	for _, s := range []struct {
		flush   string
		setting systemtest.Setting
	}{
		{"SYNC_FLUSH", systemtest.Setting{Name: "SYNC_FLUSH", Keeps: []string{systemtest.KillOfAll, systemtest.CutOfAll}}},
		{"ASYNC_FLUSH", systemtest.Setting{Name: "ASYNC_FLUSH", Keeps: []string{systemtest.KillOfAll}, Loses: []string{systemtest.CutOfAll}}},
		{"SYNC_FLUSH", systemtest.Setting{
			// A message begins the flush that it does not wait for. With so many under way that is over before most are answered.
			Name: "SYNC_FLUSH, WAIT=false", Client: map[string]string{"wait": "false"}, Keeps: []string{systemtest.KillOfAll},
		}},
	} {
		t.Run(s.setting.Name, func(t *testing.T) {
			c, run := newCluster(t, engine, image, map[string]string{SettingLayout: Single, disks.Setting: "512", "flushDiskType": s.flush})
			if err := c.DiskBacked(); err != nil {
				if _, loop := os.Stat("/dev/loop-control"); os.Getenv("CI") == "true" && os.Getuid() == 0 && loop == nil {
					t.Fatal(err)
				}
				t.Skip(err)
			}
			worths, err := systemtest.Power(t.Context(), bench(engine, c, run), []systemtest.Setting{s.setting})
			for _, w := range worths {
				t.Log(w)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}
