package cloneprotect

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// protected says that a claim is being deleted and waits for us.
func protected(claim *corev1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp != nil && slices.Contains(claim.Finalizers, wellknown.FinalizerCloneSource)
}

// needsSource says that a claim has no volume yet and may still be filled from its source. A phase that was never
// written means the same as Pending.
func needsSource(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Status.Phase == corev1.ClaimPending || claim.Status.Phase == ""
}

// neededBy returns the first of the clones that still needs the source; nil means that none does. A claim that names
// itself as its source does not count, or it would never go.
func neededBy(origin *corev1.PersistentVolumeClaim, clones []*corev1.PersistentVolumeClaim, grants source.Grants) *corev1.PersistentVolumeClaim {
	for _, clone := range clones {
		if clone.UID != origin.UID && needsSource(clone) && source.Entitled(clone, grants) {
			return clone
		}
	}
	return nil
}
