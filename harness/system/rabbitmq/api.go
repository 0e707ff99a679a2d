package rabbitmq

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"conform/harness/system"
)

const (
	// askTimeout bounds one request to one node, so that a cut-off or frozen node costs little. A node that cannot reach a
	// member of a queue waits 2 s for it before it answers without it.
	askTimeout = 4 * time.Second
	// changeTimeout bounds what changes something.
	changeTimeout = 15 * time.Second
	pollEvery     = 100 * time.Millisecond
	vhost         = "%2f"
)

// errNotFound says that a node knows no such thing.
var errNotFound = errors.New("not found")

func newHTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{Timeout: askTimeout}).DialContext,
		// A connection of a node that was killed would only be found dead by using it.
		DisableKeepAlives: true,
	}}
}

// api asks one node's management interface (https://www.rabbitmq.com/docs/http-api-reference). in and out may be nil.
// A 404 is errNotFound.
func api(ctx context.Context, client *http.Client, addr, user, password, verb, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, verb, "http://"+addr+"/api/"+path, body)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	req.SetBasicAuth(user, password)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return errNotFound
	case resp.StatusCode >= http.StatusMultipleChoices:
		return fmt.Errorf("%s %s: %s: %s", verb, path, resp.Status, strings.TrimSpace(string(b)))
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("decode answer to %s: %w", path, err)
	}
	return nil
}

// ask asks the node. Errors name it.
func (n *Node) ask(ctx context.Context, path string, out any) error {
	return n.call(ctx, http.MethodGet, path, nil, out)
}

func (n *Node) call(ctx context.Context, verb, path string, in, out any) error {
	if err := api(ctx, n.cluster.http, n.management(), userName, n.cluster.password, verb, path, in, out); err != nil {
		return fmt.Errorf("ask %s: %w", n.name, err)
	}
	return nil
}

// anyNode asks the nodes one after the other until one answers. errNotFound is an answer.
func (c *Cluster) anyNode(ctx context.Context, do func(*Node) error) error {
	var errs []error
	for _, n := range c.nodes {
		err := do(n)
		if err == nil || errors.Is(err, errNotFound) {
			return err
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

func queuePath(name string) string {
	return "queues/" + vhost + "/" + url.PathEscape(name) + "?disable_stats=true&enable_queue_totals=true"
}

// queueInfo is what a node tells of a queue.
type queueInfo struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Node     string `json:"node"`
	State    string `json:"state"`
	Messages int64  `json:"messages"`
	Ready    int64  `json:"messages_ready"`
	Unacked  int64  `json:"messages_unacknowledged"`
	// Of a quorum queue, by its record in the metadata: who became its leader last, and which members' nodes run.
	Leader  string   `json:"leader"`
	Members []string `json:"members"`
	Online  []string `json:"online"`
}

// member is what a node tells of one member of a quorum queue. The numbers are "" where the member could not be asked.
type member struct {
	Node    string          `json:"Node Name"`
	State   string          `json:"Raft State"`
	Written json.RawMessage `json:"Last Written"`
	Commit  json.RawMessage `json:"Commit Index"`
	Term    json.RawMessage `json:"Term"`
}

// index reads a number of a member, -1 if there is none.
func index(raw json.RawMessage) int64 {
	var n int64
	if err := json.Unmarshal(raw, &n); err != nil {
		return -1
	}
	return n
}

func (n *Node) members(ctx context.Context, queue string) (ms []member, err error) {
	return ms, n.ask(ctx, "queues/quorum/"+vhost+"/"+url.PathEscape(queue)+"/status", &ms)
}

// await repeats check until it returns nil or ctx ends; the error then says what was missing last.
func (c *Cluster) await(ctx context.Context, what string, check func(context.Context) error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil { // afterwards it only says that it was cut short
			last = err
		}
		if errors.Is(err, system.ErrUsage) || errors.Is(err, errEnded) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w (last: %w)", what, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}
