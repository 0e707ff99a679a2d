package disk

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxLoad is how long a disk may have been written to since the last Sync for a power cut to count: the kernel writes dirty
// pages back after 30 s (vm.dirty_expire_centisecs), and what it has written back is rightly durable.
const MaxLoad = 25 * time.Second

// cutCeiling bounds the cut and what comes after it, with much to copy on a busy machine.
const cutCeiling = time.Minute

// Power acts on all processes that write to the disks whose power is cut.
type Power struct {
	// Freeze stops them, so that nothing is confirmed from memory once the disks are gone. Kill ends them, frozen or not.
	Freeze, Kill func(context.Context) error
}

// Outage is what a power cut did.
type Outage struct {
	Took      time.Duration // from the freeze to the last process gone
	SinceSync time.Duration // how long the disks had been written to since the last Sync; 0 = never synced
	// WriteBack is after what time the kernel writes dirty pages back by itself; 0 = it does not tell.
	WriteBack time.Duration
	Disks     []Loss
}

// Loss is what a power cut did to one disk.
type Loss struct {
	Name string
	// Dirty is how many bytes, in whole pages, were in the page cache only; -1 = this kernel does not tell. Parts has them
	// by folder of the disk.
	Dirty int64
	Parts map[string]int64
	// Kept: the fsynced canary is there. Dropped: the one that was not fsynced is gone.
	Kept, Dropped bool
}

// Cut cuts the power of all named disks at once: what was not fsynced is gone when it returns, the processes have ended,
// and the disks are mounted again from a fresh copy, ready for a start. Once the processes are frozen it runs to its end
// whatever becomes of ctx, and they have ended also after an error; that wraps ErrDisk where a disk does not come back.
func (r *Rack) Cut(ctx context.Context, names []string, p Power) (Outage, error) {
	o, err := r.cut(ctx, names, p)
	if err != nil {
		return o, fmt.Errorf("cut power: %w", err)
	}
	return o, nil
}

func (r *Rack) cut(ctx context.Context, names []string, p Power) (o Outage, err error) {
	disks, dirs, err := r.pick(names)
	if err != nil {
		return o, err
	}
	token := rand.Text()
	if _, err := r.perl(ctx, append([]string{"canary", token}, dirs...)...); err != nil {
		return o, err
	}
	began := time.Now()
	err = p.Freeze(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cutCeiling)
	defer cancel()
	if err != nil {
		return o, errors.Join(err, p.Kill(ctx))
	}
	o.SinceSync = r.sinceSync()
	facts, err := r.perl(ctx, append([]string{"cut"}, dirs...)...)
	if err = errors.Join(err, p.Kill(ctx)); err != nil {
		return o, err
	}
	o.Took = time.Since(began)

	for _, d := range disks {
		if err := r.replace(ctx, d); err != nil {
			return o, fmt.Errorf("mount fresh copy of %s: %w: %w", d.Name, ErrDisk, err)
		}
	}
	checked, err := r.perl(ctx, append([]string{"check", token}, dirs...)...)
	if err != nil {
		return o, err
	}
	if err := r.Probe(ctx, names...); err != nil {
		return o, err
	}
	return o, o.read(disks, append(facts, checked...))
}

// replace mounts a copy of a disk's image in its place. The copy has a loop device and a superblock of its own, whoever
// still holds the old mount.
func (r *Rack) replace(ctx context.Context, d *Disk) error {
	fresh := fmt.Sprintf("%s.%d", d.Name, d.generation+1)
	_, err := r.sh(ctx, `cd "$1"; umount "$5" || umount -l "$5"; cp --sparse=always "$3" "$2"; rm "$3"; `+attach,
		imagesDir, fresh, d.image, d.Name, d.dir(), mountOptions)
	if err != nil {
		return err
	}
	d.image, d.generation = fresh, d.generation+1
	return nil
}

