package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// Pre-releases put a finalizer and an annotation on claims while a volume was being made for them. This file finishes what
// such a claim speaks of, once, and removes both.

// formerMarker is the annotation. Only UID and Driver are relied on; Node says which instance has written it.
type formerMarker struct {
	UID    types.UID `json:"uid"`
	Driver string    `json:"driver"`
	Node   string    `json:"node,omitempty"`
}

// formerMarkerOf returns the marker of the claim, and false when there is none that this instance has to remove.
func (c *Controller) formerMarkerOf(claim *corev1.PersistentVolumeClaim) (formerMarker, bool) {
	text, annotated := claim.Annotations[wellknown.AnnProvisioningInProgress]
	if !annotated && !slices.Contains(claim.Finalizers, wellknown.FinalizerProvisioningInProgress) {
		return formerMarker{}, false
	}
	var m formerMarker
	if err := json.Unmarshal([]byte(text), &m); err != nil || m.Driver == "" {
		return formerMarker{}, c.cfg.Settings.ours(claim)
	}
	if m.Driver != c.cfg.Settings.Driver {
		return m, false
	}
	// Another node's instance finishes its own, unless the claim is to go.
	return m, c.cfg.Node == nil || m.Node == "" || m.Node == c.cfg.Node.name() || claim.DeletionTimestamp != nil
}

// syncFormerMarker removes the marker. If it says that a volume may have been made for this very claim, the operation is
// recorded first and goes on as one of an earlier process. The claim's lock is held.
func (c *Controller) syncFormerMarker(ctx context.Context, claim *corev1.PersistentVolumeClaim, m formerMarker) loop.Verdict {
	if m.UID == claim.UID && c.cfg.Settings.ours(claim) && claim.Spec.VolumeName == "" && c.volumeOf(claim) == nil &&
		(c.cfg.Node == nil || m.Node == c.cfg.Node.name()) {
		if verdict, ok := c.adoptMarked(ctx, claim, m); !ok {
			return verdict
		}
	}
	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	_, err := cluster.UpdateClaim(ctx, c.cfg.Client, name, claim.UID, func(live *corev1.PersistentVolumeClaim) bool {
		if _, there := c.formerMarkerOf(live); !there {
			return false
		}
		delete(live.Annotations, wellknown.AnnProvisioningInProgress)
		live.Finalizers, _ = cluster.RemoveFinalizer(live.Finalizers, wellknown.FinalizerProvisioningInProgress)
		return true
	})
	if err != nil && !errors.Is(err, cluster.ErrGone) {
		klog.FromContext(ctx).Error(err, "Cannot remove the finalizer of a pre-release from the claim, trying again", "finalizer", wellknown.FinalizerProvisioningInProgress)
		return loop.Again()
	}
	return loop.After(0)
}

// adoptMarked records the operation of a marked claim, as far as the claim still tells it. It returns false with what
// follows when that takes longer.
func (c *Controller) adoptMarked(ctx context.Context, claim *corev1.PersistentVolumeClaim, m formerMarker) (loop.Verdict, bool) {
	volumeName, _ := c.cfg.Settings.volumeName(claim.UID)
	class := c.cfg.Cache.Class(volume.ClassName(claim))
	if class == nil {
		c.tell(claim, eventStuck(c.cfg.Settings.Driver, volumeName, fmt.Sprintf("its class %q is gone", volume.ClassName(claim))))
		return loop.Verdict{}, true
	}
	facts := c.gatherFor(ctx, claim, class, placement{node: m.Node, outstanding: true})
	plan, err := MakePlan(facts, c.cfg.Settings)
	switch {
	case err != nil && facts.unread():
		klog.FromContext(ctx).Info("Cannot finish the operation of a pre-release yet, trying again", "volume", volumeName, "err", err.Error())
		return loop.Again(), false
	case err != nil:
		c.tell(claim, eventStuck(c.cfg.Settings.Driver, volumeName, err.Error()))
		return loop.Verdict{}, true
	}
	op := operationOf(plan)
	switch status := c.operations.Begin(op); status.State {
	case operations.Waiting, operations.Recovered:
		return loop.Parked(), false
	case operations.Recorded, operations.Unprotected:
		now := time.Now()
		c.creates.put(create{claim: claim, plan: plan, proto: takenOver(now), busySince: now, recorded: status.State == operations.Recorded})
	case operations.Lost, operations.Forgotten:
		c.operations.End(claim.UID)
	}
	return loop.Verdict{}, true
}
