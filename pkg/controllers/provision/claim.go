package provision

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
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
		defer func() { c.releaseLimits(uid, verdict) }()
		verdict = c.syncLocked(ctx, uid)
	})
	return verdict
}

// releaseLimits gives the places of the claim back, unless the claim waits for one or for its operation to be recorded.
func (c *Controller) releaseLimits(uid types.UID, verdict loop.Verdict) {
	if verdict == loop.Parked() {
		return
	}
	c.recoveryLimiter.release(uid, false)
	if c.sourceLimiter == nil {
		return
	}
	cr, _ := c.creates.get(uid)
	// A driver that never ends its work must not keep all others out for ever.
	c.sourceLimiter.release(uid, !cr.busySince.IsZero() && time.Since(cr.busySince) < c.cfg.RetryMax)
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
	now, existingPV, err := c.asItIs(ctx, claim)
	switch {
	case err != nil:
		logger.Error(err, "Cannot tell whether the claim still needs a volume, trying again")
		return loop.Again()
	case now == nil:
		c.creates.drop(claim.UID)
		return loop.Done()
	}
	claim = now
	selected, reason := c.cfg.Settings.selects(candidate{claim: claim, class: class, existingPV: existingPV})
	if selected != attempt {
		logger.V(4).Info("Not provisioning", "reason", reason)
	}
	switch selected {
	case classMissing:
		if !cr.classMissing {
			logger.Error(nil, "Cannot provision the claim, its class is missing", "class", volume.ClassName(claim), "reason", reasonClassMissing)
			c.creates.put(create{claim: claim, classMissing: true})
		}
		c.metrics.notProvisioned(claim)
		c.metrics.failed(claim, reasonClassMissing)
		return loop.Again()
	case dropBinding, dropForeign:
		c.metrics.notProvisioned(claim)
		c.metrics.ignored(claim, unservedBy[selected])
		c.creates.drop(claim.UID)
		return loop.Done()
	case drop:
		c.creates.drop(claim.UID)
		return loop.Done()
	case attempt:
		cr.classMissing = false
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
	if err == nil && !c.acquireLimits(ctx, cr) {
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

// acquireLimits reports whether a call for the claim may be made now. If not, the claim waits for a place and is woken.
func (c *Controller) acquireLimits(ctx context.Context, cr create) bool {
	// What an earlier process left takes half of the workers at most, so that new claims go on.
	if cr.recovered != nil && !c.recoveryLimiter.tryAcquire(cr.claim.UID, "recovered", true) {
		return false
	}
	if c.sourceLimiter == nil {
		return true
	}
	key := source.Key(cr.claim)
	if c.sourceLimiter.tryAcquire(cr.claim.UID, key, cr.proto.unanswered) {
		return true
	}
	trace.PutOff(ctx)
	klog.FromContext(ctx).V(4).Info("The limit of concurrent creates for this source is reached, waiting", "source", key)
	return false
}
