package provision

import (
	"context"
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
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// syncClaim brings one claim as far as it goes now.
func (c *Controller) syncClaim(ctx context.Context, uid types.UID) loop.Verdict {
	free, ok := c.slots.wait(ctx) // there are as many as workers, so one waits during the drain only
	if !ok {
		return loop.Again()
	}
	defer free()
	verdict := loop.After(lockedRetry)
	c.withClaim(uid, func() {
		verdict = loop.Again() // of a panic
		defer func() { c.leaveTurn(uid, verdict) }()
		verdict = c.syncLocked(ctx, uid)
	})
	return verdict
}

// leaveTurn gives the claim's turn back, unless the claim is in line for one.
func (c *Controller) leaveTurn(uid types.UID, verdict loop.Verdict) {
	if verdict == loop.Parked() {
		return
	}
	c.recoveries.leave(uid, false)
	if c.turns == nil {
		return
	}
	cr, _ := c.creates.get(uid)
	// A driver that never ends its work must not keep all others out for ever.
	c.turns.leave(uid, !cr.busySince.IsZero() && time.Since(cr.busySince) < c.cfg.RetryMax)
}

// syncLocked is syncClaim for who holds the claim's lock.
func (c *Controller) syncLocked(ctx context.Context, uid types.UID) loop.Verdict {
	claim := c.cfg.Cache.ClaimByUID(uid)
	if op, found := c.recovered.get(uid); found {
		ctx := klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "PVC", klog.KRef(op.Claim.Namespace, op.Claim.Name)))
		if err := c.takeUp(ctx, op); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot take up the operation of an earlier process, trying again", "volume", op.VolumeName)
			return loop.Again()
		}
	}
	cr, remembered := c.creates.get(uid)
	shown := claim
	if shown == nil {
		shown = cr.claim
	}
	if shown != nil {
		ctx = klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "PVC", klog.KObj(shown)))
	}
	switch {
	case cr.unsaved != nil:
		return loop.Done() // the queue of unsaved PersistentVolumes has it
	case cr.beginning != nil:
		return c.goOn(ctx, cr, claim)
	case cr.proto.unanswered:
		return c.drive(ctx, cr, claim)
	case claim == nil:
		c.creates.drop(uid)
		if c.cfg.Node != nil {
			c.cfg.Node.Race.Forget(uid)
		}
		return loop.Done()
	case !remembered:
		if m, marked := c.formerMarkerOf(claim); marked {
			return c.syncFormerMarker(ctx, claim, m)
		}
		cr = create{claim: claim}
	}
	return c.consider(ctx, cr, claim)
}

// consider decides whether to make an attempt for a claim of which nothing is outstanding.
func (c *Controller) consider(ctx context.Context, cr create, claim *corev1.PersistentVolumeClaim) loop.Verdict {
	logger := klog.FromContext(ctx)
	if cr.saved != "" {
		done, verdict := c.awaitBinding(ctx, cr, claim)
		if !done {
			return verdict
		}
		cr.saved = ""
	}
	class := c.cfg.Cache.Class(volume.ClassName(claim))
	if cr.slow != nil {
		if c.stillSlow(ctx, cr.slow, claim, class) {
			return loop.Again()
		}
		cr.slow = nil
	}
	now, holder, err := c.asItIs(ctx, claim)
	switch {
	case err != nil:
		logger.Error(err, "Cannot tell whether the claim still needs a volume, trying again")
		return loop.Again()
	case now == nil:
		c.creates.drop(claim.UID)
		return loop.Done()
	}
	claim = now
	turn, reason := c.cfg.Settings.selects(candidate{claim: claim, class: class, holder: holder})
	if turn != attempt {
		logger.V(4).Info("Not provisioning", "reason", reason)
	}
	switch turn {
	case classMissing:
		c.metrics.notProvisioned(claim)
		c.metrics.failed(claim, reasonClassMissing)
		return loop.Again()
	case dropBinding, dropForeign:
		c.metrics.notProvisioned(claim)
		c.metrics.ignored(claim, unservedBy[turn])
		c.creates.drop(claim.UID)
		return loop.Done()
	case drop:
		c.creates.drop(claim.UID)
		return loop.Done()
	case attempt:
	}
	if ours, verdict := c.own(ctx, claim, class); !ours {
		return verdict
	}
	cr.claim = claim
	return c.attempt(ctx, cr, class)
}