// read takes over what the helper said.
func (o *Outage) read(disks []*Disk, facts [][]string) error {
	byDir := map[string]*Loss{}
	o.Disks = make([]Loss, len(disks))
	for i, d := range disks {
		o.Disks[i] = Loss{Name: d.Name, Dirty: -1, Parts: map[string]int64{}}
		byDir[d.dir()] = &o.Disks[i]
	}
	down := 0
	for _, f := range facts {
		if len(f) == 2 && f[0] == "writeback" {
			centi, err := strconv.Atoi(f[1])
			if err != nil {
				return fmt.Errorf("helper said %q: %w", f, err)
			}
			o.WriteBack = time.Duration(centi) * 10 * time.Millisecond
			continue
		}
		if len(f) < 2 || byDir[f[1]] == nil {
			return fmt.Errorf("helper said %q", f)
		}
		d := byDir[f[1]]
		var err error
		switch {
		case f[0] == "down":
			down++
		case f[0] == "dirty" && len(f) == 3:
			d.Dirty, err = strconv.ParseInt(f[2], 10, 64)
		case f[0] == "part" && len(f) == 4:
			d.Parts[f[2]], err = strconv.ParseInt(f[3], 10, 64)
		case f[0] == "canaries" && len(f) == 4:
			d.Kept, d.Dropped = f[2] == "1", f[3] == "1"
		default:
			return fmt.Errorf("helper said %q", f)
		}
		if err != nil {
			return fmt.Errorf("helper said %q: %w", f, err)
		}
	}
	if down != len(disks) {
		return fmt.Errorf("%d of %d file systems were shut down", down, len(disks))
	}
	return nil
}

// Evidence says whether the power cut bit: on every disk the fsynced canary is there and the other one gone, and the load
// before it was short enough that the kernel has not written anything back by itself.
func (o Outage) Evidence() (bit bool, detail string) {
	bit = len(o.Disks) > 0
	words := []string{fmt.Sprintf("cut in %s", o.Took.Round(time.Millisecond))}
	if o.SinceSync > 0 {
		words[0] += fmt.Sprintf(", %s after all was made durable", o.SinceSync.Round(100*time.Millisecond))
	}
	if o.SinceSync > MaxLoad {
		bit = false
		words = append(words, fmt.Sprintf("that is more than %s: the kernel may have written some of it back by itself", MaxLoad))
	}
	good := 0
	for _, d := range o.Disks {
		switch {
		case !d.Kept:
			words = append(words, "even the fsynced canary is gone from "+d.Name)
		case !d.Dropped:
			words = append(words, "the canary that was not fsynced is still on "+d.Name)
		default:
			good++
		}
	}
	bit = bit && good == len(o.Disks)
	words = append(words, fmt.Sprintf("on %d of %d disks the fsynced canary is there and the other gone", good, len(o.Disks)))
	return bit, strings.Join(words, "; ")
}

// AtRisk says what was not on disk when the power went, and for how long that is so in steady state.
func (o Outage) AtRisk() string {
	var words, risk []string
	for _, d := range o.Disks {
		if d.Dirty > 0 {
			risk = append(risk, fmt.Sprintf("%d bytes of %s%s", d.Dirty, d.Name, d.largest()))
		}
	}
	switch {
	case o.Dirty() < 0:
		words = append(words, "what was not on disk: this kernel does not tell")
	case len(risk) == 0:
		words = append(words, "everything else was on disk")
	default:
		words = append(words, "not on disk: "+strings.Join(risk, ", "))
	}
	if o.WriteBack > 0 {
		words = append(words, fmt.Sprintf("without an fsync data are at risk for up to %s, until the kernel writes them back", o.WriteBack))
	}
	return strings.Join(words, "; ")
}

// Dirty sums the bytes of all disks that were not on disk; -1 = unknown.
func (o Outage) Dirty() int64 {
	var sum int64
	for _, d := range o.Disks {
		if d.Dirty < 0 {
			return -1
		}
		sum += d.Dirty
	}
	return sum
}

// largest names the folders that had most of it.
func (d Loss) largest() string {
	const most = 4
	names := slices.SortedFunc(maps.Keys(d.Parts), func(a, b string) int {
		if d.Parts[a] != d.Parts[b] {
			return int(max(-1, min(1, d.Parts[b]-d.Parts[a])))
		}
		return strings.Compare(a, b)
	})
	if len(names) == 0 {
		return ""
	}
	var words []string
	for _, n := range names[:min(most, len(names))] {
		words = append(words, fmt.Sprintf("%s %d", n, d.Parts[n]))
	}
	return " (" + strings.Join(words, ", ") + ")"
}
