package volume

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// ClassName returns the name of the claim's class: the legacy annotation when it is there, even when it is
// empty, else the field. "" means no class.
func ClassName(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[wellknown.AnnBetaStorageClass]; ok {
		return name
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}

// PVClassName is ClassName for a PersistentVolume.
func PVClassName(pv *corev1.PersistentVolume) string {
	if name, ok := pv.Annotations[wellknown.AnnBetaStorageClass]; ok {
		return name
	}
	return pv.Spec.StorageClassName
}

// SelectedNode returns the name of the node that the claim's volume is for: the first of the two annotations
// that is there. "" means none.
func SelectedNode(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[wellknown.AnnSelectedNode]; ok {
		return name
	}
	return claim.Annotations[wellknown.AnnAlphaSelectedNode]
}

// Provisioner returns the name of the provisioner that must serve the claim: the annotation when it is there,
// even when it is empty, else its older twin. "" means nobody.
func Provisioner(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[wellknown.AnnStorageProvisioner]; ok {
		return name
	}
	return claim.Annotations[wellknown.AnnBetaStorageProvisioner]
}

// OwnedClaim reports whether the claim is for the driver: its provisioner is the driver, or the in-tree plugin that the
// driver replaces ("" for none) and the claim was migrated.
func OwnedClaim(claim *corev1.PersistentVolumeClaim, driver, inTree string) bool {
	provisioner := Provisioner(claim)
	if provisioner == "" || (provisioner != driver && provisioner != inTree) {
		return false
	}
	return provisioner == driver || claim.Annotations[wellknown.AnnMigratedTo] == driver
}

// RequestBytes returns the size that the claim asks for in bytes, fractions rounded up; 0 when it asks for none,
// and the largest number for one that is larger still.
func RequestBytes(claim *corev1.PersistentVolumeClaim) int64 {
	size, _ := source.RequestBytes(claim)
	return size
}

// isBlock reports whether the claim asks for a raw device.
func isBlock(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock
}