// attempt gathers, plans and, when there is a plan, carries it out.
func (c *Controller) attempt(ctx context.Context, cr create, class *storagev1.StorageClass) loop.Verdict {
	start := time.Now()
	ctx, span := c.claimSpan(ctx, spanProvision, cr.claim)
	defer span.End()
	asking, cancel := loop.UntilStop(ctx, 0)
	defer cancel()
	facts, plan, err := c.decide(asking, cr, class)
	if asking.Err() != nil {
		return loop.Again() // a stop waits for no answer; the next process asks anew
	}
	if outcome.Of(err) == outcome.NotOurs {
		span.Fail(err)
		if !cr.populator {
			c.tell(cr.claim, eventPopulator(facts.Source.KindName, facts.Source.Name))
		}
		cr.populator = true
		c.creates.put(cr)
		if c.cfg.Cache.ClaimByUID(cr.claim.UID) == nil {
			c.creates.drop(cr.claim.UID) // it went meanwhile, and nothing was remembered when its last event came
		}
		c.metrics.notProvisioned(cr.claim)
		c.metrics.ignored(cr.claim, unservedPopulator)
		return loop.Done()
	}
	if err == nil && !c.turn(ctx, cr) {
		return loop.Parked()
	}
	c.tell(cr.claim, eventProvisioning(cr.claim))
	if err != nil {
		return c.conclude(ctx, cr, plan, result{err: err})
	}
	cr.plan, cr.snapshot = plan, facts.Snapshot
	return c.begin(ctx, cr, start)
}

// decide gathers and plans; nothing is written.
func (c *Controller) decide(ctx context.Context, cr create, class *storagev1.StorageClass) (Facts, *Plan, error) {
	ctx, span := trace.Child(ctx, spanPlan)
	defer span.End()
	facts := c.gather(ctx, cr.claim, class)
	plan, err := MakePlan(facts, c.cfg.Settings)
	span.Fail(err)
	return facts, plan, err
}

// turn reports whether a call for the claim may be made now. If not, its turn wakes it.
func (c *Controller) turn(ctx context.Context, cr create) bool {
	// What an earlier process left takes half of the workers at most, so that new claims go on.
	if cr.recovered != nil && !c.recoveries.take(cr.claim.UID, "recovered", true) {
		return false
	}
	if c.turns == nil {
		return true
	}
	key := source.Key(cr.claim)
	if c.turns.take(cr.claim.UID, key, cr.proto.unanswered) {
		return true
	}
	trace.PutOff(ctx)
	klog.FromContext(ctx).V(4).Info("Waiting for a turn, as many volumes as may be are being made from the source", "source", key)
	return false
}

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
	klog.FromContext(ctx).V(2).Info("Attempt failed", "outcome", outcome.Of(res.err).String(), "err", res.err)
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

// awaitBinding handles a claim whose PersistentVolume was saved and which is not seen bound yet. The caches may
// lag behind each other, so nothing is made again before the API server says that it is needed. It returns true
// when the claim needs a new volume: it is not bound, it is not going, and its PersistentVolume is gone.
func (c *Controller) awaitBinding(ctx context.Context, cr create, claim *corev1.PersistentVolumeClaim) (bool, loop.Verdict) {
	if claim.Spec.VolumeName != "" {
		c.creates.drop(claim.UID)
		return false, loop.Done()
	}
	if c.cfg.Cache.PV(cr.saved) != nil {
		return false, loop.Done() // its deletion, or the binding, brings the claim back
	}
	_, err := c.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, cr.saved, metav1.GetOptions{})
	if err == nil {
		return false, loop.After(cacheLag)
	}
	if !apierrors.IsNotFound(err) {
		return false, loop.Again()
	}
	live, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && (live.UID != claim.UID || live.Spec.VolumeName != "" || live.DeletionTimestamp != nil):
		// The cache may go on to show older versions of the claim, for which this must not be forgotten. The event that
		// shows the claim bound or gone brings it back.
		return false, loop.Done()
	case err != nil:
		return false, loop.Again()
	}
	return true, loop.Done()
}

// holder returns the PersistentVolume that has the name of the claim's own to be, nil when there is none or
// when there can be no such name.
func (c *Controller) holder(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	name, err := c.cfg.Settings.volumeName(claim.UID)
	if err != nil {
		return nil
	}
	return c.cfg.Cache.PV(name)
}

// volumeOf returns the PersistentVolume that stands for the volume made for the claim, nil when the cache has none.
func (c *Controller) volumeOf(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	if pv := c.holder(claim); pv != nil && c.isOurs(pv, claim.UID, "") {
		return pv
	}
	return nil
}

// isOurs reports whether the PersistentVolume stands for the volume made for the claim. volumeID may be empty
// when it is not known.
func (c *Controller) isOurs(pv *corev1.PersistentVolume, uid types.UID, volumeID string) bool {
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != uid {
		return false
	}
	if pv.Spec.CSI == nil {
		return c.cfg.Translator != nil && c.cfg.Translator.IsMigratable(pv)
	}
	return pv.Spec.CSI.Driver == c.cfg.Settings.Driver && (volumeID == "" || pv.Spec.CSI.VolumeHandle == volumeID)
}
