package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// upkeepWorkers is how many finalizers of existing PersistentVolumes are changed at once.
const upkeepWorkers = 2

// upkeep keeps our finalizer on existing PersistentVolumes as it should be. Nobody waits for that, so it has a queue and
// a client of its own, and neither claims nor deletions wait behind it.
type upkeep struct {
	queue *loop.Loop[string] // keyed by PersistentVolume name

	mu      sync.Mutex
	waiting map[string]bool    // PersistentVolumes whose change waits for a right
	told    map[types.UID]bool // PersistentVolumes that have an event about that
}

func newUpkeep(cfg Config, process func(context.Context, string) loop.Verdict) (*upkeep, error) {
	queue, err := loop.New(loop.Config[string]{
		Name: "pvfinalizers", Workers: upkeepWorkers, Process: process, RetryStart: cfg.RetryStart, RetryMax: cfg.RetryMax,
	})
	if err != nil {
		return nil, err
	}
	return &upkeep{queue: queue, waiting: map[string]bool{}, told: map[types.UID]bool{}}, nil
}

// wait lets the PersistentVolume wait for the right. It reports whether that is still to be told.
func (u *upkeep) wait(pv *corev1.PersistentVolume) (untold bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting[pv.Name] = true
	return !u.told[pv.UID]
}

func (u *upkeep) tell(pv *corev1.PersistentVolume) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.told[pv.UID] = true
}

// wake brings all that wait back to the queue.
func (u *upkeep) wake() {
	u.mu.Lock()
	names := slices.Sorted(maps.Keys(u.waiting))
	clear(u.waiting)
	u.mu.Unlock()
	for _, name := range names {
		u.queue.Add(name)
	}
}

// forget drops what is known of a PersistentVolume that is gone.
func (u *upkeep) forget(pv *corev1.PersistentVolume) {
	u.queue.Forget(pv.Name)
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.waiting, pv.Name)
	delete(u.told, pv.UID)
}

// syncFinalizer adds our finalizer to one PersistentVolume or removes it, if that is due. The change is bound to the
// version that the cache has: one that was released meanwhile, or got another reclaim policy, is looked at anew.
func (c *Controller) syncFinalizer(ctx context.Context, name string) loop.Verdict {
	pv := c.cfg.Cache.PV(name)
	if pv == nil || !volume.Owned(pv, c.cfg.Settings.Driver, c.cfg.Settings.InTree) {
		return loop.Done()
	}
	change := volume.FinalizerUpkeep(pv)
	if change == volume.KeepFinalizer {
		return loop.Done()
	}
	defer c.settlePV(pv)
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "PV", klog.KObj(pv), "change", change.String())
	err := c.finalizers.Write(ctx, c.cfg.BackgroundClient, cluster.FinalizerPatch{
		PV: pv.Name, UID: pv.UID, ResourceVersion: pv.ResourceVersion, Finalizer: wellknown.FinalizerPV, Remove: change == volume.RemoveFinalizer,
	})
	going := change == volume.RemoveFinalizer && pv.DeletionTimestamp != nil
	switch {
	case err == nil:
	case errors.Is(err, cluster.ErrGone):
		return loop.Done()
	case errors.Is(err, cluster.ErrNotGranted):
		if untold := c.upkeep.wait(pv); untold && going {
			c.upkeep.tell(pv)
			logger.Error(err, "Cannot remove our finalizer from a PersistentVolume that is being deleted")
			c.tell(pv, eventFinalizerStays(err))
		}
		return loop.Parked()
	case apierrors.IsConflict(err):
		logger.V(4).Info("The PersistentVolume has changed, looking at it again", "err", err)
		return loop.Again()
	default:
		logger.Error(err, "Cannot change our finalizer, trying again")
		return loop.Again()
	}
	logger.V(2).Info("Changed our finalizer")
	if going && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		c.tell(pv, eventLetGo())
	}
	return loop.Done()
}

// asGranted returns the PersistentVolume as it is to be created: without our finalizer if that could not be removed.
// Releases of external-provisioner before v5.0 created all of them so. pv is not changed.
func (c *Controller) asGranted(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	if !c.finalizers.Denied() {
		return pv
	}
	bare := pv.DeepCopy()
	bare.Finalizers, _ = cluster.RemoveFinalizer(bare.Finalizers, wellknown.FinalizerPV)
	return bare
}

// notRemoved is what follows for a PersistentVolume that cannot be removed after its volume was deleted. The lack of a
// right is told once, and wakeRefused brings the PersistentVolume back when it is granted.
func (c *Controller) notRemoved(ctx context.Context, pv *corev1.PersistentVolume, state deletion, err error) loop.Verdict {
	trace.Fail(ctx, err)
	told := state.refused
	state.refused = errors.Is(err, cluster.ErrNotGranted)
	c.deletions.put(pv.UID, state)
	if state.refused && told {
		return loop.Parked()
	}
	c.metrics.notDeleted(pv)
	klog.FromContext(ctx).Error(err, "The volume is deleted, its PersistentVolume cannot be removed, trying again")
	c.tell(pv, eventNotRemoved(err))
	if state.refused {
		return loop.Parked()
	}
	return loop.Again()
}

// wakeRefused brings PersistentVolumes back to their queues that waited for a right that is not refused any more.
func (c *Controller) wakeRefused() {
	deletes, changes := c.pvAccess.Refusal("delete") == nil, c.finalizers.Refusal() == nil
	for _, name := range c.deletions.where(func(d deletion) bool {
		return d.refused && !d.released && ((d.objectDeleted && changes) || (!d.objectDeleted && deletes))
	}) {
		c.volumes.Add(name)
	}
	if changes {
		c.upkeep.wake()
	}
}

// eventFinalizerStays is for a PersistentVolume that is being deleted without its volume and cannot go.
func eventFinalizerStays(err error) event {
	return event{kind: corev1.EventTypeWarning, reason: "VolumeFailedDelete", text: fmt.Sprintf("The volume is not to be deleted, and the finalizer of the PersistentVolume cannot be removed: %v", err)}
}
