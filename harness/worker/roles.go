package worker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"conform/harness/system"
)

// Role is what one kind of worker does with its session: open a client, call Ready, work until
// Stopping or the end of ctx, and return. An error ends the process with a non-zero code.
type Role func(ctx context.Context, s *Session) error

var registry = struct {
	sync.Mutex
	roles map[string]Role
}{roles: map[string]Role{}}

// Register adds a role. It is called from init; a second role of one name panics.
func Register(name string, r Role) {
	registry.Lock()
	defer registry.Unlock()
	if _, ok := registry.roles[name]; ok {
		panic("worker: two roles are named " + name)
	}
	registry.roles[name] = r
}

// Roles lists the registered roles, sorted.
func Roles() []string {
	registry.Lock()
	defer registry.Unlock()
	return slices.Sorted(maps.Keys(registry.roles))
}

func lookup(name string) (Role, error) {
	registry.Lock()
	defer registry.Unlock()
	if r, ok := registry.roles[name]; ok {
		return r, nil
	}
	return nil, fmt.Errorf("find worker role %q: none of that name is registered: %w", name, system.ErrUsage)
}
