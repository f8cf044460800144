package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// refusedFor is how long the API server must have refused a PersistentVolume whose claim is gone before its volume is
// deleted, unless it calls it invalid.
const refusedFor = time.Minute

// made is what follows a volume that was made: its PersistentVolume is saved, now or as soon as it can be.
func (c *Controller) made(ctx context.Context, cr create, start time.Time) loop.Verdict {
	pv := cr.unsaved
	c.metrics.provisioned(cr.claim, time.Since(start))
	c.cfg.Observer.VolumeCreated(pv.Spec.StorageClassName, pv.Spec.NodeAffinity)
	cr.calling, cr.busySince = false, time.Time{}
	c.creates.put(cr)
	switch err := c.create(ctx, pv); {
	case errors.Is(err, errVolumeInUse):
		c.metrics.failed(cr.claim, reasonBadVolume)
		return c.taken(ctx, cr, err)
	case err != nil:
		c.metrics.failed(cr.claim, reasonNotSaved)
		c.notSaved(ctx, cr, err)
		c.unsaved.Add(cr.claim.UID)
		return loop.Done()
	}
	c.saved(ctx, cr)
	return loop.Done()
}

// syncUnsaved tries again to save the PersistentVolume of a claim.
func (c *Controller) syncUnsaved(ctx context.Context, uid types.UID) loop.Verdict {
	verdict := loop.After(lockedRetry)
	c.withClaim(uid, func() {
		verdict = loop.Done()
		if cr, ok := c.creates.get(uid); ok && cr.unsaved != nil {
			verdict = c.saveAgain(ctx, cr)
		}
	})
	return verdict
}

// saveAgain tries to save the PersistentVolume of cr; the claim's lock is held. It never gives up but for givesUp.
func (c *Controller) saveAgain(ctx context.Context, cr create) loop.Verdict {
	ctx, span := c.claimSpan(ctx, spanSave, cr.claim)
	defer span.End()
	if verdict, ok := c.checkUnsaved(ctx, cr); !ok {
		return verdict
	}
	err := c.create(ctx, cr.unsaved)
	switch {
	case err == nil:
		c.saved(ctx, cr)
		return loop.Done()
	case errors.Is(err, errVolumeInUse):
		_ = c.taken(ctx, cr, err)
		c.claims.AddAfter(cr.claim.UID, c.cfg.RetryStart)
		return loop.Done()
	}
	c.notSaved(ctx, cr, err)
	extra := errors.Is(err, errExtraVolume)
	if !extra && !c.givesUp(ctx, &cr, err) {
		return loop.Again()
	}
	err = c.abandon(ctx, cr)
	if err == nil && extra {
		c.metrics.extraVolumes.Inc()
	}
	if errors.Is(err, errVolumeInUse) {
		_ = c.taken(ctx, cr, err)
		return loop.Done()
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot delete the volume of a PersistentVolume that cannot be saved, trying again", "PV", klog.KObj(cr.unsaved))
		return loop.Again()
	}
	return loop.Done()
}

// checkUnsaved is checkOperation for a volume whose PersistentVolume is not saved. When the Lease cannot be read, nothing
// speaks against another try.
func (c *Controller) checkUnsaved(ctx context.Context, cr create) (loop.Verdict, bool) {
	verdict, ok := c.checkOperation(ctx, cr)
	if !ok && verdict == loop.Again() {
		return verdict, true
	}
	if !ok {
		c.claims.Add(cr.claim.UID)
		return loop.Done(), false
	}
	return verdict, true
}

// givesUp reports whether the volume of cr is to be deleted, now that the API server has refused its PersistentVolume
// with err. It is what would follow if the PersistentVolume were taken after all: the claim is gone, and the policy is
// Delete. With any other policy the volume is kept and nothing is given up. What is invalid stays so; a right may be
// missing for a moment only, and a request that had no answer may arrive late.
func (c *Controller) givesUp(ctx context.Context, cr *create, err error) bool {
	invalid := apierrors.IsInvalid(err)
	hopeless := (invalid || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)) &&
		cr.unsaved.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete &&
		c.claimIsGone(ctx, cr.claim) && c.isNotThere(ctx, cr.unsaved.Name)
	switch {
	case !hopeless:
		cr.refusedSince = time.Time{}
	case cr.refusedSince.IsZero():
		cr.refusedSince = time.Now()
	}
	c.creates.put(*cr)
	return hopeless && (invalid || time.Since(cr.refusedSince) >= refusedFor)
}

