package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/mod/semver"

	"conform/harness/system"
)

var _ system.LeaderFinder = (*Cluster)(nil)

// Controller is not applicable: the leader of the metadata store is told by no interface, and leads nothing but metadata.
func (c *Cluster) Controller(context.Context) (system.Node, error) {
	return nil, fmt.Errorf("find active controller: nodes of RabbitMQ have none: %w", system.ErrNotApplicable)
}

// Leadership returns who leads a queue. Of a quorum queue its members tell, and the leader of the highest term is it, once a
// majority of the nodes has answered or nobody else will: one that is cut off still believes in its own term. A member is in
// sync if it has written everything that the leader had committed when it was asked first. The only replica of a classic
// queue is on its node. A queue that no longer exists is Gone.
func (c *Cluster) Leadership(ctx context.Context, destination string, _ int32) (system.Leadership, error) {
	l, err := c.leadership(ctx, destination)
	if err != nil {
		return system.Leadership{}, fmt.Errorf("find leader of %s: %w", destination, err)
	}
	return l, nil
}

func (c *Cluster) leadership(ctx context.Context, queue string) (system.Leadership, error) {
	views, err := c.poll(ctx, queue)
	switch {
	case errors.Is(err, errNotFound):
		return system.Leadership{Gone: true}, nil
	case err != nil:
		return system.Leadership{}, err
	}
	first := newest(views)
	if first.kind != Quorum {
		return first.Leadership, nil
	}
	if len(first.InSync) == len(first.Replicas) || first.Leader == nil || first.written == nil {
		return first.Leadership, nil
	}
	// The members were asked one after the other while messages went on: ask again who has what was committed then.
	again, err := c.poll(ctx, queue)
	if err != nil {
		return first.Leadership, nil //nolint:nilerr // the first answer is still true
	}
	second := newest(again)
	if second.Epoch != first.Epoch || second.Leader != first.Leader {
		return first.Leadership, nil
	}
	for _, r := range first.Replicas {
		if second.written[r] >= first.commit && second.term[r] == int64(first.Epoch) && !slices.Contains(first.InSync, r) {
			first.InSync = append(first.InSync, r)
		}
	}
	return first.Leadership, nil
}

// view is the state of a queue as one node has it.
type view struct {
	system.Leadership
	kind          string
	commit        int64
	written, term map[system.Node]int64 // nil = the members were not asked
}

// newest returns the view with the leader of the highest term, or any.
func newest(views []view) view {
	best := views[0]
	for _, v := range views[1:] {
		if best.Leader == nil && v.Leader != nil || v.Leader != nil && v.Epoch > best.Epoch {
			best = v
		}
	}
	return best
}

// poll asks all nodes at once and returns once a majority names the same leader, or all have answered. errNotFound is the
// answer of a majority.
func (c *Cluster) poll(ctx context.Context, queue string) ([]view, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		view view
		err  error
	}
	answers := make(chan answer, len(c.nodes))
	for _, n := range c.nodes {
		c.wg.Go(func() {
			v, err := n.look(ctx, queue)
			answers <- answer{v, err}
		})
	}
	var (
		views   []view
		errs    []error
		missing int
	)
	type vote struct {
		leader system.Node
		epoch  int32
	}
	votes := map[vote]int{}
	for range c.nodes {
		a := <-answers
		switch {
		case errors.Is(a.err, errNotFound):
			if missing++; missing > len(c.nodes)/2 {
				return nil, errNotFound
			}
		case a.err != nil:
			errs = append(errs, a.err)
		default:
			views = append(views, a.view)
			v := vote{a.view.Leader, a.view.Epoch}
			if votes[v]++; votes[v] > len(c.nodes)/2 && v.leader != nil {
				return []view{a.view}, nil
			}
		}
	}
	if len(views) == 0 {
		return nil, errors.Join(append(errs, fmt.Errorf("%d nodes know no such queue", missing))...)
	}
	return views, nil
}

// look asks one node.
func (n *Node) look(ctx context.Context, queue string) (view, error) {
	c := n.cluster
	kind := c.kind(queue)
	if kind != Quorum {
		var q queueInfo
		if err := n.ask(ctx, queuePath(queue), &q); err != nil {
			return view{}, err
		}
		if q.Type != Quorum {
			v := view{kind: q.Type}
			if home := c.node(q.Node); home != nil {
				v.Replicas = []system.Node{home}
				if q.State == "running" || q.State == "" {
					v.Leader, v.InSync = home, v.Replicas
				}
			}
			return v, nil
		}
	}
	if semver.Compare("v"+c.version, "v4.3") < 0 {
		// Before 4.3 the members are not told as long as one of them is down: the answer is 500, or comes too late.
		var q queueInfo
		if err := n.ask(ctx, queuePath(queue), &q); err != nil || len(q.Online) < len(q.Members) {
			return c.record(q), err
		}
	}
	members, err := n.members(ctx, queue)
	if err != nil {
		return view{}, err
	}
	return c.read(members), nil
}

// record makes a view of a quorum queue's record in the metadata. Of the members only the leader is known to be in sync, and a
// leader that does not run, or has no majority, is none.
func (c *Cluster) record(q queueInfo) view {
	v := view{kind: Quorum, commit: -1}
	for _, name := range q.Members {
		if n := c.node(name); n != nil {
			v.Replicas = append(v.Replicas, n)
		}
	}
	if leader := c.node(q.Leader); leader != nil && q.State == "running" && slices.Contains(q.Online, q.Leader) && 2*len(q.Online) > len(q.Members) {
		v.Leader, v.InSync = leader, []system.Node{leader}
	}
	return v
}

// kind is the type of a queue as it was made; "" for one that we did not make.
func (c *Cluster) kind(queue string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.made {
		switch queue {
		case d.name:
			return d.kind
		case d.target():
			return d.deadLetter
		}
		if slices.Contains(d.groupQueues(), queue) {
			return d.kind
		}
	}
	return ""
}

// read makes a view of what members say.
func (c *Cluster) read(members []member) view {
	v := view{kind: Quorum, commit: -1, written: map[system.Node]int64{}, term: map[system.Node]int64{}}
	for _, m := range members {
		n := c.node(m.Node)
		if n == nil {
			continue
		}
		v.Replicas = append(v.Replicas, n)
		v.written[n], v.term[n] = index(m.Written), index(m.Term)
		if m.State == "leader" && index(m.Term) > int64(v.Epoch) {
			v.Leader, v.Epoch, v.commit = n, int32(index(m.Term)), index(m.Commit)
		}
	}
	if v.Leader == nil {
		return v
	}
	for _, r := range v.Replicas {
		if v.term[r] == int64(v.Epoch) && v.written[r] >= v.commit {
			v.InSync = append(v.InSync, r)
		}
	}
	return v
}
