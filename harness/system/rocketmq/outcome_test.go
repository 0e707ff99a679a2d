package rocketmq

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	rmqerrors "github.com/apache/rocketmq-client-go/v2/errors"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"conform/harness/ledger"
)

func TestErrorsAreJudgedByTheTable(t *testing.T) {
	answer := func(code int, remark string) error { return fmt.Errorf("CODE: %d, DESC: %s", code, remark) }
	for _, tt := range []struct {
		err   error
		want  ledger.Outcome
		class string
	}{
		{errNotTaken, ledger.Failed, "not-taken"},
		{errors.New("the topic=t route info not found"), ledger.Failed, "no-route"},
		{errors.New("topic=t route info not found"), ledger.Failed, "no-route"},
		{rmqerrors.ErrNotRunning, ledger.Failed, "not-running"},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, ledger.Failed, "network: dial"},
		{&net.OpError{Op: "write", Err: errors.New("broken pipe")}, ledger.InDoubt, "network: write"},
		{rmqerrors.ErrRequestTimeout, ledger.InDoubt, "timeout"},
		{io.EOF, ledger.InDoubt, "connection-closed"},
		{errors.New("something new"), ledger.InDoubt, "something new"},
		{answer(1, "in-sync replicas not enough"), ledger.Failed, "IN_SYNC_REPLICAS_NOT_ENOUGH"},
		{answer(1, "UNKNOWN_ERROR"), ledger.InDoubt, "SYSTEM_ERROR"},
		// What an answer says is no error of the client's own.
		{answer(1, "the topic=t route info not found"), ledger.InDoubt, "SYSTEM_ERROR"},
		{answer(2, "[TIMEOUT_CLEAN_QUEUE]broker busy,\nstart flow control"), ledger.Failed, "BROKER_BUSY"},
		{answer(10, ""), ledger.InDoubt, "FLUSH_DISK_TIMEOUT"},
		{answer(12, ""), ledger.InDoubt, "FLUSH_SLAVE_TIMEOUT"},
		{answer(13, "the message is illegal"), ledger.Failed, "MESSAGE_ILLEGAL"},
		{answer(14, "service not available now"), ledger.Failed, "SERVICE_NOT_AVAILABLE"},
		{answer(16, "no permission"), ledger.Failed, "NO_PERMISSION"},
		{answer(17, "topic not exist"), ledger.Failed, "TOPIC_NOT_EXIST"},
		{answer(99, "new"), ledger.InDoubt, "answer 99"},
	} {
		got := failed(tt.err)
		if got.Outcome != tt.want || got.Err != tt.class || got.Offset != -1 {
			t.Errorf("%v: got %+v, want %s %s", tt.err, got, tt.want, tt.class)
		}
	}
}

func TestOnlySendOKIsAConfirm(t *testing.T) {
	for status, want := range map[primitive.SendStatus]ledger.Outcome{
		primitive.SendOK:                ledger.OK,
		primitive.SendFlushDiskTimeout:  ledger.InDoubt,
		primitive.SendFlushSlaveTimeout: ledger.InDoubt,
		primitive.SendSlaveNotAvailable: ledger.InDoubt,
		primitive.SendUnknownError:      ledger.InDoubt,
	} {
		got := sent(&primitive.SendResult{Status: status, QueueOffset: 7})
		if got.Outcome != want || (want == ledger.OK) != (got.Err == "" && got.Offset == 7) {
			t.Errorf("status %d: got %+v", status, got)
		}
	}
}

// Each line of the table says what it is good for, and no two are of one class.
func TestTheTableIsWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Refusals() {
		if r.Why == "" || r.Class == "" || seen[r.Class] || (r.code == 0) == (r.matches == nil) || r.Outcome == ledger.OK {
			t.Errorf("%+v", r)
		}
		seen[r.Class] = true
	}
}
