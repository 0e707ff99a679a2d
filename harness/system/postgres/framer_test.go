package postgres

import (
	"bytes"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgproto3"

	"conform/harness/internal/netproxy"
	"conform/harness/system"
)

// wire feeds a session as package netproxy does.
type wire struct {
	session netproxy.Session
}

func newWire() *wire { return &wire{session: framer{}.Open()} }

type message interface {
	Encode(dst []byte) ([]byte, error)
}

func encode(t *testing.T, m message) []byte {
	t.Helper()
	b, err := m.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// request hands over one message, first only its beginning.
func (w *wire) request(t *testing.T, m message) netproxy.Request {
	t.Helper()
	b := encode(t, m)
	for n := range len(b) {
		if length, err := w.session.Len(netproxy.ToNode, b[:n]); err != nil || length != 0 && length != len(b) {
			t.Fatalf("%T: length of the first %d bytes: %d, %v, want %d", m, n, length, err, len(b))
		}
	}
	for n := min(8, len(b)); ; n++ {
		r, more := w.session.Request(b[:n], len(b))
		if !more {
			return r
		}
		if n == len(b) {
			t.Fatalf("%T: more of a whole frame", m)
		}
	}
}

// reply is what a session says of a message of the server.
type reply struct {
	Tag  uint64
	More bool
}

func (w *wire) response(t *testing.T, m message) reply {
	t.Helper()
	b := encode(t, m)
	if n, err := w.session.Len(netproxy.ToClient, b); err != nil || n != len(b) {
		t.Fatalf("%T: length %d, %v, want %d", m, n, err, len(b))
	}
	tag, ok := w.session.Tag(b)
	if !ok {
		t.Fatalf("%T: no tag", m)
	}
	return reply{tag, w.session.(netproxy.Continuer).More()}
}

func (w *wire) start(t *testing.T, name string) {
	t.Helper()
	w.request(t, &pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30,
		Parameters:      map[string]string{"user": "app", "application_name": name, "database": "postgres"},
	})
	for _, m := range []message{
		&pgproto3.AuthenticationOk{}, &pgproto3.ParameterStatus{Name: "TimeZone", Value: "UTC"},
		&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{1, 2, 3, 4}}, &pgproto3.ReadyForQuery{TxStatus: 'I'},
	} {
		if r := w.response(t, m); r.Tag != 0 {
			t.Fatalf("%T belongs to request %d", m, r.Tag)
		}
	}
}

// Shorter names for conversations.
type (
	query    = pgproto3.Query
	parse    = pgproto3.Parse
	bind     = pgproto3.Bind
	describe = pgproto3.Describe
	execute  = pgproto3.Execute
	closing  = pgproto3.Close
	syncing  = pgproto3.Sync
	flush    = pgproto3.Flush

	parsed   = pgproto3.ParseComplete
	bound    = pgproto3.BindComplete
	noData   = pgproto3.NoData
	columns  = pgproto3.RowDescription
	row      = pgproto3.DataRow
	complete = pgproto3.CommandComplete
	refused  = pgproto3.ErrorResponse
	notice   = pgproto3.NoticeResponse
	ready    = pgproto3.ReadyForQuery
)

