package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	amqp "github.com/rabbitmq/amqp091-go"

	"conform/harness/ledger"
)

// Verdict says what an end of a publish proves.
type Verdict int

// The verdicts. The zero value proves nothing.
const (
	// Never: the message may be in the queue.
	Never Verdict = iota
	// NotStored: no queue has it, and none will.
	NotStored
	// NotSent: it has not left the client, which will try again as if nothing had been.
	NotSent
	// Stored: the node has taken responsibility for it.
	Stored
)

// The ends of a publish that are no errors of the library.
var (
	errNotTaken     = errors.New("not taken by the client")
	errNotConnected = errors.New("not connected")
	errNacked       = errors.New("nacked")
	errReturned     = errors.New("returned: no queue is bound")
	errConnection   = errors.New("connection or channel closed before the confirm")
	errClosed       = errors.New("client closed before the confirm")
	errUnconfirmed  = errors.New("written to a channel without confirms")
)

// End is one line of the table from ends of a publish to what they prove.
type End struct {
	Err     error
	Verdict Verdict
	Class   string // in the ledger
	Why     string
}

// Ends is the table. An end that is not in it is in doubt. Order matters: the first that matches is it.
func Ends() []End {
	return []End{
		{errNotTaken, NotStored, "not-taken", "the caller gave up before the client had taken the message"},
		{errNotConnected, NotStored, "not-connected", "there is no connection, and the caller does not wait for the next one"},
		{errNacked, NotStored, "nacked", "basic.nack: the node says that it was unable to take it; documented for an internal error or an overflow with reject-publish"},
		{errReturned, NotStored, "returned", "basic.return: mandatory and unroutable; the basic.ack behind it confirms only that this was found out"},
		{errConnection, Never, "connection-closed", "no confirm: the node may have it; the library resolves such confirms as not acked, which is no nack"},
		{errClosed, Never, "client-closed", "as above"},
		{errUnconfirmed, Never, "", "nobody will ever confirm it"},
		// The library looks whether the channel is open before each of the three frames of a message: a node never takes a
		// message that lacks one.
		{amqp.ErrClosed, NotSent, "channel-closed", "the channel was closed before the message was whole on the wire"},
		{amqp.ErrFrameTooLarge, Never, "frame-too-large", "not explained by the protocol"},
		{context.Canceled, Never, "canceled", "it may be in flight"},
		{context.DeadlineExceeded, Never, "timeout", "it may be in flight"},
		{os.ErrDeadlineExceeded, Never, "timeout", "part of it may have been written"},
		{io.EOF, Never, "connection-closed", "part of it may have been written"},
		{net.ErrClosed, Never, "connection-closed", "part of it may have been written"},
	}
}

// judge says what an end proves, and its class. An exception of the protocol that closes channel or connection (404, 406 and
// so on) is about one of the publishes on it, not said which: it is in doubt for all.
func judge(err error) (Verdict, string) {
	for _, e := range Ends() {
		if errors.Is(err, e.Err) {
			return e.Verdict, e.Class
		}
	}
	if x := (*amqp.Error)(nil); errors.As(err, &x) {
		return Never, fmt.Sprintf("closed: %d", x.Code)
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return Never, "network: " + op.Op
	}
	return Never, err.Error()
}

// outcomeOf is the outcome that a verdict is in the ledger.
func outcomeOf(v Verdict) ledger.Outcome {
	switch v {
	case Stored:
		return ledger.OK
	case NotStored:
		return ledger.Failed
	default:
		return ledger.InDoubt
	}
}
