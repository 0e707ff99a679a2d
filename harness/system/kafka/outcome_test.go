package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"conform/harness/ledger"
	"conform/harness/system"
)

// The producers that a table line is checked with.
var (
	idempotent = sending{idempotent: true, inFlight: 5, retries: -1}
	pipelined  = sending{inFlight: 5, retries: -1}
	retrying   = sending{inFlight: 1, retries: -1}
	once       = sending{inFlight: 1, retries: 0}
)

func TestOutcome(t *testing.T) {
	const ok, no = ledger.Failed, ledger.InDoubt
	for _, c := range []struct {
		err                                       error
		idempotent, pipelined, retrying, sentOnce ledger.Outcome
		class                                     string
	}{
		{errNotTaken, ok, ok, ok, ok, "not-taken"},
		{kgo.ErrMaxBuffered, ok, ok, ok, ok, "buffer-full"},
		{fmt.Errorf("%w (uncompressed_bytes=1, compressed_bytes=1)", kerr.MessageTooLarge), ok, no, ok, ok, "MESSAGE_TOO_LARGE"},
		{kerr.InvalidRecord, ok, no, ok, ok, "INVALID_RECORD"},
		{kerr.NotEnoughReplicas, no, no, no, ok, "NOT_ENOUGH_REPLICAS"},
		{kerr.TopicAuthorizationFailed, no, no, no, ok, "TOPIC_AUTHORIZATION_FAILED"},
		{kerr.NotEnoughReplicasAfterAppend, no, no, no, no, "NOT_ENOUGH_REPLICAS_AFTER_APPEND"},
		{kerr.NotLeaderForPartition, no, no, no, no, "NOT_LEADER_OR_FOLLOWER"},
		{kerr.RequestTimedOut, no, no, no, no, "REQUEST_TIMED_OUT"},
		{kerr.OutOfOrderSequenceNumber, no, no, no, no, "OUT_OF_ORDER_SEQUENCE_NUMBER"},
		{kgo.ErrRecordRetries, no, no, no, no, "retries-exhausted"},
		// The client's own ends wrap the last refusal it saw, which says nothing about the attempts before.
		{fmt.Errorf("%w, last err: %w", kgo.ErrRecordTimeout, kerr.MessageTooLarge), no, no, no, no, "delivery-timeout"},
		{fmt.Errorf("%w, last err: %w", kgo.ErrRecordTimeout, kerr.NotEnoughReplicas), no, no, no, no, "delivery-timeout"},
		{kgo.ErrClientClosed, no, no, no, no, "client-closed"},
		{kgo.ErrAborting, no, no, no, no, "aborted"},
		{context.Canceled, no, no, no, no, "canceled"},
		{context.DeadlineExceeded, no, no, no, no, "timeout"},
		{io.ErrUnexpectedEOF, no, no, no, no, "unexpected EOF"},
		{io.EOF, no, no, no, no, "connection-closed"},
		{errors.New("never heard of"), no, no, no, no, "never heard of"},
	} {
		for name, p := range map[string]struct {
			sending sending
			want    ledger.Outcome
		}{"idempotent": {idempotent, c.idempotent}, "pipelined": {pipelined, c.pipelined}, "retrying": {retrying, c.retrying}, "once": {once, c.sentOnce}} {
			want := system.Receipt{Outcome: p.want, Offset: -1, Err: c.class}
			if got := p.sending.failed(c.err); got != want {
				t.Errorf("%v, %s: %+v, want %+v", c.err, name, got, want)
			}
		}
	}
}

// TestRefusalsAreWhole: every retriable code of the protocol that is not in the table is in doubt, whoever sends.
func TestRefusalsAreWhole(t *testing.T) {
	inTable := map[error]bool{}
	for _, r := range Refusals() {
		if r.Why == "" {
			t.Errorf("%v has no reason", r.Err)
		}
		if inTable[r.Err] {
			t.Errorf("%v is in the table twice", r.Err)
		}
		inTable[r.Err] = true
	}
	for code := int16(1); code < 200; code++ {
		err := kerr.ErrorForCode(code)
		if inTable[err] {
			continue
		}
		if got := once.outcome(err); got != ledger.InDoubt {
			t.Errorf("%v: %v", err, got)
		}
	}
}

