package provision

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/secret"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// stuckEvery is how often, at most, a user is told of a create that cannot be finished.
const stuckEvery = 5 * time.Minute

// recoveredOperations are operations that an earlier process left and that no worker has taken up yet. The zero value is
// empty. Safe for concurrent use.
type recoveredOperations struct {
	mu    sync.Mutex
	byUID map[types.UID]operations.Operation
}

func (r *recoveredOperations) put(op operations.Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byUID == nil {
		r.byUID = map[types.UID]operations.Operation{}
	}
	r.byUID[op.Claim.UID] = op
}

func (r *recoveredOperations) get(claim types.UID) (operations.Operation, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	op, ok := r.byUID[claim]
	return op, ok
}

// fromSource reports whether one of them is from the source with that source.Key.
func (r *recoveredOperations) fromSource(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, op := range r.byUID {
		if source.Key(planOf(op).Claim) == key {
			return true
		}
	}
	return false
}

func (r *recoveredOperations) drop(claim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byUID, claim)
}

// takeUp makes a create of an operation that an earlier process left: it is outstanding until the driver answers. What was
// saved already ends it. The error says that this cannot be told now.
func (c *Controller) takeUp(ctx context.Context, op operations.Operation) error {
	pv, err := c.readPV(ctx, op.VolumeName)
	if err != nil {
		return err
	}
	claim, err := c.liveClaim(ctx, op.Claim)
	if err != nil {
		return err
	}
	if cr, ok := c.creates.get(op.Claim.UID); ok && cr.beginning != nil {
		cr.beginning.span.End() // what this process was about to begin gives way
	}
	plan := planOf(op)
	if claim != nil {
		plan.Claim.ResourceVersion, plan.Claim.CreationTimestamp = claim.ResourceVersion, claim.CreationTimestamp
	}
	logger := klog.FromContext(ctx)
	if pv != nil && c.isOurs(pv, op.Claim.UID, "") && !volume.LeavesVolume(pv) {
		logger.V(2).Info("The PersistentVolume of an operation of an earlier process is there", "PV", klog.KObj(pv))
		c.operations.End(op.Claim.UID)
		c.creates.put(create{claim: plan.Claim, saved: pv.Name})
		c.recovered.drop(op.Claim.UID)
		c.release(ctx, plan)
		return nil
	}
	logger.V(2).Info("Finishing an operation that an earlier process left", "volume", op.VolumeName)
	now := time.Now()
	c.creates.put(create{claim: plan.Claim, plan: plan, proto: takenOver(now), busySince: now, recorded: true, recovered: &op})
	c.recovered.drop(op.Claim.UID)
	return nil
}

