package system

import (
	"context"
	"fmt"
	"slices"
)

// Strike is one use of a fault: where and with which parameters, as drawn by the plan.
type Strike struct {
	Cluster Cluster
	Targets []Node            // resolved from live metadata; never empty
	Nodes   map[string][]Node // all targets resolved so far by name, for faults that name peers
	Clients []string          // client id prefixes it is limited to; empty = all
	Params  map[string]string // documented by the fault; unknown ones are an ErrUsage
}

// Fault is a kind of failure.
type Fault struct {
	Name    string            // kebab-case, the name of its file
	Summary string            // one line
	Params  map[string]string // parameter -> meaning and default
	Proof   string            // what its evidence is
	// Spares says that the processes of its targets go on: one that ends meanwhile was ended by something else.
	Spares bool
	// Supports returns nil, or why the cluster cannot suffer it, wrapping ErrNotApplicable.
	Supports func(c Cluster) error
	Inject   func(ctx context.Context, s Strike) (Injection, error)
}

// CheckParams returns an ErrUsage naming the first parameter that f does not document.
func (f Fault) CheckParams(params map[string]string) error {
	names := make([]string, 0, len(params))
	for name := range params {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if _, ok := f.Params[name]; !ok {
			return fmt.Errorf("fault %s has no parameter %q: %w", f.Name, name, ErrUsage)
		}
	}
	return nil
}
