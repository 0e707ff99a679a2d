package netns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Pod runs a command in the network namespace that is to be changed and returns its standard output.
// *container.Pod is one.
type Pod interface {
	Exec(ctx context.Context, argv ...string) (stdout string, err error)
}

// Direction says which packets of the pod a rule drops.
type Direction int

// The directions. The zero value cuts both ways.
const (
	Both Direction = iota
	In             // what the pod receives from the peer
	Out            // what the pod sends to the peer
)

// Side says which port of a packet is compared with the rule's port.
type Side int

// The sides. The zero value matches the port on either side.
const (
	AnyPort         Side = iota
	DestinationPort      // Out: the pod's requests to the peer's listener. In: the peer's requests to the pod's listener
	SourcePort           // Out: what the pod's listener answers. In: what the peer's listener answers
)

// Rule selects packets between the pod and one peer. The zero values of the other fields select all of them.
type Rule struct {
	Peer      netip.Addr // IPv4
	Port      int        // TCP port; 0: all traffic, of any protocol
	Side      Side       // of Port
	Direction Direction
	Share     int // of these packets, in percent and at random, that are dropped; 0 = all
}

// Share returns rules that drop so many percent of what the given ones select; 0 = all.
func Share(rules []Rule, percent int) []Rule {
	rules = slices.Clone(rules)
	for i := range rules {
		rules[i].Share = percent
	}
	return rules
}

// Counters says how many packets the rules of a cut dropped.
type Counters struct {
	Packets int64
	Bytes   int64
}

// Cut is a cut in force, until it is healed.
type Cut struct {
	pod     Pod
	comment string

	mu     sync.Mutex
	healed bool
	final  Counters
}

// injectionID keeps iptables from quoting the comment, so that a rule is found again by comparing text.
var injectionID = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,200}$`)

// Apply drops the packets the rules select, all rules at the same moment, and returns the cut to be healed. id names the
// injection: letters, digits, '_' and '-', unique within the pod. After an error nothing is cut.
func Apply(ctx context.Context, pod Pod, id string, rules ...Rule) (*Cut, error) {
	if !injectionID.MatchString(id) {
		return nil, fmt.Errorf("cut link: injection id %q has characters other than letters, digits, '_' and '-'", id)
	}
	if len(rules) == 0 {
		return nil, fmt.Errorf("cut link %s: no rules", id)
	}
	c := &Cut{pod: pod, comment: "conform-" + id}
	var lines []string
	for _, r := range rules {
		l, err := r.lines(c.comment)
		if err != nil {
			return nil, fmt.Errorf("cut link %s: %w", id, err)
		}
		lines = append(lines, l...)
	}
	// iptables-restore commits all lines at once or none.
	input := "*filter\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
	if _, err := pod.Exec(ctx, "sh", "-c", pickTool+`printf '%s' "$1" | "$t"-restore -w --noflush`, "sh", input); err != nil {
		return nil, fmt.Errorf("cut link %s: %w", id, err)
	}
	return c, nil
}

// pickTool sets t to the iptables that works with the kernel: not every kernel has nftables.
const pickTool = `t=iptables; $t -w -n -L OUTPUT >/dev/null 2>&1 || t=iptables-legacy; `

// lines are the rule in the form of iptables-save.
func (r Rule) lines(comment string) ([]string, error) {
	if !r.Peer.Is4() {
		return nil, fmt.Errorf("peer %v is no IPv4 address", r.Peer)
	}
	if r.Port < 0 || r.Port > 65535 {
		return nil, fmt.Errorf("port %d is none", r.Port)
	}
	if r.Share < 0 || r.Share > 100 {
		return nil, fmt.Errorf("a share of %d percent is none", r.Share)
	}
	share := ""
	if r.Share > 0 && r.Share < 100 {
		share = fmt.Sprintf(" -m statistic --mode random --probability 0.%02d", r.Share)
	}
	var chains []string
	if r.Direction != Out {
		chains = append(chains, "INPUT -s")
	}
	if r.Direction != In {
		chains = append(chains, "OUTPUT -d")
	}
	ports := []string{""}
	if r.Port != 0 {
		ports = nil
		if r.Side != SourcePort {
			ports = append(ports, " -p tcp --dport "+strconv.Itoa(r.Port))
		}
		if r.Side != DestinationPort {
			ports = append(ports, " -p tcp --sport "+strconv.Itoa(r.Port))
		}
	}
	var lines []string
	for _, chain := range chains {
		for _, port := range ports {
			lines = append(lines, fmt.Sprintf("-A %s %s%s%s -m comment --comment %s -j DROP", chain, r.Peer, port, share, comment))
		}
	}
	return lines, nil
}

// Counters reads how much the cut has dropped so far; after a heal, how much it had dropped in the end.
func (c *Cut) Counters(ctx context.Context) (Counters, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.healed {
		return c.final, nil
	}
	out, err := c.pod.Exec(ctx, "sh", "-c", pickTool+findRules+`printf '%s\n' "$rules"`, "sh", c.comment)
	if err != nil {
		return Counters{}, fmt.Errorf("count dropped packets of %s: %w", c.comment, err)
	}
	return sum(out)
}

// findRules sets rules to the lines of iptables-save, with counters, that carry the comment $1.
const findRules = `rules=$("$t"-save -c -t filter | grep -F -e "--comment $1 -j"); `

// Heal removes exactly the rules of this cut and keeps their last counts. Healing twice is no error. The caller gives a
// context that is not cancelled with the scenario's.
func (c *Cut) Heal(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.healed {
		return nil
	}
	out, err := c.pod.Exec(ctx, "sh", "-c", pickTool+findRules+
		`[ -z "$rules" ] || { printf '%s\n' "$rules"; { echo '*filter'; printf '%s\n' "$rules" | sed 's/^\[[^]]*\] -A/-D/'; echo COMMIT; } | "$t"-restore -w --noflush; }`,
		"sh", c.comment)
	if err != nil {
		return fmt.Errorf("heal link %s: %w", c.comment, err)
	}
	final, err := sum(out)
	if err != nil {
		return fmt.Errorf("heal link %s: %w", c.comment, err)
	}
	c.final, c.healed = final, true
	return nil
}

// errNoCounters is returned for a line that does not start with "[packets:bytes]".
var errNoCounters = errors.New("no counters")

// sum adds up the counters in front of the lines of iptables-save -c.
func sum(rules string) (Counters, error) {
	var total Counters
	for line := range strings.Lines(rules) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		var one Counters
		if _, err := fmt.Sscanf(line, "[%d:%d]", &one.Packets, &one.Bytes); err != nil {
			return Counters{}, fmt.Errorf("read rule %q: %w", line, errNoCounters)
		}
		total.Packets += one.Packets
		total.Bytes += one.Bytes
	}
	return total, nil
}
