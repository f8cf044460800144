package provision

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/text"
)

// event is what a user is told about an object. The reasons, and the phrases named in the tests, are API.
type event struct {
	kind, reason, text string
	own                bool // from the component external-provisioner
	begins             bool // an attempt begins
	aside              bool // no failure of the work, but of something beside it
}

func eventProvisioning(claim *corev1.PersistentVolumeClaim) event {
	return event{kind: corev1.EventTypeNormal, reason: "Provisioning", begins: true, text: fmt.Sprintf("External provisioner is provisioning volume for claim %q", klog.KObj(claim))}
}

// eventStill is told once a claim, with --quiet-events. failure is the last one, "" for none; calling says that the
// driver is at work.
func eventStill(claim *corev1.PersistentVolumeClaim, failure string, calling bool) event {
	state := failure
	switch {
	case failure == "":
		state = "waiting for the driver"
	case calling:
		state = "waiting for the driver again, after " + failure
	}
	return event{kind: corev1.EventTypeNormal, reason: "Provisioning", text: fmt.Sprintf("Still provisioning volume for claim %q, %s so far: %s", klog.KObj(claim), stillAfter, state)}
}

func eventSucceeded(pv *corev1.PersistentVolume) event {
	return event{kind: corev1.EventTypeNormal, reason: "ProvisioningSucceeded", text: "Successfully provisioned volume " + pv.Name}
}

// eventFailed shows the error as it is: what a driver says reaches the user unchanged.
func eventFailed(err error) event {
	return event{kind: corev1.EventTypeWarning, reason: "ProvisioningFailed", text: err.Error()}
}

func eventInfeasible(err error) event {
	return event{kind: corev1.EventTypeWarning, reason: "ProvisioningFailed", text: fmt.Sprintf("The request cannot be fulfilled as it is (infeasible), retries will be delayed until claim, class or what they name change: %v", err)}
}

func eventPopulator(kind, name string) event {
	return event{kind: corev1.EventTypeNormal, reason: "Provisioning", own: true, text: fmt.Sprintf("Assuming an external populator will provision the volume: this provisioner does not serve data source %s %q", kind, name)}
}

func eventSaveFailed(pv *corev1.PersistentVolume, err error) event {
	return event{kind: corev1.EventTypeWarning, reason: "ProvisioningFailed", text: fmt.Sprintf("The volume is made, and PersistentVolume %s cannot be saved yet: %v", pv.Name, err)}
}

// eventStuck names what an operator needs to find the volume and end the matter.
func eventStuck(driver, volumeName, why string) event {
	return event{kind: corev1.EventTypeWarning, reason: "ProvisioningFailed", text: fmt.Sprintf(
		"Driver %s may have been asked for volume %q for this claim before a restart, and the operation cannot be finished: %s. Bring that back as it was, or look for the volume in the storage system and end the operation with \"csi-provisioner operations forget\"",
		driver, volumeName, why)}
}

// eventLeftBehind is for a claim that goes while the driver has a volume of its name and gives it to nobody.
func eventLeftBehind(driver, volumeName string) event {
	return event{kind: corev1.EventTypeWarning, reason: "ProvisioningFailed", text: fmt.Sprintf(
		"The claim is let go, and driver %s may have a volume %q that no PersistentVolume stands for: it refuses to return the volume because it exists with other properties. Look for it in the storage system and delete it there if nobody uses it",
		driver, volumeName)}
}

// eventForgotten is for an operation that a person has ended. volumeID is the driver's handle, "" when it is not known.
func eventForgotten(driver, volumeName, volumeID string) event {
	volume := fmt.Sprintf("a volume %q", volumeName)
	if volumeID != "" {
		volume += fmt.Sprintf(" with the handle %q", volumeID)
	}
	return event{kind: corev1.EventTypeWarning, reason: "OperationForgotten", text: fmt.Sprintf(
		"The CreateVolume operation for this claim was ended by hand. Driver %s may have %s that no PersistentVolume stands for", driver, volume)}
}

// eventUnprotected is for an operation that cannot be recorded, whatever is waited for.
func eventUnprotected(err error) event {
	return event{kind: corev1.EventTypeWarning, reason: "OperationNotRecorded", aside: true, text: fmt.Sprintf(
		"The CreateVolume operation is not recorded in a Lease; if this process is killed during the call, a volume may be left behind: %v", err)}
}

func eventDeleteFailed(err error) event {
	return event{kind: corev1.EventTypeWarning, reason: "VolumeFailedDelete", text: err.Error()}
}

// eventSecretRefused is for a deletion that goes on without its secret.
func eventSecretRefused(err error) event {
	e := eventDeleteFailed(err)
	e.aside = true
	return e
}

func eventInUse(err error) event {
	return event{kind: corev1.EventTypeNormal, reason: "VolumeDelete", text: err.Error()}
}

// eventLetGo is for a PersistentVolume that goes while no claim ever held it: its volume is nobody's to delete.
func eventLetGo() event {
	return event{kind: corev1.EventTypeNormal, reason: "VolumeKept", text: "The PersistentVolume was never bound and is let go; its volume is not deleted"}
}

// eventNotRemoved is for a volume that is gone while its PersistentVolume cannot be removed.
func eventNotRemoved(err error) event {
	return event{kind: corev1.EventTypeWarning, reason: "VolumeFailedDelete", text: fmt.Sprintf("The volume is deleted, and the PersistentVolume cannot be removed yet: %v", err)}
}

// object is what an event is about: a claim or a PersistentVolume.
type object interface {
	runtime.Object
	GetUID() types.UID
}

// maxEventBytes is how much an event shows of a text.
const maxEventBytes = 1024

// tell records the event, or with --quiet-events only if it is news.
func (c *Controller) tell(about object, e event) {
	e.text = text.Cut(e.text, maxEventBytes) // what is remembered of it is no longer than what is told
	if c.quiet.news(about.GetUID(), e) {
		c.record(about, e)
	}
}

func (c *Controller) record(about object, e event) {
	recorder := c.cfg.Recorder
	if e.own {
		recorder = c.cfg.OwnRecorder
	}
	recorder.Event(about, e.kind, e.reason, e.text)
}
