package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// cleanupTries is how often the volume of a bad answer is tried to be deleted.
const cleanupTries = 5

// result is how one attempt ended: with a PersistentVolume to save, or an error.
type result struct {
	pv  *corev1.PersistentVolume
	err error
	// stopped says that a stop ended the attempt before the driver was called; err is meaningless then.
	stopped bool
	// volumeID is what the driver calls the volume of pv.
	volumeID string
	// call is nil when the driver was not called.
	call *call
	// secretVersion is the resource version of the secret that the call was made with; empty without one.
	secretVersion string
}

// apply calls the driver with the plan of cr. It puts cr back before the call, so that the create is known while it runs.
func (c *Controller) apply(ctx context.Context, cr *create, secret *corev1.Secret) result {
	cr.calling = true
	c.creates.put(*cr)
	res := c.call(c.cfg.WithMigrated(ctx, cr.plan.Translated), cr.plan, values(secret))
	if secret != nil {
		res.secretVersion = secret.ResourceVersion
	}
	return res
}

// prepare is what comes before the call, and before its operation is recorded: the secret is read, the source is protected. A stop ends it when a worker waits for it; the drain does so itself
// for a volume that may exist already.
func (c *Controller) prepare(ctx context.Context, cr *create) (*corev1.Secret, result) {
	ctx, cancel := loop.UntilStop(ctx, 0)
	defer cancel()
	asRead := cr.snapshot
	cr.snapshot = nil
	secret, err := c.provisionerSecret(ctx, cr.plan, cr.proto.unanswered)
	if err != nil {
		return nil, result{err: because(reasonSecret, err), stopped: ctx.Err() != nil}
	}
	// As late as can be: a claim that cannot succeed must not hold its source.
	if err := c.protectSource(ctx, cr.plan, asRead, cr.proto.unanswered); err != nil {
		return nil, result{err: because(reasonSource, err), stopped: ctx.Err() != nil}
	}
	return secret, result{}
}

// call calls the driver and makes a PersistentVolume of its answer.
func (c *Controller) call(ctx context.Context, plan *Plan, secrets map[string]string) result {
	req, err := c.requestOf(plan.Request, secrets)
	if err != nil {
		return result{err: err}
	}
	start := time.Now()
	resp, err := c.cfg.Driver.CreateVolume(ctx, req)
	if e, ok := errors.AsType[*outcome.Error](err); ok && e.Outcome == outcome.Unchanged {
		return result{err: err} // certainly not sent
	}
	ended := &call{
		start: start, outcome: outcome.OfCreate(err, plan.Reschedulable), code: outcome.Code(err), mayBeRunning: outcome.MayBeRunning(err),
	}
	if err != nil {
		return result{err: outcome.With(ended.outcome, err), call: ended}
	}
	pv, err := c.accept(plan, resp.GetVolume(), volume.CheckResponse(plan.Request, resp), func(id string) error {
		return c.cleanUp(ctx, plan.Claim, &csi.DeleteVolumeRequest{VolumeId: id, Secrets: secrets})
	})
	if err != nil {
		ended.outcome = outcome.Of(err)
		ended.mayBeRunning = ended.outcome == outcome.Background // nothing runs, and there is a volume
		return result{err: because(reasonBadVolume, err), call: ended}
	}
	return result{pv: pv, volumeID: resp.GetVolume().GetVolumeId(), call: ended}
}

// requestOf returns a copy of the plan's request that carries the secret values, which the plan never does, and
// the requirement in the form that costs the least to send.
func (c *Controller) requestOf(req *csi.CreateVolumeRequest, secrets map[string]string) (*csi.CreateVolumeRequest, error) {
	requirement, err := c.encoder.Compact(req.GetAccessibilityRequirements())
	if err != nil {
		return nil, fmt.Errorf("encode accessibility requirements: %w", err)
	}
	return &csi.CreateVolumeRequest{
		Name:                      req.GetName(),
		CapacityRange:             req.GetCapacityRange(),
		VolumeCapabilities:        req.GetVolumeCapabilities(),
		Parameters:                req.GetParameters(),
		Secrets:                   secrets,
		VolumeContentSource:       req.GetVolumeContentSource(),
		AccessibilityRequirements: requirement,
		MutableParameters:         req.GetMutableParameters(),
	}, nil
}