// isNotThere reports whether the API server says that there is no PersistentVolume of that name: an earlier try may
// have been taken while its answer was lost.
func (c *Controller) isNotThere(ctx context.Context, pvName string) bool {
	_, err := c.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, pvName, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

// create creates the PersistentVolume. One that is there already is a success if it is this very one.
func (c *Controller) create(ctx context.Context, pv *corev1.PersistentVolume) error {
	pvs := c.cfg.Client.CoreV1().PersistentVolumes()
	_, err := pvs.Create(ctx, c.asGranted(pv), metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	live, gerr := pvs.Get(ctx, pv.Name, metav1.GetOptions{})
	if gerr != nil {
		return fmt.Errorf("%w; and reading it: %w", err, gerr)
	}
	volumeID := handleIn(pv)
	ours := c.isOurs(live, pv.Spec.ClaimRef.UID, volumeID)
	switch {
	case ours && live.DeletionTimestamp == nil:
		return nil
	case ours && volume.LeavesVolume(live):
		// The volume outlives this object and needs the next one.
		return fmt.Errorf("PersistentVolume %s is being deleted and its volume is not: %w", pv.Name, err)
	}
	if live.DeletionTimestamp == nil && c.isOurs(live, pv.Spec.ClaimRef.UID, "") {
		return fmt.Errorf("%w: PersistentVolume %s has the handle %q, not %q", errExtraVolume, pv.Name, c.handle(live), volumeID)
	}
	if live.Spec.CSI != nil && live.Spec.CSI.Driver == c.cfg.Settings.Driver && live.Spec.CSI.VolumeHandle == volumeID {
		return fmt.Errorf("%w: PersistentVolume %s is being deleted or for another claim, and its volume with it", errVolumeInUse, pv.Name)
	}
	return fmt.Errorf("a PersistentVolume %s is there that is not for this volume, or is being deleted: %w", pv.Name, err)
}

// handleIn returns the volume handle, "" for a PersistentVolume of an in-tree plugin.
func handleIn(pv *corev1.PersistentVolume) string {
	if pv.Spec.CSI == nil {
		return ""
	}
	return pv.Spec.CSI.VolumeHandle
}

// noteSaved ends a create whose PersistentVolume is there after all: the API server took it, and the answer was lost.
// It comes before the deletion of pv, which would otherwise be created again for a volume that is gone. The lock of
// the volume is held.
func (c *Controller) noteSaved(ctx context.Context, pv *corev1.PersistentVolume) {
	ref := pv.Spec.ClaimRef
	if ref == nil {
		return
	}
	cr, ok := c.creates.get(ref.UID)
	if ok && cr.unsaved != nil && cr.unsaved.Name == pv.Name && c.isOurs(pv, ref.UID, handleIn(cr.unsaved)) {
		c.saved(ctx, cr)
	}
}

// taken ends a create whose volume is another's: there is nothing of its own to save or to delete.
func (c *Controller) taken(ctx context.Context, cr create, err error) loop.Verdict {
	c.metrics.saveFailed.Inc()
	cr.unsaved = nil
	err = outcome.With(outcome.Failed, err)
	trace.Fail(ctx, err)
	return c.ended(ctx, cr, cr.plan, result{err: err})
}

func (c *Controller) notSaved(ctx context.Context, cr create, err error) {
	trace.Fail(ctx, err)
	c.metrics.saveFailed.Inc()
	_ = c.pvAccess.Observe(ctx, "create", err) // for a stop; until then it is tried again in any case
	klog.FromContext(ctx).Error(err, "Cannot save PersistentVolume, trying again", "PV", klog.KObj(cr.unsaved), "PVC", klog.KObj(cr.claim))
	c.tell(cr.claim, eventSaveFailed(cr.unsaved, err))
}

// saved ends a create: the PersistentVolume stands for the volume from here on.
func (c *Controller) saved(ctx context.Context, cr create) {
	pv := cr.unsaved
	c.metrics.served(cr.claim, cr.plan)
	c.operations.End(cr.claim.UID)
	klog.FromContext(ctx).V(2).Info("Saved PersistentVolume", "PV", klog.KObj(pv), "PVC", klog.KObj(cr.claim))
	c.creates.put(create{claim: cr.claim, saved: pv.Name})
	c.quiet.forget(cr.claim.UID)
	if cached := c.cfg.Cache.ClaimByUID(cr.claim.UID); cached != nil {
		c.tell(cached, eventSucceeded(pv))
		if cached.Spec.VolumeName != "" {
			c.claims.Add(cached.UID) // seen bound before we were here
		}
	} else {
		c.claims.Add(cr.claim.UID)
	}
	c.release(ctx, cr.plan)
}

// claimIsGone reports whether the API server says that the claim is not there.
func (c *Controller) claimIsGone(ctx context.Context, claim *corev1.PersistentVolumeClaim) bool {
	live, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	return apierrors.IsNotFound(err) || (err == nil && (live.UID != claim.UID || live.DeletionTimestamp != nil))
}

// abandon deletes the volume of a PersistentVolume that cannot be saved and that nobody waits for, by the driver's own
// id: the object may name the volume in the terms of an in-tree plugin. The error is errVolumeInUse when another
// PersistentVolume has the volume.
func (c *Controller) abandon(ctx context.Context, cr create) error {
	secret, err := c.provisionerSecret(ctx, cr.plan, true)
	if err != nil {
		return err
	}
	if err := c.checkUnused(ctx, cr.volumeID, cr.claim.UID); err != nil {
		return err
	}
	err = c.cfg.Driver.DeleteVolume(c.cfg.WithMigrated(ctx, cr.plan.Translated), &csi.DeleteVolumeRequest{VolumeId: cr.volumeID, Secrets: values(secret)})
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Deleted the volume of a PersistentVolume that cannot be saved", "PV", klog.KObj(cr.unsaved), "PVC", klog.KObj(cr.claim))
	c.operations.End(cr.claim.UID)
	c.creates.drop(cr.claim.UID)
	c.release(ctx, cr.plan)
	return nil
}
