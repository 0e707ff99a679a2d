package netns

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestRuleLines(t *testing.T) {
	peer := netip.MustParseAddr("10.0.0.2")
	tests := []struct {
		name string
		rule Rule
		want []string
	}{
		{"everything", Rule{Peer: peer}, []string{
			"-A INPUT -s 10.0.0.2 -m comment --comment c -j DROP",
			"-A OUTPUT -d 10.0.0.2 -m comment --comment c -j DROP",
		}},
		{"requests to the peer's listener", Rule{Peer: peer, Port: 9092, Side: DestinationPort, Direction: Out}, []string{
			"-A OUTPUT -d 10.0.0.2 -p tcp --dport 9092 -m comment --comment c -j DROP",
		}},
		{"a part of them", Rule{Peer: peer, Direction: In, Share: 5}, []string{
			"-A INPUT -s 10.0.0.2 -m statistic --mode random --probability 0.05 -m comment --comment c -j DROP",
		}},
		{"answers of the peer's listener", Rule{Peer: peer, Port: 9092, Side: SourcePort, Direction: In}, []string{
			"-A INPUT -s 10.0.0.2 -p tcp --sport 9092 -m comment --comment c -j DROP",
		}},
		{"one port, all ways", Rule{Peer: peer, Port: 9092}, []string{
			"-A INPUT -s 10.0.0.2 -p tcp --dport 9092 -m comment --comment c -j DROP",
			"-A INPUT -s 10.0.0.2 -p tcp --sport 9092 -m comment --comment c -j DROP",
			"-A OUTPUT -d 10.0.0.2 -p tcp --dport 9092 -m comment --comment c -j DROP",
			"-A OUTPUT -d 10.0.0.2 -p tcp --sport 9092 -m comment --comment c -j DROP",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.rule.lines("c")
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// forbidden is a pod in which nothing may run.
type forbidden struct{ t *testing.T }

func (f forbidden) Exec(context.Context, ...string) (string, error) {
	f.t.Error("a refused cut ran a command")
	return "", nil
}

func TestApplyRefuses(t *testing.T) {
	peer := netip.MustParseAddr("10.0.0.2")
	tests := []struct {
		name  string
		id    string
		rules []Rule
	}{
		{"shell in the id", "a'; rm -rf /", []Rule{{Peer: peer}}},
		{"empty id", "", []Rule{{Peer: peer}}},
		{"no rules", "a", nil},
		{"no peer", "a", []Rule{{}}},
		{"IPv6", "a", []Rule{{Peer: netip.MustParseAddr("::1")}}},
		{"port out of range", "a", []Rule{{Peer: peer, Port: 70000}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Apply(t.Context(), forbidden{t}, tt.id, tt.rules...); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestSum(t *testing.T) {
	got, err := sum("[3:180] -A INPUT -s 10.0.0.2/32 -j DROP\n\n[4:20] -A OUTPUT -j DROP\n")
	if want := (Counters{Packets: 7, Bytes: 200}); err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if got, err := sum("\n"); err != nil || got != (Counters{}) {
		t.Errorf("no rules: got %v, %v", got, err)
	}
	if _, err := sum("-A INPUT -j DROP"); !errors.Is(err, errNoCounters) {
		t.Errorf("a line without counters: got %v", err)
	}
}

// failing is a pod whose first commands fail.
type failing struct{ failures int }

func (f *failing) Exec(context.Context, ...string) (string, error) {
	if f.failures > 0 {
		f.failures--
		return "", errors.New("engine away")
	}
	return "[5:300] -A INPUT -j DROP\n", nil
}

func TestHealIsTriedAgainAfterAnError(t *testing.T) {
	c := &Cut{pod: &failing{failures: 1}, comment: "conform-x"}
	if err := c.Heal(t.Context()); err == nil {
		t.Fatal("the first heal worked")
	}
	for range 2 {
		if err := c.Heal(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := c.Counters(t.Context()); err != nil || got.Packets != 5 {
		t.Errorf("counters after the heal: got %v, %v, want 5 packets", got, err)
	}
}
