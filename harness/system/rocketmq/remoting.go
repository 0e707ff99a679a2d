package rocketmq

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"conform/harness/system"
)

// The adapter's own questions to brokers and name servers, past the links and past the client library: admin calls that the
// library lacks or whose answers it ignores, and the final read, for which it has no call that ends at a queue's end.

const (
	// askTimeout bounds one request to one node, so that a frozen one costs little.
	askTimeout = 2 * time.Second
	// changeTimeout bounds what changes something.
	changeTimeout = 15 * time.Second
	pollEvery     = 100 * time.Millisecond
)

// Request codes (org.apache.rocketmq.remoting.protocol.RequestCode).
const (
	codeSend             = 10
	codePull             = 11
	codeQueryOffset      = 14
	codeUpdateOffset     = 15
	codeCreateTopic      = 17
	codeSetBrokerConfig  = 25
	codeBrokerConfig     = 26
	codeMaxOffset        = 30
	codeMinOffset        = 31
	codeRoute            = 105
	codeConsumers        = 203
	codeDeleteTopic      = 215
	codeDeleteTopicRoute = 216
	codeDeleteExpired    = 329
	codeTopicConfig      = 351
	codeHAStatus         = 907
	codeSyncState        = 1006
)

// Response codes (org.apache.rocketmq.remoting.protocol.ResponseCode).
const (
	answerOK                 = 0
	answerSystemError        = 1
	answerSystemBusy         = 2
	answerUnsupported        = 3
	answerFlushDiskTimeout   = 10
	answerSlaveNotAvailable  = 11
	answerFlushSlaveTimeout  = 12
	answerMessageIllegal     = 13
	answerServiceUnavailable = 14
	answerNoPermission       = 16
	answerTopicNotExist      = 17
	answerPullNotFound       = 19
	answerPullRetry          = 20
	answerPullMoved          = 21
	answerQueryNotFound      = 22
	answerNotOnline          = 206
)

// Bits of a command's flag (org.apache.rocketmq.remoting.protocol.RemotingCommand).
const (
	flagResponse = 1
	flagOneWay   = 2
)

// command is a request or a response. The body stands behind it.
type command struct {
	Code     int               `json:"code"`
	Language string            `json:"language"`
	Version  int               `json:"version"`
	Opaque   int32             `json:"opaque"`
	Flag     int               `json:"flag"`
	Remark   string            `json:"remark,omitempty"`
	Fields   map[string]string `json:"extFields,omitempty"`
}

const (
	headFrame = 4 // the length of what follows
	headAll   = 8 // and a type and the length of the header
	maxFrame  = 64 << 20
)

// appendFrame appends a command and its body as a frame with a header in JSON.
func appendFrame(b []byte, c command, body []byte) ([]byte, error) {
	header, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("write header: %w", err)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(4+len(header)+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(header))) // its first byte is the type: 0 is JSON
	return append(append(b, header...), body...), nil
}

// answerError is an answer other than success.
type answerError struct {
	Code   int
	Remark string
}

func (e *answerError) Error() string { return fmt.Sprintf("answer %d: %s", e.Code, e.Remark) }

// answered says whether err is an answer with the code.
func answered(err error, code int) bool {
	a := (*answerError)(nil)
	return errors.As(err, &a) && a.Code == code
}

// connection carries one question after the other.
type connection struct {
	conn   net.Conn
	opaque int32
}

func dial(ctx context.Context, addr string) (*connection, error) {
	if addr == "" {
		return nil, errors.New("no address")
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return &connection{conn: c}, nil
}

func (c *connection) close() { _ = c.conn.Close() }

// ask sends a request and returns the answer's fields and body. An answer other than success is an *answerError, beside which
// the fields are there too.
func (c *connection) ask(ctx context.Context, timeout time.Duration, code int, fields map[string]string, body []byte) (map[string]string, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	if err := c.conn.SetDeadline(deadline); err != nil {
		return nil, nil, err
	}
	// The deadline knows nothing of a context that ends early.
	defer context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })()
	opaque := atomic.AddInt32(&c.opaque, 1)
	frame, err := appendFrame(nil, command{Code: code, Language: "GO", Version: remotingVersion, Opaque: opaque, Fields: fields}, body)
	if err != nil {
		return nil, nil, err
	}
	if _, err := c.conn.Write(frame); err != nil {
		return nil, nil, fmt.Errorf("ask: %w", err)
	}
	for {
		answer, content, err := c.read()
		if err != nil {
			return nil, nil, fmt.Errorf("read answer: %w", err)
		}
		if answer.Flag&flagResponse == 0 || answer.Opaque != opaque {
			continue // a node may ask too
		}
		if answer.Code != answerOK {
			return answer.Fields, content, &answerError{answer.Code, answer.Remark}
		}
		return answer.Fields, content, nil
	}
}

// remotingVersion is what the Go client says: brokers answer newer versions in other forms.
const remotingVersion = 317

func (c *connection) read() (command, []byte, error) {
	var head [headAll]byte
	if _, err := io.ReadFull(c.conn, head[:]); err != nil {
		return command{}, nil, err
	}
	all, header := binary.BigEndian.Uint32(head[:]), binary.BigEndian.Uint32(head[4:])
	if header>>24 != 0 || all > maxFrame || header+4 > all {
		return command{}, nil, fmt.Errorf("frame of %d bytes with a header of type %d is not RocketMQ's", all, header>>24)
	}
	rest := make([]byte, all-4)
	if _, err := io.ReadFull(c.conn, rest); err != nil {
		return command{}, nil, err
	}
	var a command
	if err := json.Unmarshal(rest[:header], &a); err != nil {
		return command{}, nil, fmt.Errorf("read header: %w", err)
	}
	return a, rest[header:], nil
}

// ask sends one request to an address.
func ask(ctx context.Context, addr string, code int, fields map[string]string, body []byte) (map[string]string, []byte, error) {
	c, err := dial(ctx, addr)
	if err != nil {
		return nil, nil, err
	}
	defer c.close()
	return c.ask(ctx, askTimeout, code, fields, body)
}

// await repeats check until it returns nil. An ErrUsage ends it.
func (c *Cluster) await(ctx context.Context, what string, check func(context.Context) error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if errors.Is(err, system.ErrUsage) {
			return err
		}
		if last == nil || ctx.Err() == nil { // else it is about the end of the wait
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w (last: %w)", what, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}
