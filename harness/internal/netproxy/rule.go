package netproxy

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Action is what a rule does to the requests it picks. None of them applies to a request without a reply, except
// DropRequest, ResetRequest and HoldRequest; to what the node announces only DropResponse and HoldResponse apply.
type Action uint8

// The actions.
const (
	// DropResponse lets the request pass, swallows its response once it has come whole, and resets the connection.
	DropResponse Action = iota + 1
	// DropRequest swallows the request. Nobody is told.
	DropRequest
	// HoldRequest keeps the request, and all that follow on the connection, back until the rule is healed.
	HoldRequest
	// HoldResponse keeps the response, and all that follow on the connection, back until the rule is healed.
	HoldResponse
	// Answer does not forward the request but answers it with the framer's refusal Code, in its turn: after the
	// responses to earlier requests of the connection, because clients read them in order.
	Answer
	// ResetRequest swallows the request and resets the connection.
	ResetRequest
)

// Rule picks requests by what they are and says what happens to them.
type Rule struct {
	Kind   string // the framer's name; empty = any
	Client string // client id prefix; empty = any
	Nth    int    // the first that is picked, counted from the arming (1 = the next); 0 = 1
	Count  int    // how many in a row; 0 = 1; < 0 = all from the Nth on
	Action Action
	Code   string // of Answer
	// Behind holds an answer back until so many later requests of the same kind and client have been forwarded on its
	// connection, or the rule is healed. Responses behind it wait too.
	Behind int
}

// Hits is the evidence of a rule.
type Hits struct {
	Seen     int64 // requests of the rule's kind and client since it was armed
	Picked   int64 // requests it picked
	Done     int64 // of these: dropped, answered, held, or their response seen whole and swallowed
	Messages int64 // messages in the picked requests; for DropResponse, confirmed by the swallowed responses
}

// Armed is a rule in place.
type Armed struct {
	link *Link
	rule Rule

	released chan struct{}
	once     sync.Once

	hits Hits // guarded by link.mu
}

// Arm puts a rule in place. The first armed rule that picks a request acts on it; all rules count it.
func (l *Link) Arm(r Rule) (*Armed, error) {
	if r.Action < DropResponse || r.Action > ResetRequest {
		return nil, fmt.Errorf("arm rule on link %s: no such action %d", l.name, r.Action)
	}
	if r.Action == Answer {
		if err := l.framer.CheckAnswer(r.Kind, r.Code); err != nil {
			return nil, fmt.Errorf("arm rule on link %s: %w", l.name, err)
		}
	}
	if r.Nth <= 0 {
		r.Nth = 1
	}
	if r.Count == 0 {
		r.Count = 1
	}
	a := &Armed{link: l, rule: r, released: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	l.rules = append(l.rules, a)
	return a, nil
}

// Hits returns the evidence so far. It stays valid after Heal.
func (a *Armed) Hits() Hits {
	a.link.mu.Lock()
	defer a.link.mu.Unlock()
	return a.hits
}

// Heal takes the rule away and lets go what it holds. A response that it was going to swallow passes. It may run twice.
func (a *Armed) Heal() {
	a.link.mu.Lock()
	defer a.link.mu.Unlock()
	a.link.rules = slices.DeleteFunc(a.link.rules, func(o *Armed) bool { return o == a })
	a.release()
}

func (a *Armed) release() { a.once.Do(func() { close(a.released) }) }

func (a *Armed) isReleased() bool {
	select {
	case <-a.released:
		return true
	default:
		return false
	}
}

// done records that the rule did what it says to one request.
func (a *Armed) done(messages int64) {
	a.link.mu.Lock()
	defer a.link.mu.Unlock()
	a.hits.Done++
	a.hits.Messages += messages
}

// picks says whether the request is of the rule's kind and client.
func (a *Armed) picks(r *Request) bool {
	return (a.rule.Kind == "" || a.rule.Kind == r.Kind) && strings.HasPrefix(r.Client, a.rule.Client)
}

// applies says whether the rule's action can be done to such a request.
func (a *Armed) applies(r *Request) bool {
	switch a.rule.Action {
	case DropRequest, ResetRequest, HoldRequest:
		return !r.announced
	case Answer:
		return !r.announced && !r.NoReply
	default:
		return !r.NoReply
	}
}

// pick counts the request at every rule and returns the one that acts on it, or nil.
func (l *Link) pick(r *Request) *Armed {
	l.mu.Lock()
	defer l.mu.Unlock()
	var acts *Armed
	for _, a := range l.rules {
		if !a.picks(r) {
			continue
		}
		if !a.applies(r) {
			continue
		}
		a.hits.Seen++
		nth := a.hits.Seen - int64(a.rule.Nth)
		if acts != nil || nth < 0 || a.rule.Count > 0 && nth >= int64(a.rule.Count) {
			continue
		}
		a.hits.Picked++
		acts = a
	}
	return acts
}