func TestConversations(t *testing.T) {
	idle := &ready{TxStatus: 'I'}
	none := reply{}
	type step struct {
		message
		kind string // of a request; empty: a message of the server
		tag  uint64 // of a request; 0: it has no reply of its own
		want reply  // of a message of the server
	}
	ask := func(m message, kind string, tag uint64) step { return step{message: m, kind: kind, tag: tag} }
	other := func(m message) step { return step{message: m, kind: kindOther} }
	tell := func(m message, r reply) step { return step{message: m, want: r} }
	for name, steps := range map[string][]step{
		"simple": {
			ask(&query{String: "select 1"}, KindQuery, 1),
			tell(&columns{}, reply{1, true}), tell(&row{}, reply{1, true}), tell(&notice{}, none),
			tell(&complete{CommandTag: []byte("SELECT 1")}, reply{1, true}), tell(idle, reply{1, false}),
			ask(&query{String: "commit"}, KindCommit, 2),
			tell(&complete{CommandTag: []byte("COMMIT")}, reply{2, true}), tell(idle, reply{2, false}),
		},
		"simple, refused": {
			ask(&query{String: "END;"}, KindCommit, 1),
			tell(&refused{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "40001"}, reply{1, true}), tell(idle, reply{1, false}),
		},
		"extended": {
			other(&parse{Query: "  commit"}), other(&bind{}), other(&describe{ObjectType: 'P'}), ask(&execute{}, KindCommit, 1), other(&syncing{}),
			tell(&parsed{}, none), tell(&bound{}, none), tell(&noData{}, none),
			tell(&complete{CommandTag: []byte("COMMIT")}, reply{1, true}), tell(idle, reply{1, false}),
		},
		"prepared": {
			other(&parse{Name: "s", Query: "COMMIT"}), other(&parse{Name: "q", Query: "select"}), other(&syncing{}),
			tell(&parsed{}, none), tell(&parsed{}, none), tell(idle, none),
			other(&bind{PreparedStatement: "s", DestinationPortal: "p"}), other(&bind{PreparedStatement: "q"}),
			ask(&execute{}, KindQuery, 1), ask(&execute{Portal: "p"}, KindCommit, 2), other(&syncing{}),
			tell(&bound{}, none), tell(&bound{}, none), tell(&complete{}, reply{1, false}),
			tell(&complete{}, reply{2, true}), tell(idle, reply{2, false}),
			other(&closing{ObjectType: 'S', Name: "s"}), other(&bind{PreparedStatement: "s", DestinationPortal: "p"}),
			ask(&execute{Portal: "p"}, KindQuery, 3),
		},
		"flushed before its sync": {
			other(&parse{Query: "insert"}), other(&bind{}), ask(&execute{}, KindQuery, 1), other(&flush{}),
			tell(&parsed{}, none), tell(&bound{}, none), tell(&complete{}, reply{1, false}),
			other(&syncing{}), tell(idle, none),
		},
		"error before the execute, in one go": {
			other(&parse{Query: "commit"}), other(&bind{}), ask(&execute{}, KindCommit, 1), other(&syncing{}),
			ask(&query{String: "select"}, KindQuery, 2),
			tell(&refused{}, reply{1, true}), tell(idle, reply{1, false}),
			tell(&complete{}, reply{2, true}), tell(idle, reply{2, false}),
		},
		"error before its sync": {
			other(&parse{Query: "nonsense"}), tell(&refused{}, none),
			other(&bind{}),
			step{message: &execute{}, kind: KindQuery, tag: 0},
			other(&syncing{}),
			tell(idle, none),
			ask(&query{String: "select"}, KindQuery, 2), tell(&complete{}, reply{2, true}),
		},
		"error at the sync": { // a deferred constraint of a single statement
			other(&bind{}), ask(&execute{}, KindQuery, 1), other(&syncing{}),
			tell(&bound{}, none), tell(&complete{}, reply{1, true}), tell(&refused{}, reply{1, true}), tell(idle, reply{1, false}),
		},
		"copy": {
			ask(&query{String: "copy t from stdin"}, KindQuery, 1), tell(&pgproto3.CopyInResponse{}, reply{1, true}),
			other(&pgproto3.CopyData{Data: []byte("1\n")}), other(&pgproto3.CopyDone{}),
			tell(&complete{}, reply{1, true}), tell(idle, reply{1, false}),
		},
		"copy, extended": { // the server ignores the first sync
			other(&bind{}), ask(&execute{}, KindQuery, 1), other(&syncing{}),
			tell(&bound{}, none), tell(&pgproto3.CopyInResponse{}, reply{1, true}),
			other(&pgproto3.CopyData{}), other(&pgproto3.CopyDone{}), other(&syncing{}),
			tell(&complete{}, reply{1, true}), tell(idle, reply{1, false}),
			ask(&query{String: "select"}, KindQuery, 2), tell(&complete{}, reply{2, true}),
		},
		"ended by the server": {
			tell(&refused{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "57P01"}, none),
			ask(&query{String: "commit"}, KindCommit, 1),
		},
		"another notice": {
			tell(&pgproto3.NotificationResponse{Channel: "c"}, none),
			ask(&query{String: "commit"}, KindCommit, 1), tell(&pgproto3.NotificationResponse{}, none), tell(&complete{}, reply{1, true}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWire()
			w.start(t, "orders")
			for i, s := range steps {
				if s.kind == "" {
					// More only means something for a frame that belongs to a request.
					if got := w.response(t, s.message).ended(); got != s.want.ended() {
						t.Errorf("step %d, %T: %+v, want %+v", i, s.message, got, s.want)
					}
					continue
				}
				r := w.request(t, s.message)
				if r.Kind != s.kind || r.NoReply != (s.tag == 0) || s.tag != 0 && r.Tag != s.tag || r.Client != "orders" {
					t.Errorf("step %d, %T: %+v, want kind %q and tag %d", i, s.message, r, s.kind, s.tag)
				}
			}
		})
	}
}

