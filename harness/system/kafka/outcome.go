package kafka

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"conform/harness/ledger"
	"conform/harness/system"
)

// Verdict says when an error proves that a record was not and will not be written.
type Verdict int

// The verdicts. The zero value proves nothing.
const (
	// Never: the record may be in the log.
	Never Verdict = iota
	// IfAlone: the refusal is a property of the record or the request, so each attempt got it. franz-go v1.22.3 fails all
	// buffered records of a partition with the error of the first batch (sink.go, finishBatch and failAllRecords), also
	// batches in flight behind it: those are refused too if the producer is idempotent (their sequence numbers have a
	// gap) and were never sent if only one may be in flight. Otherwise the error may be another batch's.
	IfAlone
	// IfOnce: the broker refuses before it appends, but says nothing about an earlier attempt whose answer was lost. Proof
	// only if each batch is sent at most once and alone: no idempotence (an idempotent producer of franz-go resends
	// whatever the number of retries, sink.go: canFailFromLoadErrs), no retries, one in flight.
	IfOnce
	// Always: the client raises it before it takes the record.
	Always
)

// Refusal is one line of the table from errors to outcomes.
type Refusal struct {
	Err     error
	Verdict Verdict
	Why     string
}

// Refusals is the table. An error that is not in it is in doubt. Order matters where one error wraps another: ErrRecordTimeout
// and ErrRecordRetries wrap the last refusal they saw.
func Refusals() []Refusal {
	return []Refusal{
		// The client.
		{kgo.ErrMaxBuffered, Always, "the client took no more records"},
		{errNotTaken, Always, "the caller gave up before the client had taken the record"},
		{kgo.ErrRecordTimeout, Never, "an earlier attempt may have been written, its answer lost"},
		{kgo.ErrRecordRetries, Never, "an earlier attempt may have been written, its answer lost"},
		{kgo.ErrAborting, Never, "the record may be in flight"},
		{kgo.ErrClientClosed, Never, "the record may be in flight"},
		{context.Canceled, Never, "the record may be in flight"},
		{context.DeadlineExceeded, Never, "the record may be in flight"},

		// Refusals for what the record or the request is: ReplicaManager.appendRecords and UnifiedLog.append validate before
		// they append; authorization is checked in KafkaApis.handleProduceRequest.
		{kerr.MessageTooLarge, IfAlone, "larger than max.message.bytes; checked before the append"},
		{kerr.RecordListTooLarge, IfAlone, "larger than segment.bytes; checked before the append"},
		{kerr.InvalidRecord, IfAlone, "fails validation before the append"},
		{kerr.InvalidTimestamp, IfAlone, "outside message.timestamp.*.max.ms; checked before the append"},
		{kerr.UnsupportedCompressionType, IfAlone, "checked before the append"},
		{kerr.UnsupportedForMessageFormat, IfAlone, "checked before the append"},
		{kerr.InvalidRequiredAcks, IfAlone, "checked before the append"},
		{kerr.InvalidTopicException, IfAlone, "no such topic can exist"},
		{kerr.PolicyViolation, IfAlone, "checked before the append"},
		{kerr.UnsupportedVersion, IfAlone, "the request is not understood"},

		// Refusals for the state of the cluster, given before the append.
		{kerr.NotEnoughReplicas, IfOnce, "Partition.appendRecordsToLeader compares the in-sync replicas with min.insync.replicas first"},
		{kerr.TopicAuthorizationFailed, IfOnce, "checked before the append; rights may have changed since an earlier attempt"},
		{kerr.ClusterAuthorizationFailed, IfOnce, "checked before the append; rights may have changed since an earlier attempt"},
		{kerr.ThrottlingQuotaExceeded, IfOnce, "refused before the append"},

		// Explicit answers that prove nothing.
		{kerr.NotEnoughReplicasAfterAppend, Never, "appended, then the in-sync replicas shrank"},
		{kerr.RequestTimedOut, Never, "appended, replication not confirmed in time"},
		{kerr.NotLeaderForPartition, Never, "also given to a produce that waits for its replicas when the leader is deposed (DelayedProduce)"},
		{kerr.UnknownTopicOrPartition, Never, "also given to a produce that waits when the replica is taken away (DelayedProduce)"},
		{kerr.UnknownTopicID, Never, "as UNKNOWN_TOPIC_OR_PARTITION"},
		{kerr.KafkaStorageError, Never, "the disk failed before or after the append"},
		{kerr.CorruptMessage, Never, "the attempt was refused, but it is retriable: an earlier one may have been written"},
		{kerr.OutOfOrderSequenceNumber, Never, "an earlier attempt may have been written under another epoch"},
		{kerr.UnknownProducerID, Never, "an earlier attempt may have been written under another epoch"},
		{kerr.InvalidProducerEpoch, Never, "an earlier attempt may have been written under another epoch"},
		{kerr.UnknownServerError, Never, "unknown"},
		{kerr.NetworkException, Never, "no answer"},
	}
}

// errNotTaken says that a record never entered the client.
var errNotTaken = errors.New("not taken by the client")

// sending is what the outcome of an error depends on.
type sending struct {
	idempotent bool
	inFlight   int // produce requests at once
	retries    int // < 0 = without limit
}

func (s sending) alone() bool { return s.idempotent || s.inFlight == 1 }

func (s sending) once() bool { return !s.idempotent && s.inFlight == 1 && s.retries == 0 }

// outcome says what an error of the client means for the record.
func (s sending) outcome(err error) ledger.Outcome {
	for _, r := range Refusals() {
		if !errors.Is(err, r.Err) {
			continue
		}
		switch {
		case r.Verdict == Always, r.Verdict == IfAlone && s.alone(), r.Verdict == IfOnce && s.once():
			return ledger.Failed
		}
		return ledger.InDoubt
	}
	return ledger.InDoubt
}

// failed is the receipt of a send that ended with err.
func (s sending) failed(err error) system.Receipt {
	return system.Receipt{Outcome: s.outcome(err), Offset: -1, Err: errorClass(err)}
}

// errorClass names an error for the ledger: the protocol's name of a broker's answer, else a word for the client's own.
func errorClass(err error) string {
	for _, c := range []struct {
		err  error
		name string
	}{
		{errNotTaken, "not-taken"},
		{kgo.ErrRecordTimeout, "delivery-timeout"},
		{kgo.ErrRecordRetries, "retries-exhausted"},
		{kgo.ErrMaxBuffered, "buffer-full"},
		{kgo.ErrAborting, "aborted"},
		{kgo.ErrClientClosed, "client-closed"},
	} {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	if ke := new(kerr.Error); errors.As(err, &ke) {
		if ke.Code == kerr.NotLeaderForPartition.Code {
			return "NOT_LEADER_OR_FOLLOWER"
		}
		return ke.Message
	}
	switch {
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		return "connection-closed"
	}
	if op := new(net.OpError); errors.As(err, &op) {
		return "network: " + op.Op
	}
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}
