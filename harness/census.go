package harness

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"conform/harness/ledger"
	"conform/harness/system"
)

// census knows which process the plan has left on each node, so that one that ended by something else
// is found: what follows from its end says nothing about a promise made for the plan's faults.
type census struct {
	mu    sync.Mutex
	nodes []resident
}

// resident is the process of one node.
type resident struct {
	cluster system.Incarnated
	node    system.Node
	life    string // its incarnation, as the plan left it
	plan    int    // how many steps of the plan may be ending or starting it just now
	unknown error  // why life is not known
}

// takeCensus asks every node of the clusters that can tell.
func takeCensus(ctx context.Context, clusters []system.Cluster) *census {
	c := &census{}
	for _, cluster := range clusters {
		if told, ok := cluster.(system.Incarnated); ok {
			for _, node := range cluster.Nodes() {
				c.nodes = append(c.nodes, resident{cluster: told, node: node})
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.nodes {
		c.nodes[i].meet(ctx)
	}
	return c
}

func (r *resident) meet(ctx context.Context) {
	r.life, r.unknown = r.ask(ctx)
}

func (r *resident) ask(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askCap)
	defer cancel()
	return r.cluster.Incarnation(ctx, r.node)
}

// check returns what has happened to the nodes that the plan does nothing to, each once.
func (c *census) check(ctx context.Context) []ledger.Event {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []ledger.Event
	for i := range c.nodes {
		r := &c.nodes[i]
		if r.plan > 0 {
			continue
		}
		life, err := r.ask(ctx)
		if err == nil {
			err = r.unknown
		}
		e := ledger.Event{Kind: ledger.NodeDied, Text: r.node.Name()}
		switch {
		case err != nil:
			e.Detail = "what process it runs could not be asked: " + err.Error()
		case life != r.life:
			e.Outcome, e.Detail = ledger.Failed, fmt.Sprintf("%s, now %s", r.life, life)
			r.life = life
		default:
			continue
		}
		found = append(found, e)
	}
	return found
}

// touch says that the plan is about to end or start the processes of nodes, or with none of all, until
// the returned function was called: what runs on them then is what the plan has left.
func (c *census) touch(nodes []system.Node) (done func(context.Context)) {
	if c == nil {
		return func(context.Context) {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var mine []int
	for i := range c.nodes {
		if nodes == nil || hasNode(nodes, c.nodes[i].node) {
			c.nodes[i].plan++
			mine = append(mine, i)
		}
	}
	var once sync.Once
	return func(ctx context.Context) {
		once.Do(func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, i := range mine {
				c.nodes[i].plan--
				c.nodes[i].meet(ctx)
			}
		})
	}
}

func hasNode(nodes []system.Node, n system.Node) bool {
	for _, m := range nodes {
		if m.Name() == n.Name() {
			return true
		}
	}
	return false
}

// muster records in every arm which nodes died outside the plan. The plan of a wave that has lost one ends.
func (w *wave) muster(ctx context.Context) error {
	var errs []error
	for _, e := range w.census.check(ctx) {
		errs = append(errs, w.recordAll(w.arms, e))
		if e.Outcome != ledger.Failed {
			continue
		}
		died := fmt.Sprintf("a node died outside the plan: %s (%s)", e.Text, e.Detail)
		w.mu.Lock()
		w.lost = died
		w.mu.Unlock()
		for _, a := range w.arms {
			a.note(died)
		}
	}
	return errors.Join(errs...)
}

// bereft says which node died outside the plan, or nothing.
func (w *wave) bereft() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}