func (r reply) ended() reply {
	if r.Tag == 0 {
		r.More = false
	}
	return r
}

func TestJudgeCommit(t *testing.T) {
	w := newWire()
	w.start(t, "")
	r := w.request(t, &query{String: "commit"})
	if r.Messages != 1 || r.State == nil {
		t.Fatalf("commit: %+v", r)
	}
	if r := w.request(t, &query{String: "insert"}); r.State != nil {
		t.Errorf("insert is judged: %+v", r)
	}
	for _, tc := range []struct {
		m    message
		want [2]int64
	}{
		{&complete{CommandTag: []byte("COMMIT")}, [2]int64{1, 0}},
		{&complete{CommandTag: []byte("ROLLBACK")}, [2]int64{0, 1}},
		{&complete{CommandTag: []byte("SELECT 1")}, [2]int64{}},
		{&refused{Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "40001"}, [2]int64{0, 1}},
		{&refused{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "57P01"}, [2]int64{}},
		{&ready{TxStatus: 'I'}, [2]int64{}},
	} {
		var got [2]int64
		got[0], got[1] = w.session.Judge(&r, encode(t, tc.m))
		if got != tc.want {
			t.Errorf("%T: %v, want %v", tc.m, got, tc.want)
		}
	}
}

func TestKindOf(t *testing.T) {
	for sql, want := range map[string]string{
		"commit": KindCommit, "COMMIT;": KindCommit, " \n\tCommit Work": KindCommit, "end": KindCommit, "commit and chain": KindCommit,
		"COMMIT PREPARED 'x'": KindCommit, ";; commit": KindCommit, "-- x\ncommit": KindCommit, "/* a /* b */ c */commit": KindCommit,
		"begin": KindBegin, "start transaction": KindBegin, "BEGIN; insert": KindBegin,
		"rollback": KindRollback, "abort": KindRollback, "rollback work": KindRollback, "ROLLBACK TRANSACTION;": KindRollback,
		"rollback to a": KindQuery, "rollback work to savepoint a": KindQuery, "Rollback /* */ Transaction To a": KindQuery,
		"select 'commit'": KindQuery, "committed": KindQuery, "commit_it()": KindCommit, // the last is no SQL at all
		"insert into t values (1)": KindQuery, "": KindQuery, "-- commit": KindQuery, "/* commit": KindQuery, "(select 1)": KindQuery,
		"-": KindQuery, "/": KindQuery, "é": KindQuery, ";": KindQuery,
	} {
		if got, _ := kindOf([]byte(sql + "\x00")); got != want {
			t.Errorf("kindOf(%q) = %q, want %q", sql, got, want)
		}
	}
}

