package rocketmq

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"

	rmqerrors "github.com/apache/rocketmq-client-go/v2/errors"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"conform/harness/ledger"
	"conform/harness/system"
)

// Refusal is one line of the table from answers and errors to outcomes. What is not in the table is in doubt.
type Refusal struct {
	Class   string // as it is written into the ledger
	Outcome ledger.Outcome
	Why     string

	code    int    // of the answer; 0 = none
	remark  string // that the answer's remark has in it; empty = any
	matches func(error) bool
}

// Refusals is the table for one attempt. A send that was tried again is refused only if every attempt was.
func Refusals() []Refusal {
	is := func(target error) func(error) bool {
		return func(err error) bool { return errors.Is(err, target) }
	}
	says := func(text string) func(error) bool {
		return func(err error) bool { return strings.Contains(err.Error(), text) }
	}
	return []Refusal{
		// The client.
		{Class: "not-taken", Outcome: ledger.Failed, Why: "the caller gave up before the client had taken the message", matches: is(errNotTaken)},
		{Class: "no-route", Outcome: ledger.Failed, Why: "the name server tells no broker: nothing was sent", matches: says("route info not found")},
		{Class: "not-running", Outcome: ledger.Failed, Why: "the client is not started or shut down: nothing was sent", matches: is(rmqerrors.ErrNotRunning)},
		{Class: "network: dial", Outcome: ledger.Failed, Why: "there was no connection: nothing was sent", matches: dialFailed},
		{Class: "timeout", Outcome: ledger.InDoubt, Why: "no answer: the message may be stored", matches: is(rmqerrors.ErrRequestTimeout)},

		// Refusals by the broker before it appends (SendMessageProcessor.preSend and msgCheck, CommitLog.asyncPutMessage,
		// DefaultMessageStore.checkStoreStatus, BrokerFastFailure).
		{
			Class: "IN_SYNC_REPLICAS_NOT_ENOUGH", Outcome: ledger.Failed, code: answerSystemError, remark: "in-sync replicas not enough",
			Why: "CommitLog compares the replicas in sync with what it must wait for first",
		},
		{
			Class: "BROKER_BUSY", Outcome: ledger.Failed, code: answerSystemBusy,
			Why: "BrokerFastFailure takes the request out of the queue, or the broker is still starting: it is not carried out",
		},
		{Class: "REQUEST_CODE_NOT_SUPPORTED", Outcome: ledger.Failed, code: answerUnsupported, Why: "the request is not understood"},
		{Class: "MESSAGE_ILLEGAL", Outcome: ledger.Failed, code: answerMessageIllegal, Why: "too large, properties too long, or a delay beyond timerMaxDelaySec; checked before the append"},
		{Class: "SERVICE_NOT_AVAILABLE", Outcome: ledger.Failed, code: answerServiceUnavailable, Why: "the store takes nothing: it is shut down, a replica's, or its disk is full; checked before the append"},
		{Class: "NO_PERMISSION", Outcome: ledger.Failed, code: answerNoPermission, Why: "the topic or the broker takes no messages; checked before the append"},
		{Class: "TOPIC_NOT_EXIST", Outcome: ledger.Failed, code: answerTopicNotExist, Why: "checked before the append"},

		// Answers that prove nothing.
		{Class: "FLUSH_DISK_TIMEOUT", Outcome: ledger.InDoubt, code: answerFlushDiskTimeout, Why: "appended, not flushed in time"},
		{Class: "FLUSH_SLAVE_TIMEOUT", Outcome: ledger.InDoubt, code: answerFlushSlaveTimeout, Why: "appended, not replicated in time"},
		{Class: "SLAVE_NOT_AVAILABLE", Outcome: ledger.InDoubt, code: answerSlaveNotAvailable, Why: "appended, there is no replica to wait for"},
		{Class: "SYSTEM_ERROR", Outcome: ledger.InDoubt, code: answerSystemError, Why: "also given for errors in the midst of an append"},
	}
}

// errNotTaken says that a message never entered the client.
var errNotTaken = errors.New("not taken by the client")

// dialFailed says whether there was no connection to write to.
func dialFailed(err error) bool {
	op := (*net.OpError)(nil)
	return errors.As(err, &op) && op.Op == "dial"
}

// answerText is how the client library words an answer that it takes for an error (ProcessSendResponse).
var answerText = regexp.MustCompile(`(?s)^CODE: (\d+), DESC: (.*)$`)

// answerOf returns the broker's answer in an error of the client library; nil if there is none.
func answerOf(err error) *answerError {
	m := answerText.FindStringSubmatch(err.Error())
	if m == nil {
		return nil
	}
	code, conv := strconv.Atoi(m[1])
	if conv != nil {
		return nil
	}
	return &answerError{Code: code, Remark: m[2]}
}

// failed is the receipt of an attempt that ended with err.
func failed(err error) system.Receipt {
	answer := answerOf(err)
	for _, r := range Refusals() {
		if r.matches != nil && answer == nil && r.matches(err) ||
			r.code != 0 && answer != nil && answer.Code == r.code && strings.Contains(answer.Remark, r.remark) {
			return system.Receipt{Outcome: r.Outcome, Offset: -1, Err: r.Class}
		}
	}
	return system.Receipt{Outcome: ledger.InDoubt, Offset: -1, Err: errorClass(err, answer)}
}

// errorClass names an error that is not in the table.
func errorClass(err error, answer *answerError) string {
	op := (*net.OpError)(nil)
	switch {
	case answer != nil:
		return "answer " + strconv.Itoa(answer.Code)
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		return "connection-closed"
	case errors.As(err, &op):
		return "network: " + op.Op
	}
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}

// sent is the receipt of an attempt that the broker took.
func sent(r *primitive.SendResult) system.Receipt {
	switch r.Status {
	case primitive.SendOK:
		return system.Receipt{Outcome: ledger.OK, Offset: r.QueueOffset}
	case primitive.SendFlushDiskTimeout:
		return system.Receipt{Outcome: ledger.InDoubt, Offset: -1, Err: "FLUSH_DISK_TIMEOUT"}
	case primitive.SendFlushSlaveTimeout:
		return system.Receipt{Outcome: ledger.InDoubt, Offset: -1, Err: "FLUSH_SLAVE_TIMEOUT"}
	case primitive.SendSlaveNotAvailable:
		return system.Receipt{Outcome: ledger.InDoubt, Offset: -1, Err: "SLAVE_NOT_AVAILABLE"}
	default:
		return system.Receipt{Outcome: ledger.InDoubt, Offset: -1, Err: "unknown status"}
	}
}
