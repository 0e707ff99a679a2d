package rocketmq

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"conform/harness/system"
)

// lasting is how long all brokers must have a topic: the time in which a replica that was told of all topics just before takes
// them for its own.
const lasting = time.Second

// DestinationSettings documents the settings of a destination, and their defaults.
func DestinationSettings() map[string]string {
	return map[string]string{
		"perm":         "6 (read and write), 4 (read) or 2 (write); default 6",
		"message.type": "NORMAL, FIFO, DELAY or TRANSACTION, as the topic says it; default none. Brokers check it only if told to",
		"groups":       "groups of consumers, \"a b\", whose retry topics are made with it; on the cluster they are named NAME.GROUP",
		"dead.letters": "a group: the topic is the one for its dead letters. It is named as the destination that the group reads, a dot and any word",
	}
}

// topicName is a name as RocketMQ takes it: letters, digits, '_', '-', '%' and '|' (TopicValidator). Groups are named alike.
func topicName(name string) string { return strings.ReplaceAll(name, ".", "|") }

// plainName undoes topicName.
func plainName(name string) string { return strings.ReplaceAll(name, "|", ".") }

// topic is the topic of a destination.
func (c *Cluster) topic(destination string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if topic, ok := c.dead[destination]; ok {
		return topic
	}
	return topicName(destination)
}

// deadLetters is the topic for the dead letters of a group.
func deadLetters(destination, group string) string { return "%DLQ%" + topicName(destination+"."+group) }

// Create makes a topic on every broker and waits until each of them and the name server know it. A replica would copy it from
// its master, but only every ten seconds or so, and what it copies replaces all it has: a topic that the master did not have
// yet when it was asked is gone from the replica, for good if the versions of both tables are equal by chance. So the master
// gets it first, and all must have it for a while. A topic is led by the master of its group, whoever that is: d.Leader is not
// heeded.
func (c *Cluster) Create(ctx context.Context, d system.DestinationSpec) error {
	if err := c.create(ctx, d); err != nil {
		return fmt.Errorf("create topic %s: %w", d.Name, err)
	}
	return nil
}

func (c *Cluster) create(ctx context.Context, d system.DestinationSpec) error {
	s := newSettings(d.Settings, DestinationSettings())
	perm := s.choice("perm", "6", "6", "4", "2")
	kind := s.choice("message.type", "", "NORMAL", "FIFO", "DELAY", "TRANSACTION")
	if s.err != nil {
		return s.err
	}
	for group := range strings.FieldsSeq(d.Settings["groups"]) {
		if err := c.makeTopic(ctx, "%RETRY%"+topicName(d.Name+"."+group), 1, perm, ""); err != nil {
			return err
		}
	}
	if group := d.Settings["dead.letters"]; group != "" {
		of, _, ok := cutLast(d.Name, ".")
		if !ok {
			return fmt.Errorf("setting dead.letters: the name has no dot, and so tells no destination: %w", system.ErrUsage)
		}
		c.mu.Lock()
		c.dead[d.Name] = deadLetters(of, group)
		c.mu.Unlock()
	}
	return c.makeTopic(ctx, c.topic(d.Name), max(1, d.Partitions), perm, kind)
}