func TestStartup(t *testing.T) {
	t.Run("encryption refused", func(t *testing.T) {
		w := newWire()
		for _, m := range []message{&pgproto3.SSLRequest{}, &pgproto3.GSSEncRequest{}} {
			if r := w.request(t, m); !r.NoReply {
				t.Errorf("%T: %+v", m, r)
			}
			if n, err := w.session.Len(netproxy.ToClient, []byte("N")); n != 1 || err != nil {
				t.Errorf("%T refused: length %d, %v", m, n, err)
			}
			if tag, ok := w.session.Tag([]byte("N")); tag != 0 || !ok {
				t.Errorf("%T refused: tag %d, %t", m, tag, ok)
			}
		}
		w.start(t, "orders")
	})
	t.Run("encryption", func(t *testing.T) {
		w := newWire()
		w.request(t, &pgproto3.SSLRequest{})
		if _, err := w.session.Len(netproxy.ToClient, []byte("S")); err == nil {
			t.Error("TLS is let pass")
		}
	})
	t.Run("cancel", func(t *testing.T) {
		w := newWire()
		if r := w.request(t, &pgproto3.CancelRequest{ProcessID: 1, SecretKey: []byte{1, 2, 3, 4}}); !r.NoReply || r.Kind != kindOther {
			t.Errorf("%+v", r)
		}
	})
	for name, first := range map[string]string{
		"TLS at once": "\x16\x03\x01\x02\x00\x01\x00\x01", "HTTP": "GET / HTTP/1.1\r\n", "version 2": "\x00\x00\x00\x08\x00\x02\x00\x00", "too long": "\x00\x10\x00\x00\x00\x03\x00\x00",
	} {
		if _, err := newWire().session.Len(netproxy.ToNode, []byte(first)); err == nil {
			t.Errorf("%s is let pass", name)
		}
	}
	if err := (framer{}).CheckAnswer(KindCommit, "40001"); !errors.Is(err, system.ErrUsage) {
		t.Errorf("answers: %v", err)
	}
}

// TestRowsTogether: rows that are there at once are one frame, and never more than what is there.
func TestRowsTogether(t *testing.T) {
	w := newWire()
	w.start(t, "")
	one := encode(t, &row{Values: [][]byte{[]byte("value")}})
	b := append(bytes.Repeat(one, 3), encode(t, &complete{})...)
	for have, want := range map[int]int{len(b): 3 * len(one), 2*len(one) + 3: 2 * len(one), len(one): len(one), len(one) - 1: len(one), 3: 0} {
		if n, err := w.session.Len(netproxy.ToClient, b[:have]); n != want || err != nil {
			t.Errorf("length with %d bytes there: %d, %v, want %d", have, n, err, want)
		}
	}
}

// TestLink drives a link with a client and a server of pgproto3: a reply of many frames is swallowed as a whole.
func TestLink(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	link, err := netproxy.Open(netproxy.Config{Name: "test", Framer: framer{}, Upstream: func() string { return server.Addr().String() }})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()

	for _, tc := range []struct {
		action  netproxy.Action
		kind    string
		reached bool // the server
	}{{netproxy.DropResponse, KindCommit, true}, {netproxy.DropResponse, KindQuery, true}, {netproxy.ResetRequest, KindCommit, false}, {netproxy.ResetRequest, KindQuery, false}} {
		armed, err := link.Arm(netproxy.Rule{Kind: tc.kind, Client: "orders", Action: tc.action})
		if err != nil {
			t.Fatal(err)
		}
		reached := make(chan bool, 1)
		go func() { reached <- serveOnce(server) }()

		conn, err := net.Dial("tcp", link.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		client := pgproto3.NewFrontend(conn, conn)
		client.Send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"application_name": "orders-1"}})
		if err := client.Flush(); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := client.Receive()
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := m.(*ready); ok {
				break
			}
		}
		client.Send(&query{String: map[string]string{KindCommit: "commit", KindQuery: "select"}[tc.kind]})
		if err := client.Flush(); err != nil {
			t.Fatal(err)
		}
		if m, err := client.Receive(); err == nil {
			t.Errorf("%+v: the client got %T", tc, m)
		}
		if got := <-reached; got != tc.reached {
			t.Errorf("%+v: the server was reached: %t", tc, got)
		}
		if h := armed.Hits(); h.Done != 1 {
			t.Errorf("%+v: %+v", tc, h)
		}
		armed.Heal()
		_ = conn.Close()
	}
	want := netproxy.Counts{Requests: 1, RequestBytes: 12, Sent: 1, Dropped: 2, DroppedMessages: 2}
	got := link.Counts("orders", KindCommit)
	got.DroppedBytes = 0
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("counts of commits (-want +got):\n%s", d)
	}
}

