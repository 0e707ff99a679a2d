package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"conform/harness/ledger"
	"conform/harness/system"
)

// changes collects what a member was told.
type changes struct {
	mu  sync.Mutex
	all []system.Change
}

func (c *changes) add(change system.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, change)
}

func (c *changes) await(t *testing.T, what string, f func(system.Change) bool) system.Change {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		c.mu.Lock()
		i := slices.IndexFunc(c.all, f)
		if i >= 0 {
			defer c.mu.Unlock()
			return c.all[i]
		}
		c.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("never seen: %s; seen: %+v", what, c.all)
	return system.Change{}
}

func assigned(c system.Change) bool { return c.Kind == system.Assigned && len(c.Partitions) > 0 }

// topic makes a fake cluster whose topic t has so many records in its one partition.
func topic(t *testing.T, records int) []string {
	t.Helper()
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	produce(t, fake.ListenAddrs(), records)
	return fake.ListenAddrs()
}

func produce(t *testing.T, seeds []string, records int) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.DefaultProduceTopic("t"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := range records {
		if err := client.ProduceSync(t.Context(), kgo.StringRecord(fmt.Sprint(i))).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func member(t *testing.T, seeds []string, settings map[string]string) (*consumer, *changes) {
	t.Helper()
	s := map[string]string{"fetch.max.wait.ms": "50", "heartbeat.ms": "100"}
	maps.Copy(s, settings)
	opened, err := Clients{}.OpenConsumer(t.Context(), system.ClientConfig{
		Endpoints: seeds, ClientID: "c", Destination: "t", Group: "g", Settings: s,
	})
	if err != nil {
		t.Fatal(err)
	}
	c := opened.(*consumer)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	seen := &changes{}
	c.Watch(seen.add)
	return c, seen
}

// pollN polls until it has n deliveries.
func pollN(t *testing.T, c *consumer, n int) (ds []system.Delivery) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for len(ds) < n {
		got, err := c.Poll(ctx)
		if kerr.IsRetriable(err) && ctx.Err() == nil {
			continue // a coordinator that still loads says so: ask again, as its protocol wants
		}
		if err != nil || ctx.Err() != nil {
			t.Fatalf("%d of %d polled: %v", len(ds), n, errors.Join(err, ctx.Err()))
		}
		ds = append(ds, got...)
	}
	return ds
}

func TestMemberTellsWhatItOwnsAndCommits(t *testing.T) {
	seeds := topic(t, 10)
	for _, protocol := range []string{"classic", "consumer"} {
		t.Run(protocol, func(t *testing.T) {
			c, seen := member(t, seeds, map[string]string{"group.protocol": protocol, "max.poll.records": "5"})
			ds := pollN(t, c, 5)
			if got := seen.await(t, "assigned", assigned); !slices.Equal(got.Partitions, []int32{0}) {
				t.Errorf("assigned %v", got.Partitions)
			}
			want := []system.Settlement{{Partition: 0, Next: 4, Outcome: ledger.OK}}
			if got := c.Commit(t.Context(), ds[:4]); !slices.Equal(got, want) {
				t.Errorf("commit ended with %+v, want %+v", got, want)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			seen.await(t, "revoked", func(c system.Change) bool { return c.Kind == system.Revoked && slices.Equal(c.Partitions, []int32{0}) })
			// The next member goes on where this one committed; the last delivery comes again.
			next, _ := member(t, seeds, map[string]string{"group.protocol": protocol})
			if first := pollN(t, next, 1)[0]; first.Offset != 4 {
				t.Errorf("the next member begins at %d", first.Offset)
			}
			_ = next.Close(t.Context())
			admin, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
			if err != nil {
				t.Fatal(err)
			}
			defer admin.Close()
			req := kmsg.NewPtrDeleteGroupsRequest()
			req.Groups = []string{"g"}
			if _, err := req.RequestWith(t.Context(), admin); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestAutoCommitIsSeen(t *testing.T) {
	commits := func(next int64) func(system.Change) bool {
		return func(c system.Change) bool {
			return c.Kind == system.AutoCommitted && slices.Equal(c.Commits, []system.Settlement{{Partition: 0, Next: next, Outcome: ledger.OK}})
		}
	}
	settings := func(auto string) map[string]string {
		return map[string]string{"auto.commit": auto, "auto.commit.interval.ms": "100", "max.poll.records": "5"}
	}
	t.Run("greedy commits what is being processed", func(t *testing.T) {
		c, seen := member(t, topic(t, 10), settings("greedy"))
		pollN(t, c, 5)
		seen.await(t, "auto-commit of the first poll", commits(5))
	})
	t.Run("the default commits what an earlier poll returned", func(t *testing.T) {
		c, seen := member(t, topic(t, 10), settings("true"))
		pollN(t, c, 10)
		seen.await(t, "auto-commit of the first poll", commits(5))
		c.mu.Lock()
		got := c.returned[0].Offset
		c.mu.Unlock()
		if got != 5 {
			t.Errorf("a revocation would commit %d", got)
		}
		// Leaving does not commit what nobody has said to be processed.
		_ = c.Close(t.Context())
		seen.mu.Lock()
		defer seen.mu.Unlock()
		if slices.ContainsFunc(seen.all, commits(10)) {
			t.Error("the last poll was committed")
		}
	})
}

func TestNoPositionIsReported(t *testing.T) {
	seeds := topic(t, 3)
	c, _ := member(t, seeds, map[string]string{"auto.offset.reset": "none"})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		ds, err := c.Poll(ctx)
		if errors.Is(err, ErrNoPosition) {
			return
		}
		if err != nil || len(ds) > 0 || ctx.Err() != nil {
			t.Fatalf("polled %d, %v", len(ds), errors.Join(err, ctx.Err()))
		}
	}
}

func TestSettlements(t *testing.T) {
	answer := func(codes ...int16) *kmsg.OffsetCommitResponse {
		resp := kmsg.NewPtrOffsetCommitResponse()
		topic := kmsg.NewOffsetCommitResponseTopic()
		for p, code := range codes {
			r := kmsg.NewOffsetCommitResponseTopicPartition()
			r.Partition, r.ErrorCode = int32(p), code
			topic.Partitions = append(topic.Partitions, r)
		}
		resp.Topics = append(resp.Topics, topic)
		return resp
	}
	for _, tc := range []struct {
		name string
		resp *kmsg.OffsetCommitResponse
		err  error
		want ledger.Outcome
		text string
	}{
		{"confirmed", answer(0), nil, ledger.OK, ""},
		{"refused: somebody else's", answer(kerr.IllegalGeneration.Code), nil, ledger.Failed, "ILLEGAL_GENERATION"},
		{"refused: out of the group", answer(kerr.UnknownMemberID.Code), nil, ledger.Failed, "UNKNOWN_MEMBER_ID"},
		{"not said", answer(kerr.RequestTimedOut.Code), nil, ledger.InDoubt, "REQUEST_TIMED_OUT"},
		{"coordinator gone, the commit may be in its log", answer(kerr.NotCoordinator.Code), nil, ledger.InDoubt, "NOT_COORDINATOR"},
		{"another partition answered", &kmsg.OffsetCommitResponse{}, nil, ledger.InDoubt, "no answer"},
		{"no answer", nil, context.DeadlineExceeded, ledger.InDoubt, "timeout"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := []system.Settlement{{Partition: 0, Next: 7, Outcome: tc.want, Err: tc.text}}
			if got := settlements(map[int32]int64{0: 7}, tc.resp, tc.err); !slices.Equal(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestConsumerSettingsThatCannotWork(t *testing.T) {
	for _, settings := range []map[string]string{
		{"auto.commit": "yes"}, {"group.protocol": "consumer", "assignor": "cooperative-sticky"}, {"session.timeout": "5"},
	} {
		_, err := Clients{}.OpenConsumer(t.Context(), system.ClientConfig{Endpoints: []string{"127.0.0.1:1"}, Destination: "t", Group: "g", Settings: settings})
		if !errors.Is(err, system.ErrUsage) {
			t.Errorf("%v: %v", settings, err)
		}
	}
	_, err := Clients{}.OpenConsumer(t.Context(), system.ClientConfig{
		Endpoints: []string{"127.0.0.1:1"}, Destination: "t", Settings: map[string]string{"auto.commit": "greedy"},
	})
	if !errors.Is(err, system.ErrUsage) {
		t.Errorf("auto-commit without a group: %v", err)
	}
}
