package provision

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/trace"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// What a trace consists of: attempts to provision, tries to save the PersistentVolume after the first, attempts to
// delete.
const (
	spanProvision = "provision"
	spanSave      = "save"
	spanDelete    = "delete"
	// spanPlan is the part of an attempt that reads and decides.
	spanPlan = "plan"
)

// claimSpan begins the span of an attempt for the claim.
func (c *Controller) claimSpan(ctx context.Context, name string, claim *corev1.PersistentVolumeClaim) (context.Context, *trace.Span) {
	if c.cfg.Tracer == nil {
		return ctx, nil
	}
	pvName, _ := c.cfg.Settings.volumeName(claim.UID)
	return c.cfg.Tracer.Start(ctx, name, trace.Subject{
		UID: string(claim.UID), Namespace: claim.Namespace, Claim: claim.Name, PV: pvName, Class: volume.ClassName(claim),
		Driver: c.cfg.Settings.Driver,
	})
}

// volumeSpan begins the span of an attempt to delete the volume, in the trace of the claim that it was made for.
func (c *Controller) volumeSpan(ctx context.Context, pv *corev1.PersistentVolume) (context.Context, *trace.Span) {
	if c.cfg.Tracer == nil {
		return ctx, nil
	}
	s := trace.Subject{UID: string(pv.UID), PV: pv.Name, Class: pv.Spec.StorageClassName, Driver: c.cfg.Settings.Driver}
	if claim := pv.Spec.ClaimRef; claim != nil && claim.UID != "" {
		s.UID, s.Namespace, s.Claim = string(claim.UID), claim.Namespace, claim.Name
	}
	return c.cfg.Tracer.Start(ctx, spanDelete, s)
}
