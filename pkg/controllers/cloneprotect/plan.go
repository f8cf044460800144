package cloneprotect

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// protected says that a claim is being deleted and waits for us.
func protected(claim *corev1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp != nil && slices.Contains(claim.Finalizers, wellknown.FinalizerCloneSource)
}
