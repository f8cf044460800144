package provision

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// VolumeExplanation is an Explanation about the deletion of a PersistentVolume.
type VolumeExplanation struct {
	Explanation
	// PV is what the question is about. Read-only.
	PV *corev1.PersistentVolume
	// Finalizer is what is done first about our finalizer on PV.
	Finalizer volume.FinalizerChange
	// Request is the call that would be made, without its secrets; nil when none would.
	Request *csi.DeleteVolumeRequest
	// Secret is read for the call; nil for none.
	Secret *corev1.SecretReference
}

// The stages of a PersistentVolume.
const (
	stageVolume = "volume"
	stageCall   = "call"
)

// ExplainDeletion tells whether the controller would delete the volume of a PersistentVolume now, by the code that does
// it. See ExplainClaim for what it does not do, and for the error.
func (c *Controller) ExplainDeletion(name string) (*VolumeExplanation, error) {
	pv := c.cfg.Cache.PV(name)
	if pv == nil {
		return nil, fmt.Errorf("PersistentVolume %s: %w", name, ErrNoObject)
	}
	e := &VolumeExplanation{PV: pv, Explanation: Explanation{Answer: AnswerNothing}}
	checks := volume.DeletionChecks()
	e.stage(stageVolume, append([]string{"it belongs to this driver"}, names(checks, func(d volume.DeletionCheck) string { return d.Name })...))
	e.stage(stageCall, append(names(deletionSteps, func(s deletionStep) string { return s.name }), "the volume is attached to no node"))
	if s := c.cfg.Settings; !volume.Owned(pv, s.Driver, s.InTree) {
		e.reached(stageVolume, 0, c.tellOwner(pv))
		return e, nil
	}
	if e.Finalizer = volume.FinalizerUpkeep(pv); e.Finalizer != volume.KeepFinalizer {
		e.notef("The finalizer %s is due a change: %s.", wellknown.FinalizerPV, e.Finalizer)
	}
	for i, check := range checks {
		if !check.Passes(pv) {
			e.reached(stageVolume, 1+i, check.Cause(pv))
			e.notef("The next change of the PersistentVolume is looked at again.")
			return e, nil
		}
	}
	e.reached(stageVolume, 1+len(checks), "")
	c.explainCall(e)
	return e, nil
}

// explainCall is for a PersistentVolume whose volume is to be deleted.
func (c *Controller) explainCall(e *VolumeExplanation) {
	p, passed, err := c.planDeletion(e.PV)
	if err != nil {
		e.reached(stageCall, passed, err.Error())
		if outcome.Of(err) != outcome.NotOurs {
			e.Answer = AnswerRefuse
			e.notef("The PersistentVolume gets an event with the cause. It is tried again after %s, then after ever longer pauses up to %s.", c.cfg.RetryStart, c.cfg.RetryMax)
		}
		return
	}
	if p.note != "" {
		e.notef("No secret: %s.", p.note)
	}
	if p.untold != nil {
		e.notef("The PersistentVolume gets an event: %v.", p.untold)
	}
	if p.refused != nil {
		e.notef("The PersistentVolume gets an event: %v.", refusedSecret(p.refused))
	}
	if !c.cfg.Settings.Capabilities.PublishUnpublish {
		e.notef("Attachments are not looked at: the driver has no PUBLISH_UNPUBLISH_VOLUME.")
	}
	e.Request, e.Secret = p.request(nil), p.secret
	if err := c.detached(e.PV); err != nil {
		e.reached(stageCall, passed, err.Error())
		e.Answer = AnswerWait
		e.notef("It is looked at again when the attachment has gone, and after ever longer pauses up to %s.", c.cfg.RetryMax)
		return
	}
	e.reached(stageCall, passed+1, "")
	e.Answer = AnswerDelete
	if p.secret != nil {
		e.notef("Before the call, secret %s/%s is read for it; if it is gone or may not be read, the call is made without.", p.secret.Namespace, p.secret.Name)
	}
	e.notef("When the driver has deleted the volume, the PersistentVolume is deleted and loses the finalizer %s.", wellknown.FinalizerPV)
	e.notef("When the driver fails, the PersistentVolume gets an event, and the call is repeated after %s, then after ever longer pauses up to %s.", c.cfg.RetryStart, c.cfg.RetryMax)
}

// tellOwner says why the PersistentVolume is not this driver's.
func (c *Controller) tellOwner(pv *corev1.PersistentVolume) string {
	this := c.cfg.Settings.Driver
	switch by, known := pv.Annotations[wellknown.AnnProvisionedBy]; {
	case known && !c.cfg.Settings.known(by):
		return fmt.Sprintf("it was provisioned by %q, and this is driver %q", by, this)
	case pv.Spec.CSI != nil:
		return fmt.Sprintf("its driver is %q, and this is driver %q", pv.Spec.CSI.Driver, this)
	}
	return fmt.Sprintf("nothing on it names driver %q", this)
}
