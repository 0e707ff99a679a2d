package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"conform/harness/ledger"
	"conform/harness/system"
)

// awaitState polls a state of the cluster.
func awaitState(t *testing.T, what string, check func() (bool, string)) {
	t.Helper()
	seen := ""
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); {
		var ok bool
		if ok, seen = check(); ok {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("%s: %s", what, seen)
}

// TestGroups has members of both protocols on a real cluster, and what an operator does to their group.
func TestGroups(t *testing.T) {
	engine, image := docker(t)
	c, _ := newCluster(t, engine, image, 0)
	ctx := t.Context()
	write := func(t *testing.T, topic string, partitions, each int) {
		t.Helper()
		p, err := Clients{}.OpenProducer(ctx, system.ClientConfig{Endpoints: c.Endpoints(), ClientID: "w", Destination: topic})
		if err != nil {
			t.Fatal(err)
		}
		for i := range partitions * each {
			p.Send(ctx, system.Message{Payload: fmt.Appendf(nil, "%d", i), Partition: int32(i % partitions)}, func(r system.Receipt) {
				if r.Outcome != ledger.OK {
					t.Errorf("send: %+v", r)
				}
			})
		}
		if err := errors.Join(p.Flush(ctx), p.Close(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	join := func(t *testing.T, topic, name string, settings map[string]string) (*consumer, *changes) {
		t.Helper()
		s := map[string]string{"fetch.max.wait.ms": "50"}
		maps.Copy(s, settings)
		opened, err := Clients{}.OpenConsumer(ctx, system.ClientConfig{
			Endpoints: c.Endpoints(), ClientID: name, Destination: topic, Group: topic + ".g", Settings: s,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = opened.Close(context.Background()) })
		seen := &changes{}
		opened.(*consumer).Watch(seen.add)
		return opened.(*consumer), seen
	}
	members := func(t *testing.T, group, protocol string, n int) {
		t.Helper()
		awaitState(t, fmt.Sprintf("%d members", n), func() (bool, string) {
			s, err := c.GroupMembers(ctx, group)
			return err == nil && s.Members == n && (n == 0 || s.Stable && s.Protocol == protocol), fmt.Sprint(s, err)
		})
	}
	for _, protocol := range []string{"classic", "consumer"} {
		settings := map[string]string{"group.protocol": protocol}
		if protocol == "classic" {
			maps.Copy(settings, map[string]string{"session.timeout.ms": "3000", "heartbeat.ms": "300"})
		}
		t.Run(protocol, func(t *testing.T) {
			topic := "groups-" + protocol
			group := topic + ".g"
			if err := c.Create(ctx, system.DestinationSpec{Name: topic, Partitions: 2}); err != nil {
				t.Fatal(err)
			}
			write(t, topic, 2, 10)
			first, saw := join(t, topic, "first", settings)
			ds := pollN(t, first, 20)
			for _, s := range first.Commit(ctx, ds) {
				if s.Outcome != ledger.OK || s.Next != 10 {
					t.Errorf("commit: %+v", s)
				}
			}
			members(t, group, protocol, 1)
			positions, err := c.GroupPositions(ctx, topic, group)
			if err != nil || len(positions) != 2 || positions[0].Committed != 10 || positions[1].End != 10 || positions[0].Lag() != 0 {
				t.Fatalf("positions %+v, %v", positions, err)
			}

			// A second member takes one of the partitions over.
			second, saw2 := join(t, topic, "second", settings)
			go func() { // polled, so that it can be asked to give up
				for ctx.Err() == nil && second.client.Context().Err() == nil {
					pollCtx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
					_, _ = second.Poll(pollCtx)
					cancel()
				}
			}()
			got := saw2.await(t, "assignment of the second", assigned)
			saw.await(t, "revocation from the first", func(c system.Change) bool {
				return c.Kind == system.Revoked && slices.Contains(c.Partitions, got.Partitions[0])
			})
			members(t, group, protocol, 2)
			_ = first.Close(ctx)
			_ = second.Close(ctx)
			members(t, group, protocol, 0)

			// An operator's work, on a group without members.
			if err := c.SetGroupPositions(ctx, topic, group, []int64{3, -1}); err != nil {
				t.Fatal(err)
			}
			if positions, err = c.GroupPositions(ctx, topic, group); err != nil || positions[0].Committed != 3 || positions[1].Committed != 10 {
				t.Errorf("positions set to %+v, %v", positions, err)
			}
			if err := c.DeleteRecords(ctx, topic, []int64{5, -1}); err != nil {
				t.Fatal(err)
			}
			starts, err := c.StartPositions(ctx, topic)
			if err != nil || !slices.Equal(starts, []int64{5, 0}) {
				t.Errorf("starts %v, %v", starts, err)
			}
			noPosition := func(t *testing.T, why string) {
				t.Helper()
				none := maps.Clone(settings)
				none["auto.offset.reset"] = "none"
				third, _ := join(t, topic, "third", none)
				awaitState(t, why, func() (bool, string) {
					pollCtx, cancel := context.WithTimeout(ctx, time.Second)
					defer cancel()
					_, err := third.Poll(pollCtx)
					return errors.Is(err, ErrNoPosition), fmt.Sprint(err)
				})
				_ = third.Close(ctx)
				members(t, group, protocol, 0)
			}
			noPosition(t, "below the log start")
			if err := c.DeleteGroupPositions(ctx, topic, group); err != nil {
				t.Fatal(err)
			}
			if positions, err = c.GroupPositions(ctx, topic, group); err != nil || positions[0].Committed != -1 || positions[0].Lag() != 5 {
				t.Errorf("positions deleted: %+v, %v", positions, err)
			}
			noPosition(t, "nothing committed")

			// New partitions are known to all nodes at once, and read from their start.
			if err := c.AddPartitions(ctx, topic, 3); err != nil {
				t.Fatal(err)
			}
			write(t, topic, 3, 2)
			fourth, _ := join(t, topic, "fourth", settings)
			ds = pollN(t, fourth, 5+10+6)
			if !slices.ContainsFunc(ds, func(d system.Delivery) bool { return d.Partition == 2 && d.Offset == 0 }) {
				t.Error("the new partition's first record was not delivered")
			}
			_ = fourth.Close(ctx)
			members(t, group, protocol, 0)
			if err := errors.Join(c.DeleteGroup(ctx, group), c.DeleteGroup(ctx, group)); err != nil {
				t.Errorf("delete group: %v", err)
			}
			if err := c.Configure(ctx, topic, map[string]string{"retention.ms": "-1"}); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("a static member keeps its partitions for its next incarnation", func(t *testing.T) {
		const topic = "static"
		if err := c.Create(ctx, system.DestinationSpec{Name: topic, Partitions: 1}); err != nil {
			t.Fatal(err)
		}
		write(t, topic, 1, 1)
		settings := map[string]string{"group.instance.id": "one", "session.timeout.ms": "6000", "heartbeat.ms": "300"}
		first, _ := join(t, topic, "first", settings)
		pollN(t, first, 1)
		_ = first.Close(ctx)
		if s, err := c.GroupMembers(ctx, topic+".g"); err != nil || s.Members != 1 {
			t.Errorf("after it closed: %+v, %v", s, err)
		}
		began := time.Now()
		next, _ := join(t, topic, "next", settings)
		pollN(t, next, 1)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the next incarnation waited %s, as if for the session of the first", took)
		}
	})
	if !strings.Contains(fmt.Sprint(c.Timing()), "group.consumer.session.timeout.ms") {
		t.Error("lowered sessions are not among the lowered timings")
	}
}
