package nodecleanup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// pass is one round.
type pass struct {
	c   *Controller
	now time.Time
	// first is the look that suspects are judged by. Before each write another one must confirm it.
	first *look
}

// round looks at everything that hangs on a node, and ends what has been hopeless for long enough. What hangs on a node
// that cannot be read is left alone; the round goes on with the rest.
func (c *Controller) round(stop, work context.Context) {
	defer c.suspects.end()
	if err := loop.Guard(work, component, func() error { return c.visit(stop, work) }); err != nil {
		advice := "none: tried again at the next round"
		if apierrors.IsForbidden(err) {
			advice = "grant the service account the verbs get and list on nodes, and get on csinodes.storage.k8s.io"
		}
		klog.FromContext(work).Error(err, "Cannot judge some claims or volumes, they are not cleaned up", "advice", advice)
	}
}

// visit returns the joined errors of nodes that cannot be read, and the panics.
func (c *Controller) visit(stop, work context.Context) error {
	p := &pass{c: c, now: time.Now(), first: c.look()}
	var failures loop.Failures
	claims, pvs := c.hanging()
	for _, name := range c.claimTurn.order(slices.Sorted(maps.Keys(claims)), maxPerRound) {
		if hasEnded(stop) {
			return nil
		}
		failures.Add(loop.Guard(work, component, func() error { return p.claim(work, name, claims[name]) }))
	}
	for _, name := range c.pvTurn.order(slices.Sorted(maps.Keys(pvs)), maxPerRound) {
		if hasEnded(stop) {
			return nil
		}
		failures.Add(loop.Guard(work, component, func() error { return p.pv(work, pvs[name]) }))
	}
	return failures.Err()
}

func hasEnded(ctx context.Context) bool { return ctx.Err() != nil }

// hanging returns what hangs on a node: claims by namespace and name, PersistentVolumes by name.
func (c *Controller) hanging() (map[string]*corev1.PersistentVolumeClaim, map[string]*corev1.PersistentVolume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	claims, pvs := map[string]*corev1.PersistentVolumeClaim{}, map[string]*corev1.PersistentVolume{}
	for _, claim := range c.claims {
		claims[claim.Namespace+"/"+claim.Name] = claim
	}
	for _, pv := range c.pvs {
		pvs[pv.Name] = pv
	}
	return claims, pvs
}

// claim looks at one claim. The error says that nodes cannot be read.
func (p *pass) claim(ctx context.Context, name string, claim *corev1.PersistentVolumeClaim) error {
	node := selectedNode(claim, p.c.names)
	h := p.c.suspects.of(suspect{uid: claim.UID, node: node})
	if h == nil || !h.due(p.now) {
		return nil // most claims are served until the next round
	}
	state, err := p.first.at(ctx, node)
	if err != nil {
		h.failed()
		return err
	}
	if state == serving {
		h.well(p.now, p.c.cfg.Interval)
		return nil
	}
	if h.wrong(state, p.now) < p.c.cfg.ClaimGrace || !p.c.claimTurn.take(name) {
		return nil
	}
	confirmed, err := p.c.look().at(ctx, node)
	if err != nil {
		h.failed()
		return err
	}
	if confirmed == state {
		p.c.unselect(klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "PVC", klog.KObj(claim))), claim, node, state)
		return nil
	}
	if confirmed == serving {
		h.well(p.now, p.c.cfg.Interval)
	} else {
		h.wrong(confirmed, p.now)
	}
	return nil
}

