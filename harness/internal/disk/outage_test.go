package disk

import (
	"strings"
	"testing"
	"time"
)

func TestOutageEvidence(t *testing.T) {
	good := Loss{Name: "a", Dirty: 4096, Parts: map[string]int64{"t-0": 4096}, Kept: true, Dropped: true}
	lostAll, keptAll, untold := good, good, good
	lostAll.Kept = false
	keptAll.Dropped = false
	untold.Dirty = -1
	for _, tt := range []struct {
		name string
		o    Outage
		bit  bool
		want string
	}{
		{"zero value", Outage{}, false, "cut in"},
		{"both canaries as they must be", Outage{Took: time.Second, SinceSync: 6 * time.Second, Disks: []Loss{good}}, true, "not on disk: 4096 bytes of a (t-0 4096)"},
		{"one disk of two kept everything", Outage{Disks: []Loss{good, keptAll}}, false, "is still on a"},
		{"the fsynced canary is gone", Outage{Disks: []Loss{lostAll}}, false, "even the fsynced"},
		{"dirty bytes not told", Outage{Disks: []Loss{untold}}, true, "does not tell"},
		{"load too long", Outage{SinceSync: MaxLoad + time.Second, Disks: []Loss{good}}, false, "written some of it back"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bit, detail := tt.o.Evidence()
			detail += "; " + tt.o.AtRisk()
			if bit != tt.bit || !strings.Contains(detail, tt.want) {
				t.Errorf("bit %t, %q; want %t, %q", bit, detail, tt.bit, tt.want)
			}
		})
	}
}

func TestOutageRead(t *testing.T) {
	disks := []*Disk{{Name: "a"}, {Name: "b"}}
	facts := [][]string{
		{"dirty", "/disks/a", "8192"},
		{"part", "/disks/a", "topic-0", "8192"},
		{"dirty", "/disks/b", "0"},
		{"down", "/disks/a"},
		{"down", "/disks/b"},
		{"writeback", "3000"},
		{"canaries", "/disks/a", "1", "1"},
		{"canaries", "/disks/b", "1", "0"},
	}
	var o Outage
	if err := o.read(disks, facts); err != nil {
		t.Fatal(err)
	}
	if o.WriteBack != 30*time.Second || o.Dirty() != 8192 || o.Disks[0].Parts["topic-0"] != 8192 || !o.Disks[0].Dropped || o.Disks[1].Dropped || !o.Disks[1].Kept {
		t.Errorf("read %+v", o)
	}
	for name, bad := range map[string][][]string{
		"one disk is not down": facts[:4],
		"unknown disk":         append(facts[:len(facts):len(facts)], []string{"down", "/disks/c"}),
		"unknown fact":         append(facts[:len(facts):len(facts)], []string{"what", "/disks/a"}),
		"no number":            append(facts[:len(facts):len(facts)], []string{"dirty", "/disks/a", "many"}),
		"an empty line":        append(facts[:len(facts):len(facts)], []string{""}),
	} {
		if err := new(Outage).read(disks, bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestLargestNamesAFew(t *testing.T) {
	d := Loss{Parts: map[string]int64{"a": 1, "b": 5, "c": 5, "d": 2, "e": 3}}
	if got, want := d.largest(), " (b 5, c 5, e 3, d 2)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
