package provision

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// deletion is how far the deletion of one PersistentVolume has come. The cache shows each step late, and no
// step is done twice because of that.
type deletion struct {
	pvName        string
	volumeDeleted bool // the driver said so
	objectDeleted bool // the API server accepted the DELETE
	released      bool // our finalizer is off
	saidInUse     bool // the user knows that it waits for an attachment
	refused       bool // the object cannot be removed for lack of a right
	// awaits is the claim whose operation must have ended before the driver is called; empty when it has.
	awaits types.UID
}

// deletions holds the state of PersistentVolumes, by their UID, until the cache shows them gone. The zero value
// is empty. Safe for concurrent use.
type deletions struct {
	mu    sync.Mutex
	byUID map[types.UID]deletion
}

func (d *deletions) get(uid types.UID) deletion {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byUID[uid]
}

func (d *deletions) put(uid types.UID, state deletion) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byUID == nil {
		d.byUID = map[types.UID]deletion{}
	}
	d.byUID[uid] = state
}

func (d *deletions) forget(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.byUID, uid)
}

// where returns the names of the PersistentVolumes whose deletion has the property, sorted.
func (d *deletions) where(property func(deletion) bool) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for _, state := range d.byUID {
		if property(state) {
			names = append(names, state.pvName)
		}
	}
	slices.Sort(names)
	return names
}

// halfDone reports whether the volume is deleted while its PersistentVolume is still there.
func (s deletion) halfDone() bool { return s.volumeDeleted && !s.released }

// syncVolume deletes one PersistentVolume with its volume, when its time has come.
func (c *Controller) syncVolume(ctx context.Context, name string) loop.Verdict {
	pv := c.cfg.Cache.PV(name)
	if pv == nil || !volume.Owned(pv, c.cfg.Settings.Driver, c.cfg.Settings.InTree) {
		return loop.Done()
	}
	defer c.settlePV(pv)
	ctx = klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "PV", klog.KObj(pv)))
	if !volume.WantsDelete(pv) {
		return loop.Done()
	}
	release, ok := c.lockPV(pv)
	if !ok {
		return loop.After(lockedRetry)
	}
	defer release()
	c.noteSaved(ctx, pv)
	return c.deleteVolume(ctx, pv)
}

// deleteVolume deletes the volume, once, and then its PersistentVolume.
func (c *Controller) deleteVolume(ctx context.Context, pv *corev1.PersistentVolume) loop.Verdict {
	state := c.deletions.get(pv.UID)
	// A deletion is forgotten when its PersistentVolume has left the cache: what is not known of one that is still
	// there was never begun.
	if state.released || c.cachedPV(pv) == nil {
		return loop.Done() // the cache shows old news
	}
	if !state.volumeDeleted && !c.operationEnded(pv, &state) {
		return loop.Parked()
	}
	ctx, span := c.volumeSpan(ctx, pv)
	defer span.End()
	start := time.Now()
	if !state.volumeDeleted {
		err := c.callDelete(ctx, pv)
		if verdict, ok := c.notDeleted(ctx, pv, &state, err); !ok {
			return verdict
		}
		state.pvName, state.volumeDeleted = pv.Name, true
		c.deletions.put(pv.UID, state)
		c.cfg.Observer.VolumeDeleted(pv.Spec.StorageClassName, pv.Spec.NodeAffinity)
	}
	if err := c.removePV(ctx, pv, &state); err != nil {
		return c.notRemoved(ctx, pv, state, err)
	}
	state.released = true
	c.deletions.put(pv.UID, state)
	c.metrics.deleted(pv, time.Since(start))
	klog.FromContext(ctx).V(2).Info("Deleted volume and PersistentVolume")
	return loop.Done()
}

// operationEnded reports whether no Lease says the operation that made the volume any more: a later process would create a
// deleted volume again. If not, the end of that brings the PersistentVolume back.
func (c *Controller) operationEnded(pv *corev1.PersistentVolume, state *deletion) bool {
	ref := pv.Spec.ClaimRef
	if ref == nil {
		return true
	}
	state.pvName, state.awaits = pv.Name, ref.UID
	c.deletions.put(pv.UID, *state) // before the question, so that no answer is missed
	if !c.operations.Ended(ref.UID) {
		return false
	}
	state.awaits = ""
	c.deletions.put(pv.UID, *state)
	return true
}

// settlePV forgets a PersistentVolume whose last event came while it was worked on.
func (c *Controller) settlePV(pv *corev1.PersistentVolume) {
	if c.cachedPV(pv) == nil {
		c.quiet.forget(pv.UID)
		c.deletions.forget(pv.UID)
		c.upkeep.forget(pv)
	}
}

// notDeleted turns an error of callDelete into what follows; it returns true when there was none.
func (c *Controller) notDeleted(ctx context.Context, pv *corev1.PersistentVolume, state *deletion, err error) (loop.Verdict, bool) {
	if err == nil {
		return loop.Verdict{}, true
	}
	trace.Fail(ctx, err)
	defer func() { c.deletions.put(pv.UID, *state) }()
	if inUse, ok := asInUse(err); ok {
		if !state.saidInUse {
			state.saidInUse = true
			c.tell(pv, eventInUse(inUse))
		}
		return loop.Again(), false
	}
	if outcome.Of(err) == outcome.NotOurs {
		klog.FromContext(ctx).V(4).Info("Not deleting", "reason", err.Error())
		return loop.Done(), false
	}
	klog.FromContext(ctx).Error(err, "Cannot delete the volume", "class", pv.Spec.StorageClassName, "code", codeOf(err))
	c.metrics.notDeleted(pv)
	c.tell(pv, eventDeleteFailed(err))
	if outcome.Busy(err) {
		return loop.Busy(), false
	}
	return loop.Again(), false
}

// removePV deletes the object and removes our finalizer from it, each once.
func (c *Controller) removePV(ctx context.Context, pv *corev1.PersistentVolume, state *deletion) error {
	if !state.objectDeleted && pv.DeletionTimestamp == nil {
		if err := c.deletePV(ctx, pv); err != nil {
			return fmt.Errorf("delete PersistentVolume: %w", err)
		}
	}
	state.objectDeleted = true
	if !has(pv.Finalizers, wellknown.FinalizerPV) {
		if c.finalizers.Denied() {
			return nil
		}
		// Our finalizer may have been added after the cache saw pv, here or by the instance of another node. From
		// now on nobody can: the API server takes no new finalizers on an object that is being deleted.
		live, err := c.livePV(ctx, pv)
		if err != nil || live == nil || !has(live.Finalizers, wellknown.FinalizerPV) {
			return err
		}
	}
	return c.finalizers.Write(ctx, c.cfg.Client, cluster.FinalizerPatch{PV: pv.Name, UID: pv.UID, Finalizer: wellknown.FinalizerPV, Remove: true})
}

// deletePV deletes the object. It is no error when the object is gone.
func (c *Controller) deletePV(ctx context.Context, pv *corev1.PersistentVolume) error {
	err := c.pvAccess.Do(ctx, "delete", func() error {
		return c.cfg.Client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pv.UID))})
	})
	if apierrors.IsConflict(err) {
		// Either the name belongs to an object with another UID now, or an admission webhook denies the request.
		live, readErr := c.livePV(ctx, pv)
		switch {
		case readErr != nil:
			return fmt.Errorf("%w; and %w", err, readErr)
		case live == nil:
			return nil
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
