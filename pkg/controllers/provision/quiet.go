package provision

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// stillAfter is how long a claim has been provisioned when its user is told, once, that this goes on.
const stillAfter = time.Minute

// quiet decides which events are news (--quiet-events): the first attempt for a claim, and failures that differ from
// the last one told of their object. What it remembers of an object is there until forget. A nil quiet takes
// everything for news and remembers nothing. Safe for concurrent use.
type quiet struct {
	// still tells that a claim is still being provisioned and returns true, or false when there is nothing to tell.
	// failure is the last one told, "" if none was. mu is held.
	still func(claim types.UID, failure string) bool
	// guard calls a function and recovers its panic.
	guard func(f func())

	mu    sync.Mutex
	byUID map[types.UID]*told // claim or PersistentVolume → what its user knows
	ended bool
}

// told is what the user of one object knows.
type told struct {
	begun, still   bool
	failure, aside string      // the last of each
	timer          *time.Timer // nil when it is not known that an attempt was made, or still is true
}

func newQuiet(still func(types.UID, string) bool) *quiet {
	guard := func(f func()) {
		loop.GuardFunc(context.Background(), "quiet events", f) //nolint:forbidigo // a timer has no context
	}
	return &quiet{still: still, guard: guard, byUID: map[types.UID]*told{}}
}

// news reports whether the event is to be told, and takes it for told.
func (q *quiet) news(uid types.UID, e event) bool {
	if q == nil {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case e.begins:
		t := q.get(uid)
		if t.timer == nil && !t.still && !q.ended {
			t.timer = time.AfterFunc(stillAfter, func() { q.due(uid, t) })
		}
		known := t.begun
		t.begun = true
		return !known
	case e.kind == corev1.EventTypeWarning:
		t := q.get(uid)
		last := &t.failure
		if e.aside {
			last = &t.aside
		}
		known := *last == e.text
		*last = e.text
		return !known
	}
	return true
}

// get returns what is known of the object, nothing at first. mu is held.
func (q *quiet) get(uid types.UID) *told {
	t, ok := q.byUID[uid]
	if !ok {
		t = &told{}
		q.byUID[uid] = t
	}
	return t
}

// due is called by the timer of t. When there is nothing to tell, the next attempt starts the timer anew.
func (q *quiet) due(uid types.UID, t *told) {
	q.guard(func() { q.tellStill(uid, t) })
}

func (q *quiet) tellStill(uid types.UID, t *told) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.byUID[uid] != t || t.timer == nil {
		return // forgotten in the meantime
	}
	t.timer = nil
	t.still = q.still(uid, t.failure)
}

// forget drops what is known of an object, and its timer.
func (q *quiet) forget(uid types.UID) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if t, ok := q.byUID[uid]; ok {
		t.stop()
		delete(q.byUID, uid)
	}
}

// end stops all timers, and starts no more. After it has returned nothing is told by itself.
func (q *quiet) end() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	for _, t := range q.byUID {
		t.stop()
	}
}

func (t *told) stop() {
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}

// settleClaim forgets what the user of a claim was told once it is gone or bound and no create is outstanding.
func (c *Controller) settleClaim(uid types.UID) {
	if c.quiet == nil {
		return
	}
	if cr, ok := c.creates.get(uid); ok && cr.outstanding() {
		return
	}
	if claim := c.cfg.Cache.ClaimByUID(uid); claim == nil || claim.Spec.VolumeName != "" {
		c.quiet.forget(uid)
	}
}

// tellStill tells that the claim is still being provisioned, if it is.
func (c *Controller) tellStill(uid types.UID, failure string) bool {
	claim := c.cfg.Cache.ClaimByUID(uid)
	if claim == nil {
		return false
	}
	cr, _ := c.creates.get(uid)
	if !cr.outstanding() {
		class := c.cfg.Cache.Class(volume.ClassName(claim))
		if selected, _ := c.cfg.Settings.selects(candidate{claim: claim, class: class, existingPV: c.existingPV(claim)}); selected != attempt {
			return false
		}
	}
	c.record(claim, eventStill(claim, failure, cr.calling))
	return true
}
