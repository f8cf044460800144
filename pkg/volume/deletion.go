package volume

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/secret"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// Owned reports whether the PersistentVolume is ours to delete: it was provisioned by the driver, or by the
// in-tree plugin that the driver replaces ("" for none), or nobody says who provisioned it and the driver
// serves it. One with the CSI source of another driver is never ours: its handle means nothing to this driver.
func Owned(pv *corev1.PersistentVolume, driver, inTree string) bool {
	ours := func(name string) bool { return name != "" && (name == driver || name == inTree) }
	if pv.Spec.CSI != nil && !ours(pv.Spec.CSI.Driver) {
		return false
	}
	by, known := pv.Annotations[wellknown.AnnProvisionedBy]
	switch {
	case known:
		return ours(by) || ours(pv.Annotations[wellknown.AnnMigratedTo])
	case pv.Spec.CSI != nil:
		return true
	}
	return ours(pv.Annotations[wellknown.AnnMigratedTo])
}

// FinalizerChange is what is to be done about our finalizer on a PersistentVolume.
type FinalizerChange int

const (
	// KeepFinalizer is the zero value: leave it as it is, there or not.
	KeepFinalizer FinalizerChange = iota
	// AddFinalizer is for volumes that must not go before the driver has deleted them.
	AddFinalizer
	// RemoveFinalizer is for volumes that we will not delete.
	RemoveFinalizer
)

// String returns the name as it appears in logs.
func (c FinalizerChange) String() string {
	switch c {
	case KeepFinalizer:
		return "Keep"
	case AddFinalizer:
		return "Add"
	case RemoveFinalizer:
		return "Remove"
	}
	return "invalid"
}

// FinalizerUpkeep returns what is to be done about our finalizer on a PersistentVolume of ours.
//
//	policy  phase               terminating  finalizer  change
//	Delete  Bound               no           absent     Add
//	Delete  Available, Pending  yes          present    Remove, unless made for a claim
//	Delete  any other           any          any        Keep
//	other   any                 any          present    Remove
//
// A terminating PersistentVolume that no claim ever held will never be Released, so nobody else would let it go.
// One that names its claim by UID was made for it, and may hold data or a volume that a create has just
// made: it is Released when the claim goes and then deleted as usual.
func FinalizerUpkeep(pv *corev1.PersistentVolume) FinalizerChange {
	present := hasFinalizer(pv)
	terminating := pv.DeletionTimestamp != nil
	switch {
	case pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		if present {
			return RemoveFinalizer
		}
	case !terminating:
		if !present && pv.Status.Phase == corev1.VolumeBound {
			return AddFinalizer
		}
	case present && neverBound(pv):
		return RemoveFinalizer
	}
	return KeepFinalizer
}

// DeletionCheck is one of the things that must be true of a PersistentVolume of ours before its volume is deleted.
type DeletionCheck struct {
	// Name says what must be true; for people.
	Name string
	// Passes reports whether it is.
	Passes func(pv *corev1.PersistentVolume) bool
	// Cause says why it is not, when it is not; for people.
	Cause func(pv *corev1.PersistentVolume) string
}

var deletionChecks = []DeletionCheck{
	{
		Name: "its reclaim policy is Delete",
		Passes: func(pv *corev1.PersistentVolume) bool {
			return pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
		},
		Cause: func(pv *corev1.PersistentVolume) string {
			return fmt.Sprintf("its reclaim policy is %q: the volume is kept", pv.Spec.PersistentVolumeReclaimPolicy)
		},
	},
	{
		Name: "its phase is Released, or Failed while it is being deleted",
		Passes: func(pv *corev1.PersistentVolume) bool {
			return pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed && pv.DeletionTimestamp != nil
		},
		Cause: func(pv *corev1.PersistentVolume) string {
			if ref := pv.Spec.ClaimRef; ref != nil && pv.Status.Phase == corev1.VolumeBound {
				return fmt.Sprintf("its phase is Bound: it is released when claim %s/%s is deleted", ref.Namespace, ref.Name)
			}
			return fmt.Sprintf("its phase is %q", pv.Status.Phase)
		},
	},
	{
		Name: "it carries our finalizer if it is being deleted",
		Passes: func(pv *corev1.PersistentVolume) bool {
			return pv.DeletionTimestamp == nil || hasFinalizer(pv)
		},
		Cause: func(*corev1.PersistentVolume) string {
			return "it is being deleted without the finalizer " + wellknown.FinalizerPV + ": the volume was deleted before, or is kept"
		},
	},
}

