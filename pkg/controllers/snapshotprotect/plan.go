package snapshotprotect

import (
	"slices"

	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// protected says that a snapshot carries our finalizer.
func protected(snapshot *snapv1.VolumeSnapshot) bool {
	return slices.Contains(snapshot.Finalizers, wellknown.FinalizerSnapshotSource)
}

// needsSource says that a claim has no volume yet and may still be filled from its source.
func needsSource(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Status.Phase == corev1.ClaimPending || claim.Status.Phase == ""
}

// contentName returns the name of the content that belongs to a snapshot; "" means that there is none yet.
func contentName(snapshot *snapv1.VolumeSnapshot) string {
	if snapshot.Status != nil && snapshot.Status.BoundVolumeSnapshotContentName != nil {
		return *snapshot.Status.BoundVolumeSnapshotContentName
	}
	if name := snapshot.Spec.Source.VolumeSnapshotContentName; name != nil {
		return *name
	}
	return ""
}

// inUse collects the source keys of the claims that still need theirs.
func inUse(into map[string]bool, claims []corev1.PersistentVolumeClaim) {
	for i := range claims {
		if key := source.Key(&claims[i]); key != "" && needsSource(&claims[i]) {
			into[key] = true
		}
	}
}