// serveOnce answers one query of one connection with rows, and says whether it came.
func serveOnce(l net.Listener) bool {
	conn, err := l.Accept()
	if err != nil {
		return false
	}
	defer conn.Close()
	b := pgproto3.NewBackend(conn, conn)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return false
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&ready{TxStatus: 'T'})
	if err := b.Flush(); err != nil {
		return false
	}
	m, err := b.Receive()
	if err != nil {
		return false
	}
	tag := "SELECT 1000"
	if q, ok := m.(*query); ok && strings.HasPrefix(q.String, "commit") {
		tag = "COMMIT"
	} else {
		for range 1000 {
			b.Send(&row{Values: [][]byte{bytes.Repeat([]byte("x"), 300)}})
		}
	}
	b.Send(&complete{CommandTag: []byte(tag)})
	b.Send(&ready{TxStatus: 'I'})
	if err := b.Flush(); err != nil {
		return false
	}
	_, _ = b.Receive() // until the link resets
	return true
}

// FuzzSession: whatever a client or a server sends, a session neither panics nor claims a frame that cannot be.
func FuzzSession(f *testing.F) {
	startup, _ := (&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"application_name": "a"}}).Encode(nil)
	add := func(ms ...message) []byte {
		var b []byte
		for _, m := range ms {
			e, err := m.Encode(nil)
			if err != nil {
				f.Fatal(err)
			}
			b = append(b, e...)
		}
		return b
	}
	f.Add(append(bytes.Clone(startup), add(&query{String: "commit"})...), add(&pgproto3.AuthenticationOk{}, &ready{TxStatus: 'I'}, &complete{CommandTag: []byte("COMMIT")}, &ready{TxStatus: 'I'}), uint8(3))
	f.Add(append(bytes.Clone(startup), add(&parse{Query: "commit"}, &bind{}, &describe{ObjectType: 'P'}, &execute{}, &syncing{})...), add(&ready{TxStatus: 'I'}, &parsed{}, &refused{SeverityUnlocalized: "ERROR"}, &ready{TxStatus: 'I'}), uint8(200))
	f.Add(add(&pgproto3.SSLRequest{}), []byte("N"), uint8(1))
	f.Fuzz(func(t *testing.T, in, out []byte, turn uint8) {
		s := framer{}.Open()
		open := map[uint64]bool{}
		for range 2 * (len(in) + len(out)) {
			turn = turn*5 + 1
			if turn&0x40 != 0 && len(in) > 0 {
				n, err := s.Len(netproxy.ToNode, in)
				if err != nil || n == 0 || n > len(in) {
					in = nil
					continue
				}
				if n < 0 {
					t.Fatalf("length %d", n)
				}
				r, more := s.Request(in[:min(5, n)], n)
				if more {
					if r, more = s.Request(in[:n], n); more {
						t.Fatal("more of a whole request")
					}
				}
				if !r.NoReply {
					if open[r.Tag] || r.Tag == 0 {
						t.Fatalf("tag %d twice or zero", r.Tag)
					}
					open[r.Tag] = true
				}
				in = in[n:]
			} else if len(out) > 0 {
				n, err := s.Len(netproxy.ToClient, out)
				if err != nil || n == 0 || n > len(out) {
					out = nil
					continue
				}
				tag, ok := s.Tag(out[:n])
				if !ok || tag != 0 && !open[tag] {
					t.Fatalf("reply to %d, which is not open", tag)
				}
				if tag != 0 && !s.(netproxy.Continuer).More() {
					delete(open, tag)
				}
				confirmed, refused := s.Judge(&netproxy.Request{Kind: KindCommit, State: outcome{}}, out[:n])
				if confirmed < 0 || refused < 0 || confirmed+refused > 1 {
					t.Fatalf("judged %d, %d", confirmed, refused)
				}
				out = out[n:]
			}
		}
	})
}
