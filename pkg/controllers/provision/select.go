package provision

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// selection says whether it is a claim's turn.
type selection int

const (
	// drop: not ours or not its turn; the next event tells.
	drop selection = iota
	// dropCounted: the same, counted as an attempt that failed.
	dropCounted
	// classMissing: ours, and its class is not there.
	classMissing
	// attempt: ours, and its turn.
	attempt
)

// ours reports whether the claim is for this driver: its provisioner is the driver, or the in-tree plugin that
// the driver replaces and the claim was migrated.
func (s Settings) ours(claim *corev1.PersistentVolumeClaim) bool {
	provisioner := volume.Provisioner(claim)
	if provisioner != s.Driver && claim.Annotations[wellknown.AnnMigratedTo] != s.Driver {
		return false
	}
	return s.known(provisioner)
}

// known reports whether the name is the driver's or its in-tree plugin's.
func (s Settings) known(provisioner string) bool {
	return provisioner != "" && (provisioner == s.Driver || provisioner == s.InTree)
}

// selects decides about a claim of which no create is outstanding. class is the claim's, nil when it is
// missing; holder is the PersistentVolume that has the name of the claim's own to be, nil when there is none.
// The reason is for the log.
func (s Settings) selects(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, holder *corev1.PersistentVolume) (selection, string) {
	switch {
	case claim.Spec.VolumeName != "":
		return drop, "bound"
	case !s.ours(claim):
		return drop, "another provisioner's"
	case claim.DeletionTimestamp != nil:
		return drop, "being deleted"
	case class == nil:
		return classMissing, "its class is missing"
	case waits(class) && claim.Annotations[wellknown.AnnSelectedNode] == "":
		return drop, "waits for the scheduler to select a node"
	case holder != nil && holder.Spec.ClaimRef != nil && holder.Spec.ClaimRef.UID == claim.UID:
		return dropCounted, "its PersistentVolume exists and is about to be bound"
	case !s.known(class.Provisioner):
		return dropCounted, "its class names another provisioner than its annotation"
	}
	return attempt, ""
}

// waits reports whether claims of the class are placed by the scheduler first.
func waits(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}
