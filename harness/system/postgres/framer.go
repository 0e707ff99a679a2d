package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"conform/harness/internal/netproxy"
	"conform/harness/system"
)

// The kinds of requests in a system.WireRule, by the first SQL keyword of a statement. Messages that carry no statement of
// their own (startup, parse, sync, copy data, ...) have other names that no rule can pick.
const (
	KindBegin    = "begin"
	KindCommit   = "commit" // COMMIT or END
	KindRollback = "rollback"
	KindQuery    = "query" // any other statement
)

var kinds = []string{KindBegin, KindCommit, KindRollback, KindQuery}

// kindOther names requests that are none of the kinds.
const kindOther = "protocol"

// framer knows version 3 of PostgreSQL's protocol: after the first packet of the client, messages of a type byte and a
// length (https://www.postgresql.org/docs/18/protocol-message-formats.html).
type framer struct{}

func (framer) Open() netproxy.Session {
	return &session{statements: map[string]string{}, portals: map[string]string{}}
}

// CheckAnswer refuses: PostgreSQL has no retriable refusal that leaves a transaction as it was.
func (framer) CheckAnswer(kind, _ string) error {
	return fmt.Errorf("%s requests cannot be refused: %w", kind, system.ErrUsage)
}

// Codes in the place of the protocol's version in the client's first packet.
const (
	codeCancel = 1234<<16 | 5678
	codeSSL    = 1234<<16 | 5679
	codeGSS    = 1234<<16 | 5680
)

// The types of messages, by who sends them. Some letters mean one thing one way and another the other way.
const (
	msgBind     = 'B'
	msgClose    = 'C'
	msgDescribe = 'D'
	msgExecute  = 'E'
	msgFunction = 'F'
	msgFlush    = 'H'
	msgParse    = 'P'
	msgQuery    = 'Q'
	msgSync     = 'S'
	msgCopyDone = 'c'
	msgCopyFail = 'f'
	opStartup   = 0 // the client's first packet has no type

	msgParseComplete   = '1'
	msgBindComplete    = '2'
	msgCloseComplete   = '3'
	msgCommandComplete = 'C'
	msgDataRow         = 'D'
	msgError           = 'E'
	msgCopyIn          = 'G'
	msgEmptyQuery      = 'I'
	msgNotice          = 'N'
	msgNotification    = 'A'
	msgParameterStatus = 'S'
	msgRowDescription  = 'T'
	msgReady           = 'Z'
	msgNoData          = 'n'
	msgSuspended       = 's'
	msgCopyData        = 'd' // both ways
)

// expected is a request whose reply has not ended yet.
type expected struct {
	op  byte
	tag uint64 // pairs it with a netproxy.Request; 0 = with none
}

// session is the state of one connection. What a reply belongs to is told by order alone, so all requests that have a
// reply stand in a queue; only statements are requests to package netproxy: a simple query, whose reply ends with
// ReadyForQuery, and an execute, whose reply ends with ReadyForQuery too if its sync has been sent, because only there a
// transaction of a single statement is committed.
type session struct {
	// Used by the requests' side alone.
	started    bool
	client     string
	statements map[string]string // kinds of prepared statements, KindQuery left out
	portals    map[string]string // kinds of portals, KindQuery left out
	tags       uint64

	mu       sync.Mutex
	queue    []expected
	asked    bool // for encryption: the reply is one byte
	skipping bool // after an error in the extended protocol, until its sync
	copying  bool // the server takes copy data of an execute: it ignores syncs

	more bool // used by the responses' side alone
}

func (s *session) Len(way netproxy.Way, head []byte) (int, error) {
	if way == netproxy.ToNode && !s.started {
		return startupLen(head)
	}
	if way == netproxy.ToClient && s.encryptionAsked() {
		switch head[0] {
		case 'N': // no
			return 1, nil
		case 'S', 'G':
			return 0, errors.New("server turns on encryption")
		}
	}
	n, err := messageLen(head)
	if way == netproxy.ToNode || n == 0 || err != nil {
		return n, err
	}
	// Rows that are here already go on as one frame: one write instead of many.
	for t := head[0]; (t == msgDataRow || t == msgCopyData) && n < len(head) && head[n] == t; {
		next, err := messageLen(head[n:])
		if err != nil || next == 0 || n+next > len(head) {
			break
		}
		n += next
	}
	return n, nil
}

func (s *session) encryptionAsked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func startupLen(head []byte) (int, error) {
	if len(head) < 8 {
		return 0, nil
	}
	const most = 10000 // the server's own limit
	n := int32(binary.BigEndian.Uint32(head))
	code := binary.BigEndian.Uint32(head[4:])
	if n < 8 || n > most || code>>16 != 3 && code != codeCancel && code != codeSSL && code != codeGSS {
		return 0, fmt.Errorf("first packet of length %d and version %#x is not PostgreSQL's", n, code)
	}
	return int(n), nil
}

