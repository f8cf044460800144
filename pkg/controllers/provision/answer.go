package provision

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// This file decides what follows an answer of the driver.

// carryOut applies the plan of cr and turns the result into a verdict. secret is what the call is made with, nil for none.
func (c *Controller) carryOut(ctx context.Context, cr create, secret *corev1.Secret, start time.Time) loop.Verdict {
	plan := cr.plan
	res := c.apply(ctx, &cr, secret)
	if res.err == nil {
		cr.unsaved, cr.volumeID = res.pv, res.volumeID
		return c.made(ctx, cr, start)
	}
	return c.conclude(ctx, cr, plan, res)
}

// conclude decides what follows an attempt that made no volume. plan is nil when there was none.
func (c *Controller) conclude(ctx context.Context, cr create, plan *Plan, res result) loop.Verdict {
	klog.FromContext(ctx).Error(res.err, "Cannot provision the claim", "class", volume.ClassName(cr.claim), "code", codeOf(res.err), "reason", reasonOf(res.err), "outcome", outcome.Of(res.err).String())
	trace.Fail(ctx, res.err)
	c.metrics.notProvisioned(cr.claim)
	c.metrics.failed(cr.claim, reasonOf(res.err))
	cr.calling = false
	switch busy := outcome.Busy(res.err); {
	case res.call == nil: // what the driver does is as it was
	case !busy:
		cr.busySince = time.Time{}
	case cr.busySince.IsZero():
		cr.busySince = time.Now()
	}
	if final := outcome.Of(res.err); res.call != nil || final == outcome.Failed || final == outcome.Reschedule {
		c.cfg.Observer.CreateFailed(volume.ClassName(cr.claim))
	}
	was := cr.proto.unanswered
	if res.call == nil {
		// The driver was not reached: whatever was outstanding still is.
		if was {
			c.tell(cr.claim, eventFailed(res.err))
			c.creates.put(cr)
			return loop.Again()
		}
		return c.ended(ctx, cr, plan, res)
	}
	next, end := cr.proto.after(*res.call, c.spacing(plan), c.isGoing(cr.claim.UID))
	cr.proto = next
	switch end {
	case leftBehind:
		c.tell(cr.claim, eventLeftBehind(c.cfg.Settings.Driver, plan.Request.GetName()))
		return c.ended(ctx, cr, plan, res)
	case over:
		return c.ended(ctx, cr, plan, res)
	case goesOn:
	}
	cr.lastFinal = res.call.outcome == outcome.Failed || res.call.outcome == outcome.Reschedule
	c.creates.put(cr)
	c.tell(cr.claim, eventFailed(res.err))
	if outcome.Busy(res.err) {
		return loop.Busy()
	}
	return loop.Again()
}

// codeOf returns the gRPC code of the driver's answer, "none" for an error that is no answer.
func codeOf(err error) string {
	if !outcome.HasStatus(err) {
		return "none"
	}
	return outcome.Code(err).String()
}

// spacing is how far apart the calls of the plan must be so that two final answers both count.
func (c *Controller) spacing(plan *Plan) time.Duration {
	return spacing(c.cfg.CreateTimeout(plan.Request))
}

// ended is what follows a failure after which nothing runs in the driver.
func (c *Controller) ended(ctx context.Context, cr create, plan *Plan, res result) loop.Verdict {
	claim, err := cr.claim, res.err
	c.operations.End(claim.UID)
	c.creates.drop(claim.UID)
	if outcome.Slow(err) {
		c.tell(claim, eventInfeasible(err))
		if s := c.newSlow(claim, plan, res.secretVersion); s != nil {
			c.creates.put(create{claim: claim, slow: s})
		}
		return loop.Again()
	}
	c.tell(claim, eventFailed(err))
	if node := failedNode(claim, plan); node != "" && outcome.Of(err) == outcome.Reschedule {
		removed, rerr := c.reschedule(ctx, claim, node)
		switch {
		case rerr != nil:
			klog.FromContext(ctx).Error(rerr, "Cannot ask for another node, trying again with the same")
		case removed:
			return loop.Done()
		}
		return loop.Again()
	}
	if outcome.Busy(err) {
		return loop.Busy()
	}
	return loop.Again()
}

// failedNode returns the node that an attempt was for: that of the plan or, without one, that of the claim. It returns
// "" when no node is selected that can be taken off the claim.
func failedNode(claim *corev1.PersistentVolumeClaim, plan *Plan) string {
	if plan != nil && claim.Annotations[wellknown.AnnSelectedNode] != "" {
		return plan.SelectedNode
	}
	return claim.Annotations[wellknown.AnnSelectedNode]
}

// reschedule takes the node off the claim, so that the scheduler chooses again, and reports whether it did. A claim for
// which another node is selected by now keeps that.
func (c *Controller) reschedule(ctx context.Context, claim *corev1.PersistentVolumeClaim, node string) (removed bool, err error) {
	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	_, err = cluster.UpdateClaim(ctx, c.cfg.Client, name, claim.UID, func(live *corev1.PersistentVolumeClaim) bool {
		removed = live.Annotations[wellknown.AnnSelectedNode] == node
		if removed {
			delete(live.Annotations, wellknown.AnnSelectedNode)
		}
		return removed
	})
	if err == nil {
		klog.FromContext(ctx).V(2).Info("Asked for another node", "node", node, "removed", removed)
	}
	return removed, err
}
