package plan

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrInvalid marks a plan that can never run: a step that names what is not there.
var ErrInvalid = errors.New("invalid plan")

// drawPrefix marks a fault parameter that is drawn from the seed: "draw:5..40", "draw:1s..3s".
const drawPrefix = "draw:"

// New checks the steps of a scenario and returns them with every drawn parameter replaced by
// its value. targets names the targets that steps use. The same arguments give the same plan;
// the steps handed in are left as they are. Errors wrap ErrInvalid and name the step.
func New(seed uint64, targets map[string]Role, steps []Step) (Plan, error) {
	p := Plan{Seed: seed, Targets: maps.Clone(targets), Steps: slices.Clone(steps)}
	rng := rand.New(rand.NewPCG(seed, streamPlan))
	injections := map[string]bool{}
	names := map[string]bool{}
	for i := range p.Steps {
		s := &p.Steps[i]
		if err := p.check(*s, names, injections); err != nil {
			return Plan{}, fmt.Errorf("check step %d %q: %w", i+1, s.Name, err)
		}
		names[s.Name] = true
		if s.Cap == 0 {
			s.Cap = DefaultCap
		}
		if s.Inject == nil {
			continue
		}
		injections[s.Name] = true
		x := *s.Inject
		x.Params = maps.Clone(x.Params)
		// In the order of their names: maps have none, and the draws must not depend on it.
		for _, name := range slices.Sorted(maps.Keys(x.Params)) {
			v, err := draw(rng, x.Params[name])
			if err != nil {
				return Plan{}, fmt.Errorf("check step %d %q: parameter %s: %w", i+1, s.Name, name, err)
			}
			x.Params[name] = v
		}
		s.Inject = &x
	}
	return p, nil
}

func (p Plan) check(s Step, names, injections map[string]bool) error {
	if s.Name == "" {
		return fmt.Errorf("step has no name: %w", ErrInvalid)
	}
	if names[s.Name] {
		return fmt.Errorf("two steps have this name: %w", ErrInvalid)
	}
	acts := 0
	for _, has := range []bool{s.Inject != nil, s.Heal != "", s.Do != ""} {
		if has {
			acts++
		}
	}
	if acts > 1 {
		return fmt.Errorf("step has more than one of inject, heal and do: %w", ErrInvalid)
	}
	target := func(name string, wanted bool) error {
		if name == "" && !wanted {
			return nil
		}
		if _, ok := p.Targets[name]; !ok {
			return fmt.Errorf("target %q is not among the scenario's targets: %w", name, ErrInvalid)
		}
		return nil
	}
	for _, u := range s.Until {
		wanted := false
		switch u.Kind {
		case ConfirmedBy, SentTo, InSync, LeaderNot, LeaderIs:
			wanted = true
		case Bit:
			if !injections[u.Since] {
				return fmt.Errorf("waits for %q to bite, which no earlier step injects: %w", u.Since, ErrInvalid)
			}
		case Elapsed:
			if u.Hold <= 0 {
				return fmt.Errorf("waits for no time: %w", ErrInvalid)
			}
		case ProcessEnded, ProcessAt:
			if u.Process == "" {
				return fmt.Errorf("waits for a process without a name: %w", ErrInvalid)
			}
		case Custom:
			if u.Name == "" {
				return fmt.Errorf("waits for a gate without a name: %w", ErrInvalid)
			}
		}
		if err := target(u.Target, wanted); err != nil {
			return err
		}
		if u.Since != "" && !names[u.Since] {
			return fmt.Errorf("counts since %q, which is no earlier step: %w", u.Since, ErrInvalid)
		}
	}
	if s.Heal != "" && !injections[s.Heal] {
		return fmt.Errorf("heals %q, which no earlier step injects: %w", s.Heal, ErrInvalid)
	}
	if s.Inject != nil {
		return target(s.Inject.Target, true)
	}
	return target(s.Target, false)
}

func draw(rng *rand.Rand, v string) (string, error) {
	spec, ok := strings.CutPrefix(v, drawPrefix)
	if !ok {
		return v, nil
	}
	lo, hi, ok := strings.Cut(spec, "..")
	if !ok {
		return "", fmt.Errorf("%q is not draw:lo..hi: %w", v, ErrInvalid)
	}
	if a, errA := strconv.ParseInt(lo, 10, 64); errA == nil {
		b, err := strconv.ParseInt(hi, 10, 64)
		if err != nil || b < a {
			return "", fmt.Errorf("%q is not draw:lo..hi: %w", v, ErrInvalid)
		}
		return strconv.FormatInt(a+rng.Int64N(b-a+1), 10), nil
	}
	a, errA := time.ParseDuration(lo)
	b, errB := time.ParseDuration(hi)
	if errA != nil || errB != nil || b < a {
		return "", fmt.Errorf("%q is not draw:lo..hi: %w", v, ErrInvalid)
	}
	steps := int64((b-a)/time.Millisecond) + 1
	return (a + time.Duration(rng.Int64N(steps))*time.Millisecond).String(), nil
}

// Pick draws one of n for the given purpose (a target's name, "placement"): each purpose has a
// stream of its own, so that one target more does not move the others. n must be > 0.
func (p Plan) Pick(purpose string, n int) int {
	h := fnv.New64a()
	h.Write([]byte(purpose))
	return rand.New(rand.NewPCG(p.Seed^h.Sum64(), streamPlan)).IntN(n)
}

// Words returns the plan a line a step, as recorded in the ledger's header.
func (p Plan) Words() []string {
	words := make([]string, len(p.Steps))
	for i, s := range p.Steps {
		words[i] = s.Name + ": " + s.String()
		if s.Inject == nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(s.Inject.Params)) {
			words[i] += fmt.Sprintf(" %s=%s", name, s.Inject.Params[name])
		}
		if len(s.Inject.Arms) > 0 {
			words[i] += " (" + strings.Join(s.Inject.Arms, ", ") + ")"
		}
	}
	return words
}

// RepeatSeed returns the seed of repeat i: the seed itself for the first, so that a single run
// and the first of many are the same, and a mixed one for each further repeat.
func RepeatSeed(seed uint64, i int) uint64 {
	if i == 0 {
		return seed
	}
	z := seed + uint64(i)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