// cutLast cuts s around the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func (c *Cluster) makeTopic(ctx context.Context, name string, queues int, perm, kind string) error {
	if len(name) > 127 {
		return fmt.Errorf("the name has %d characters, RocketMQ takes 127: %w", len(name), system.ErrUsage)
	}
	fields := map[string]string{
		"topic": name, "defaultTopic": "TBW102", "readQueueNums": strconv.Itoa(queues), "writeQueueNums": strconv.Itoa(queues),
		"perm": perm, "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
	}
	if kind != "" {
		fields["attributes"] = "+message.type=" + kind
	}
	c.mu.Lock()
	c.made[name] = queues
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 2*changeTimeout)
	defer cancel()
	made := map[*Node]bool{}
	var since time.Time // when it was made last, on any of them
	err := c.await(ctx, "every broker has it", func(ctx context.Context) error {
		nodes, err := c.masterFirst(ctx)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			has, err := n.hasTopic(ctx, name, queues)
			if err == nil && (!has || !made[n]) {
				_, _, err = ask(ctx, n.direct(), codeCreateTopic, fields, nil)
				made[n], since = true, time.Now()
			}
			if err != nil {
				return fmt.Errorf("%s: %w", n.name, err)
			}
		}
		for _, n := range nodes {
			if has, err := n.hasTopic(ctx, name, queues); err != nil || !has {
				return cmp.Or(err, fmt.Errorf("%s does not have it", n.name))
			}
		}
		if len(nodes) > 1 && time.Since(since) < lasting {
			return errors.New("a replica may still lose it")
		}
		route, err := c.route(ctx, name)
		if err != nil {
			return err
		}
		if c.at(route[masterID]) == nil {
			return errors.New("the name server knows no master of it")
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.rack.Sync(ctx)
}

// masterFirst lists the brokers, the master before the others.
func (c *Cluster) masterFirst(ctx context.Context) ([]*Node, error) {
	nodes := slices.Clone(c.nodes)
	if len(nodes) == 1 {
		return nodes, nil
	}
	l, err := c.group(ctx, clusterName)
	if err != nil {
		return nil, err
	}
	master := func(n *Node) int {
		if n == l.Leader {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(nodes, func(a, b *Node) int { return master(a) - master(b) })
	return nodes, nil
}

// hasTopic says whether the broker has a topic with so many queues. Asked for the end of a queue, it says 0 of one that it does
// not have.
func (n *Node) hasTopic(ctx context.Context, topic string, queues int) (bool, error) {
	_, body, err := ask(ctx, n.direct(), codeTopicConfig, map[string]string{"topic": topic}, nil)
	if answered(err, answerTopicNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var config struct {
		Queues int `json:"writeQueueNums"`
	}
	if err := json.Unmarshal(body, &config); err != nil {
		return false, fmt.Errorf("read the configuration of topic %s: %w", topic, err)
	}
	return config.Queues == queues, nil
}

// Delete removes a topic; one that is gone already is no error.
func (c *Cluster) Delete(ctx context.Context, name string) error {
	topic := c.topic(name)
	errs := []error{c.deleteTopic(ctx, topic)}
	c.mu.Lock()
	retries := slices.DeleteFunc(slices.Collect(maps.Keys(c.made)), func(t string) bool { return !strings.HasPrefix(t, "%RETRY%"+topic+topicName(".")) })
	delete(c.dead, name)
	c.mu.Unlock()
	for _, t := range retries {
		errs = append(errs, c.deleteTopic(ctx, t))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("delete topic %s: %w", name, err)
	}
	return nil
}

func (c *Cluster) deleteTopic(ctx context.Context, topic string) error {
	var errs []error
	for _, n := range c.nodes {
		if _, err := n.process().Running(ctx); err != nil {
			continue // what it has goes with the cluster
		}
		_, _, err := ask(ctx, n.direct(), codeDeleteTopic, map[string]string{"topic": topic}, nil)
		if err != nil && !answered(err, answerTopicNotExist) {
			errs = append(errs, fmt.Errorf("%s: %w", n.name, err))
		}
	}
	_, _, err := ask(ctx, c.pod.HostPort(portNamesrv), codeDeleteTopicRoute, map[string]string{"topic": topic, "clusterName": clusterName}, nil)
	if err != nil && !answered(err, answerTopicNotExist) {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.made, func(n string, _ int) bool { return n == topic })
	return nil
}

// queues tells how many queues a topic was made with.
func (c *Cluster) queues(topic string) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.made[topic]
	if !ok {
		return 0, fmt.Errorf("topic %s was not made by this cluster (there are %s): %w",
			topic, strings.Join(slices.Sorted(maps.Keys(c.made)), ", "), system.ErrUsage)
	}
	return n, nil
}
