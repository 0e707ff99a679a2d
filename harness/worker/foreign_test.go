package worker_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"conform/harness/ledger"
	"conform/harness/system"
	"conform/harness/system/memory"
	"conform/harness/worker"
)

// A foreign client of these tests is this binary too, but it speaks nothing but lines.
const asForeign = "run-as-foreign"

func init() {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	worker.Register("foreign-producer", worker.ForeignProducerRole(self, asForeign, "produce"))
	worker.Register("foreign-dies", worker.ForeignProducerRole(self, asForeign, "die"))
	worker.Register("foreign-consumer", worker.ForeignConsumerRole(self, asForeign, "consume"))
	worker.Register("foreign-missing", worker.ForeignProducerRole("/no/such/client"))
}

func foreignMain(kind string) {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	in.Scan()
	var c struct {
		Endpoints []string
		ClientID  string `json:"client_id"`
		Topic     string
		Group     string
	}
	_ = json.Unmarshal(in.Bytes(), &c)
	config := system.ClientConfig{Endpoints: c.Endpoints, ClientID: c.ClientID, Destination: c.Topic, Group: c.Group, Partitions: 2}
	lines := make(chan string, 1000)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for l := range lines {
			fmt.Println(l)
		}
	}()
	say := func(format string, args ...any) { lines <- fmt.Sprintf(format, args...) }
	ctx := context.Background()
	switch kind {
	case "consume":
		k, err := memory.Clients{}.OpenConsumer(ctx, config)
		if err != nil {
			panic(err)
		}
		say(`{"name":"startup_complete"}`)
		say(`{"name":"partitions_assigned","partitions":[{"topic":"d","partition":0},{"topic":"d","partition":1}]}`)
		say(`this is no event`)
		for got := 0; got < 100; {
			ds, err := k.Poll(ctx)
			if err != nil {
				panic(err)
			}
			for _, d := range ds {
				say(`{"name":"record_data","topic":"d","partition":%d,"offset":%d,"key":%q,"value":%q}`, d.Partition, d.Offset, d.Key, d.Payload)
			}
			last := ds[len(ds)-1]
			say(`{"name":"offsets_committed","success":true,"offsets":[{"topic":"d","partition":%d,"offset":%d}]}`, last.Partition, last.Offset+1)
			got += len(ds)
		}
		for in.Scan() {
		}
	default:
		p, err := memory.Clients{}.OpenProducer(ctx, config)
		if err != nil {
			panic(err)
		}
		say(`{"name":"startup_complete"}`)
		for n := 0; in.Scan(); n++ {
			var l struct {
				Cmd, Key, Value string
				Partition       int32
			}
			_ = json.Unmarshal(in.Bytes(), &l)
			if l.Cmd == "flush" {
				_ = p.Flush(ctx)
				say(`{"name":"flush_complete"}`)
				continue
			}
			if kind == "die" && n == 50 {
				os.Exit(3)
			}
			if n%10 == 9 { // refused, or not known to be
				say(`{"name":"producer_send_error","exception":"Planted","refused":%v,"value":%q}`, n%20 == 9, l.Value)
				continue
			}
			p.Send(ctx, system.Message{Key: []byte(l.Key), Payload: []byte(l.Value), Partition: l.Partition}, func(r system.Receipt) {
				say(`{"name":"producer_send_success","topic":"d","partition":%d,"offset":%d,"key":%q,"value":%q}`, l.Partition, r.Offset, l.Key, l.Value)
			})
		}
	}
	close(lines)
	<-written
}

func TestForeignProducer(t *testing.T) {
	b := setup(t)
	b.config.Role, b.config.Messages = "foreign-producer", 400
	end, counts := run(t, b.config, 0)
	if !end.Planned {
		t.Fatalf("end %+v", end)
	}
	j := readJournal(t, b.config.Journal)
	if len(j.invoked) != 400 || len(j.outcomes) != 400 || counts.Confirmed != 360 || counts.Refused != 20 || counts.InDoubt != 20 {
		t.Errorf("invoked %d, completed %d, counts %+v", len(j.invoked), len(j.outcomes), counts)
	}
	for _, e := range j.events {
		if !e.Foreign && e.Kind != ledger.SegmentEnd {
			t.Fatalf("not marked as foreign: %+v", e)
		}
	}
	if in := stored(t, b); len(in) != 360 {
		t.Errorf("%d stored", len(in))
	}
}

func TestForeignClientThatDies(t *testing.T) {
	b := setup(t)
	b.config.Role, b.config.Messages = "foreign-dies", 400
	end, counts := run(t, b.config, 0)
	if end.Planned || !strings.Contains(end.How, "foreign client") {
		t.Errorf("end %+v", end)
	}
	if counts.Refused > 5 || counts.Sent == 0 {
		t.Errorf("counts %+v: what it left unanswered is in doubt", counts)
	}
	c := b.config
	c.Role, c.Journal = "foreign-missing", filepath.Join(t.TempDir(), "j")
	p, err := worker.Start(t.Context(), argv(t), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "/no/such/client") {
		t.Errorf("a client that is not there: error %v", err)
	}
	finish(t, p)
}

func TestForeignConsumer(t *testing.T) {
	b := setup(t)
	b.config.Messages = 100
	run(t, b.config, 0)
	c := b.config
	c.Role, c.Worker, c.Consumer, c.Client.Group = "foreign-consumer", "consumer-1", 4, "g"
	c.Journal = filepath.Join(t.TempDir(), "consumer-1.journal")
	end, counts := run(t, c, 100)
	if !end.Planned || counts.Received != 100 || counts.Settled == 0 {
		t.Errorf("end %+v, counts %+v", end, counts)
	}
	kinds := map[ledger.Kind]int{}
	for _, e := range readJournal(t, c.Journal).events {
		kinds[e.Kind]++
		if e.Kind == ledger.Received && (e.Stream != 1 || e.Consumer != 4 || !e.Foreign) {
			t.Fatalf("received %+v", e)
		}
	}
	if kinds[ledger.Received] != 100 || kinds[ledger.Assigned] != 2 || kinds[ledger.Settled] == 0 {
		t.Errorf("recorded %v", kinds)
	}
}
