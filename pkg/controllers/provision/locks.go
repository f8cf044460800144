package provision

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

// volumeLocks lets only one of create, save and delete work on a volume, by its name. Claims of one name share a lock:
// short names are not unique, and a driver finds a volume by its name. Nobody waits for a lock: whoever does not get it
// comes back later. The zero value is ready.
type volumeLocks struct {
	mu   sync.Mutex
	held map[string]struct{}
}

// try takes the locks of all the names and returns the function that gives them back. It returns false and takes none
// when one of them is held.
func (l *volumeLocks) try(names ...string) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		if _, taken := l.held[name]; taken {
			return nil, false
		}
	}
	if l.held == nil {
		l.held = map[string]struct{}{}
	}
	for _, name := range names {
		l.held[name] = struct{}{}
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, name := range names {
			delete(l.held, name)
		}
	}, true
}

// lockClaim takes the lock of the claim's volume, or returns false.
func (c *Controller) lockClaim(uid types.UID) (release func(), ok bool) {
	return c.locks.try(c.lockName(uid))
}

// lockPV takes the locks of all volumes that pv may stand for, or returns false: its name may be from before a change of
// the flags that make names.
func (c *Controller) lockPV(pv *corev1.PersistentVolume) (release func(), ok bool) {
	names := []string{pv.Name}
	if ref := pv.Spec.ClaimRef; ref != nil && ref.UID != "" {
		names = append(names, c.lockName(ref.UID))
	}
	return c.locks.try(names...)
}

// lockName returns the name of the claim's volume, and the UID of a claim that can have no volume.
func (c *Controller) lockName(uid types.UID) string {
	name, err := c.cfg.Settings.volumeName(uid)
	if err != nil {
		return string(uid)
	}
	return name
}

// withClaim calls f while it holds the lock of the claim, and does nothing when somebody else is at work on the claim. A panic of f leaves no lock and no create behind that nobody goes on with; it is for the caller to recover.
func (c *Controller) withClaim(uid types.UID, f func()) {
	release, ok := c.lockClaim(uid)
	if !ok {
		return
	}
	defer release()
	defer c.settleClaim(uid)
	finished := false
	defer func() {
		if !finished {
			c.interrupted(uid)
		}
	}()
	f()
	finished = true
}

// interrupted is what follows for the create of a claim when the work on it has panicked; the claim's lock is held. A call
// whose answer was not worked off counts as one without an answer, and a PersistentVolume that is not saved is brought to its
// queue.
func (c *Controller) interrupted(uid types.UID) {
	cr, ok := c.creates.get(uid)
	switch {
	case !ok:
	case cr.calling:
		cr.calling = false
		lost := call{start: time.Now(), outcome: outcome.Background, code: codes.Unknown, mayBeRunning: true}
		cr.proto, _ = cr.proto.after(lost, c.spacing(cr.plan), c.isGoing(uid))
		c.creates.put(cr)
	case cr.unsaved != nil:
		c.unsaved.AddAfter(uid, c.cfg.RetryStart)
	}
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
