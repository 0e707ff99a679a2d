package postgres

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"conform/harness/system"
	"conform/harness/system/disks"
)

// worked is what clients were told in a while.
type worked struct {
	confirmed []int64
	latencies []time.Duration
	took      time.Duration
}

func (w *worked) String() string {
	slices.Sort(w.latencies)
	p99 := time.Duration(0)
	if n := len(w.latencies); n > 0 {
		p99 = w.latencies[n*99/100]
	}
	return fmt.Sprintf("%d confirmed, %.0f/s, p99 %s", len(w.confirmed), float64(len(w.confirmed))/w.took.Seconds(), p99.Round(10*time.Microsecond))
}

// insert commits a row at a time on several connections until strike has returned.
func insert(t *testing.T, c *Cluster, schema, commit string, strike func() error) *worked {
	t.Helper()
	const connections = 4
	var (
		w    worked
		mu   sync.Mutex
		wg   sync.WaitGroup
		stop = make(chan struct{})
	)
	began := time.Now()
	for i := range connections {
		conn := connect(t, c.DSN("app", true)+"&synchronous_commit="+commit)
		wg.Go(func() {
			for id := int64(i); ; id += connections {
				select {
				case <-stop:
					return
				default:
				}
				sent := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				_, err := conn.Exec(ctx, "INSERT INTO "+schema+".t VALUES ($1)", id)
				cancel()
				if err != nil {
					return // the power is gone
				}
				mu.Lock()
				w.confirmed = append(w.confirmed, id)
				w.latencies = append(w.latencies, time.Since(sent))
				w.took = time.Since(began)
				mu.Unlock()
			}
		})
	}
	time.Sleep(3 * time.Second) // the load itself
	err := strike()
	close(stop)
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return &w
}

// TestPowerCut measures what a commit is worth: with synchronous_commit=on none is lost in a power cut, with off the last ones
// are. A SIGKILL beside it leaves alone what was written.
func TestPowerCut(t *testing.T) {
	c := startServer(t, "18", map[string]string{disks.Setting: "512"})
	if err := c.DiskBacked(); err != nil {
		_, loop := os.Stat("/dev/loop-control")
		if os.Getenv("CI") == "true" && os.Getuid() == 0 && loop == nil {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if err := c.Baseline(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, commit := range []string{"on", "off"} {
		for _, fault := range []string{"SIGKILL", "power cut"} {
			t.Run(commit+", "+fault, func(t *testing.T) {
				schema := map[string]string{"SIGKILL": "killed_", "power cut": "cut_"}[fault] + commit
				newTable(t, c, schema)
				heal := func(ctx context.Context) error { return c.Start(ctx, c.node) }
				w := insert(t, c, schema, commit, func() error {
					if fault == "SIGKILL" {
						_, err := c.Kill(t.Context(), c.node)
						return err
					}
					cut, err := c.CutPower(t.Context(), []system.Node{c.node})
					if err != nil {
						return err
					}
					heal = cut.Heal
					e := evidence(t, cut)
					if t.Log(e.Detail); !e.Bit {
						t.Error("the power cut has no evidence")
					}
					return nil
				})
				for range 2 {
					if err := heal(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				stored := map[int64]bool{}
				for _, id := range ids(t, c, schema) {
					stored[id] = true
				}
				lost := 0
				for _, id := range w.confirmed {
					if !stored[id] {
						lost++
					}
				}
				t.Logf("synchronous_commit=%s, %s: %s, %d lost", commit, fault, w, lost)
				if len(w.confirmed) < 100 {
					t.Error("too few were confirmed to tell anything")
				}
				if commit == "on" && lost > 0 {
					t.Errorf("%d of %d commits are lost", lost, len(w.confirmed))
				}
				if commit == "off" && fault == "power cut" && lost == 0 {
					t.Error("nothing is lost: was it a power cut?")
				}
			})
		}
	}
}
