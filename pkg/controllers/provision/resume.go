package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// stuckEvery is how often, at most, a user is told of a create that cannot be finished.
const stuckEvery = 5 * time.Minute

// pickUp looks whether an earlier process has left a create on the claim. Then it is outstanding from the start. The
// error says that this cannot be told now, so that the claim must wait: a marker that is taken for one that is there
// would not be written again.
func (c *Controller) pickUp(ctx context.Context, claim *corev1.PersistentVolumeClaim) (create, bool, error) {
	state, m, reason := readMarker(claim, c.cfg.Settings.Driver)
	switch {
	case state == mismarked && c.cfg.Settings.ours(claim):
		return create{}, false, c.unmark(ctx, claim, reason)
	case state != marked || !c.inherits(m):
		return create{}, false, nil
	}
	live, m, err := c.leftOn(ctx, claim)
	if err != nil || live == nil {
		return create{}, false, err
	}
	now := time.Now()
	cr := create{claim: claim, proto: takenOver(now), busySince: now, resumed: &m}
	c.markers.found(claim, live.Annotations[wellknown.AnnProvisioningInProgress])
	c.creates.put(cr)
	klog.FromContext(ctx).V(2).Info("Taking up a create that an earlier process left", "PVC", klog.KObj(claim))
	return cr, true, nil
}

// inherits reports whether it is for this instance to take up the create that the marker of its driver speaks of.
func (c *Controller) inherits(m marker) bool { return c.cfg.Node == nil || m.Node == c.cfg.Node.name() }

// leftOn returns the claim as the API server has it, with its marker, if the marker is there to be taken up; else nil.
// This process takes its own off when a create has ended, and the cache shows that late.
func (c *Controller) leftOn(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, marker, error) {
	if c.markers.removing(claim.UID) {
		return nil, marker{}, nil
	}
	live, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, marker{}, nil
	case err != nil:
		return nil, marker{}, fmt.Errorf("read the marked claim: %w", err)
	}
	state, m, _ := readMarker(live, c.cfg.Settings.Driver)
	if live.UID != claim.UID || state != marked || !c.inherits(m) {
		return nil, marker{}, nil
	}
	return live, m, nil
}

// unmark takes a marker off the claim that is not about it. The error says that it may be taken off later; without
// the right to do so, the marker stays and the claim is served all the same.
func (c *Controller) unmark(ctx context.Context, claim *corev1.PersistentVolumeClaim, reason error) error {
	logger := klog.FromContext(ctx)
	logger.Info("Removing a marker that is not about this claim", "PVC", klog.KObj(claim), "reason", reason.Error())
	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	_, err := cluster.UpdateClaim(ctx, c.cfg.MarkerClient, name, claim.UID, func(live *corev1.PersistentVolumeClaim) bool {
		state, _, _ := readMarker(live, c.cfg.Settings.Driver)
		return state == mismarked && clearMarker(live)
	})
	switch {
	case err == nil, errors.Is(err, cluster.ErrGone):
		return nil
	case refuses(err):
		logger.Error(err, "Cannot remove a marker that is not about this claim", "PVC", klog.KObj(claim))
		return nil
	}
	return fmt.Errorf("remove a marker that is not about this claim: %w", err)
}

// drive brings an outstanding create on. claim is nil when it is gone; nothing about the claim, its class or its
// source ends the create, only the driver's answers and a PersistentVolume that stands for the volume do.
func (c *Controller) drive(ctx context.Context, cr create, claim *corev1.PersistentVolumeClaim) loop.Verdict {
	if pv := c.volumeOf(cr.claim); pv != nil && !volume.LeavesVolume(pv) {
		c.markers.end(ctx, cr.claim.UID)
		c.creates.put(create{claim: cr.claim, saved: pv.Name})
		c.releaseSourceOf(ctx, cr)
		return loop.After(0)
	}
	start := time.Now()
	// This process has made no call yet: whoever takes the marker off by hand ends the matter.
	if cr.plan == nil && (claim == nil || !hasMarkerFinalizer(claim)) {
		klog.FromContext(ctx).Info("Marker is gone, forgetting the create of an earlier process", "PVC", klog.KObj(cr.claim))
		c.markers.end(ctx, cr.claim.UID)
		c.creates.drop(cr.claim.UID)
		return loop.After(0)
	}
	ctx, span := c.claimSpan(ctx, spanProvision, cr.claim)
	defer span.End()
	if cr.plan == nil {
		cr.claim = claim
		if verdict, ok := c.replan(ctx, &cr); !ok {
			return verdict
		}
	}
	if !c.turn(ctx, cr) {
		return loop.Parked()
	}
	c.tell(cr.claim, eventProvisioning(cr.claim))
	return c.carryOut(ctx, cr, start)
}

// replan makes the plan of a create that an earlier process left, from the claim and the class as they are now.
// It returns false with what follows when that cannot be done.
func (c *Controller) replan(ctx context.Context, cr *create) (loop.Verdict, bool) {
	className := volume.ClassName(cr.claim)
	class := c.cfg.Cache.Class(className)
	if why := cr.resumed.stuckBy(className, class); why != "" {
		return c.stuck(ctx, *cr, why), false
	}
	facts, plan, err := c.decide(ctx, *cr, class)
	if err != nil {
		trace.Fail(ctx, err)
		klog.FromContext(ctx).V(2).Info("Cannot resume yet", "outcome", outcome.Of(err).String(), "err", err)
		if cr.claim.DeletionTimestamp != nil && !facts.unread() {
			// Who deletes a claim does not look after what it was made from.
			c.tellStuck(ctx, cr, err.Error())
		} else {
			c.tell(cr.claim, eventFailed(err))
		}
		c.metrics.notProvisioned(cr.claim)
		c.metrics.failed(cr.claim, reasonOf(err))
		c.creates.put(*cr)
		return loop.Again(), false
	}
	cr.plan, cr.snapshot = plan, facts.Snapshot
	return loop.Verdict{}, true
}

// stuckBy returns why the create that m speaks of cannot be finished with the class of that name, "" if it can;
// class is nil when it is gone.
func (m *marker) stuckBy(className string, class *storagev1.StorageClass) string {
	switch {
	case class == nil:
		return "its class \"" + className + "\" is gone"
	case m.Class != "" && class.UID != m.Class:
		return "its class \"" + className + "\" was made anew since"
	}
	return ""
}

// stuck is what follows for a create whose class is not as it was.
func (c *Controller) stuck(ctx context.Context, cr create, why string) loop.Verdict {
	c.metrics.failed(cr.claim, reasonClassMissing)
	c.tellStuck(ctx, &cr, why)
	trace.Fail(ctx, errors.New(why))
	c.creates.put(cr)
	return loop.After(stuckEvery)
}

// tellStuck tells, now and every few minutes, of a create that nobody but an operator can finish. It notes that in cr.
func (c *Controller) tellStuck(ctx context.Context, cr *create, why string) {
	now := time.Now()
	if now.Sub(cr.stuckSaid) < stuckEvery {
		return
	}
	cr.stuckSaid = now
	name, _ := c.cfg.Settings.volumeName(cr.claim.UID)
	klog.FromContext(ctx).Info("A create of an earlier process cannot be finished", "volume", name, "reason", why)
	c.tell(cr.claim, eventStuck(c.cfg.Settings.Driver, name, why))
}