// liveClaim reads the claim from the API server, nil when it is gone.
func (c *Controller) liveClaim(ctx context.Context, claim operations.Object) (*corev1.PersistentVolumeClaim, error) {
	live, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && live.UID != claim.UID:
		return nil, nil //nolint:nilnil // nil is how it says that the object is gone
	case err != nil:
		return nil, fmt.Errorf("read claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return live, nil
}

// drive brings an outstanding create on. claim is nil when it is gone; nothing about the claim, its class or its
// source ends the create, only the driver's answers, a PersistentVolume that stands for the volume, and a person do.
func (c *Controller) drive(ctx context.Context, cr create, claim *corev1.PersistentVolumeClaim) loop.Verdict {
	if pv := c.volumeOf(cr.claim); pv != nil && !volume.LeavesVolume(pv) {
		c.operations.End(cr.claim.UID)
		c.creates.put(create{claim: cr.claim, saved: pv.Name})
		c.release(ctx, cr.plan)
		return loop.After(0)
	}
	start := time.Now()
	ctx, span := c.claimSpan(ctx, spanProvision, cr.claim)
	defer span.End()
	if verdict, ok := c.checkOperation(ctx, cr); !ok {
		return verdict
	}
	if cr.recovered != nil {
		if verdict, ok := c.replay(ctx, &cr, claim); !ok {
			return verdict
		}
	}
	if !c.acquireLimits(ctx, cr) {
		return loop.Parked()
	}
	c.tell(cr.claim, eventProvisioning(cr.claim))
	secret, res := c.prepare(ctx, &cr)
	switch {
	case res.stopped:
		return loop.Again()
	case res.err != nil:
		return c.conclude(ctx, cr, cr.plan, res)
	}
	return c.carryOut(ctx, cr, secret, start)
}

// replay makes the request of an earlier process ready to be sent again. It returns false with what follows when it cannot
// be sent.
func (c *Controller) replay(ctx context.Context, cr *create, claim *corev1.PersistentVolumeClaim) (loop.Verdict, bool) {
	if why := c.secretsChanged(*cr.recovered, claim); why != "" {
		return c.stuck(ctx, *cr, why), false
	}
	if !cr.recovered.TopologyReduced || c.cfg.Topologies == nil {
		return loop.Verdict{}, true
	}
	requirement, err := c.cfg.Topologies.Require(ctx, c.topologyRequest(cr.claim, cr.plan.Class, placement{
		node: cr.recovered.SelectedNode, hint: firstSegments(cr.plan.Request.GetAccessibilityRequirements()), outstanding: true,
	}))
	if err != nil {
		err = because(reasonPlace, outcome.With(outcome.Unchanged, fmt.Errorf("generate accessibility requirements: %w", err)))
		return c.conclude(ctx, *cr, cr.plan, result{err: err}), false
	}
	plan, whole := *cr.plan, *cr.recovered
	plan.Request, _ = proto.Clone(plan.Request).(*csi.CreateVolumeRequest)
	plan.Request.AccessibilityRequirements = requirement
	whole.TopologyReduced = false
	cr.plan, cr.recovered = &plan, &whole
	return loop.Verdict{}, true
}

// secretsChanged returns why the references to secrets of an earlier process must not be used, "" if they may: the class
// that they came from must still give them. Whoever may write Leases may not choose secrets by that.
func (c *Controller) secretsChanged(op operations.Operation, claim *corev1.PersistentVolumeClaim) string {
	if op.Secrets == (volume.SecretRefs{}) {
		return ""
	}
	class := c.cfg.Cache.Class(op.Class.Name)
	switch {
	case class == nil:
		return fmt.Sprintf("its class %q is gone, which names its secrets", op.Class.Name)
	case class.UID != op.Class.UID:
		return fmt.Sprintf("its class %q, which names its secrets, was created again since", op.Class.Name)
	}
	translated, err := c.translated(class)
	if err != nil {
		return fmt.Sprintf("its class %q cannot be translated: %v", op.Class.Name, err)
	}
	names := secret.Names{PVName: op.VolumeName, ClaimName: op.Claim.Name, ClaimNamespace: op.Claim.Namespace}
	if claim != nil {
		names.ClaimAnnotations = claim.Annotations
	}
	refs, err := volume.ResolveSecrets(translated.Parameters, names)
	switch {
	case err != nil:
		return fmt.Sprintf("its class %q does not give its secrets any more: %v", op.Class.Name, err)
	case !reflect.DeepEqual(refs, op.Secrets):
		return fmt.Sprintf("its class %q gives other secrets than those that the operation was begun with", op.Class.Name)
	}
	return ""
}

// firstSegments returns the segments of the first term, nil for none.
func firstSegments(r *csi.TopologyRequirement) map[string]string {
	for _, term := range append(slices.Clone(r.GetPreferred()), r.GetRequisite()...) {
		return term.GetSegments()
	}
	return nil
}

// stuck is what follows for an operation that cannot be replayed: the user is told, now and every few minutes.
func (c *Controller) stuck(ctx context.Context, cr create, why string) loop.Verdict {
	c.metrics.failed(cr.claim, reasonClassMissing)
	trace.Fail(ctx, errors.New(why))
	if now := time.Now(); now.Sub(cr.stuckSaid) >= stuckEvery {
		cr.stuckSaid = now
		klog.FromContext(ctx).Info("An operation of an earlier process cannot be finished", "volume", cr.volumeName(), "reason", why)
		c.tell(cr.claim, eventStuck(c.cfg.Settings.Driver, cr.volumeName(), why))
	}
	c.creates.put(cr)
	return loop.After(stuckEvery)
}
