package faults

import (
	"context"
	"fmt"
	"strings"

	"conform/harness/system"
)

func init() {
	register(system.Fault{
		Name:    "node-isolated",
		Summary: "packets between the node and its peers are dropped while clients still reach it",
		Params: map[string]string{
			"listeners": "comma-separated broker-to-broker listeners to cut (Kafka: replication, controller); default all",
			"direction": "in (connections its peers open to it), out (those it opens), both; default both",
			"share":     "of the packets that are dropped at random, in percent: less than all slows the link; default 100",
			"peers":     "name of the target whose nodes it is cut from; default all other nodes",
		},
		Proof:    "packets dropped by the rules, counted in the node's network namespace",
		Spares:   true,
		Supports: needs[system.Isolator]("isolate a node"),
		Inject: func(ctx context.Context, s system.Strike) (system.Injection, error) {
			c, err := capability[system.Isolator](s.Cluster)
			if err != nil {
				return nil, err
			}
			d, err := direction(s)
			if err != nil {
				return nil, err
			}
			share, err := count(s, "share", 100)
			if err == nil && (share < 1 || share > 100) {
				err = fmt.Errorf("fault node-isolated: share=%d, want 1 to 100 percent: %w", share, system.ErrUsage)
			}
			if err != nil {
				return nil, err
			}
			cut := system.Isolation{Direction: d, Share: share}
			if l := param(s, "listeners", ""); l != "" {
				cut.Listeners = strings.Split(l, ",")
			}
			if p := param(s, "peers", ""); p != "" {
				if cut.Peers = s.Nodes[p]; len(cut.Peers) == 0 {
					return nil, fmt.Errorf("fault node-isolated: target %q names no node: %w", p, system.ErrUsage)
				}
			}
			return onEachLasting(ctx, s.Targets, func(n system.Node) (system.Injection, error) {
				return c.Isolate(ctx, n, cut)
			})
		},
	})
}