// DeletionChecks returns the checks of WantsDelete in their order. The slice must not be changed.
func DeletionChecks() []DeletionCheck { return deletionChecks }

// WantsDelete reports whether the volume of a PersistentVolume of ours is to be deleted now, that is, whether it
// passes all checks: it is Released and its policy is Delete. A terminating one must still carry our finalizer, else
// this was done before. Failed is like Released for those that are terminating with our finalizer, which otherwise
// would stay for ever.
func WantsDelete(pv *corev1.PersistentVolume) bool {
	for i := range deletionChecks {
		if !deletionChecks[i].Passes(pv) {
			return false
		}
	}
	return true
}

// LeavesVolume reports whether the PersistentVolume of ours is being deleted while its volume is not: nothing keeps the
// object until the volume is deleted.
func LeavesVolume(pv *corev1.PersistentVolume) bool {
	return pv.DeletionTimestamp != nil && (!hasFinalizer(pv) || pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete)
}

func neverBound(pv *corev1.PersistentVolume) bool {
	switch pv.Status.Phase {
	case "", corev1.VolumePending, corev1.VolumeAvailable:
		return pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == ""
	case corev1.VolumeBound, corev1.VolumeReleased, corev1.VolumeFailed:
	}
	return false
}

func hasFinalizer(pv *corev1.PersistentVolume) bool {
	return slices.Contains(pv.Finalizers, wellknown.FinalizerPV)
}

// DeletionSecretInput is what the Secret for DeleteVolume is found from. Everything is only read.
type DeletionSecretInput struct {
	// PV is the PersistentVolume whose volume is deleted. Required.
	PV *corev1.PersistentVolume
	// Class is the class that DeletionClass names, translated if it is one of the in-tree plugin and the volume
	// is migrated; nil when there is none.
	Class *storagev1.StorageClass
	// Claim is the claim that the PersistentVolume was bound to, nil when it is gone. One with another UID than
	// that in PV is not looked at.
	Claim *corev1.PersistentVolumeClaim
}

// DeletionClass returns the name of the class that DeletionSecret needs for pv, "" when it needs none.
func DeletionClass(pv *corev1.PersistentVolume) string {
	if _, recorded := recordedSecret(pv); recorded {
		return ""
	}
	return PVClassName(pv)
}

// DeletionSecret returns the Secret whose values DeleteVolume gets, or nil for none: the one recorded on the
// PersistentVolume when it was made, else what the class names today. note is not empty when there is none
// because something is missing that should be there: a warning for the operator. An error means that the class
// cannot be resolved for this volume; it carries no outcome, so the deletion is tried again. One that is
// secret.ErrNoAnnotation stays when the claim is gone: no later try can tell the name of the Secret.
func DeletionSecret(in DeletionSecretInput) (ref *corev1.SecretReference, note string, err error) {
	if recorded, ok := recordedSecret(in.PV); ok {
		return recorded, "", nil
	}
	if PVClassName(in.PV) == "" {
		return nil, "", nil
	}
	if in.Class == nil {
		return nil, "the class of the volume does not exist, deleting without a secret", nil
	}
	claim := in.PV.Spec.ClaimRef
	if claim == nil {
		return nil, "the volume has no claim to resolve the secret for, deleting without one", nil
	}
	names := secret.Names{PVName: in.PV.Name, ClaimName: claim.Name, ClaimNamespace: claim.Namespace}
	if in.Claim != nil && in.Claim.UID == claim.UID {
		names.ClaimAnnotations = in.Claim.Annotations
	}
	ref, err = secret.Resolve(secret.Provisioner, in.Class.Parameters, names)
	return ref, "", err
}

// recordedSecret returns the reference in the annotations, nil for an incomplete one, and whether both are there.
func recordedSecret(pv *corev1.PersistentVolume) (*corev1.SecretReference, bool) {
	name, hasName := pv.Annotations[wellknown.AnnDeletionSecretName]
	namespace, hasNamespace := pv.Annotations[wellknown.AnnDeletionSecretNamespace]
	if !hasName || !hasNamespace {
		return nil, false
	}
	if name == "" || namespace == "" {
		return nil, true
	}
	return &corev1.SecretReference{Name: name, Namespace: namespace}, true
}