func messageLen(head []byte) (int, error) {
	if len(head) < 5 {
		return 0, nil
	}
	n := int32(binary.BigEndian.Uint32(head[1:]))
	if n < 4 || n > 1<<30-2 {
		return 0, fmt.Errorf("message %q of length %d is not PostgreSQL's", head[0], n)
	}
	return int(n) + 1, nil
}

func (s *session) Request(frame []byte, length int) (netproxy.Request, bool) {
	if !s.started {
		return s.startup(frame, length)
	}
	whole := len(frame) == length
	op, body := frame[0], frame[min(5, len(frame)):]
	other := netproxy.Request{Kind: kindOther, Client: s.client, NoReply: true}
	switch op {
	case msgQuery:
		kind, ok := kindOf(body)
		if !ok && !whole {
			return other, true
		}
		return s.statement(op, kind), false
	case msgParse:
		name, sql, ok := cutString(body)
		kind, known := kindOf(sql)
		if !whole && (!ok || !known) {
			return other, true
		}
		remember(s.statements, name, kind)
	case msgBind:
		portal, rest, ok := cutString(body)
		name, _, ok2 := cutString(rest)
		if !whole && !(ok && ok2) {
			return other, true
		}
		remember(s.portals, portal, recall(s.statements, name))
	case msgClose:
		if !whole {
			return other, true
		}
		if name, _, ok := cutString(body[min(1, len(body)):]); ok && len(body) > 0 && body[0] == 'S' {
			delete(s.statements, name)
		}
	case msgExecute:
		portal, _, ok := cutString(body)
		if !whole && !ok {
			return other, true
		}
		return s.statement(op, recall(s.portals, portal)), false
	}
	s.enqueue(op, 0)
	return other, false
}

// startup reads the client's first packet: what it is called, or that it asks for encryption or a cancel first.
func (s *session) startup(frame []byte, length int) (netproxy.Request, bool) {
	r := netproxy.Request{Kind: kindOther, NoReply: true}
	if len(frame) < length {
		return r, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch binary.BigEndian.Uint32(frame[4:]) {
	case codeSSL, codeGSS:
		s.asked = true
		return r, false
	case codeCancel:
		s.started = true
		return r, false
	}
	for name, rest, ok := cutString(frame[8:]); ok && name != ""; name, rest, ok = cutString(rest) {
		var value string
		if value, rest, ok = cutString(rest); ok && name == "application_name" {
			s.client = value
		}
	}
	s.started = true
	s.queue = append(s.queue, expected{op: opStartup})
	r.Client = s.client
	return r, false
}

// outcome is the State of requests of which Judge shall tell whether they were confirmed.
type outcome struct{}

// statement describes a request that runs a statement.
func (s *session) statement(op byte, kind string) netproxy.Request {
	s.tags++
	r := netproxy.Request{Kind: kind, Client: s.client, Tag: s.tags}
	if kind == KindCommit {
		r.Messages, r.State = 1, outcome{}
	}
	r.NoReply = !s.enqueue(op, s.tags)
	return r
}

// enqueue notes that a request will have a reply, and says so.
func (s *session) enqueue(op byte, tag uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch op {
	case msgCopyDone, msgCopyFail:
		s.copying = false
		return false
	case msgSync:
		if s.copying {
			return false
		}
		s.skipping = false
	case msgParse, msgBind, msgDescribe, msgExecute, msgClose:
		if s.skipping {
			return false
		}
	case msgQuery, msgFunction:
	default:
		return false
	}
	s.queue = append(s.queue, expected{op: op, tag: tag})
	return true
}

// More says whether the reply of the frame last given to Tag goes on.
func (s *session) More() bool { return s.more }

// Tag finds the request that a frame of the server belongs to, and moves the queue on.
func (s *session) Tag(frame []byte) (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.more = false
	t := frame[0]
	if s.asked {
		s.asked = false
		if len(frame) == 1 {
			return 0, true
		}
	}
	if len(s.queue) == 0 || t == msgNotice || t == msgNotification || t == msgParameterStatus {
		return 0, true // of no request: an idle connection is told that it ends, for example
	}
	first := s.queue[0]
	ends := false
	switch first.op {
	case opStartup, msgQuery, msgFunction, msgSync:
		ends = t == msgReady
	case msgParse, msgBind, msgClose, msgDescribe, msgExecute:
		if t == msgError {
			return s.failed(), true
		}
		ends = replyEnds(first.op, t)
	}
	s.more = !ends
	switch {
	case ends && first.op == msgExecute && len(s.queue) > 1 && s.queue[1].op == msgSync:
		s.queue[1].tag = first.tag
		s.more = true
	case first.op == msgExecute && t == msgCopyIn:
		s.copying = true
		s.queue = slices.DeleteFunc(s.queue, func(e expected) bool { return e.op == msgSync })
	}
	if ends {
		s.queue = s.queue[1:]
	}
	return first.tag, true
}

// replyEnds says whether a message ends the reply to a request of the extended protocol.
func replyEnds(op, t byte) bool {
	switch op {
	case msgParse:
		return t == msgParseComplete
	case msgBind:
		return t == msgBindComplete
	case msgClose:
		return t == msgCloseComplete
	case msgDescribe:
		return t == msgRowDescription || t == msgNoData
	default:
		return t == msgCommandComplete || t == msgEmptyQuery || t == msgSuspended
	}
}

// failed handles an error in the extended protocol: the server skips what comes before the next sync. The error counts as
// the reply to the first statement among that.
func (s *session) failed() (tag uint64) {
	for i, e := range s.queue {
		if e.op == msgSync {
			s.queue = s.queue[i:]
			s.queue[0].tag = tag
			s.more = true
			return tag
		}
		if e.op == msgExecute && tag == 0 {
			tag = e.tag
		}
	}
	s.queue = nil
	s.skipping, s.copying = true, false
	return tag
}

// Judge counts a COMMIT as confirmed if it answers "COMMIT", and as refused if it answers "ROLLBACK", as after a failed
// statement, or by an error that leaves the connection alive.
func (s *session) Judge(_ *netproxy.Request, frame []byte) (confirmed, refused int64) {
	switch body := frame[min(5, len(frame)):]; frame[0] {
	case msgCommandComplete:
		switch tag, _, _ := cutString(body); tag {
		case "COMMIT":
			return 1, 0
		case "ROLLBACK":
			return 0, 1
		}
	case msgError:
		if severity(body) == "ERROR" {
			return 0, 1
		}
	}
	return 0, 0
}

func (s *session) Answer(r *netproxy.Request, _ []byte, _ string) ([]byte, error) {
	return nil, framer{}.CheckAnswer(r.Kind, "")
}

// severity reads the field V of an error message, which is never translated.
func severity(body []byte) string {
	for len(body) > 0 && body[0] != 0 {
		code := body[0]
		value, rest, ok := cutString(body[1:])
		if !ok {
			return ""
		}
		if code == 'V' {
			return value
		}
		body = rest
	}
	return ""
}

// cutString cuts a string that ends with a zero byte off the front of b.
func cutString(b []byte) (string, []byte, bool) {
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return "", nil, false
	}
	return string(b[:i]), b[i+1:], true
}

