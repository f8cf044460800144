package provision

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

// This file looks for the PersistentVolume that stands for the volume of a claim.

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

// existingPV returns the PersistentVolume that has the name of the claim's own to be, nil when there is none or
// when there can be no such name.
func (c *Controller) existingPV(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	name, err := c.cfg.Settings.volumeName(claim.UID)
	if err != nil {
		return nil
	}
	return c.cfg.Cache.PV(name)
}

// volumeOf returns the PersistentVolume that stands for the volume made for the claim, nil when the cache has none.
func (c *Controller) volumeOf(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	if pv := c.existingPV(claim); pv != nil && c.isOurs(pv, claim.UID, "") {
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
