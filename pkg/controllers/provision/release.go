package provision

import (
	"context"
	"errors"
	"slices"
	"sync"

	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// releases are the snapshots that a volume was made from and that still have our finalizer: other claims may need them,
// or it could not be taken off. What is forgotten here, when the process ends, is found by the sweep of snapshots.
// Safe for concurrent use.
type releases struct {
	mu  sync.Mutex
	due map[types.NamespacedName]types.UID // snapshot → its UID when the volume was made, "" for any
}

func (r *releases) add(name types.NamespacedName, uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due[name] = uid
}

func (r *releases) get(name types.NamespacedName) (types.UID, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	uid, ok := r.due[name]
	return uid, ok
}

func (r *releases) drop(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.due, name)
}

// release lets the snapshot go that the volume of the plan was made from, if that is what it was made from.
func (c *Controller) release(ctx context.Context, plan *Plan) {
	c.releaseSnapshot(ctx, plan.Source, plan.SourceUID)
}

// releaseSnapshot removes our finalizer from the source, if that is a snapshot and no other claim needs it.
func (c *Controller) releaseSnapshot(ctx context.Context, ref source.Reference, uid types.UID) {
	if ref.Kind != source.Snapshot {
		return
	}
	name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	c.releases.add(name, uid)
	if c.syncRelease(ctx, name) != loop.Done() {
		c.snapshots.Add(name)
	}
}

// syncRelease takes our finalizer off a snapshot, unless a claim still needs it: the event of that one's end brings the
// snapshot back.
func (c *Controller) syncRelease(ctx context.Context, name types.NamespacedName) loop.Verdict {
	uid, due := c.releases.get(name)
	if !due {
		return loop.Done()
	}
	switch needed, err := c.snapshotNeeded(name); {
	case err != nil:
		klog.FromContext(ctx).V(2).Info("Snapshot keeps its protection for now", "VolumeSnapshot", klog.KRef(name.Namespace, name.Name), "err", err)
		return loop.Again()
	case needed:
		return loop.Done()
	}
	_, err := cluster.UpdateSnapshot(ctx, c.cfg.Snapshots, name, uid, func(live *snapv1.VolumeSnapshot) bool {
		var changed bool
		live.Finalizers, changed = cluster.RemoveFinalizer(live.Finalizers, wellknown.FinalizerSnapshotSource)
		return changed
	})
	if err != nil && !errors.Is(err, cluster.ErrGone) {
		klog.FromContext(ctx).V(2).Info("Snapshot keeps its protection for now", "VolumeSnapshot", klog.KRef(name.Namespace, name.Name), "err", err)
		if !apierrors.IsForbidden(err) {
			return loop.Again()
		}
	}
	c.releases.drop(name)
	return loop.Done()
}

// snapshotNeeded reports whether a volume is being made from the snapshot, or a claim waits for that. After an error it
// must be treated as needed.
func (c *Controller) snapshotNeeded(name types.NamespacedName) (bool, error) {
	key := source.SnapshotKey(name.Namespace, name.Name)
	if c.ForSource(key) {
		return true, nil
	}
	var grants source.Grants
	if c.cfg.Settings.CrossNamespace {
		grants = c.cfg.Cache.Grants
	}
	claims := c.cfg.Cache.ClaimsBySource(key)
	claims = slices.DeleteFunc(slices.Clone(claims), func(claim *corev1.PersistentVolumeClaim) bool { return !c.needsVolume(claim) })
	by, err := source.InUse(claims, grants)
	return by != nil, err
}

// needsVolume reports whether no volume of the claim is known. One that was just saved is bound a little later.
func (c *Controller) needsVolume(claim *corev1.PersistentVolumeClaim) bool {
	if claim.Spec.VolumeName != "" {
		return false
	}
	if cr, ok := c.creates.get(claim.UID); ok && cr.saved != "" {
		return false
	}
	return c.volumeOf(claim) == nil
}

// wakeRelease brings a snapshot to the queue that a claim has kept, when the claim is bound or gone.
func (c *Controller) wakeRelease(old, now *corev1.PersistentVolumeClaim) {
	if old == nil || old.Spec.VolumeName != "" || (now != nil && now.Spec.VolumeName == "") {
		return
	}
	ref, err := source.Of(old, true)
	if err != nil || ref.Kind != source.Snapshot {
		return
	}
	name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	if _, due := c.releases.get(name); due {
		c.snapshots.Add(name)
	}
}
