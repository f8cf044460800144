package provision

import (
	"context"
	"fmt"

	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// protectSource puts our finalizer on the source that was looked at. What an outstanding create reads from is not let go
// because of an error here: it may be too late for a finalizer, not for the create. asRead is a snapshot source as it was
// a moment ago, nil when this attempt has not read it.
func (c *Controller) protectSource(ctx context.Context, plan *Plan, asRead *snapv1.VolumeSnapshot, outstanding bool) error {
	ref, finalizer := plan.Source, sourceFinalizer(plan.Source.Kind)
	name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	var err error
	switch ref.Kind {
	case source.None, source.Populator:
		return nil
	case source.Claim:
		if claim := c.cfg.Cache.Claim(ref.Namespace, ref.Name); claim != nil && claim.UID == plan.SourceUID && has(claim.Finalizers, finalizer) {
			return nil
		}
		_, err = cluster.UpdateClaim(ctx, c.cfg.Client, name, plan.SourceUID, func(live *corev1.PersistentVolumeClaim) bool {
			var changed bool
			live.Finalizers, changed = cluster.AddFinalizer(live.Finalizers, finalizer)
			return changed
		})
	case source.Snapshot:
		err = c.protectSnapshot(ctx, name, plan.SourceUID, asRead, finalizer)
		if apierrors.IsForbidden(err) {
			klog.FromContext(ctx).Info("Snapshot is restored from without protection, grant update on volumesnapshots.snapshot.storage.k8s.io", "VolumeSnapshot", klog.KRef(ref.Namespace, ref.Name), "err", err)
			return nil
		}
	}
	if err == nil || outstanding {
		return nil
	}
	return fmt.Errorf("protect %s %s/%s as data source: %w", ref.KindName, ref.Namespace, ref.Name, err)
}

// sourceFinalizer returns what protects a source of that kind, empty for none.
func sourceFinalizer(kind source.Kind) string {
	switch kind {
	case source.Claim:
		return wellknown.FinalizerCloneSource
	case source.Snapshot:
		return wellknown.FinalizerSnapshotSource
	case source.None, source.Populator:
	}
	return ""
}

// protectSnapshot reads the snapshot again only when somebody else has written it since.
func (c *Controller) protectSnapshot(ctx context.Context, name types.NamespacedName, uid types.UID, asRead *snapv1.VolumeSnapshot, finalizer string) error {
	if asRead != nil {
		finalizers, changed := cluster.AddFinalizer(asRead.Finalizers, finalizer)
		if !changed {
			return nil
		}
		protected := asRead.DeepCopy()
		protected.Finalizers = finalizers
		_, err := c.cfg.Snapshots.SnapshotV1().VolumeSnapshots(name.Namespace).Update(ctx, protected, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			return err
		}
	}
	_, err := cluster.UpdateSnapshot(ctx, c.cfg.Snapshots, name, uid, func(live *snapv1.VolumeSnapshot) bool {
		var changed bool
		live.Finalizers, changed = cluster.AddFinalizer(live.Finalizers, finalizer)
		return changed
	})
	return err
}

func has(finalizers []string, finalizer string) bool {
	_, absent := cluster.AddFinalizer(finalizers, finalizer)
	return !absent
}
