package netproxy

// Way is the direction of a frame.
type Way uint8

// The ways.
const (
	ToNode   Way = iota // requests
	ToClient            // responses
)

// Framer knows the frames of one protocol.
type Framer interface {
	// Open starts the state of one connection.
	Open() Session
	// CheckAnswer returns an error if a request of this kind cannot be answered with code.
	CheckAnswer(kind, code string) error
}

// Session is the framer's state of one connection. Methods for requests are called from one goroutine and those for
// responses from another, possibly at the same time.
type Session interface {
	// Len returns the length in bytes of the frame that begins with head, prefix included; 0 if more of it is
	// needed to tell. An error says that this is not the protocol: the connection is reset.
	Len(way Way, head []byte) (int, error)
	// Request describes the request that begins with frame. If frame is shorter than length and that is not
	// enough, more is true and Request is called again with all of it. It must not keep frame.
	Request(frame []byte, length int) (r Request, more bool)
	// Tag returns what pairs the response that begins with frame with its request; false if more of it is needed.
	Tag(frame []byte) (uint64, bool)
	// Judge says how many messages a whole response confirms and refuses. Called if r.State is not nil, for a response
	// of several frames with each of them.
	Judge(r *Request, response []byte) (confirmed, refused int64)
	// Answer makes the whole frame of a response to a whole request that refuses it with code.
	Answer(r *Request, request []byte, code string) ([]byte, error)
}

// Continuer is implemented by a Session whose protocol has responses of several frames. They are dropped or held as one.
type Continuer interface {
	// More says whether other frames follow of the response whose frame was last given to Tag.
	More() bool
}

// Announcer is implemented by a Session whose node speaks of its own accord: it hands out messages, or confirms many requests
// at once. Rules of DropResponse and HoldResponse pick announcements by their kind as they pick requests.
type Announcer interface {
	// Announce describes a whole frame of the node that answers no single request, and says how many messages it confirms
	// and refuses. ok is false for any other frame. It must not keep frame.
	Announce(frame []byte) (r Request, confirmed, refused int64, ok bool)
}

// Request is what a framer tells of one request.
type Request struct {
	Kind     string // the framer's name for it, e.g. "produce"
	Client   string // client id
	Tag      uint64 // pairs it with its response on this connection
	NoReply  bool   // there will be no response
	Messages int64  // messages in it
	State    any    // the framer's own; if not nil, Judge is called with the response

	announced bool // it came from the node
}
