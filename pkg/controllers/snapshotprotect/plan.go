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

// usage is the source keys of the claims that keep their source. An error stands for a source of which nobody can tell.
type usage map[string]error

// add takes in claims with any sources.
func (u usage) add(claims []corev1.PersistentVolumeClaim, grants source.Grants) {
	for i := range claims {
		key := source.Key(&claims[i])
		by, err := source.InUse([]*corev1.PersistentVolumeClaim{&claims[i]}, grants)
		switch _, known := u[key]; {
		case key == "":
		case by != nil:
			u[key] = nil
		case err != nil && !known:
			u[key] = err
		}
	}
}
