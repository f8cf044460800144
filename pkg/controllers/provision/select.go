package provision

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// selection says what to do about a claim of which nothing is outstanding.
type selection int

const (
	// drop: not ours, or nothing to do now; the next event tells.
	drop selection = iota
	// dropBinding and dropForeign: the same, counted as an attempt that failed, since the original does so.
	dropBinding
	dropForeign
	// classMissing: ours, and its class is not there.
	classMissing
	// attempt: ours, and it needs a volume now.
	attempt
)

// ours reports whether the claim is for this driver.
func (s Settings) ours(claim *corev1.PersistentVolumeClaim) bool {
	return volume.OwnedClaim(claim, s.Driver, s.InTree)
}

// known reports whether the name is the driver's or its in-tree plugin's.
func (s Settings) known(provisioner string) bool {
	return provisioner != "" && (provisioner == s.Driver || provisioner == s.InTree)
}

// candidate is a claim of which no create is outstanding, with what decides about it.
type candidate struct {
	claim *corev1.PersistentVolumeClaim
	// class is the claim's, nil when it is missing.
	class *storagev1.StorageClass
	// existingPV is the PersistentVolume that has the name of the claim's own to be, nil when there is none.
	existingPV *corev1.PersistentVolume
}

// selectionCheck is one condition for an attempt.
type selectionCheck struct {
	// name says what must be true; for people.
	name string
	// stops reports whether it is not.
	stops func(s Settings, c candidate) bool
	// then is what follows when it is not, and reason is why, for the log.
	then   selection
	reason string
	// detail is why with the names of this claim; for people.
	detail func(s Settings, c candidate) string
}

// selectionChecks in the order in which they count; each relies on those before it.
var selectionChecks = []selectionCheck{
	{"the claim is not bound", isBound, drop, "bound", tellBound},
	{"the claim is for this driver", isForeign, drop, "another provisioner's", tellForeign},
	{"the claim is not being deleted", isTerminating, drop, "being deleted", tellTerminating},
	{"the claim's class exists", hasNoClass, classMissing, "its class is missing", tellNoClass},
	{"a node is selected where the class waits for one", waitsForNode, drop, "waits for the scheduler to select a node", tellWaits},
	{"the claim has no PersistentVolume yet", hasVolume, dropBinding, "its PersistentVolume exists and is about to be bound", tellVolume},
	{"the class names this driver", hasForeignClass, dropForeign, "its class names another provisioner than its annotation", tellForeignClass},
}

func isBound(_ Settings, c candidate) bool { return c.claim.Spec.VolumeName != "" }

func isForeign(s Settings, c candidate) bool { return !s.ours(c.claim) }

func isTerminating(_ Settings, c candidate) bool { return c.claim.DeletionTimestamp != nil }

func hasNoClass(_ Settings, c candidate) bool { return c.class == nil }

func waitsForNode(_ Settings, c candidate) bool {
	return waits(c.class) && c.claim.Annotations[wellknown.AnnSelectedNode] == ""
}

func hasVolume(_ Settings, c candidate) bool {
	return c.existingPV != nil && c.existingPV.Spec.ClaimRef != nil && c.existingPV.Spec.ClaimRef.UID == c.claim.UID
}

func hasForeignClass(s Settings, c candidate) bool { return !s.known(c.class.Provisioner) }

// selects decides about the claim. The reason is for the log.
func (s Settings) selects(c candidate) (selection, string) {
	if i := s.passedChecks(c); i < len(selectionChecks) {
		return selectionChecks[i].then, selectionChecks[i].reason
	}
	return attempt, ""
}

// passedChecks returns how many of the selectionChecks the claim passes: all of them, or those before the one that stops it.
func (s Settings) passedChecks(c candidate) int {
	for i := range selectionChecks {
		if selectionChecks[i].stops(s, c) {
			return i
		}
	}
	return len(selectionChecks)
}

// waits reports whether claims of the class are placed by the scheduler first.
func waits(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}