// accept makes the PersistentVolume. A volume that cannot be used is cleaned up: done, the create has ended and
// a repetition is put off for long; not done, the volume is still there and the create goes on.
func (c *Controller) accept(plan *Plan, vol *csi.Volume, bad error, cleanUp func(id string) error) (*corev1.PersistentVolume, error) {
	if bad != nil {
		response, _ := errors.AsType[*volume.BadResponse](bad)
		if response == nil || response.VolumeID == "" {
			return nil, outcome.With(outcome.Background, bad)
		}
		if err := cleanUp(response.VolumeID); err != nil {
			return nil, notCleanedUp(plan, bad, err)
		}
		return nil, outcome.WithSlow(outcome.Failed, bad)
	}
	pv := c.buildPV(plan, vol)
	if !plan.Translated {
		return pv, nil
	}
	inTree, err := c.cfg.Translator.TranslateToInTree(pv)
	if err == nil {
		return inTree, nil
	}
	err = fmt.Errorf("translate PersistentVolume %s to %s: %w", pv.Name, c.cfg.Settings.InTree, err)
	if cerr := cleanUp(vol.GetVolumeId()); cerr != nil {
		return nil, notCleanedUp(plan, err, cerr)
	}
	return nil, outcome.With(outcome.Failed, err)
}

// notCleanedUp returns the error for a volume that cannot be used because of bad, and that was not deleted because of err.
// A volume that another PersistentVolume has is not ours to delete: then nothing is left of this create.
func notCleanedUp(plan *Plan, bad, err error) error {
	if errors.Is(err, errVolumeInUse) {
		return outcome.With(outcome.Failed, fmt.Errorf("%w; it is not deleted: %w", bad, err))
	}
	return outcome.With(outcome.Background, fmt.Errorf("%w; cleanup failed, volume %s is orphaned until it succeeds: %w", bad, plan.Request.GetName(), err))
}

func (c *Controller) buildPV(plan *Plan, vol *csi.Volume) *corev1.PersistentVolume {
	var affinity *corev1.VolumeNodeAffinity
	if c.cfg.Settings.Capabilities.Topology {
		affinity = topology.Affinity(vol.GetAccessibleTopology())
	}
	return volume.BuildPV(volume.PVInput{
		Name:            plan.Request.GetName(),
		Driver:          c.cfg.Settings.Driver,
		ProvisionedBy:   plan.Class.Provisioner,
		Identity:        plan.Identity,
		Claim:           plan.Claim,
		ClassName:       volume.ClassName(plan.Claim),
		ReclaimPolicy:   plan.Class.ReclaimPolicy,
		MountOptions:    plan.Class.MountOptions,
		FSType:          plan.FSType,
		Secrets:         plan.Secrets,
		Labels:          plan.Labels,
		Annotations:     plan.Annotations,
		VACName:         plan.VACName,
		PublishReadonly: plan.PublishReadonly,
		Request:         plan.Request,
		Volume:          vol,
		NodeAffinity:    affinity,
	})
}

// cleanUp deletes the volume of an answer that cannot be used. Its operation ends after that.
func (c *Controller) cleanUp(ctx context.Context, claim *corev1.PersistentVolumeClaim, req *csi.DeleteVolumeRequest) error {
	var err error
	for range cleanupTries {
		if err := c.checkUnused(ctx, req.GetVolumeId(), claim.UID); err != nil {
			return err
		}
		if err = c.cfg.Driver.DeleteVolume(ctx, req); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// provisionerSecret reads the secret for the call, nil when there is none. When the claim is going and a create
// is outstanding, a secret that is gone must not keep it for ever: then the call is made without.
func (c *Controller) provisionerSecret(ctx context.Context, plan *Plan, outstanding bool) (*corev1.Secret, error) {
	ref := plan.Secrets.Provisioner
	if ref == nil {
		return nil, nil //nolint:nilnil // none
	}
	secret, err := cluster.GetSecret(ctx, c.cfg.Client, ref.Namespace, ref.Name)
	if err != nil {
		if outstanding && apierrors.IsNotFound(err) && c.isGoing(plan.Claim.UID) {
			klog.FromContext(ctx).Info("Secret is gone while the claim is being deleted, going on without", "secret", klog.KRef(ref.Namespace, ref.Name))
			return nil, nil //nolint:nilnil // none any more
		}
		return nil, fmt.Errorf("read provisioner secret %s in namespace %s: %w", ref.Name, ref.Namespace, err)
	}
	return secret, nil
}

// values returns what the driver gets of a secret; nil for none.
func values(secret *corev1.Secret) map[string]string {
	if secret == nil {
		return nil
	}
	values := make(map[string]string, len(secret.Data))
	for key, value := range secret.Data {
		values[key] = string(value)
	}
	return values
}

// isGoing reports whether the claim is gone or being deleted.
func (c *Controller) isGoing(uid types.UID) bool {
	claim := c.cfg.Cache.ClaimByUID(uid)
	return claim == nil || claim.DeletionTimestamp != nil
}
