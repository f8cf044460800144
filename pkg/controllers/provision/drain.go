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

// drain brings to an end what would be forgotten when this process ends: outstanding creates whose claim is gone
// or not marked, and PersistentVolumes that are not saved. What a marker remembers is left to the next process.
// It returns when nothing is left or work ends.
func (c *Controller) drain(work context.Context) {
	var drains sync.WaitGroup
	for _, uid := range c.creates.where(c.mustEnd) {
		drains.Go(func() { c.driveToEnd(work, uid) })
	}
	drains.Wait()
}

// mustEnd reports whether only this process knows of the create.
func (c *Controller) mustEnd(cr create) bool {
	return cr.unsaved != nil || (cr.proto.unanswered && (!c.markers.has(cr.claim.UID) || c.cfg.Cache.ClaimByUID(cr.claim.UID) == nil))
}

func (c *Controller) driveToEnd(work context.Context, uid types.UID) {
	for {
		cr, ok := c.creates.get(uid)
		if !ok || !c.mustEnd(cr) {
			return
		}
		verdict := loop.Done()
		if cr.unsaved == nil {
			verdict = c.syncClaim(work, uid)
		}
		select {
		case <-work.Done():
			return
		case <-time.After(max(drainRetry, verdict.Wait())):
		}
	}
}

// report names what is still open when there is no time left. What a marker remembers is taken up by the next
// process; the rest may be lost, and only the log can tell by which name to look for it.
func (c *Controller) report(work context.Context) {
	logger := klog.FromContext(work)
	for _, uid := range c.creates.where(func(cr create) bool { return cr.outstanding() }) {
		cr, ok := c.creates.get(uid)
		if !ok {
			continue
		}
		name := ""
		if cr.plan != nil {
			name = cr.plan.Request.GetName()
		}
		if c.markers.has(uid) && c.cfg.Cache.ClaimByUID(uid) != nil {
			logger.Info("Left to the next process", "PVC", klog.KObj(cr.claim), "volume", name)
			continue
		}
		logger.Error(nil, "A volume may be lost: it was not finished before the stop, and its claim could not be marked", "PVC", klog.KObj(cr.claim), "volume", name)
	}
}
