package provision

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

// drainRetry is the pause between two tries while draining: there is little time, and few are left.
const drainRetry = 500 * time.Millisecond

// drain brings to an end what would be forgotten when this process ends: outstanding creates that are not recorded,
// PersistentVolumes that are not saved, and those whose volume is deleted already. What is recorded is left to the next
// process. It begins beside the workers, which may need all the time there is for
// their last keys, and returns when they have ended (worked is closed) and nothing is left, or when work ends.
//
// Its CreateVolume calls and those of the workers are CreateWorkers at a time, all together.
func (c *Controller) drain(work context.Context, worked <-chan struct{}) {
	var steps sync.WaitGroup
	defer steps.Wait()
	var begun sync.Map // keys of the steps that run or wait for a slot
	for work.Err() == nil {
		todo := c.unfinished(work)
		if len(todo) == 0 && worked == nil {
			steps.Wait() // a call that ends now may leave a PersistentVolume to save
			if todo = c.unfinished(work); len(todo) == 0 {
				return
			}
		}
		for _, step := range todo {
			if _, again := begun.LoadOrStore(step.key, true); again {
				continue
			}
			steps.Go(func() {
				defer begun.Delete(step.key)
				loop.GuardFunc(work, "drain", step.do)
			})
		}
		select {
		case <-work.Done():
		case <-worked:
			worked = nil
		case <-time.After(drainRetry):
		}
	}
}

// drainStep is one try to end one thing. The key names the thing.
type drainStep struct {
	key string
	do  func()
}

// unfinished returns a step for each thing that the drain has to end. A step does nothing while a worker is at the
// same thing.
func (c *Controller) unfinished(work context.Context) []drainStep {
	var steps []drainStep
	for _, uid := range c.creates.where(c.mustEnd) {
		steps = append(steps, drainStep{"create/" + string(uid), func() { c.driveOn(work, uid) }})
	}
	// What cannot be removed for lack of a right is not waited for.
	for _, name := range c.deletions.where(func(d deletion) bool { return d.halfDone() && !d.refused }) {
		steps = append(steps, drainStep{"delete/" + name, func() { c.syncVolume(work, name) }})
	}
	return steps
}

// mustEnd reports whether only this process knows of the create, or of a PersistentVolume that it may save.
func (c *Controller) mustEnd(cr create) bool {
	switch {
	case cr.unsaved == nil && !cr.proto.unanswered: // or nothing is known of it, not even the claim
		return false
	case cr.unsaved == nil && c.cfg.MayCall() != nil: // the lease is lost: what was answered is saved, and no more
		return false
	case !cr.recorded:
		return true
	}
	return cr.unsaved != nil && c.pvAccess.Refusal("create") == nil
}

// driveOn takes one step with a create that must end. Waits are the drain's: there is no time for a back-off, and a
// call whose answer would not count yet is not made. To save a PersistentVolume it waits for no slot.
func (c *Controller) driveOn(work context.Context, uid types.UID) {
	cr, _ := c.creates.get(uid)
	saves := cr.unsaved != nil
	if !saves {
		free, ok := c.slots.wait(work)
		if !ok {
			return
		}
		defer free()
	}
	c.withClaim(uid, func() {
		cr, _ = c.creates.get(uid)
		switch {
		case !c.mustEnd(cr), saves != (cr.unsaved != nil): // a worker was faster; the next step sees what is left
		case cr.unsaved != nil:
			c.saveAgain(work, cr)
		case cr.lastFinal && cr.proto.wait(time.Now(), c.spacing(cr.plan)) > 0:
		default:
			const busy = false // no new create is begun that could be kept out
			defer c.sourceLimiter.release(uid, busy)
			defer c.recoveryLimiter.release(uid, busy)
			c.syncLocked(work, uid)
		}
	})
}

// report names what is still open when there is no time left. What is recorded is taken over by the next process; the
// rest may be lost, and only the log can tell by which name to look for it.
func (c *Controller) report(work context.Context) {
	logger := klog.FromContext(work)
	for _, uid := range c.creates.where(create.outstanding) {
		cr, _ := c.creates.get(uid)
		if cr.recorded {
			logger.Info("Left to the next process", "PVC", klog.KObj(cr.claim), "volume", cr.volumeName())
			continue
		}
		logger.Error(nil, "A volume may be lost: it was not finished before the stop, and its operation is not recorded", "PVC", klog.KObj(cr.claim), "volume", cr.volumeName())
	}
	for _, name := range c.deletions.where(deletion.halfDone) {
		logger.Info("The volume is deleted, its PersistentVolume is left to the next process", "PV", klog.KRef("", name))
	}
}