func TestReceipt(t *testing.T) {
	r := &kgo.Record{Offset: 42}
	if got := (&producer{}).receipt(r, nil); got != (system.Receipt{Outcome: ledger.OK, Offset: 42}) {
		t.Errorf("confirmed: %+v", got)
	}
	if got := (&producer{unconfirmed: true}).receipt(r, nil); got != (system.Receipt{Offset: -1}) {
		t.Errorf("acks=0: %+v", got)
	}
}

func TestClientSettings(t *testing.T) {
	open := func(settings map[string]string) error {
		p, err := Clients{}.OpenProducer(t.Context(), system.ClientConfig{Endpoints: []string{"127.0.0.1:1"}, ClientID: "c", Settings: settings})
		if err == nil {
			err = p.Close(t.Context())
		}
		return err
	}
	for _, good := range []map[string]string{
		nil,
		{"acks": "all", "idempotence": "true", "in.flight": "5"},
		{"acks": "1", "idempotence": "false", "in.flight": "5", "linger.ms": "1000"},
		{"acks": "0", "idempotence": "false", "retries": "0", "delivery.timeout.ms": "3000", "request.timeout.ms": "1000"},
		{"compression": "zstd", "max.buffered": "1", "batch.max.bytes": "16384"},
	} {
		if err := open(good); err != nil {
			t.Errorf("%v: %v", good, err)
		}
	}
	for _, bad := range []map[string]string{
		{"acks": "2"},
		{"acks": "1"},
		{"acks": "0", "idempotence": "true"},
		{"idempotence": "yes"},
		{"in.flight": "1"},
		{"linger": "5"},
		{"linger.ms": "-1"},
		{"retries": "many"},
		{"compression": "best"},
	} {
		if err := open(bad); !errors.Is(err, system.ErrUsage) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	for _, bad := range []map[string]string{{"isolation": "x"}, {"group.protocol": "raft"}, {"auto.commit": "true"}, {"acks": "all"}} {
		_, err := Clients{}.OpenConsumer(t.Context(), system.ClientConfig{Endpoints: []string{"127.0.0.1:1"}, ClientID: "c", Settings: bad})
		if !errors.Is(err, system.ErrUsage) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestNewConfig(t *testing.T) {
	c, err := newConfig(system.Spec{Settings: map[string]string{
		"replica.lag.time.max.ms":                  "30000",
		"feature.eligible.leader.replicas.version": "0",
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := c.timing["replica.lag.time.max.ms"]; ok || c.settings["replica.lag.time.max.ms"] != "30000" {
		t.Errorf("a scenario's own setting counts as lowered: %v", c.timing)
	}
	if c.format() != "--feature eligible.leader.replicas.version=0" || c.all()["feature.eligible.leader.replicas.version"] != "0" {
		t.Errorf("format %q, all %v", c.format(), c.all())
	}
	if len(c.clusterID) != 22 {
		t.Errorf("cluster id %q", c.clusterID)
	}
	if c, err = newConfig(system.Spec{Timing: timingProduction}); err != nil || len(c.timing) != 0 || c.settings["broker.session.timeout.ms"] != "" {
		t.Errorf("production timing: %v %v", c, err)
	}
	for _, bad := range []system.Spec{
		{Timing: "slow"},
		{Settings: map[string]string{"log.dirs": "/"}},
		{Settings: map[string]string{"a": "b\nlog.dirs=/"}},
		{Settings: map[string]string{"a=b": "c"}},
	} {
		if _, err := newConfig(bad); !errors.Is(err, system.ErrUsage) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