func remember(m map[string]string, name, kind string) {
	if kind == KindQuery {
		delete(m, name)
		return
	}
	m[name] = kind
}

func recall(m map[string]string, name string) string {
	if kind, ok := m[name]; ok {
		return kind
	}
	return KindQuery
}

// kindOf tells the kind of a statement by its first keyword. It is not ok if sql ends before that is certain.
func kindOf(sql []byte) (kind string, ok bool) {
	first, rest, ok := keyword(sql)
	if !ok {
		return KindQuery, false
	}
	switch first {
	case "COMMIT", "END":
		return KindCommit, true
	case "BEGIN", "START":
		return KindBegin, true
	case "ABORT":
		return KindRollback, true
	case "ROLLBACK": // but not ROLLBACK [WORK | TRANSACTION] TO savepoint
		second, rest, ok := keyword(rest)
		if second == "WORK" || second == "TRANSACTION" {
			second, _, ok = keyword(rest)
		}
		if second == "TO" {
			return KindQuery, true
		}
		return KindRollback, ok
	}
	return KindQuery, true
}

// keyword cuts the first word off sql, in capitals, past blanks, comments and empty statements. It is empty where
// something else than a word stands, and not ok where sql ends before that is certain: a statement ends with a zero byte.
func keyword(sql []byte) (word string, rest []byte, ok bool) {
	for {
		sql = bytes.TrimLeft(sql, " \t\r\n\f\v;")
		switch {
		case bytes.HasPrefix(sql, []byte("--")):
			_, after, found := bytes.Cut(sql, []byte("\n"))
			if !found {
				return "", nil, bytes.IndexByte(sql, 0) >= 0
			}
			sql = after
			continue
		case bytes.HasPrefix(sql, []byte("/*")):
			if sql = afterComment(sql); sql == nil {
				return "", nil, false
			}
			continue
		case len(sql) == 0, len(sql) == 1 && (sql[0] == '-' || sql[0] == '/'):
			return "", nil, false
		}
		end := bytes.IndexFunc(sql, func(r rune) bool { return r < 'A' || r > 'Z' && r < 'a' || r > 'z' })
		if end < 0 {
			return "", nil, false
		}
		return strings.ToUpper(string(sql[:end])), sql[end:], true
	}
}

// afterComment returns what follows a comment, which may hold others; nil if it does not end.
func afterComment(sql []byte) []byte {
	depth := 0
	for i := 0; i+1 < len(sql); i++ {
		switch {
		case sql[i] == '/' && sql[i+1] == '*':
			depth++
			i++
		case sql[i] == '*' && sql[i+1] == '/':
			depth--
			i++
			if depth == 0 {
				return sql[i+1:]
			}
		}
	}
	return nil
}
