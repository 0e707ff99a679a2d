package rocketmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"conform/harness/system"
)

var _ system.LeaderFinder = (*Cluster)(nil)

// maxGap is how many bytes a replica may be behind its master and still be told as in sync: about what a load writes while
// an answer is under way.
const maxGap = 256 << 10

// masterID is the broker id by which clients find a group's master.
const masterID = "0"

// route returns the addresses that the name server tells for a topic, by broker id; answerTopicNotExist if there are none.
func (c *Cluster) route(ctx context.Context, topic string) (map[string]string, error) {
	return route(ctx, c.pod.HostPort(portNamesrv), topic)
}

func route(ctx context.Context, namesrv, topic string) (map[string]string, error) {
	_, body, err := ask(ctx, namesrv, codeRoute, map[string]string{"topic": topic, "acceptStandardJsonOnly": "true"}, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the name server for the route of %s: %w", topic, err)
	}
	var route struct {
		Brokers []struct {
			Name      string            `json:"brokerName"`
			Addresses map[string]string `json:"brokerAddrs"`
		} `json:"brokerDatas"`
	}
	if err := json.Unmarshal(body, &route); err != nil {
		return nil, fmt.Errorf("read the route of %s: %w", topic, err)
	}
	for _, b := range route.Brokers {
		if b.Name == groupName {
			return b.Addresses, nil
		}
	}
	return nil, &answerError{Code: answerTopicNotExist, Remark: "no broker has it"}
}

// Controller is not told: the controller is in the name server, which is none of the nodes.
func (c *Cluster) Controller(context.Context) (system.Node, error) {
	return nil, fmt.Errorf("the controller is none of the brokers: %w", system.ErrNotApplicable)
}

// Leadership tells who is master of the group that has the topic, as the name server tells clients and, with a controller, as
// that has it; and who is in sync: with a controller its set, else the replica as the master sees it, with less than 256 KiB
// to go. Without a master nobody is.
func (c *Cluster) Leadership(ctx context.Context, destination string, _ int32) (system.Leadership, error) {
	l, err := c.group(ctx, c.topic(destination))
	if err != nil {
		return system.Leadership{}, fmt.Errorf("find master of %s: %w", destination, err)
	}
	return l, nil
}

func (c *Cluster) group(ctx context.Context, topic string) (system.Leadership, error) {
	l := system.Leadership{Replicas: c.Nodes()}
	route, err := c.route(ctx, topic)
	if answered(err, answerTopicNotExist) {
		// The name server forgets the topics of a group of which no broker is there.
		c.mu.Lock()
		_, made := c.made[topic]
		c.mu.Unlock()
		l.Gone = !made && topic != clusterName
		return l, nil
	}
	if err != nil {
		return l, err
	}
	leader := c.at(route[masterID])
	if c.config.layout == Controller {
		return c.controlled(ctx, l, leader)
	}
	if leader == nil {
		return l, nil
	}
	if s, err := leader.process().Running(ctx); err != nil || s.Paused {
		return l, nil //nolint:nilerr // the name server has not noticed yet: nobody leads
	}
	l.Leader, l.InSync = leader, []system.Node{leader}
	if c.config.layout == Single {
		return l, nil
	}
	synced, err := leader.replicaInSync(ctx)
	if err != nil {
		return l, err
	}
	if synced {
		l.InSync = c.Nodes()
	}
	return l, nil
}

// replicaInSync asks a master how far behind its replica is.
func (n *Node) replicaInSync(ctx context.Context) (bool, error) {
	_, body, err := ask(ctx, n.direct(), codeHAStatus, nil, nil)
	if err != nil {
		return false, fmt.Errorf("ask %s for its replica: %w", n.name, err)
	}
	var status struct {
		Replicas []struct {
			Diff   int64 `json:"diff"`
			InSync bool  `json:"inSync"`
		} `json:"haConnectionInfo"`
	}
	if err := json.Unmarshal(body, &status); err != nil {
		return false, fmt.Errorf("read what %s says of its replica: %w", n.name, err)
	}
	for _, r := range status.Replicas {
		if r.InSync && r.Diff <= maxGap {
			return true, nil
		}
	}
	return false, nil
}

// replica is a broker as the controller knows it.
type replica struct {
	Address string `json:"brokerAddress"`
}

// replicas are what the controller knows of the group.
type replicas struct {
	MasterAddress string    `json:"masterAddress"`
	MasterEpoch   int32     `json:"masterEpoch"`
	InSync        []replica `json:"inSyncReplicas"`
}

func (c *Cluster) replicas(ctx context.Context) (replicas, error) {
	names, err := json.Marshal([]string{groupName})
	if err != nil {
		return replicas{}, err
	}
	_, body, err := ask(ctx, c.pod.HostPort(portController), codeSyncState, nil, names)
	if err != nil {
		return replicas{}, fmt.Errorf("ask the controller: %w", err)
	}
	var info struct {
		Groups map[string]replicas `json:"replicasInfoTable"`
	}
	if err := json.Unmarshal(body, &info); err != nil {
		return replicas{}, fmt.Errorf("read what the controller knows: %w", err)
	}
	r, ok := info.Groups[groupName]
	if !ok {
		return replicas{}, errors.New("the controller knows no brokers")
	}
	return r, nil
}

// controlled completes l by what the controller knows. told is the master that the name server tells.
func (c *Cluster) controlled(ctx context.Context, l system.Leadership, told *Node) (system.Leadership, error) {
	r, err := c.replicas(ctx)
	if err != nil {
		return l, err
	}
	l.Epoch = r.MasterEpoch
	if n := c.at(r.MasterAddress); n != nil && n == told { // clients can find it
		l.Leader = n
	}
	for _, n := range c.nodes {
		if slices.ContainsFunc(r.InSync, func(r replica) bool { return c.at(r.Address) == n }) {
			l.InSync = append(l.InSync, n)
		}
	}
	return l, nil
}