// unselect takes the selected node off the claim, if the claim is still as it was judged.
func (c *Controller) unselect(ctx context.Context, claim *corev1.PersistentVolumeClaim, node string, state nodeState) {
	logger := klog.FromContext(ctx)
	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	changed := false
	_, err := cluster.UpdateClaim(ctx, c.cfg.Client, name, claim.UID, func(live *corev1.PersistentVolumeClaim) bool {
		if changed = selectedNode(live, c.names) == node; changed {
			delete(live.Annotations, wellknown.AnnSelectedNode)
		}
		return changed
	})
	switch {
	case errors.Is(err, cluster.ErrGone) || err == nil && !changed:
		return
	case err != nil:
		logger.Error(err, "Cannot take the selected node off the claim, trying again", "node", node)
		return
	}
	logger.V(2).Info("Took the selected node off the claim", "node", node)
	reason, why := reasonNodeGone, "is gone"
	if state == driverless {
		reason, why = reasonNoDriver, "does not run driver "+c.cfg.Driver
	}
	c.cfg.Recorder.Eventf(claim, corev1.EventTypeWarning, reason, "Node %q, selected for this claim, %s: asking for another node", node, why)
}

// The reasons of events.
const (
	reasonNodeGone = "NodeGone"
	reasonNoDriver = "NodeWithoutDriver"
)

// pv looks at one PersistentVolume. The error says that nodes cannot be read.
func (p *pass) pv(ctx context.Context, pv *corev1.PersistentVolume) error {
	h := p.c.suspects.of(suspect{uid: pv.UID})
	if h == nil || !h.due(p.now) {
		return nil // most are deleted by their node until the next round
	}
	ctx = klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "PV", klog.KObj(pv)))
	questions, err := questionsFor(pv, p.c.cfg.Driver)
	if err != nil {
		klog.FromContext(ctx).V(4).Info("Cannot tell the nodes of the volume", "reason", err.Error())
		return nil
	}
	if lost, err := p.lost(ctx, h, p.first, questions); err != nil || !lost {
		return err
	}
	if h.wrong(gone, p.now) < p.c.cfg.VolumeGrace || !p.c.pvTurn.take(pv.Name) {
		return nil
	}
	if lost, err := p.lost(ctx, h, p.c.look(), questions); err != nil || !lost {
		return err
	}
	if err := p.c.abandon(ctx, pv); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot remove the PersistentVolume of nodes that are gone, trying again")
	}
	return nil
}

// lost reports whether there is no node that the questions are about, and notes when there is one or nobody can tell.
func (p *pass) lost(ctx context.Context, h *history, at *look, questions []question) (bool, error) {
	none, err := at.none(ctx, questions)
	switch {
	case err != nil:
		h.failed()
	case !none:
		h.well(p.now, p.c.cfg.Interval)
	}
	return none && err == nil, err
}

// abandon removes a PersistentVolume without deleting its volume.
func (c *Controller) abandon(ctx context.Context, pv *corev1.PersistentVolume) error {
	volumes := c.cfg.Client.CoreV1().PersistentVolumes()
	live, err := volumes.Get(ctx, pv.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read PersistentVolume: %w", err)
	case live.UID != pv.UID || !stranded(live, c.names) || len(c.cfg.Cache.AttachmentsOf(pv.Name)) > 0:
		return nil
	}
	if live.DeletionTimestamp == nil {
		// Whoever changes it in this moment, its policy for one, wins.
		err := volumes.Delete(ctx, pv.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &live.UID, ResourceVersion: &live.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete PersistentVolume: %w", err)
		}
	}
	c.cfg.Recorder.Eventf(pv, corev1.EventTypeWarning, reasonNodeGone,
		"The nodes that the volume of driver %s is accessible from are gone: the PersistentVolume is removed, the data of volume %q are not deleted", c.cfg.Driver, handleOf(pv))
	if err := cluster.PatchPVFinalizer(ctx, c.cfg.Client, cluster.FinalizerPatch{PV: pv.Name, UID: pv.UID, Finalizer: wellknown.FinalizerPV, Remove: true}); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Removed the PersistentVolume of nodes that are gone", "volume", handleOf(pv))
	return nil
}

// handleOf returns the volume's handle, "" for a volume of the in-tree plugin.
func handleOf(pv *corev1.PersistentVolume) string {
	if pv.Spec.CSI == nil {
		return ""
	}
	return pv.Spec.CSI.VolumeHandle
}
