package provision

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// uidLocks lets only one of create, save and delete work on a claim UID. Nobody waits for a lock: who does
// not get it comes back later.
type uidLocks struct {
	mu   sync.Mutex
	held map[types.UID]struct{}
}

// try takes the lock and returns the function that gives it back, or false when somebody holds it.
func (l *uidLocks) try(uid types.UID) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, taken := l.held[uid]; taken {
		return nil, false
	}
	if l.held == nil {
		l.held = map[types.UID]struct{}{}
	}
	l.held[uid] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, uid)
	}, true
}

// slots bounds how many claims are worked on at once, by the workers and by the drain together.
type slots chan struct{}

// newSlots returns n slots, at least one.
func newSlots(n int) slots { return make(slots, max(1, n)) }

// wait blocks until there is a free slot and takes it; the returned function gives it back. It returns false when ctx
// has ended.
func (s slots) wait(ctx context.Context) (free func(), ok bool) {
	if ctx.Err() != nil {
		return nil, false
	}
	select {
	case s <- struct{}{}:
		return func() { <-s }, true
	case <-ctx.Done():
		return nil, false
	}
}
