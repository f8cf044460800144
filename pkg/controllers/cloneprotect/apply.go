package cloneprotect

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// release takes our finalizer off the claim as it is in the API server. Another claim of the same name, or one that
// is not being deleted, stays as it is.
func (c *Controller) release(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	_, err := cluster.UpdateClaim(ctx, c.cfg.Client, name, claim.UID, func(live *corev1.PersistentVolumeClaim) bool {
		if !protected(live) {
			return false
		}
		live.Finalizers, _ = cluster.RemoveFinalizer(live.Finalizers, wellknown.FinalizerCloneSource)
		return true
	})
	return err
}
