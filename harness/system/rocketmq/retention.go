package rocketmq

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// expireWithin bounds how long a broker takes to delete what is old: it begins a minute after its start, and looks every 10 s.
const expireWithin = 90 * time.Second

// Expire lets every broker delete what it would by retention, all but the file of the commit log that is written to, and waits
// until each destination has lost its first messages. Whatever else the brokers hold loses its old files, too. Retention is then
// what it was.
func (c *Cluster) Expire(ctx context.Context, destinations []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, expireWithin)
	defer cancel()
	keep := func(ctx context.Context, hours string) error {
		for _, n := range c.nodes {
			if _, _, err := ask(ctx, n.direct(), codeSetBrokerConfig, nil, properties(map[string]string{"fileReservedTime": hours})); err != nil {
				return fmt.Errorf("set retention of %s: %w", n.name, err)
			}
		}
		return nil
	}
	const hours = "72" // the default
	defer func() { _ = keep(context.WithoutCancel(ctx), hours) }()
	if err := keep(ctx, "0"); err != nil {
		return "", err
	}
	for _, n := range c.nodes {
		if _, _, err := ask(ctx, n.direct(), codeDeleteExpired, nil, nil); err != nil {
			return "", fmt.Errorf("delete what is old of %s: %w", n.name, err)
		}
	}
	var starts []string
	err := c.await(ctx, "the first messages are gone", func(ctx context.Context) error {
		starts = starts[:0]
		for _, d := range destinations {
			positions, err := c.StartPositions(ctx, d)
			if err != nil {
				return err
			}
			for q, p := range positions {
				if p == 0 {
					return fmt.Errorf("queue %d of %s begins with its first message", q, d)
				}
				starts = append(starts, fmt.Sprintf("queue %d of %s begins at %d", q, d, p))
			}
		}
		return nil
	})
	return strings.Join(starts, ", "), err
}
