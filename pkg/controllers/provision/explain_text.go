package provision

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// What follows is for people only: why a selection check failed, and what comes before and after a call.

func tellBound(_ Settings, c candidate) string {
	return fmt.Sprintf("it has PersistentVolume %s", c.claim.Spec.VolumeName)
}

func tellForeign(s Settings, c candidate) string {
	provisioner := volume.Provisioner(c.claim)
	switch to := c.claim.Annotations[wellknown.AnnMigratedTo]; {
	case provisioner == "" && c.class != nil && waits(c.class) && c.claim.Annotations[wellknown.AnnSelectedNode] == "":
		return fmt.Sprintf("class %q waits for the first pod that uses the claim: kube-controller-manager names the provisioner when the scheduler has selected a node", c.class.Name)
	case provisioner == "" && c.class == nil:
		return tellNoClass(s, c) + ", so that kube-controller-manager has not named its provisioner"
	case provisioner == "":
		return "kube-controller-manager has not named its provisioner (annotation " + wellknown.AnnStorageProvisioner + ")"
	case to != "" && to != s.Driver:
		return fmt.Sprintf("its provisioner %q was migrated to driver %q, and this is driver %q", provisioner, to, s.Driver)
	case provisioner == s.InTree:
		return fmt.Sprintf("its provisioner is the plugin %q, and the claim was not migrated to driver %q (annotation %s)", provisioner, s.Driver, wellknown.AnnMigratedTo)
	}
	return fmt.Sprintf("its provisioner is %q, and this is driver %q", provisioner, s.Driver)
}

func tellTerminating(_ Settings, c candidate) string {
	return "it is being deleted since " + c.claim.DeletionTimestamp.UTC().Format("2006-01-02 15:04:05 MST")
}

func tellNoClass(_ Settings, c candidate) string {
	if name := volume.ClassName(c.claim); name != "" {
		return fmt.Sprintf("class %q does not exist", name)
	}
	return "it names no class"
}

func tellWaits(_ Settings, c candidate) string {
	return fmt.Sprintf("class %q waits for the first pod that uses the claim, and the scheduler has selected no node", c.class.Name)
}

func tellVolume(_ Settings, c candidate) string {
	return fmt.Sprintf("PersistentVolume %s stands for it (phase %s), and kube-controller-manager binds the two", c.existingPV.Name, c.existingPV.Status.Phase)
}

func tellForeignClass(s Settings, c candidate) string {
	return fmt.Sprintf("class %q names %q, and this is driver %q", c.class.Name, c.class.Provisioner, s.Driver)
}

// noteNotSelected says what brings the claim back.
func (c *Controller) noteNotSelected(e *ClaimExplanation, selected selection) {
	if selected == classMissing {
		e.notef("It is tried again after %s, then after ever longer pauses up to %s.", c.cfg.RetryStart, c.cfg.RetryMax)
		return
	}
	e.notef("The next change of the claim is looked at again.")
}

// noteFailed says what follows an attempt that ends with err before the driver is called.
func (c *Controller) noteFailed(e *ClaimExplanation, err error) {
	switch {
	case outcome.Of(err) == outcome.NotOurs:
		e.notef("A populator is expected to provision the claim; an event says so once.")
	case outcome.Of(err) == outcome.Reschedule && e.Claim.Annotations[wellknown.AnnSelectedNode] != "":
		e.notef("The claim gets an event with the cause, and its selected node is taken off, so that the scheduler selects one again.")
	default:
		e.notef("The claim gets an event with the cause. It is tried again after %s, then after ever longer pauses up to %s, and when the claim changes.", c.cfg.RetryStart, c.cfg.RetryMax)
	}
}

// noteCall says what comes before and after the call of CreateVolume.
func (c *Controller) noteCall(e *ClaimExplanation) {
	plan := e.Plan
	if e.SourceFinalizer != "" && !e.SourceProtected {
		e.notef("Before the call, %s %s/%s gets the finalizer %s.", plan.Source.KindName, plan.Source.Namespace, plan.Source.Name, e.SourceFinalizer)
	}
	if ref := plan.Secrets.Provisioner; ref != nil {
		e.notef("Before the call, secret %s/%s is read for it; that it exists was not checked here.", ref.Namespace, ref.Name)
	}
	if c.cfg.Operations != nil && !c.cfg.Operations.ReadOnly && e.Answer != AnswerResume {
		e.notef("Before the call, the operation is recorded in a Lease.")
	}
	form := ""
	if plan.Translated {
		form = fmt.Sprintf(" in the form of %s", c.cfg.Settings.InTree)
	}
	policy := corev1.PersistentVolumeReclaimDelete
	if plan.Class.ReclaimPolicy != nil {
		policy = *plan.Class.ReclaimPolicy
	}
	e.notef("When the driver has made the volume, PersistentVolume %s is saved for the claim%s, with reclaim policy %s.", plan.Request.GetName(), form, policy)
	again := fmt.Sprintf("the call is repeated after %s, then after ever longer pauses up to %s", c.cfg.RetryStart, c.cfg.RetryMax)
	if plan.Reschedulable {
		again += "; for RESOURCE_EXHAUSTED the selected node is taken off the claim, so that the scheduler selects another"
	}
	e.notef("When the driver fails, the claim gets an event, and %s.", again)
}
